"""A coordinator that means harm: what its messages name is not run, not opened and not believed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from equipoise import __version__
from equipoise.config import Config
from equipoise.deploy.coordinator import federated
from equipoise.deploy.policy import approved
from equipoise.deploy.site import OURS, Desk
from equipoise.locate import Code
from equipoise.server.journal import read as read_journal

MakeConfig = Callable[..., Config]
SITE = "site-00"
MINE = "from pathlib import Path\nfrom equipoise import Method\nPath({mark!r}).touch()\nclass Mine(Method):\n    '''Mine.'''\n"
tickets = count(1)


@pytest.fixture
def home(tiny: MakeConfig, tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """home(**policy) → the desk of a site with that policy."""
    from tests.flower.conftest import write_site

    made: list[Desk] = []

    def make(**policy: Any) -> Desk:
        usual: dict[str, Any] = {"small_cell": 0, "methods": approved()}
        folder = write_site(tmp_path / f"site-{len(made)}", SITE, tiny(), usual | policy)
        made.append(Desk(folder))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


def invite(desk: Desk, config: Config, run: str = "0123456789abcdef", **sections: dict[str, Any]) -> dict[str, Any]:
    """What a site says to an invitation."""
    table = {key: value for key, value in federated(config).table().items() if key not in OURS}
    table |= {name: {**table[name], **changes} for name, changes in sections.items()}
    letter = {"run": run, "ticket": next(tickets), "site": SITE, "round": 0, "question": ""}
    return desk.reply("query", {**letter, "config": table, "version": __version__}, {})[0]


def reasons(desk: Desk) -> str:
    return json.dumps(read_journal(desk.folder / "journal.jsonl")[0])


# Code ----------------------------------------------------------------------------------------------------------------


def test_code_that_the_coordinator_names_is_not_run(home: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.format(mark=str(tmp_path / "ran")))
    desk = home()
    for name in (f"{tmp_path}/mine.py:Mine", "../mine.py:Mine", "antigravity:Mine", "this:Mine", "/nowhere/at/all.py:Mine"):
        told = invite(desk, tiny(), method={"name": name})
        assert told["refused"] == f"policy rule 'methods': '{name}' is not approved at this site"
    assert not (tmp_path / "ran").exists() and not {"antigravity", "this"} & set(sys.modules)
    assert not (desk.folder / "runs").exists()


def test_approved_code_is_run_and_changed_code_is_not(home: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(mark=str(tmp_path / "ran")))
    name = f"{path}:Mine"
    desk = home(methods={name: Code(name, tmp_path, "x").fingerprint})
    path.write_text(MINE.format(mark=str(tmp_path / "ran")) + "# and more\n")
    assert "not the ones this site approved" in invite(desk, tiny(), method={"name": name})["refused"]
    assert not (tmp_path / "ran").exists()
    path.write_text(MINE.format(mark=str(tmp_path / "ran")))
    assert "card" in invite(desk, tiny(), method={"name": name})
    assert (tmp_path / "ran").exists()


def test_what_approved_code_imports_must_be_as_it_was(home: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import lq_helper\n" + MINE.format(mark=str(tmp_path / "ran")))
    (tmp_path / "lq_helper.py").write_text("")
    name = f"{tmp_path}/mine.py:Mine"
    desk = home(methods={name: Code(name, tmp_path, "x").fingerprint})
    (tmp_path / "lq_helper.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "not the ones this site approved" in invite(desk, tiny(), method={"name": name})["refused"]
    assert not (tmp_path / "ran").exists()


def test_a_restarted_site_asks_its_policy_again(home: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    """The config that was accepted is on disk; the code it names is run only if it is still approved."""
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(mark=str(tmp_path / "ran")))
    name = f"{path}:Mine"
    desk = home(methods={name: Code(name, tmp_path, "x").fingerprint})
    assert "card" in invite(desk, tiny(), method={"name": name})
    (tmp_path / "ran").unlink()
    path.write_text(MINE.format(mark=str(tmp_path / "ran")) + "# and more\n")
    desk.close()
    again = Desk(desk.folder)
    call = {"run": "0123456789abcdef", "ticket": next(tickets), "site": SITE, "round": 0, "question": "train"}
    call |= {"read": None, "write": "0.0", "keep": [], "tuned": False, "asked": [SITE, "site-01", "site-02"]}
    assert "not the ones this site approved" in again.reply("train.train", call, {"payload": b""})[0]["refused"]
    assert not (tmp_path / "ran").exists()
    again.close()


def test_check_does_not_run_code_that_is_not_approved(
    home: Any, tiny: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file that the coordinator sends for `site check` names code, too; it says what there would be to approve."""
    from equipoise.deploy.keys import new_pair
    from equipoise.deploy.setting import check_site

    path = tmp_path / "mine.py"
    path.write_text(MINE.format(mark=str(tmp_path / "ran")))
    name = f"{path}:Mine"
    folder = home().folder
    (folder / "keys").mkdir()
    new_pair(folder / "keys" / "site")
    (folder / "keys" / "ca.crt").write_text("…")
    (tmp_path / "run.toml").write_text(tomli_w.dumps({"method": {"name": name}}))
    found = check_site(folder, tmp_path / "run.toml")
    assert not (tmp_path / "ran").exists() and found.ledger is None
    assert found.refused == [
        f"policy rule 'methods': '{name}' is not approved at this site; "
        f"its fingerprint is {Code(name, tmp_path, 'x').fingerprint}"
    ]

"""The commands: what they make, and the one sentence they refuse with."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
import tomli_w

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # typer imports names that the newest click wants to drop
    import typer

    from equipoise.cli.app import app, main
    from equipoise.cli.verbs.coordinator import server_start

from tests.flower.outdated import DATED, redate

from equipoise.deploy import link
from equipoise.deploy.access import make_secret
from equipoise.deploy.card import Card
from equipoise.deploy.keys import new_keys
from equipoise.deploy.limits import Limits
from equipoise.deploy.policy import approved, read_policy
from equipoise.deploy.site import read_site
from equipoise.keeping import write_json
from equipoise.run_folder import private_folder
from equipoise.testing import write_federation

ROOT = Path(__file__).resolve().parents[2]


def equipoise(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    text = capsys.readouterr()
    return int(str(end.value.code)), text.out, text.err


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A site's folder, filled in."""
    folder = tmp_path / "hospital"
    code, out, _ = equipoise(
        capsys,
        "site",
        "init",
        folder,
        "--name",
        "north",
        "--superlink",
        "fl.example.org:8000",
        "--method",
        "fca",
    )
    assert code == 0 and "site.pub" in out
    tables = write_federation(tmp_path / "data", {"north": (0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2)})
    data = {key: value for key, value in tables["data"].items() if key != "site"}
    own = {"name": "north", "superlink": "fl.example.org:8000", "device": "cpu", "data": data}
    (folder / "site.toml").write_text(tomli_w.dumps(own))
    new_keys(tmp_path / "coordinator", [], [])
    shutil.copy(tmp_path / "coordinator" / "keys" / "ca.crt", folder / "keys" / "ca.crt")
    return folder


def test_init_makes_a_site_that_allows_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hospital"
    code, out, _ = equipoise(
        capsys, "site", "init", folder, "--name", "north", "--superlink", "a.org:1", "--json"
    )
    assert code == 0
    assert {Path(text).name for text in json.loads(out)["made"]} == {
        "site.toml",
        "policy.toml",
        "site",
        "site.pub",
    }
    assert read_site(folder).name == "north" and read_policy(folder / "policy.toml").small_cell == 5
    assert read_policy(folder / "policy.toml").methods == {}
    code, _, err = equipoise(capsys, "site", "init", folder, "--name", "north", "--superlink", "a.org:1")
    assert code == 2 and "already" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--name", "north", "--superlink", "http://a.org:1"), "without http://"),
        (("--name", "../x", "--superlink", "a.org:1"), "'name'"),
        (("--name", "north", "--superlink", "a.org:1", "--method", "fac"), "did you mean 'fca'"),
    ],
)
def test_init_refuses(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = equipoise(capsys, "site", "init", tmp_path / "hospital", *words)
    assert code == 2 and sentence in err
    assert not (tmp_path / "hospital" / "site.toml").exists()


def test_check_shows_data_and_what_a_run_would_take(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = equipoise(capsys, "site", "check", site)
    assert code == 0 and "c0 5, c1 5, c2 3" in out and "approved: fca" in out
    assert (
        "fewer than 5 of train images c2" in out
        and "not reported, and not tested; with them c0 of train" in out
    )
    runs: dict[str, list[str]] = {
        "fca": [],
        "fedsdc": ["'fedsdc' is not approved", "does not tell 'train.head'"],
        "fediic": ["'fediic' is not approved"],
    }
    for method, sentences in runs.items():
        file = tmp_path / f"{method}.toml"
        file.write_text(tomli_w.dumps({"method": {"name": method}, "train": {"rounds": 2}}))
        code, out, _ = equipoise(capsys, "site", "check", site, file, "--json")
        found = json.loads(out)
        assert code == (7 if sentences else 0) and len(found["refused"]) == len(sentences)
        assert {row["leaf"] for row in found["leaves"]} >= {"delta", "pooled", "own"}
        assert all("policy.toml" in text for text in found["refused"])
        joining = {row["leaf"]: row["shape"] for row in found["leaves"] if row["question"] == "join"}
        assert joining["counts"] == "3×3"
        assert set(joining) == set(Card.model_fields) - {"frozen", "known"}
        assert not [text for text in found["refused"] if "small_cell" in text]
        for sentence in sentences:
            assert any(sentence in text for text in found["refused"]), sentence
    assert approved(["fedsdc"])["fedsdc"] in json.dumps(
        json.loads(equipoise(capsys, "site", "check", site, tmp_path / "fedsdc.toml", "--json")[1])
    )


def test_check_takes_what_submit_takes_and_ends_well_where_nothing_is_refused(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(tomli_w.dumps({"method": {"name": "fca"}, "train": {"rounds": 2, "batch_size": 2}}))
    policy = (site / "policy.toml").read_text().replace("small_cell = 5", "small_cell = 0")
    (site / "policy.toml").write_text(policy)
    code, out, _ = equipoise(capsys, "site", "check", site, file)
    assert code == 7 and "✗ policy rule 'batch_size'" in out and "train.batch_size" in out
    code, out, _ = equipoise(capsys, "site", "check", site, file, "train.batch_size=8")
    assert code == 0 and "✗" not in out
    code, _, err = equipoise(capsys, "site", "check", site, file, "train.batsch_size=8")
    assert code == 2 and "did you mean 'batch_size'" in err


def test_check_shows_what_may_be_wrong_with_the_data(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But not that a class of the federation is missing here: other sites have it."""
    own = tomllib.loads((site / "site.toml").read_text())
    path = Path(own["data"]["path"])
    path.write_text(path.read_text().replace(",c2", ",C1"))
    own["data"]["classes"] = ["c0", "c1", "C1", "elsewhere"]
    (site / "site.toml").write_text(tomli_w.dumps(own))
    code, out, _ = equipoise(capsys, "site", "check", site, "--json")
    assert code == 0 and json.loads(out)["warnings"] == []
    del own["data"]["classes"]
    (site / "site.toml").write_text(tomli_w.dumps(own))
    _, out, _ = equipoise(capsys, "site", "check", site)
    assert "! class 'C1'" in out and "differ only in case" in out


def test_check_refuses_a_key_others_can_read(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "keys" / "site").chmod(0o644)
    code, _, err = equipoise(capsys, "site", "check", site)
    assert code == 2 and "chmod 600" in err
    (site / "keys" / "site").chmod(0o600)
    (site / "keys" / "ca.crt").unlink()
    code, _, err = equipoise(capsys, "site", "check", site)
    assert code == 2 and "ask the coordinator" in err
    code, _, err = equipoise(capsys, "site", "join", site)
    assert code == 2 and "ca.crt" in err


def test_keys_new_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = equipoise(
        capsys, "keys", "new", tmp_path / "federation", "--host", "a.org", "--site", "north", "--json"
    )
    assert code == 0 and len(json.loads(out)["made"]) == 10
    code, out, _ = equipoise(capsys, "keys", "new", tmp_path / "federation", "--site", "north")
    assert code == 0 and "already" in out


def test_the_server_starts_with_the_limits_that_are_documented_there() -> None:
    given = {name: one.default for name, one in inspect.signature(server_start).parameters.items()}
    limits = Limits().model_dump()
    assert {name: given[name] for name in limits} == limits


@pytest.mark.parametrize("when", DATED)
@pytest.mark.parametrize("verb", ["server start", "submit", "status", "stop"])
@pytest.mark.parametrize("name", ["ca", "server"])
def test_the_coordinator_is_told_of_a_certificate_out_of_date(
    name: str,
    verb: str,
    when: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence with the date and the command that helps, before anything is started or made."""
    monkeypatch.setattr(link.processes, "start", None)
    equipoise(capsys, "keys", "new", tmp_path, "--host", "a.org", "--site", "north")
    write_json(tmp_path / "server.json", {"address": "127.0.0.1:9"})
    make_secret(private_folder(tmp_path / "flower"))
    said = redate(tmp_path / "keys", name, when)
    (tmp_path / "a.toml").write_text("")
    submit = [tmp_path / "a.toml", "--to", tmp_path, "--out", tmp_path / "run"]
    code, out, err = equipoise(capsys, *verb.split(), *(submit if verb == "submit" else [tmp_path]))
    assert code == 2 and out == "" and len(err.strip().splitlines()) <= 2
    text = " ".join(err.split())
    assert f"{name}.crt {said}" in text and f"equipoise keys renew {tmp_path}" in text
    assert not (tmp_path / "run").exists()
    assert equipoise(capsys, "keys", "renew", tmp_path)[0] == 0
    link.check_certificates(tmp_path)


@pytest.mark.parametrize("when", DATED)
@pytest.mark.parametrize("verb", ["check", "join"])
def test_a_site_is_told_of_a_certificate_out_of_date(
    verb: str, when: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = redate(tmp_path / "coordinator" / "keys", "ca", when)
    shutil.copy(tmp_path / "coordinator" / "keys" / "ca.crt", site / "keys" / "ca.crt")
    code, _, err = equipoise(capsys, "site", verb, site)
    assert code == 2 and f"ca.crt {said}" in " ".join(err.split()) and "keys renew" in err


@pytest.mark.parametrize("words", [("status",), ("stop",)])
def test_without_a_server_it_says_how_to_start_one(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    equipoise(capsys, "keys", "new", tmp_path, "--site", "north")
    code, _, err = equipoise(capsys, *words, tmp_path)
    assert code == 2 and "equipoise server start" in err
    write_json(tmp_path / "server.json", {"address": "127.0.0.1:9"})
    make_secret(private_folder(tmp_path / "flower"))
    code, _, err = equipoise(capsys, *words, tmp_path)
    assert code == 7 and "does not answer at 127.0.0.1:9" in err


def test_submit_refuses_what_only_a_simulation_can_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    equipoise(capsys, "keys", "new", tmp_path, "--site", "north")
    (tmp_path / "a.toml").write_text('[train.augment]\nnormalise = "data"\n')
    code, _, err = equipoise(
        capsys, "submit", tmp_path / "a.toml", "--to", tmp_path, "--out", tmp_path / "run"
    )
    assert code == 2 and "needs all images in one place" in err


def test_without_flower_it_names_the_extra(tmp_path: Path) -> None:
    """`import equipoise` and the other verbs work; these say what to install."""
    words = (
        ("version",),
        ("keys", "new", str(tmp_path)),
        ("status", str(tmp_path)),
        ("rehearse", "x.toml"),
        ("site", "join", "."),
    )
    program = (
        "import sys, json, importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'flwr' else real(name, *more)\n"
        "sys.modules['flwr'] = None\nimport equipoise\nfrom equipoise.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    try: main(words)\n"
        "    except SystemExit as end: print('ended with', end.code, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(words)], capture_output=True, text=True, check=True
    )
    version, *others = done.stderr.split("ended with ")
    assert version == "" and [int(text.split()[0]) for text in others] == [0, 2, 2, 2, 2]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert done.stderr.count(f'pip install "{extras["flower"][0]}"') == 4


# The page ---------------------------------------------------------------------------------------------------


def verbs(group: typer.Typer, before: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    own = {(*before, one.name or one.callback.__name__) for one in group.registered_commands if one.callback}
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        own |= verbs(inner.typer_instance, (*before, str(inner.name)))
    return own


def test_every_command_on_the_page_exists() -> None:
    page = ROOT / "docs" / "hospitals.md"
    lines = re.findall(r"^\$ equipoise (.+)$", page.read_text(), re.MULTILINE)
    known = verbs(app)
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line, comments=True)
        assert (words[0],) in known or (words[0], words[1]) in known, line
    for verb in (
        "keys new",
        "server start",
        "submit",
        "status",
        "stop",
        "site init",
        "site check",
        "site join",
        "rehearse",
    ):
        assert any(line.startswith(verb) for line in lines), (
            f"docs/hospitals.md does not show `equipoise {verb}`"
        )

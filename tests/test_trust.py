"""A run folder runs no code that this user has not run himself, or said to trust; his own runs need no
word."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from equipoise import trust
from equipoise.config import Config, read_folder
from equipoise.errors import ConfigError, StorageError, Untrusted
from equipoise.locate import Code
from equipoise.report import write_report
from equipoise.run_folder import RunFolder
from equipoise.running import resume, run
from equipoise.use import load

MakeConfig = Callable[..., Config]
MINE = (
    "from pathlib import Path\nfrom equipoise import Method\nPath({mark!r}).touch()\nclass "
    "Mine(Method):\n    '''Mine.'''\n"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trust") / "place"


@pytest.fixture
def tmp_path(place: Path) -> Path:
    """Empty, and the same for every test: what is remembered of a file is remembered with its path."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


@pytest.fixture(autouse=True)
def _new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who has run nothing yet."""
    monkeypatch.setenv("EQUIPOISE_TRUSTED", str(tmp_path / "config" / "trusted.jsonl"))
    monkeypatch.setattr(trust, "here", set())


def somebody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From now on another user, who was given the folder."""
    monkeypatch.setenv("EQUIPOISE_TRUSTED", str(tmp_path / "other" / "trusted.jsonl"))
    monkeypatch.setattr(trust, "here", set())


@pytest.fixture(scope="module")
def after(place: Path) -> tuple[Path, set[Any]]:
    """What `made` leaves: a copy of the place, and the code that was run here."""
    return place.with_name("after"), set()


@pytest.fixture
def made(
    tiny: MakeConfig, tmp_path: Path, after: tuple[Path, set[Any]], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of a finished run with a method of one's own, which leaves a mark whenever it is run."""
    kept, here = after
    if not kept.exists():
        (tmp_path / "mine.py").write_text(MINE.format(mark=str(tmp_path / "ran")))
        run(tiny("mine.py:Mine", base=tmp_path, train={"rounds": 1}), tmp_path / "run")
        (tmp_path / "ran").unlink()
        here |= trust.here
        shutil.copytree(tmp_path, kept)
    else:
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
        monkeypatch.setattr(trust, "here", set(here))
    return tmp_path / "run"


def forget_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the file is run again if anything lets it."""
    for name in [name for name in sys.modules if name.startswith("equipoise_code_mine")]:
        monkeypatch.delitem(sys.modules, name)


USES: dict[str, Callable[[Path], object]] = {
    "load": load,
    "resume": resume,
    "config": read_folder,
}


@pytest.mark.parametrize("use", USES)
def test_somebody_elses_folder_runs_no_code(
    use: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = Code("mine.py:Mine", tmp_path, "x").fingerprint
    somebody_else(monkeypatch, tmp_path)
    forget_modules(monkeypatch)
    with pytest.raises(
        Untrusted, match=rf"would run the file {tmp_path}/mine\.py.*fingerprint {mark}.*--trust"
    ):
        USES[use](made)
    assert not (tmp_path / "ran").exists()


def test_a_page_and_another_run_need_no_code_of_the_folder(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody_else(monkeypatch, tmp_path)
    forget_modules(monkeypatch)
    assert write_report(made).is_file()
    with pytest.raises(StorageError, match="holds a run with another config"):
        run({"data": {"kind": "phantom", "scale": 0.004}}, made)
    assert not (tmp_path / "ran").exists()


def test_who_says_so_once_need_not_say_it_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody_else(monkeypatch, tmp_path)
    forget_modules(monkeypatch)
    load(made, trust=True)
    assert (tmp_path / "ran").exists()
    monkeypatch.setattr(trust, "here", set())  # another process
    load(made), resume(made), write_report(made)
    path = trust.trusted_file()
    assert path.stat().st_mode & 0o777 == 0o600
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["name"] == "mine.py:Mine"


def test_own_runs_need_no_word(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(made), resume(made)
    monkeypatch.setattr(trust, "here", set())
    load(made), resume(made)
    write_report(made)


def test_a_file_that_was_changed_since_is_not_run(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a prediction, nor, if it is known, in a run that was begun with another."""
    forget_modules(monkeypatch)
    with open(tmp_path / "mine.py", "a") as file:
        file.write("# another line\n")
    with pytest.raises(Untrusted, match="the run was made with"):
        load(made)
    assert not (tmp_path / "ran").exists()
    trust.remember(Code("mine.py:Mine", tmp_path, "x"))
    with pytest.raises(StorageError, match=r"code of 'mine\.py:Mine' has changed since the run .* began"):
        resume(made)


def test_a_list_that_others_can_write_to_counts_for_nothing(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "here", set())
    trust.trusted_file().chmod(0o622)
    with pytest.raises(Untrusted):
        load(made)
    trust.trusted_file().chmod(0o600)
    load(made)
    trust.trusted_file().write_text('nonsense\n[]\n{"name": "mine.py:Mine"}\n')
    with pytest.raises(Untrusted):
        load(made)


def test_where_nothing_can_be_noted_a_run_still_ends_with_its_page(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EQUIPOISE_TRUSTED", str(tmp_path / "file" / "trusted.jsonl"))
    (tmp_path / "mine.py").write_text(MINE.format(mark=str(tmp_path / "ran")))
    run(tiny("mine.py:Mine", base=tmp_path, train={"rounds": 1}), tmp_path / "run")
    assert write_report(tmp_path / "run").is_file()


def test_a_folder_without_code_of_its_own_is_anybodys(tiny: MakeConfig, tmp_path: Path) -> None:
    run(tiny("fedavg", train={"rounds": 1}), tmp_path / "run")
    assert load(tmp_path / "run").blueprint.method_name == "fedavg"
    assert trust.recorded(RunFolder(tmp_path / "run")) == {}
    assert not trust.trusted_file().exists()


def test_a_worker_runs_the_code_its_pool_has_run(tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.format(mark=str(tmp_path / "ran")))
    config = tiny(
        "mine.py:Mine",
        base=tmp_path,
        train={"rounds": 1},
        engine={"kind": "pool", "workers": 1, "device": "cpu"},
    )
    with open(tmp_path / "mine.py", "a") as file:
        file.write("# changed after it was read\n")
    with pytest.raises(ConfigError, match="has changed since the run began"):
        run(config, tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    config = tiny(
        "mine.py:Mine",
        base=tmp_path,
        train={"rounds": 1},
        engine={"kind": "pool", "workers": 1, "device": "cpu"},
    )
    run(config, tmp_path / "run")


# On the command line ----------------------------------------------------------------------------------------


def equipoise(*words: object) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # typer imports names that the newest click wants to drop
        from equipoise.cli.app import main

    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return int(str(end.value.code))


@pytest.mark.parametrize("verb", ["predict", "evaluate", "export", "resume"])
def test_every_verb_asks_for_the_word(
    verb: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "pictures" / "one.png")
    (tmp_path / "new.toml").write_text('[data]\nkind = "phantom"\nscale = 0.004\nimage_size = 16\nseed = 5\n')
    more = {
        "predict": [tmp_path / "pictures"],
        "evaluate": ["--data", tmp_path / "new.toml"],
        "export": ["--to", "onnx", "--out", tmp_path / "model.onnx"],
        "resume": ["--quiet"],
    }.get(verb, [])
    somebody_else(monkeypatch, tmp_path)
    forget_modules(monkeypatch)
    assert equipoise(verb, made, *more) == 2
    assert "--trust" in capsys.readouterr().err and not (tmp_path / "ran").exists()
    assert equipoise(verb, made, *more, "--trust") == 0
    assert (tmp_path / "ran").exists()

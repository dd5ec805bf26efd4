"""Trackers of one's own, what is refused, and that none of them changes or stops a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trackers.reading import interrupted, twice

from equipoise import trust
from equipoise.compare import compare, make_plan
from equipoise.config import Config, read_folder
from equipoise.errors import ConfigError, Untrusted
from equipoise.report import write_report
from equipoise.running import Result, resume, run
from equipoise.trackers import TRACKERS, Tracker
from equipoise.trackers.base import numbers
from equipoise.use import load

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
MINE = '''
import json
import os
from pathlib import Path

from equipoise.trackers import Tracker

with Path(__file__).with_name("ran").open("a") as file:
    file.write(f"{os.getpid()}\\n")


class Mine(Tracker):
    """Writes down what it is told, then does to it what it likes."""

    def __init__(self, fails: str = "", exits: bool = False) -> None:
        self.fails, self.exits = fails, exits

    def note(self, hook: str, *told) -> None:
        with open(self.folder / "mine.jsonl", "a") as file:
            file.write(json.dumps([hook, os.getpid(), *told]) + "\\n")
        if hook == self.fails:
            raise SystemExit(3) if self.exits else OSError("no\\nroom")

    def begin(self, run) -> None:
        self.folder = run.folder
        told = {"name": run.name, "config": run.config, "classes": run.classes, "tags": run.tags}
        self.note("begin", told, run.first_round, run.history)
        run.config.clear(), run.tags.clear()

    def row(self, round, numbers) -> None:
        self.note("row", round, numbers)
        numbers.clear()

    def end(self, summary) -> None:
        self.note("end", summary and [summary.numbers, summary.facts])


class Idle(Tracker):
    """Is content with nothing."""


class Other:
    """No tracker."""
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder that holds mine.py."""
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def told(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "mine.jsonl").read_text().splitlines()]


# What is told
# ------------------------------------------------------------------------------------------------------------


def test_every_number_has_a_path() -> None:
    row = {
        "round": 3,
        "sites": ["a", "b"],
        "train.loss": 0.5,
        "test": {
            "generalisation": {"accuracy": 0.25, "tail": None, "recall": [1.0, None], "support": [4, 0]}
        },
    }
    assert numbers(row, ("x", "y")) == {
        "train.loss": 0.5,
        "test/generalisation/accuracy": 0.25,
        "test/generalisation/recall/x": 1.0,
    }


def test_an_ending_has_paths_of_its_own() -> None:
    assert numbers({"round": 4, "ending_of": 2, "tune.loss": 0.5}, ()) == {"ending/tune.loss": 0.5}


@pytest.mark.parametrize("name", ["mine.py:Mine", "mine_installed:Mine"])
def test_ones_own_is_told_of_the_whole_run(
    name: str, tiny: MakeConfig, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mine / "mine_installed.py").write_text(MINE)
    monkeypatch.syspath_prepend(mine)
    config = tiny(base=mine, evaluate={"trackers": [name]})
    done = run(config, mine / "run")
    begin, *rows, end = told(mine / "run")
    about = begin[2]
    assert about["name"] == f"{mine.name}/run"
    assert about["classes"] == list(done.classes)
    assert about["config"]["train"]["batch_size"] == 64 and "base" not in about["config"]
    assert about["tags"]["method"] == "fedavg" and about["tags"]["config"] == config.digest
    assert set(about["tags"]) == {"method", "version", "code", "config", "data"}
    assert begin[3:] == [1, []]
    wanted = [["row", row["round"], numbers(row, done.classes)] for row in done.history]
    assert [[hook, *rest] for hook, _, *rest in rows] == wanted
    best = done.metrics["test"]["generalisation"]["balanced_accuracy"]
    assert end[2][0]["result/test/generalisation/balanced_accuracy"] == best
    assert end[2][1] == {"selected_rounds": "2", "state_hash": done.state_hash}


def test_a_resumed_run_knows_its_rounds_before(tiny: MakeConfig, mine: Path) -> None:
    config = tiny(base=mine, evaluate={"trackers": ["mine.py:Mine"]}, train={"rounds": 3})
    done, rows = twice(config, mine / "run")
    seen = told(mine / "run")
    assert [hook for hook, *_ in seen] == ["begin", "row", "row", "end", "begin", "row", "row", "end"]
    assert seen[3][2] is None  # interrupted
    assert seen[4][3:] == [2, [[1, numbers(rows[0], done.classes)]]]
    assert [row[2] for row in seen if row[0] == "row"] == [1, 2, 2, 3]


def test_the_rounds_of_a_methods_ending_are_told(tiny: MakeConfig, mine: Path) -> None:
    train = {"rounds": 1}
    run(tiny("fedbabu", base=mine, train=train, evaluate={"trackers": ["mine.py:Mine"]}), mine / "run")
    (last,) = [row for row in told(mine / "run") if row[0] == "row" and row[2] == 2]
    assert "ending/test/generalisation/balanced_accuracy" in last[3]


def test_a_finished_run_is_not_told_again_and_read_without_its_tracker(tiny: MakeConfig, mine: Path) -> None:
    config = tiny(base=mine, evaluate={"trackers": ["mine.py:Mine"]})
    run(config, mine / "run")
    before = told(mine / "run")
    resume(mine / "run")
    assert told(mine / "run") == before
    (mine / "mine.py").unlink()  # and who only reads the run needs no tracker of it
    load(mine / "run")
    write_report(mine / "run")
    resume(mine / "run")


def test_a_comparison_tracks_each_of_its_runs(mine: Path) -> None:
    table = {
        "base": str(mine),
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
        "partition": {"kind": "iid", "sites": 3},
        "train": {"rounds": 1, "batch_size": 8},
        "engine": {"device": "cpu"},
        "evaluate": {"trackers": ["mine.py:Mine", "tensorboard"]},
    }
    compare(make_plan(table, ["fedavg", "fedprox"], base=mine), mine / "all", 2)
    for method in ("fedavg", "fedprox"):
        folder = mine / "all" / method / "0"
        (begin,) = [row for row in told(folder) if row[0] == "begin"]
        assert begin[2]["name"] == f"{method}/0" and begin[2]["tags"]["method"] == method
        assert list((folder / "tensorboard").glob("events*"))


# Nothing changes, nothing stops
# ------------------------------------------------------------------------------------------------------------


def test_it_changes_nothing_but_the_folder(tiny: MakeConfig, once: Once, mine: Path) -> None:
    with_them = tiny(base=mine, evaluate={"trackers": ["mine.py:Mine", "tensorboard"]})
    assert with_them.digest == tiny().digest
    assert tiny(evaluate={"every": 2}).digest != tiny().digest
    plain, tracked = once(tiny()), run(with_them, mine / "tracked")
    assert tracked.state_hash == plain.state_hash and tracked.metrics == plain.metrics
    texts = [(one.folder / "metrics.jsonl").read_bytes() for one in (plain, tracked)]
    assert texts[0] == texts[1]


def test_only_the_process_that_leads_the_run_knows_of_it(tiny: MakeConfig, once: Once, mine: Path) -> None:
    pooled = {"kind": "pool", "workers": 2, "device": "cpu"}
    config = tiny(base=mine, engine=pooled, evaluate={"trackers": ["mine.py:Mine"]})
    done = run(config, mine / "run")
    assert {row[1] for row in told(mine / "run")} == {os.getpid()}
    assert (mine / "ran").read_text() == f"{os.getpid()}\n"
    assert done.state_hash == once(tiny()).state_hash


@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize("hook", ["begin", "row", "end"])
def test_one_that_fails_is_left_out_and_named_once(
    hook: str, exits: bool, tiny: MakeConfig, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {"name": "mine.py:Mine", "fails": hook, "exits": exits}
    done = run(tiny(base=mine, evaluate={"trackers": [bad, "tensorboard"]}), mine / "run")
    assert done.rounds == [2] and (mine / "run" / "result.json").exists()
    reason = "SystemExit: 3" if exits else "OSError: no room"
    assert capsys.readouterr().err == f"the tracker 'mine.py:Mine' is left out from here on ({reason})\n"
    assert told(mine / "run")[-1][0] == hook and [row[0] for row in told(mine / "run")].count(hook) == 1
    assert list((mine / "run" / "tensorboard").glob("events*"))


def test_ctrl_c_still_ends_the_run(tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.trackers import TRACKERS

    class Stopped(Tracker):
        def row(self, round: int, numbers: dict[str, float]) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(TRACKERS, "tensorboard", Stopped)
    with pytest.raises(KeyboardInterrupt):
        run(tiny(evaluate={"trackers": ["tensorboard"]}), tmp_path)


# What is refused
# ------------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[list[Any], str]] = {
    "name": (["mlfow"], r"evaluate\.trackers: unknown tracker 'mlfow': did you mean 'mlflow'\?"),
    "twice": (["wandb", {"name": "wandb"}], "one is named twice"),
    "nameless": ([{"uri": "x"}], r'a table needs a name, as in \{ name = "mlflow", uri = "…" \}'),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_config_that_names_none_is_refused(case: str, tiny: MakeConfig) -> None:
    entries, sentence = WRONG[case]
    with pytest.raises(ConfigError, match=sentence):
        tiny(evaluate={"trackers": entries})


UNFIT: dict[str, tuple[Any, str]] = {
    "option": ({"name": "mlflow", "urii": "x"}, r"unknown option of 'mlflow' 'urii': did you mean 'uri'\?"),
    "no option": ({"name": "tensorboard", "uri": "x"}, "unknown option of 'tensorboard' 'uri'"),
    "value": ({"name": "wandb", "project": 3}, r"'wandb' cannot be made with \{'project': 3\} \(ValueError"),
    "no file": ("other.py:Mine", "evaluate.trackers: there is no file .*other.py"),
    "no class": ("mine.py:Yours", r"'mine\.py' has no 'Yours'"),
    "no tracker": ("mine.py:Other", r"'mine\.py' has no class 'Other' that derives from"),
    "no module": ("nowhere.at.all:Mine", "the module 'nowhere.at.all' cannot be imported"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_one_that_cannot_be_had_is_refused_before_anything_is_done(
    case: str, tiny: MakeConfig, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.trackers.registry._installed", lambda package: True)
    entry, sentence = UNFIT[case]
    with pytest.raises(ConfigError, match=sentence):
        run(tiny(base=mine, evaluate={"trackers": [entry]}), mine / "run")
    assert not (mine / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_without_the_package_the_fix_is_told(
    name: str, tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    sentence = rf"needs the package {name}: run pip install {' '.join(TRACKERS[name].packages)}, or"
    with pytest.raises(ConfigError, match=sentence):
        run(tiny(evaluate={"trackers": [name]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_of_that_name_is_no_package(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs leave a folder `wandb` where they ran; Python takes it for a package if it finds no other."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(ConfigError, match="needs the package wandb"):
        run(tiny(evaluate={"trackers": ["wandb"]}), tmp_path / "run")


# Whose code is run
# ------------------------------------------------------------------------------------------------------------


def test_somebody_elses_folder_runs_no_tracker(
    tiny: MakeConfig, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_TRUSTED", str(mine / "config" / "trusted.jsonl"))
    monkeypatch.setattr(trust, "here", set())
    config = tiny(base=mine, evaluate={"trackers": ["mine.py:Mine"]})
    interrupted(config, mine / "run", 2)
    (mine / "ran").unlink()
    for name in [name for name in sys.modules if name.startswith("equipoise_code_mine")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("EQUIPOISE_TRUSTED", str(mine / "other" / "trusted.jsonl"))
    monkeypatch.setattr(trust, "here", set())
    with pytest.raises(Untrusted, match=r"would run the file .*mine\.py, which you have not run before"):
        resume(mine / "run")
    read_folder(mine / "run")
    assert not (mine / "ran").exists()
    done = resume(mine / "run", trust=True)
    assert done.rounds == [2] and (mine / "ran").exists()

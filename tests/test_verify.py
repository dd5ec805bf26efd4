"""`equipoise verify`: what is whole is said to be, what is not is named; nothing is changed or executed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import doctored

from equipoise.cli.app import main
from equipoise.compare import conclude, make_plan
from equipoise.config import Config
from equipoise.errors import StorageError
from equipoise.report import write_report
from equipoise.running import run
from equipoise.setup import cache_folder
from equipoise.use import export, load
from equipoise.verify import verify

MakeConfig = Callable[..., Config]


@pytest.fixture(scope="module")
def done(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "run"
    run(tiny("fca", evaluate={"trackers": ["tensorboard"]}), folder)
    for name in ("mlflow", "wandb"):
        (folder / name).mkdir()
        (folder / name / "theirs.json").write_text("{}")
    write_report(folder)
    export(load(folder), folder / "model.safetensors", "safetensors")
    return folder


@pytest.fixture
def copy(done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "copy"))


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def flip(path: Path, place: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def test_a_whole_run_is_said_to_be_and_left_as_it_is(done: Path) -> None:
    before = state(done)
    found = verify(done)
    assert found.problems == [] and state(done) == before
    assert {name.split("/")[0] for name in found.without_digest} == {"tensorboard", "mlflow", "wandb"}
    assert {Path(name).name for name in found.checked} >= {
        *(
            "config.toml",
            "ledger.json",
            "metrics.jsonl",
            "timing.jsonl",
            "journal.jsonl",
            "result.json",
            "blueprint.json",
        ),
        *(
            "data.json",
            "features.json",
            "report.html",
            "model-card.md",
            "HEAD.json",
            "round-000002.safetensors",
        ),
        *("model.safetensors", "1.0.safetensors", "notes.jsonl"),
    }


def test_every_file_with_a_digest_is_named_when_it_changes(copy: Path) -> None:
    for name in verify(copy).checked:
        path = copy / name
        before = path.read_bytes()
        flip(path)
        problems = verify(copy).problems
        assert any(path.name in problem or path.stem in problem for problem in problems), name
        path.write_bytes(before)
    assert verify(copy).problems == []


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda run: (run / "journal.jsonl").unlink(), "journal.jsonl has lost lines or was written anew"),
        (
            lambda run: (run / "metrics.jsonl").unlink(),
            "metrics.jsonl has not the rows it had when the run ended",
        ),
        (lambda run: (run / "timing.jsonl").unlink(), "timing.jsonl has lost rows"),
        (lambda run: (run / "sites/site-01/1.0.safetensors").unlink(), "1.0.safetensors is missing"),
        (lambda run: (run / "checkpoints/round-000002.safetensors").unlink(), "is missing or damaged"),
        (
            lambda run: doctored.change(run / "result.json", state_hash="0"),
            "result.json is not of the newest checkpoint",
        ),
        (lambda run: doctored.change(run / "checkpoints/HEAD.json", state="0"), "is not the checkpoint that"),
        (
            lambda run: shutil.copy(
                run / "sites/site-00/1.0.safetensors", run / "sites/site-01/1.0.safetensors"
            ),
            "private state '1.0' of site 'site-01'",
        ),
        (lambda run: flip(run / "journal.jsonl", -1), "the end of the last line was changed"),
        (
            lambda run: (run / "notes.jsonl").write_bytes((run / "timing.jsonl").read_bytes()[:-3]),
            "notes.jsonl: the last line is cut short",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(spoil: Callable[[Path], Any], problem: str, copy: Path) -> None:
    spoil(copy)
    assert any(problem in one for one in verify(copy).problems), verify(copy).problems


def test_a_run_that_goes_on_is_whole(tiny: MakeConfig, tmp_path: Path) -> None:
    seen = list[list[str]]()

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            seen.append(verify(tmp_path).problems)

    run(tiny("fca", train={"rounds": 3}), tmp_path, watch=watch)
    assert seen == [[], [], []]


def test_a_comparison(tiny: MakeConfig, tmp_path: Path) -> None:
    table = {key: value for key, value in tiny(train={"rounds": 1}).table().items() if key != "base"}
    plan = make_plan(table, ["fedavg", "local"])
    for job in plan.jobs:
        run(job.config, tmp_path / job.name)
    conclude(plan, tmp_path)
    found = verify(tmp_path)
    assert found.problems == [] and {"comparison.json", "fedavg/0/result.json", "report.html"} <= set(
        found.checked
    )
    assert set(found.without_digest) == {"table.md", "table.csv", "table.tex", "runs.csv"}
    flip(tmp_path / "local/0/metrics.jsonl")
    assert any("local/0/metrics.jsonl" in problem for problem in verify(tmp_path).problems)


def test_a_cache(tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    run(tiny("fedavg", train={"rounds": 1}), tmp_path / "run")
    folder = cache_folder()
    assert verify(folder).problems == [] and len(verify(folder).checked) == 2
    (raw,) = folder.glob("*.raw")
    before = raw.stat()
    flip(raw)
    os.utime(raw, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verify(folder).problems == [
        f"{raw} is damaged or was changed: delete it, it is made anew when it is needed"
    ]
    flip(raw)
    raw.rename(raw.with_stem("0" * 32))
    raw.with_suffix(".json").rename(raw.with_stem("0" * 32).with_suffix(".json"))
    assert len(verify(folder).problems) == 1  # the images of something else


def test_no_code_of_a_run_is_executed(tiny: MakeConfig, tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text("from equipoise.methods.base import Method\n\n\nclass Mine(Method):\n    '''Mine.'''\n")
    run(tiny(f"{own}:Mine", train={"rounds": 1}), tmp_path / "run")
    own.write_text("raise SystemExit('executed')\n")
    assert verify(tmp_path / "run").problems == []


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(StorageError, match="name a run folder, a site's folder or the image cache"):
            verify(folder)


# The verb ---------------------------------------------------------------------------------------------------


def verb(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["verify", *map(str, words)])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_the_verb_says_what_is_wrong_and_ends_with_its_code(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = verb(capsys, copy)
    assert (code, err) == (0, "") and "files are as they were written" in out and "✗" not in out
    code, out, _ = verb(capsys, copy, "--json")
    facts = json.loads(out)
    assert code == 0 and facts["ok"] is True and facts["problems"] == [] and "result.json" in facts["checked"]
    flip(copy / "result.json")
    code, out, _ = verb(capsys, copy)
    assert code == 8 and f"✗ {copy / 'result.json'} is damaged or was changed" in out
    code, out, _ = verb(capsys, copy, "--json")
    facts = json.loads(out)
    assert (
        code == 8
        and facts["ok"] is False
        and len(facts["problems"]) >= 1
        and "result.json" not in facts["checked"]
    )
    assert verb(capsys, copy / "nowhere")[0] == 8
    code, out, _ = verb(capsys, copy, "--with", copy)
    assert code == 8 and "not the journals of a coordinator and a site" in out

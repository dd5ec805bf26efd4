"""Whole comparisons: every run an ordinary folder, failures apart, and after kill -9 the same tables."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from scipy import stats

from equipoise.compare import Job, Plan, arm_from, compare, conclude, make_plan, summarise, summary
from equipoise.compare.summary import collapsed, note, table_of, twins
from equipoise.errors import StorageError
from equipoise.evaluate.scores import read_scores
from equipoise.evaluate.significance import judge
from equipoise.running import run

Table = dict[str, dict[str, Any]]
FILES = ("table.md", "table.csv", "table.tex", "runs.csv", "comparison.json")


def texts(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in FILES}


class Watched:
    """The events of a comparison."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, facts: dict[str, Any]) -> None:
        self.events.append((event, facts))

    def runs(self, event: str) -> set[str]:
        return {facts["run"] for name, facts in self.events if name == event}


@pytest.fixture(scope="module")
def made(
    table_of_tests: Table, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Plan, Path, dict[str, Any], Watched]:
    """FedAvg, training alone and an arm that must fail, with two seeds, in two processes."""
    folder, watched = tmp_path_factory.mktemp("compared"), Watched()
    failing = arm_from("too few: exchange.min_sites=7")
    plan = make_plan(table_of_tests, ["fedavg", "local"], seeds=(0, 1), arms=[failing])
    return plan, folder, compare(plan, folder, 2, watched), watched


def test_every_run_is_an_ordinary_folder(made, tmp_path: Path) -> None:
    plan, folder, _, _ = made
    job = plan.jobs[1]
    assert job.name == "local/0"
    alone = run(job.config, tmp_path / "alone")
    result = json.loads((folder / "local/0/result.json").read_text())
    assert result["state_hash"] == alone.state_hash
    assert result["metrics"] == alone.metrics
    assert (folder / "local/0/report.html").is_file()


def test_a_failing_run_is_named_and_the_others_go_on(made) -> None:
    _, folder, facts, watched = made
    assert watched.runs("done") == {"fedavg/0", "fedavg/1", "local/0", "local/1"}
    assert watched.runs("failed") == {"too-few/0", "too-few/1"}
    assert [(one["run"], one["exit_code"]) for one in facts["failures"]] == [
        ("too-few/0", 7),
        ("too-few/1", 7),
    ]
    assert "3 of 3 sites" in facts["failures"][0]["error"]
    assert "Failed: too-few/0: round 1" in (folder / "table.md").read_text()
    assert facts["arms"]["too few"]["figures"]["generalisation"]["balanced_accuracy"] is None
    row = next(
        row
        for row in csv.DictReader(io.StringIO((folder / "table.csv").read_text()))
        if row["method"] == "too few"
    )
    assert (row["runs"], row["runs planned"], row["G bACC mean"], row["difference"]) == ("0", "2", "", "")
    assert "too few" not in facts["versus"]


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_tables_for_programs_hold_numbers_in_one_unit(made) -> None:
    _, folder, facts, _ = made
    rows = {row["method"]: row for row in rows_of(folder / "table.csv")}
    for row in rows.values():
        numbers = [value for key, value in row.items() if key not in ("method", "reference") and value]
        assert [float(value) for value in numbers]  # each is one
    figure = facts["arms"]["local"]["figures"]["generalisation"]["macro_auc"]
    assert float(rows["local"]["G AUC std"]) == pytest.approx(figure["std"])
    versus = facts["versus"]["local"]
    assert float(rows["local"]["difference"]) == pytest.approx(versus["difference"])
    assert float(rows["local"]["p images"]) == pytest.approx(versus["holm"]["images"])
    assert (rows["local"]["reference"], rows["fedavg"]["reference"]) == ("fedavg", "")
    assert rows["fedavg"]["difference"] == ""


def test_the_long_table_has_a_row_for_every_run_and_metric(made) -> None:
    _, folder, facts, _ = made
    rows = rows_of(folder / "runs.csv")
    found = {(row["run"], row["view"], row["metric"], row["class"]): row["value"] for row in rows}
    assert len(found) == len(rows)
    for label in ("fedavg", "local"):
        for one in facts["arms"][label]["runs"]:
            for view, metrics in one["metrics"].items():
                for name, value in metrics.items():
                    text = found.pop((one["folder"], view, name, ""))
                    assert text == "" if value is None else float(text) == pytest.approx(value)
            for name, value in zip(facts["classes"], one["recall"], strict=True):
                text = found.pop((one["folder"], "generalisation", "recall", name))
                assert text == "" if value is None else float(text) == pytest.approx(value)
    assert not found
    assert {
        (row["method"], row["run"], row["seed"], row["fold"]) for row in rows if row["run"] == "local/1"
    } == {("local", "local/1", "1", "")}


def test_a_grid_over_the_data_has_a_reference_for_every_value(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balanced accuracy is 10 points higher with three sites than with two, and 1 higher with FCA."""
    plan = make_plan(table, ["fedavg", "fca"], grid=["partition.sites=2,3"], seeds=(0, 1))

    def result(job: Job) -> dict[str, Any]:
        value = 0.1 * job.config.partition.sites + 0.01 * (job.config.method_name == "fca")
        test = {"generalisation": {"balanced_accuracy": value, "recall": [value]}}
        return {"metrics": {"test": test}, "selected_rounds": [1], "classes": ["a"], "state_hash": "x"}

    monkeypatch.setattr(summary, "results_of", lambda plan, out: {job.name: result(job) for job in plan.jobs})
    facts = summarise(plan, tmp_path)
    assert {label: one["reference"] for label, one in facts["versus"].items()} == {
        "fca partition.sites=2": "fedavg partition.sites=2",
        "fca partition.sites=3": "fedavg partition.sites=3",
    }
    assert [one["difference"] for one in facts["versus"].values()] == pytest.approx([0.01, 0.01])
    shown = table_of(facts)
    assert shown.remarks[0] == "against"
    assert [row.remarks[0] for row in shown.rows] == [
        "", "", "fedavg partition.sites=2", "fedavg partition.sites=3",
    ]  # fmt: skip
    assert "from the row named under 'against'" in note(facts)


def test_a_table_in_which_every_row_collapsed_says_so() -> None:
    def arm(reached: float, *recall: float | None) -> dict[str, Any]:
        metrics = {"generalisation": {"balanced_accuracy": reached}}
        return {"runs": [{"metrics": metrics, "recall": list(recall)}]}

    dead = {"a": arm(1 / 3, 1.0, 0.0, 0.0, None), "b": arm(0.336, 0.0, 1.0, 0.01, None)}
    (said,) = collapsed("single", dead)
    assert said.startswith("every row collapsed: no run is better than guessing")
    assert collapsed("single", {**dead, "c": arm(0.36, 1.0, 0.08, 0.0, None)}) == []
    assert collapsed("multi", {"a": arm(0.5, 0.0, 0.0)})
    assert not collapsed("multi", {"a": arm(0.52, 0.1, 0.0)})
    assert collapsed("single", {"failed": {"runs": []}}) == []


def test_notes_speak_only_of_what_is_there(table: Table, tmp_path: Path) -> None:
    facts = conclude(make_plan(table, ["fedavg"]), tmp_path)
    assert "Δ" not in note(facts) and "p," not in note(facts)


def test_where_file_and_method_differ_the_table_says_so(table: Table, tmp_path: Path) -> None:
    table["train"]["objective"] = "focal"
    facts = conclude(make_plan(table, ["fedavg", "fca"]), tmp_path)
    said = 'fca: objective = "balanced_softmax" as the method recommends; the file says "focal"'
    assert facts["remarks"] == [said]
    assert f"\nNote: {said}.\n" in (tmp_path / "table.md").read_text()
    assert html.escape(said) in (tmp_path / "report.html").read_text().replace("&#34;", "&quot;")


def test_the_figures_are_those_of_the_runs(made) -> None:
    _, folder, facts, _ = made
    values = [
        json.loads((folder / f"local/{seed}/result.json").read_text())["metrics"]["test"]["generalisation"][
            "balanced_accuracy"
        ]
        for seed in (0, 1)
    ]
    figure = facts["arms"]["local"]["figures"]["generalisation"]["balanced_accuracy"]
    assert figure["mean"] == pytest.approx(sum(values) / 2)
    assert figure["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert table_of(facts).columns == (
        "G bACC",
        "S bACC",
        "A bACC",
        "G AUC",
        "G ACC",
        "G F1",
        "G tail recall",
    )


def test_scores_of_images_give_the_reported_figure(made) -> None:
    """Also for training alone, whose generalisation is the mean over one predictor per site."""
    _, folder, facts, _ = made
    for label in ("fedavg", "local"):
        for one in facts["arms"][label]["runs"]:
            scores = read_scores(folder / one["folder"] / "scores", one["selected_rounds"])
            assert scores is not None
            assert scores.logits.shape[0] == (3 if label == "local" else 1)
            wanted = one["metrics"]["generalisation"]["balanced_accuracy"]
            assert judge(scores).balanced_accuracy() == pytest.approx(wanted)


def test_the_difference_and_its_tests(made) -> None:
    _, _, facts, _ = made
    versus = facts["versus"]["local"]
    both = [facts["arms"][label]["runs"] for label in ("local", "fedavg")]
    gaps = [
        a["metrics"]["generalisation"]["balanced_accuracy"]
        - b["metrics"]["generalisation"]["balanced_accuracy"]
        for a, b in zip(*both, strict=True)
    ]
    assert versus["differences"] == pytest.approx(gaps)
    assert versus["p"]["t"] == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert versus["p"]["sign_flip"] in (0.5, 1.0)
    assert 0 < versus["p"]["images"] <= 1
    assert versus["interval"][0] <= versus["difference"] <= versus["interval"][1]
    assert versus["holm"] == versus["p"]  # one arm: nothing to correct for


def test_finished_runs_are_not_repeated_and_failed_ones_are_tried_again(made, tmp_path: Path) -> None:
    plan, folder, facts, _ = made
    before, watched = texts(folder), Watched()
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("fedavg/*/*")}
    assert compare(plan, folder, 1, watched) == facts
    assert watched.runs("done") == set() and watched.runs("failed") == {"too-few/0", "too-few/1"}
    assert texts(folder) == before
    assert stamps == {path: path.stat().st_mtime_ns for path in folder.glob("fedavg/*/*")}
    assert dict(watched.events)["begin"] == {"rounds": 6, "done": 4, "runs": 6, "finished": 4}


def test_a_folder_of_another_comparison_is_refused(made, table: Table) -> None:
    _, folder, _, _ = made
    table["train"]["rounds"] = 2
    with pytest.raises(StorageError, match="another config"):
        compare(make_plan(table, ["fedavg"]), folder, 1)


def test_a_damaged_result_is_said_to_be(table: Table, tmp_path: Path) -> None:
    plan = make_plan(table, ["fedavg"])
    (tmp_path / "fedavg/0").mkdir(parents=True)
    (tmp_path / "fedavg/0/result.json").write_text("{")
    with pytest.raises(StorageError, match=r"result\.json is damaged or was changed: delete it"):
        compare(plan, tmp_path)


@pytest.mark.slow
def test_a_process_that_dies_is_a_failure_of_its_run_alone(table: Table, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os, signal\nfrom equipoise import Method\n\n\nclass Deadly(Method):\n"
        "    def round(self, server, ask):\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    plan = make_plan(table, ["deadly.py:Deadly", "fedavg"], base=tmp_path)
    facts = compare(plan, tmp_path / "out", 1)
    assert [one["run"] for one in facts["failures"]] == ["deadly.py-Deadly/0"]
    assert "died (exit -9)" in facts["failures"][0]["error"]
    assert len(facts["arms"]["fedavg"]["runs"]) == 1
    assert facts["versus"] == {}  # the reference is gone


def test_an_arm_that_ends_as_another_is_named() -> None:
    def arm(*values: float) -> dict[str, Any]:
        runs = [
            {
                "seed": n,
                "fold": None,
                "metrics": {"average": {"balanced_accuracy": value}},
                "folder": f"{values}/{n}",
            }
            for n, value in enumerate(values)
        ]
        return {"runs": runs}

    arms = {
        "fedavg": arm(0.5, 0.25),
        "half": arm(0.5, 0.125),
        "idle": arm(0.5, 0.25),
        "failed": arm(),
        "too": arm(),
    }
    (said,) = twins(arms)
    assert said.startswith("idle ended exactly as fedavg")


# The command ------------------------------------------------------------------------------------------------


COMMAND = """
import os
from equipoise.cli import main
print(os.getpid(), flush=True)
main(sys.argv[1:])
"""


def children(pid: int) -> list[int]:
    """Every thread has children of its own."""
    return [
        int(word)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for word in path.read_text().split()
    ]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


WAITING = """
import time
from pathlib import Path

from equipoise.methods.fca import FCA


class Waiting(FCA):
    def round(self, server, ask):
        after = super().round(server, ask)
        while ask.round == 1 and Path(__file__).with_name("wait").exists():
            time.sleep(0.02)
        return after
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to find the worker processes")
def test_killed_and_started_again_it_ends_with_the_same_tables(
    table: Table, forked: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Of two methods with two seeds each, one is finished and one is in its second round."""
    table["train"] |= {"rounds": 2, "batch_size": 32}
    table["partition"]["sites"] = 2
    file, out, straight = tmp_path / "tiny.toml", tmp_path / "killed", tmp_path / "straight"
    file.write_text(tomli_w.dumps(table))
    (tmp_path / "waiting.py").write_text(WAITING)
    methods = ["fedavg", "waiting.py:Waiting"]
    plan = make_plan(table, methods, seeds=(0, 1), base=tmp_path)
    compare(plan, straight, 1)
    (tmp_path / "wait").touch()
    words = ["compare", file, "--methods", ",".join(methods), "--seeds", "0..1", "--jobs", "2", "--out", out]
    killed = subprocess.Popen(forked(COMMAND, *words, "--quiet"), cwd=tmp_path, stdout=subprocess.PIPE)
    assert killed.stdout is not None
    pid = int(killed.stdout.readline())

    def reached(job: Job, rounds: int) -> bool:
        rows = out / job.name / "metrics.jsonl"
        return rows.exists() and len(rows.read_bytes().splitlines()) == rounds

    waiting = [job for job in plan.jobs if job.config.method_name == methods[1]]
    others = [job for job in plan.jobs if job not in waiting]
    until(lambda: all((out / job.name / "report.html").exists() for job in others))
    until(lambda: all(reached(job, 1) for job in waiting))
    workers = children(pid)
    os.killpg(pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    killed.stdout.close()
    until(lambda: all(map(gone, workers)))
    assert len(workers) == 2 and not (out / "comparison.json").exists()
    done = {path.parent for path in out.glob("*/*/result.json")}
    assert done == {out / job.name for job in others} and len(done) == 2
    assert all(reached(job, 1) for job in waiting)
    (tmp_path / "wait").unlink()
    compare(plan, out, 1)
    assert texts(out) == texts(straight)
    for job in plan.jobs:
        (one,), (other,) = ([*(folder / job.name / "scores").iterdir()] for folder in (out, straight))
        assert one.name == other.name and one.read_bytes() == other.read_bytes()

"""The verb `compare`: a table for people, JSON for programs, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import doctored

from equipoise.cli.progress import Race, racing
from equipoise.cli.show import tables
from equipoise.compare import Failure
from equipoise.report import read_run

FILE = """
[data]
scale = 0.004
image_size = 16
[partition]
kind = "iid"
sites = 2
[train]
rounds = 1
batch_size = 8
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(FILE)
    return path


@pytest.mark.slow
def test_compare_folds_for_people_and_for_programs(cli, file: Path) -> None:
    words = ("compare", file, "--methods", "fedavg,local", "--seeds", "4", "--folds", 2, "--jobs", 1)
    done = cli(*words)
    assert done.code == 0, done.err
    assert "against fedavg" in done.out and " ± " in done.out and "p images" in done.out
    assert "4 runs, 0 of them finished before" in done.err and "local/4-1 done" in done.err
    folder = Path("runs/tiny-compare")
    assert sorted(path.name for path in folder.iterdir()) == [
        "comparison.json", "fedavg", "local", "report.html", "runs.csv", "table.csv", "table.md", "table.tex",
    ]  # fmt: skip
    told = cli(*words, "--json")
    assert (told.code, told.err) == (0, "")
    facts = json.loads(told.out)
    assert facts == doctored.table(folder / "comparison.json")
    page = (folder / "report.html").read_text()
    assert 'href="local/4-1/report.html"' in page and "2 methods on phantom" in page
    held = [read_run(folder / f"fedavg/4-{fold}").data for fold in (0, 1)]
    tested = [sum(site["test"]["images"] for site in one["sites"].values()) for one in held]
    assert sum(tested) == held[0]["images"]


def test_a_key_on_the_command_line_wins_over_what_a_method_recommends(
    cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.compare.summary.race", lambda *given: [])
    file.write_text(FILE + 'objective = "focal"\n')
    words = ("compare", file, "--methods", "fedavg,fca", "--seeds", "0")
    assert (
        'note      fca: objective = "balanced_softmax" as the method recommends; the file says "focal"'
        in cli(*words).out
    )
    by_hand = json.loads(cli(*words, "train.objective=class_balanced", "--json").out)
    assert by_hand["remarks"] == [
        'fca: objective = "class_balanced" as asked for; the method recommends "balanced_softmax"'
    ]


def test_failed_runs_have_a_code_of_their_own(cli, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure("none/0", "round 0: too few sites", 7)
    monkeypatch.setattr("equipoise.compare.summary.race", lambda *given: [failure])
    words = ("compare", file, "--seeds", "0", "--arm", "none: exchange.min_sites=9", "--out", "out")
    done = cli(*words)
    assert done.code == 9
    assert (
        "1 of 1 runs failed (none/0: round 0: too few sites); run the command again"
        in done.err.splitlines()[-1]
    )
    assert "failed    none/0" in done.out
    told = cli(*words, "--json")
    assert told.code == 9
    assert json.loads(told.out)["failures"][0]["exit_code"] == 7


def made_up(label: str, reference: str, versus: bool) -> tuple[dict, dict]:
    """An arm and its comparison with another, as in comparison.json."""
    figure = {"mean": 0.4321, "std": 0.0123}
    names = ("balanced_accuracy", "macro_auc", "accuracy", "macro_f1", "tail", "map")
    views = ("generalisation", "specialisation", "average")
    arm = {
        "reference": reference,
        "runs": [{}, {}],
        "figures": {view: dict.fromkeys(names, figure) for view in views},
    }
    test = {"difference": -0.012, "holm": {"images": 0.0004, "t": 0.21, "sign_flip": 0.5}}
    return {label: arm}, {label: test} if versus else {}


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("several", [False, True])
def test_no_column_is_cut_and_no_deviation_vanishes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, several: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    first, second = ("fedavg partition.alpha=0.3", "fedavg partition.alpha=3.0")
    others = ("fca lambda_own=2.5 partition.alpha=0.3", "fca lambda_own=2.5 partition.alpha=3.0")
    rows = {first: first, second: second if several else first, others[0]: first}
    rows[others[1]] = second if several else first
    facts: dict = {"task": "single", "reference": first, "runs": 2, "arms": {}, "versus": {}}
    facts |= {key: [] for key in ("collapsed", "remarks", "left_out", "twins", "failures")}
    for label, reference in rows.items():
        arm, versus = made_up(label, reference, label != reference)
        facts["arms"] |= arm
        facts["versus"] |= versus
    tables.compared(facts, Path("out"))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert shown.count("43.2 ± 1.2") == 7 * 4  # every metric of every row
    for head in (
        "G bACC",
        "S bACC",
        "A bACC",
        "G AUC",
        "G ACC",
        "G F1",
        "G tail recall",
        "p images",
        "p flip",
    ):
        assert head in shown
    words = shown.split()
    assert words.count("-1.2") == len(facts["versus"]) and ("against" in words)
    assert all(len(line) <= width for line in shown.splitlines() if not line.startswith(("tables", "report")))


def test_what_is_wrong_is_said_before_any_run(cli, file: Path) -> None:
    assert "name methods" in cli("compare", file).err
    done = cli("compare", file, "--methods", "fedavg,fcaa")
    assert done.code == 2 and "did you mean 'fca'" in done.err
    assert cli("compare", file, "--methods", "fedavg", "--folds", 1).code == 2
    assert not Path("runs").exists()


def test_a_race_counts_rounds_of_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("equipoise.cli.progress.time.monotonic", lambda: now[0])
    race = Race()
    assert (
        race.line("begin", {"rounds": 40, "done": 10, "runs": 4, "finished": 1})
        == "4 runs, 1 of them finished before"
    )
    assert (race.share, race.left) == (0.25, None)
    now[0] += 10
    race.line("round", {"run": "a", "round": 6, "rounds": 10})  # five rounds were done by an earlier session
    race.line("round", {"run": "b", "round": 1, "rounds": 10})
    assert race.share == pytest.approx(17 / 40)
    assert race.left == pytest.approx(10 / 2 * 23)
    assert (
        race.line("failed", {"run": "b", "rounds": 10, "error": "oh"}) == "b failed: oh  1:10 left"
    )  # 14 rounds at 5 s
    race.line("round", {"run": "a", "round": 11, "rounds": 10})  # a step after the last round
    assert race.share == pytest.approx(30 / 40)


def test_a_race_is_told_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        with racing(quiet) as watch:
            watch("data", {"text": "decoding images", "done": 0, "total": 1200})
            watch("begin", {"rounds": 1, "done": 0, "runs": 1, "finished": 0})
            watch("round", {"run": "a/0", "round": 1, "rounds": 1})
            watch("done", {"run": "a/0", "rounds": 1})
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.splitlines() == (
            []
            if quiet
            else ["decoding images (1,200)", "1 runs, 0 of them finished before", "a/0 done  0:00 left"]
        )

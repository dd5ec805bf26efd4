"""Shares and times, with a clock that the test moves."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise.cli import progress
from equipoise.cli.follow import follow
from equipoise.cli.progress import Clock, duration, line, watching
from equipoise.server import Journal


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in a list so that it can be moved."""
    time = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: time[0])
    return time


def rounds(clock: Clock, *numbers: int, sites: int) -> None:
    for number in numbers:
        for _ in range(2 * sites):
            clock.answer()
        clock.round(number)


def test_time_left_follows_the_rounds(now) -> None:
    clock = Clock()
    assert clock.left is None
    clock.begin(10, 3)
    clock.start()
    now[0] += 30
    rounds(clock, 1, 2, 3, sites=3)
    assert clock.share == pytest.approx(0.3)
    assert clock.left == pytest.approx(70)
    for _ in range(3):
        clock.answer()  # half of a round
    assert clock.share == pytest.approx(0.35)


def test_rounds_of_an_earlier_session_are_no_evidence_of_speed(now) -> None:
    clock = Clock()
    clock.begin(10, 3)
    clock.start()
    now[0] += 10
    rounds(clock, 8, sites=3)
    assert clock.share == pytest.approx(0.8)
    assert clock.left == pytest.approx(20)  # 10 s for one round, two to go


def test_several_runs_share_one_clock(now) -> None:
    clock = Clock(runs=4)
    clock.begin(2, 1)
    clock.start()
    now[0] += 10
    rounds(clock, 1, 2, sites=1)
    clock.begin(2, 1)
    assert clock.share == pytest.approx(0.25)
    assert clock.left == pytest.approx(30)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–:––"), (5.4, "0:05"), (309, "5:09"), (3909, "1:05:09")]
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_line_names_what_is_known() -> None:
    row: dict[str, Any] = {"round": 3, "train.loss": 1.25}
    assert line(row, 9) == "round 3/9  loss 1.250"
    row["test"] = {
        "generalisation": {"balanced_accuracy": 0.5},
        "specialisation": {"balanced_accuracy": None},
    }
    assert line(row, 9).endswith("balanced accuracy 50.0 % global, – own")


EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("run", {"name": "first"}),
    ("data", {"text": "decoding images", "done": 0, "total": 10}),
    ("data", {"text": "decoding images", "done": 10, "total": 10}),
    ("begin", {"sites": {"a": 1200, "b": 2}, "classes": ("x", "y"), "rounds": 40}),
    *[("round", {"round": i, "train.loss": 1.0}) for i in range(1, 41)],
]


def test_an_ending_is_told_as_one(capsys) -> None:
    assert line({"round": 8, "ending_of": 3}, 7) == "ending of round 3"
    with watching(False) as watch:
        watch("begin", {"rounds": 200, "sites": {"a": 1}})
        for row in ({"round": 1}, {"round": 2}, {"round": 201, "ending_of": 3}):
            watch("round", row)
    assert "ending of round 3" in capsys.readouterr().err


def test_plain_lines_are_few_and_on_standard_error(capsys) -> None:
    with watching(quiet=False) as watch:
        for event, facts in EVENTS:
            watch(event, facts)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[:3] == ["first", "decoding images (10)", "40 rounds at 2 sites (a 1,200, b 2)"]
    assert [text.split()[1] for text in lines[3:]] == [f"{i}/40" for i in (1, *range(4, 41, 4))]


def test_quiet_says_nothing(capsys) -> None:
    with watching(quiet=True) as watch:
        for event, facts in EVENTS:
            watch(event, facts)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with watching(quiet=False) as watch:
        for event, facts in [*EVENTS[:6], ("answer", {"question": "train", "site": "a"})]:
            watch(event, facts)
    assert out.getvalue() == ""
    assert "round 3/40" in err.getvalue() and "left" in err.getvalue()


def test_an_answer_that_is_left_out_is_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(quiet=False) as watch:
        watch("rejected", {"reason": "round 3: site 'north' was left out of 'train': [why]"})
    assert capsys.readouterr().err == "round 3: site 'north' was left out of 'train': [why]\n"


def test_a_submitted_run_names_sites_and_answers_that_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    look = follow(tmp_path, 5, quiet=False)
    look()
    book = Journal(tmp_path / "journal.jsonl")
    book.write("left out", site="south", reason="site 'south' does not say in order what it holds")
    book.write("committed", round=1)
    look()
    book.write(
        "rejected",
        site="north",
        round=2,
        question="train",
        reason="site 'north' was left out of 'train': why",
    )
    look()
    look()
    book.close()
    told = [text.split("  ", 1)[1] for text in capsys.readouterr().err.splitlines()]
    assert told == [
        "site 'south' does not say in order what it holds",
        "round 2: site 'north' was left out of 'train': why",
    ]


def test_a_submitted_run_says_who_joined_and_what_it_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = Journal(tmp_path / "journal.jsonl")
    book.write("joined", site="of an earlier submission")
    look = follow(tmp_path, 5, quiet=False)
    book.write("invited", sites=["north", "south", "west"], seconds=600.0)
    book.write("joined", site="south")
    book.write("refused", site="west", round=0, question="", reason="policy rule 'methods': no")
    book.write("silent", site="north", round=0, tries=0, reason="not online within 600 s")
    book.write("failed", site="south", round=1, question="train", reason="OSError")
    book.write("missing", round=1, question="train", sites=["south"])
    for round in (1, 2):
        book.write("refused", site="west", round=round, question="evaluate", reason="policy rule 'each': no")
    book.write("resumed")
    look()
    book.close()
    told = [text.split("  ", 1)[1] for text in capsys.readouterr().err.splitlines()]
    assert told == [
        "waiting for north, south, west: who does not join within 600 s is not in the run",
        "south joined (1 of 3 have answered; waiting for north, west)",
        "site 'west' does not join: policy rule 'methods': no (2 of 3 have answered; waiting for north)",
        "site 'north': not online within 600 s (3 of 3 have answered; nobody else is waited for)",
        "round 1: site 'south': OSError",
        "round 1: no usable answer to 'train' from south",
        "round 1: site 'west' does not answer 'evaluate': policy rule 'each': no",
        "continued after its last finished round",
    ]

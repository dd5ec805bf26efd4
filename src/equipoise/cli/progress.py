"""How far a run is: a bar with the time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from equipoise.cli.console import Terminal
from equipoise.evaluate import ENDING
from equipoise.report.folder import percent

Watch = Callable[[str, dict[str, Any]], None]

NOTES = {"rejected": "reason", "note": "text"}
"""events that are shown as they are, and the field with their text"""
LINES = 10
"""plain lines a whole run prints at most, besides the first and the last"""
MANY = 50
"""sites that are listed one by one, at most"""


class Clock:
    """Share of the work done and seconds left, over one or several runs of equal length.

    What an earlier session did counts as done but not as evidence of speed. Within a round the answers count;
    how many a round has is taken from the round before.
    """

    def __init__(self, runs: int = 1) -> None:
        self.runs, self.run = runs, -1
        self.rounds, self.done = 1, 0
        self._answers, self._expected = 0, 1
        self._start, self._first = time.monotonic(), 0.0

    def begin(self, rounds: int, sites: int) -> None:
        self.run, self.rounds, self.done = self.run + 1, max(1, rounds), 0
        self._answers, self._expected = 0, 2 * sites  # train and evaluate, until a round has been seen

    def start(self) -> None:
        """The first event of work: speed is measured from here."""
        self._start, self._first = time.monotonic(), self.share

    def answer(self) -> None:
        self._answers += 1

    def round(self, number: int) -> None:
        skipped = number - self.done - 1
        self._first += skipped / self.rounds / self.runs  # done by an earlier session
        self.done, self._expected, self._answers = number, max(1, self._answers), 0

    @property
    def share(self) -> float:
        within = min(1.0, self._answers / self._expected)
        return min(1.0, (max(0, self.run) + (self.done + within) / self.rounds) / self.runs)

    @property
    def left(self) -> float | None:
        """Seconds to go, or None before anything is known."""
        gained = self.share - self._first
        return None if gained <= 0 else (time.monotonic() - self._start) * (1 - self.share) / gained


def duration(seconds: float | None) -> str:
    """1:05:09, 5:09, or a dash."""
    if seconds is None:
        return "–:––"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def line(row: dict[str, Any], rounds: int) -> str:
    """One round in words."""
    text = f"ending of round {row[ENDING]}" if ENDING in row else f"round {row['round']}/{rounds}"
    if "train.loss" in row:
        text += f"  loss {row['train.loss']:.3f}"
    if "test" in row:
        both = (row["test"][key]["balanced_accuracy"] for key in ("generalisation", "specialisation"))
        text += "  balanced accuracy {} global, {} own".format(*map(percent, both))
    return text


@contextmanager
def watching(quiet: bool, runs: int = 1) -> Iterator[Watch]:
    """A `watch` for `equipoise.run` that shows progress; `runs` runs share one bar."""
    if quiet:
        yield lambda event, facts: None
    elif sys.stdout.isatty() and sys.stderr.isatty():
        with _bar(runs) as watch:
            yield watch
    else:
        yield _plain(runs)


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(None),
        TextColumn("{task.percentage:3.0f} %  {task.fields[left]} left"),
    )
    return Progress(*columns, console=Terminal(stderr=True), transient=True)


@contextmanager
def _bar(runs: int) -> Iterator[Watch]:
    clock = Clock(runs)
    progress = _progress()
    try:
        task = progress.add_task("reading data", total=1.0, left=duration(None))

        def watch(event: str, facts: dict[str, Any]) -> None:
            progress.start()  # not before: it has a thread, and a run copies itself best without any
            if event == "run":
                progress.print(f"[bold]{facts['name']}[/bold]")
            elif event in NOTES:
                progress.print(facts[NOTES[event]], highlight=False, markup=False)
            elif event == "data":
                progress.update(task, description=f"{facts['text']} {facts['done']:,}/{facts['total']:,}")
            elif event == "begin":
                clock.begin(facts["rounds"], len(facts["sites"]))
                if clock.run == 0:
                    clock.start()
                progress.update(task, description=f"round 1/{clock.rounds}", completed=clock.share)
            elif event == "answer":
                clock.answer()
                progress.update(task, completed=clock.share, left=duration(clock.left))
            elif event == "round":
                clock.round(facts["round"])
                text = f"round {min(clock.done + 1, clock.rounds)}/{clock.rounds}"
                progress.update(task, description=text, completed=clock.share, left=duration(clock.left))
                if "test" in facts:
                    progress.print(line(facts, clock.rounds), highlight=False)

        yield watch
    finally:
        progress.stop()


def _plain(runs: int) -> Watch:
    clock = Clock(runs)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "run":
            say(facts["name"])
        elif event in NOTES:
            say(facts[NOTES[event]])
        elif event == "data" and facts["done"] == 0:
            say(f"{facts['text']} ({facts['total']:,})")
        elif event == "begin":
            clock.begin(facts["rounds"], len(facts["sites"]))
            if clock.run == 0:
                clock.start()
            rounds = "1 round" if clock.rounds == 1 else f"{clock.rounds} rounds"
            say(f"{rounds} at {len(facts['sites'])} sites ({_sizes(facts['sites'])})")
        elif event == "answer":
            clock.answer()
        elif event == "round":
            clock.round(facts["round"])
            step = max(1, clock.rounds // LINES)
            if clock.done % step == 0 or clock.done in (1, clock.rounds) or ENDING in facts:
                say(f"{line(facts, clock.rounds)}  {duration(clock.left)} left")

    return watch


def _sizes(sites: Mapping[str, int]) -> str:
    """Training images by site, or of many sites how many there are at each."""
    if len(sites) <= MANY:
        return ", ".join(f"{site} {count:,}" for site, count in sites.items())
    return f"{min(sites.values()):,} to {max(sites.values()):,} training images each"


class Race:
    """How far several runs side by side are, in rounds of all of them, and the seconds left."""

    def __init__(self) -> None:
        self.total, self.trained, self.skipped = 1, 0, 0
        self._reached: dict[str, int] = {}
        self._start = time.monotonic()

    @property
    def share(self) -> float:
        return (self.trained + self.skipped) / self.total

    @property
    def left(self) -> float | None:
        """Seconds to go; what an earlier session trained is no evidence of speed."""
        if not self.trained:
            return None
        return (time.monotonic() - self._start) * (1 - self.share) * self.total / self.trained

    def line(self, event: str, facts: dict[str, Any]) -> str | None:
        """Take note of an event; what is worth a line of its own."""
        if event == "data":
            return f"{facts['text']} ({facts['total']:,})" if facts["done"] == 0 else None
        if event == "begin":
            self.total, self.skipped, self._start = facts["rounds"], facts["done"], time.monotonic()
            return f"{facts['runs']} runs, {facts['finished']} of them finished before"
        before = self._reached.get(facts["run"], 0)
        now = min(facts["rounds"], facts["round"]) if event == "round" else facts["rounds"]
        self._reached[facts["run"]] = now
        # A jump is what an earlier session did, or what a failure leaves undone.
        step = min(1, now - before) if event == "round" else 0
        self.trained += step
        self.skipped += now - before - step
        if event == "round":
            return None
        ending = "done" if event == "done" else f"failed: {facts['error']}"
        return f"{facts['run']} {ending}  {duration(self.left)} left"


@contextmanager
def racing(quiet: bool) -> Iterator[Watch]:
    """A `watch` for a comparison: one bar for all runs, and a line for each run that ends."""
    race = Race()
    if quiet:
        yield lambda event, facts: None
    elif sys.stdout.isatty() and sys.stderr.isatty():
        with _progress() as progress:
            task = progress.add_task("reading data", total=1.0, left=duration(None))

            def watch(event: str, facts: dict[str, Any]) -> None:
                if text := race.line(event, facts):
                    progress.print(text, highlight=False, markup=False)
                if event != "data":
                    left = duration(race.left)
                    progress.update(task, description="training", completed=race.share, left=left)

            yield watch
    else:

        def plain(event: str, facts: dict[str, Any]) -> None:
            if text := race.line(event, facts):
                print(text, file=sys.stderr, flush=True)

        yield plain

"""Real processes on one machine: what Flower costs, how many sites it carries, and whether kills leave a
trace.

    python benchmarks/flower.py overhead [--sites 3] [--rounds 5]    seconds per round, beside the pool engine
    in the same minutes python benchmarks/flower.py overhead --sites 20 --rounds 2       twenty sites, forty
    processes python benchmarks/flower.py methods [fca fedmlp …]               every method (or these): the
    bits of the simulation? python benchmarks/flower.py kills [--times 10]                   the coordinator
    killed at random moments: the same bits?

All of it with TLS and site keys on loopback. Server and sites stay up from method to method, one set for
single-label and one for multi-label data. Ends with 1 if any result is not the simulation's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from equipoise.config import Config, resolve
from equipoise.deploy import link, processes
from equipoise.deploy.coordinator import federated
from equipoise.deploy.policy import approved
from equipoise.deploy.rehearse import Stage, allowed, stage
from equipoise.methods import METHODS
from equipoise.running import run
from equipoise.seeds import numpy_generator

OPEN = {"small_cell": 0, "batch_size": 1}
"""rules of sites that tell all, as a simulation does"""


def tiny(method: str, sites: int, rounds: int, every: int = 1) -> Config:
    """A run whose rounds take next to no time by themselves."""
    task = METHODS[method].tasks[0]
    return resolve(
        {
            "data": {"kind": "phantom", "scale": 0.004 * max(1.0, sites / 3), "image_size": 16, "task": task},
            "partition": {"kind": "iid", "sites": sites} | ({"missing": 2} if task == "multi" else {}),
            "method": {"name": method},
            "train": {"rounds": rounds, "batch_size": 8},
            "evaluate": {"every": every},
            "exchange": {"min_sites": min(3, sites)},
            "engine": {"device": "cpu", "deadline": 600.0, "patience": 900.0},
        }
    )


class Rounds:
    """The moments at which rounds were done."""

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.done = path, [time.perf_counter()]

    def look(self) -> None:
        count = len(self.path.read_text().splitlines()) if self.path and self.path.exists() else 0
        self.done += [time.perf_counter()] * (count + 1 - len(self.done))

    def watch(self, event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            self.done.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """Of every round but the first, which waits for everything to start."""
        return [b - a for a, b in zip(self.done[1:-1], self.done[2:], strict=True)]


PARTS = {
    "equipoise.deploy.superlink": "server",
    "equipoise.deploy.inside\0superexec": "server's starter of runs",
    "equipoise.deploy.inside\0serverapp": "training loop",
    "equipoise.cli\0site\0join": "sites",
}
"""by the words of their command: what a process is"""
TICK = os.sysconf("SC_CLK_TCK")


class Meter:
    """Processor seconds of a federation's processes, whenever a round is done."""

    def __init__(self, made: Stage, rounds: Rounds) -> None:
        self.made, self.rounds = made, rounds
        self.marks = list[tuple[int, dict[str, float]]]()

    def look(self) -> None:
        before = len(self.rounds.done)
        self.rounds.look()
        if len(self.rounds.done) > before:
            self.marks.append((len(self.rounds.done) - 1, self.seconds()))

    def seconds(self) -> dict[str, float]:
        started = [process for process in (self.made.server, *self.made.sites.values()) if process]
        numbers, spent = {process.pid for process in started}, defaultdict[str, float](float)
        for number in numbers | set(processes.family(numbers)):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{number}/cmdline").read_bytes().decode()
                stat = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                name = next((part for words, part in PARTS.items() if words in command), "others")
                spent[name] += (int(stat[11]) + int(stat[12])) / TICK
        return spent

    def report(self, questions: int) -> None:
        """Print what a question took between the first mark and the last."""
        (first, before), (last, after) = self.marks[0], self.marks[-1]
        asked = (last - first) * questions
        if not asked:
            return
        spent = {name: (after[name] - before.get(name, 0.0)) / asked for name in after}
        print(f"processor seconds a question: {sum(spent.values()):.2f}")
        for name, each in sorted(spent.items(), key=lambda item: -item[1]):
            print(f"  {each:6.3f}  {name}")


def overhead(sites: int, rounds: int) -> int:
    """A federation and the pool, one after the other."""
    config = federated(tiny("fedavg", sites, rounds))
    with tempfile.TemporaryDirectory() as place:
        folder, pool = Path(place), Rounds()
        expected = run(
            config.with_engine(kind="pool", workers=2), folder / "pool", watch=pool.watch
        ).state_hash
        flower = Rounds(folder / "run" / "metrics.jsonl")
        begin = time.perf_counter()
        with stage(config, folder / "town", {"each": allowed(config), **OPEN}) as made:
            made.open()
            made.join_all()
            meter = Meter(made, flower)
            found = made.perform(config, folder / "run", meter.look, pause=0.2)
        row = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    ours, theirs = (statistics.median(x.seconds) if x.seconds else float("nan") for x in (pool, flower))
    questions = 2  # train and evaluate
    print(
        f"{sites} sites, {rounds} rounds of FedAvg, {row['bytes_down'] // sites:,} bytes down and "
        f"{row['bytes_up'] // sites:,} up per site"
    )
    print(f"pool, 2 workers    {ours:6.2f} s a round")
    print(f"Flower, TLS, keys  {theirs:6.2f} s a round, {(theirs - ours) / questions:.2f} s more a question")
    print(f"first round done   {flower.done[1] - begin:6.1f} s after the start of the first process")
    print(f"missing answers    {sites - len(row['sites'])} in the last round")
    meter.report(questions)
    print("same bits" if found["state_hash"] == expected else "NOT THE SAME BITS")
    return int(found["state_hash"] != expected)


def methods(names: list[str]) -> int:
    """Every method on one stage per task."""
    wrong = 0
    for task in dict.fromkeys(METHODS[name].tasks[0] for name in names):
        plays = {
            name: federated(tiny(name, 3, 2, every=2)) for name in names if METHODS[name].tasks[0] == task
        }
        each = sorted({leaf for config in plays.values() for leaf in allowed(config)})
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            with stage(
                next(iter(plays.values())), folder / "town", {"each": each, "methods": approved(), **OPEN}
            ) as made:
                made.open()
                made.join_all()
                for name, config in plays.items():
                    begin = time.perf_counter()
                    found = made.perform(config, folder / name)["state_hash"]
                    seconds = time.perf_counter() - begin
                    same = found == run(config, folder / f"{name}-here").state_hash
                    wrong += not same
                    print(
                        f"{task}  {name:<14} {seconds:6.1f} s  {'the same bits' if same else 'NOT THE SAME'}",
                        flush=True,
                    )
    return int(wrong > 0)


def kills(times: int, seed: int) -> int:
    """One federation whose coordinator is killed again and again; each time the server is started and the run
    handed in anew."""
    config, draw = federated(tiny("fca", 3, 4 * times)), numpy_generator(seed, "kills")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        expected = run(config, folder / "here").state_hash
        out = folder / "run"
        with stage(config, folder / "town", {"each": allowed(config), **OPEN}) as made:
            made.open()
            made.join_all()
            number = link.submit(made.coordinator, config, out)
            rounds = Rounds(out / "metrics.jsonl")
            for turn in range(times):
                if (
                    turn % 2 == 0
                ):  # every other kill in the midst of rounds, the others also while all are on their way back
                    done = len(rounds.done)
                    while len(rounds.done) == done <= 4 * times:
                        rounds.look()
                        time.sleep(0.1)
                moment = float(draw.uniform(0, 15))
                time.sleep(moment)
                rounds.look()
                assert made.server is not None
                made.kill(made.server)
                print(
                    f"kill {turn + 1:2} after {moment:4.1f} s, {len(rounds.done) - 1} of {4 * times} "
                    f"rounds done",
                    flush=True,
                )
                made.open()
                number = link.submit(made.coordinator, config, out)
            found = link.wait(made.coordinator, out, number, lambda: None)
    print("same bits" if found["state_hash"] == expected else "NOT THE SAME BITS")
    return int(found["state_hash"] != expected)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("overhead", "methods", "kills"))
    parser.add_argument("names", nargs="*", help="methods; all if none")
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "overhead":
        return overhead(given.sites, given.rounds)
    return (
        methods(given.names or list(METHODS)) if given.what == "methods" else kills(given.times, given.seed)
    )


if __name__ == "__main__":
    sys.exit(main())

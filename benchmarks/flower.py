"""Real processes on one machine: what Flower costs, how many sites it carries, and whether kills leave a
trace.

    python benchmarks/flower.py overhead --sites 2 --rounds 8   seconds per round, beside the pool engine
    python benchmarks/flower.py overhead --sites 20 --rounds 5  twenty sites, twenty-three processes
    python benchmarks/flower.py large --mb 100                  memory of every process for a large model
    python benchmarks/flower.py soak                            20 sites, 50 rounds; sites leave and return
    python benchmarks/flower.py methods [fca fedmlp …]          every method (or these): the same bits?
    python benchmarks/flower.py kills --times 10                the coordinator killed again and again

All of it with TLS and site keys on loopback. Server and sites stay up from method to method, one set for
single-label and one for multi-label data. Ends with 1 if any result is not the simulation's, or, of a soak,
if anybody was missing who was there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from equipoise.config import Config, resolve
from equipoise.deploy import link, processes
from equipoise.deploy.coordinator import federated
from equipoise.deploy.policy import approved
from equipoise.deploy.rehearse import CLI, Stage, allowed, stage
from equipoise.methods import METHODS
from equipoise.running import run
from equipoise.seeds import numpy_generator
from equipoise.server.journal import read as read_journal

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


def members(made: Stage) -> dict[int, str]:
    """The processes of a federation, by number: what each is."""
    started = [process for process in (made.server, *made.sites.values()) if process]
    numbers, found = {process.pid for process in started}, dict[int, str]()
    for number in numbers | set(processes.family(numbers)):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{number}/cmdline").read_bytes().decode()
            found[number] = next((part for words, part in PARTS.items() if words in command), "others")
    return found


def memory(number: int, what: str = "VmRSS") -> float:
    """Megabytes that a process has in memory, or had at most (VmHWM); 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{number}/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) / 1024
    return 0.0


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
        spent = defaultdict[str, float](float)
        for number, name in members(self.made).items():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
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


NET = """
from torch import nn


class Wide(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.first, self.wide = nn.Conv2d(channels, width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        return self.wide(self.first(x.mean((2, 3), keepdim=True)).relu())
"""


def simulated(table: dict[str, Any], folder: Path) -> tuple[str, float]:
    """The state that a simulation comes to, and the most megabytes it had in memory: for a process of its
    own."""
    return run(federated(resolve(table)), folder).state_hash, memory(os.getpid(), "VmHWM")


def peaks(width: int, sites: int, folder: Path) -> tuple[dict[str, float], int, bool]:
    """By process: the most megabytes it had in memory in a run with a network of one wide layer; the bytes
    that each site received in the first round; and whether the bits are the simulation's."""
    (folder / "wide.py").write_text(NET)
    table = tiny("fedavg", sites, 2, every=2).table()
    table["net"] = {"name": f"{folder / 'wide.py'}:Wide", "width": width}
    config = federated(resolve(table))
    most = defaultdict[str, float](float)
    with stage(config, folder / "town", {"each": allowed(config), **OPEN}) as made:
        made.open()
        made.join_all()

        def look() -> None:
            for number, name in members(made).items():
                most[name] = max(most[name], memory(number, "VmHWM"))

        found = made.perform(config, folder / "run", look, pause=0.2)
    row = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[0])
    with ProcessPoolExecutor(1, get_context("spawn")) as apart:
        expected, most["simulation, one process"] = apart.submit(simulated, table, folder / "here").result()
    return dict(most), row["bytes_down"] // sites, found["state_hash"] == expected


def large(sites: int, mb: float) -> int:
    """What a large model takes beside a small one, in multiples of the model."""
    wrong, found = 0, list[tuple[dict[str, float], int]]()
    for size in (1.0, mb):
        with tempfile.TemporaryDirectory() as place:
            most, down, same = peaks(int((size * 2**20 / 4) ** 0.5), sites, Path(place))
        found.append((most, down))
        wrong += not same
        print(f"a model of {size:g} MB: {'the same bits' if same else 'NOT THE SAME BITS'}", flush=True)
    (before, _), (after, down) = found
    print(f"{sites} sites, two rounds, {down:,} bytes down per site in the first; peak memory in MB")
    print(f"{'':26} {'1 MB':>8} {f'{mb:g} MB':>8} {'more, in models':>16}")
    for name, peak in sorted(after.items(), key=lambda item: -item[1]):
        small = before.get(name, 0.0)
        print(f"{name:26} {small:8.0f} {peak:8.0f} {(peak - small) / mb:16.1f}")
    return int(wrong > 0)


class Absence:
    """When a site was away: from the moment it was ended until it was online again."""

    def __init__(self, site: str) -> None:
        self.site, self.begin, self.end = site, time.monotonic(), float("inf")


def soak(sites: int, rounds: int, every: int) -> int:
    """Sites that leave and return while a run goes on; only they are missing, and only then. With `every` 0
    nobody leaves: what is left is whether memory stays level."""
    config = federated(tiny("fedavg", sites, rounds, every=rounds)).with_engine(deadline=12.0, patience=900.0)
    away, seen, sizes = list[Absence](), list[float](), dict[int, dict[int, tuple[str, float]]]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = Rounds(folder / "run" / "metrics.jsonl")
        with stage(config, folder / "town", {"each": allowed(config), **OPEN}) as made:
            made.open()
            made.join_all()
            names = sorted(made.sites)

            def online(site: str) -> int:
                path = made.site(site) / "journal.jsonl"
                return sum(line["event"] == "online" for line in read_journal(path)[0])

            counts = dict[str, int]()

            def look() -> None:
                for one in away:
                    if one.end == float("inf") and online(one.site) > counts.get(one.site, 10**9):
                        one.end = time.monotonic()
                before = len(rows.done)
                rows.look()
                for number in range(before, len(rows.done)):
                    seen.append(time.monotonic())
                    if number % max(1, rounds // 10) == 0:
                        sizes[number] = {pid: (part, memory(pid)) for pid, part in members(made).items()}
                    if every and number % every == 0 and number < rounds:
                        if away:  # who left last comes back
                            counts[away[-1].site] = online(away[-1].site)
                            made.join(away[-1].site)
                        site = names[len(away) % len(names)]
                        processes.stop(made.sites[site], patience=20.0)
                        away.append(Absence(site))
                        print(f"round {number:3}: {site} leaves", flush=True)

            result = made.perform(config, folder / "run", look, pause=0.2)
            look()
        out = folder / "run"
        lost = _not_explained(out, names, away, seen)
        wrong = [*lost, *_unverified(out, made, names)]
        lines, _ = read_journal(out / "journal.jsonl")
    print(f"{len(rows.done) - 1} of {rounds} rounds, {len(away)} absences, {len(lines)} lines in the journal")
    print(f"median MB in memory after round    {' '.join(f'{number:6}' for number in sizes)}")
    for part in PARTS.values():
        marks = [[size for name, size in mark.values() if name == part] for mark in sizes.values()]
        shown = [f"{statistics.median(mark):6.0f}" if mark else "     -" for mark in marks]
        print(f"  {part:32} {' '.join(shown)}")
    print("\n".join(wrong) or "missing were those who had left, and nobody else; every journal is whole")
    print(f"ended with {result['state_hash'][:16]}")
    return int(bool(wrong))


def _not_explained(out: Path, names: list[str], away: list[Absence], seen: list[float]) -> list[str]:
    """A sentence for each site that was missing in a round though it was there, or the reverse."""
    wrong = []
    for number, line in enumerate((out / "metrics.jsonl").read_text().splitlines()):
        missing = set(names) - set(json.loads(line)["sites"])
        begin, end = seen[number - 1] if number else 0.0, seen[number]
        partly = {one.site for one in away if one.begin < end and one.end > begin}
        wholly = {one.site for one in away if one.begin < begin and one.end > end}
        if missing:
            print(f"round {number + 1:3} without {', '.join(sorted(missing))}")
        wrong += [f"round {number + 1}: {site} was missing and had not left" for site in missing - partly]
        wrong += [f"round {number + 1}: {site} had left and is not missing" for site in wholly - missing]
    return wrong


def _unverified(out: Path, made: Stage, names: list[str]) -> list[str]:
    """What `equipoise verify` finds wrong with the run and the folders of the sites."""
    wrong = []
    for site in names:
        command = [*CLI, "verify", str(out), "--with", str(made.site(site) / "journal.jsonl")]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode:
            wrong.append(f"verify with {site}: {found.stdout.strip()[-500:]} {found.stderr.strip()[-500:]}")
    return wrong


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
    parser.add_argument("what", choices=("overhead", "large", "soak", "methods", "kills"))
    parser.add_argument("names", nargs="*", help="methods; all if none")
    parser.add_argument("--sites", type=int, help="2, for a soak 20")
    parser.add_argument("--rounds", type=int, help="5, for a soak 50")
    parser.add_argument(
        "--every", type=int, default=5, help="soak: rounds after which one leaves; 0: nobody does"
    )
    parser.add_argument("--mb", type=float, default=100.0, help="large: megabytes of the model")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "overhead":
        return overhead(given.sites or 2, given.rounds or 5)
    if given.what == "large":
        return large(given.sites or 2, given.mb)
    if given.what == "soak":
        return soak(given.sites or 20, given.rounds or 50, given.every)
    return (
        methods(given.names or list(METHODS)) if given.what == "methods" else kills(given.times, given.seed)
    )


if __name__ == "__main__":
    sys.exit(main())

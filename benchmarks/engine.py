"""Speed of the engines, as ratios measured in one run.

    python benchmarks/engine.py [small-cnn resnet18 efficientnet-lite0] [--rounds 4]
                                [--parts ratios runs scaling]

For each network, FedAvg over the same sites and images, one local epoch per round, no augmentation, rounds
interleaved with (a) a bare PyTorch loop doing the same steps on the same tensors, in a process of its own:
new model and optimiser per site, default
    memory format, one thread; its images are already float and normalised, the engine's are not;
(b) two such loops side by side, one per core, each with half the sites: what the machine gives two processes
at that moment. Printed: round ÷ (a) for the serial engine, round ÷ (b) for two workers, both medians over
rounds; the engine's own overhead beside its training steps; start-up; bytes exchanged (`ratios`). Then, of
`equipoise run` with two workers as a user types it: seconds from the command to the end of its first round,
and the most memory that all its processes had together, beside that of the bare loop (`runs`). Then cost
against images per site, and the coordinator's memory against the number of sites (`scaling`).

Memory is the sum of proportional set sizes (PSS): pages that several processes share count once. It is
sampled ten times a second.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor, nn

from equipoise.config import Config, resolve
from equipoise.nets import build
from equipoise.run_folder import METRICS, RunFolder
from equipoise.running import Plan, make_engine, one_thread, prepare
from equipoise.server import Checkpoints, Exchange, Federation, Journal, Observer
from equipoise.setup import Material, material
from equipoise.site import Loc
from equipoise.site.views import NORMS
from equipoise.tree import Tree

SETTINGS: dict[str, dict[str, Any]] = {
    "small-cnn": {"sites": 10, "images": 256, "size": 32},
    "resnet18": {"sites": 4, "images": 256, "size": 64},
    "efficientnet-lite0": {"sites": 4, "images": 256, "size": 64},
}
CLASSES = 8
PARTS = ("ratios", "runs", "scaling")


def noise(path: Path, images: int, size: int) -> Path:
    """A MedMNIST-like file of random images."""
    draw = np.random.default_rng(0)
    part = {
        f"{split}_{kind}": draw.integers(0, 256, (n, size, size, 3), dtype=np.uint8)
        if kind == "images"
        else (np.arange(n) % CLASSES)[:, None]
        for split, n in (("train", images), ("val", CLASSES), ("test", CLASSES))
        for kind in ("images", "labels")
    }
    np.savez(path, **part)
    return path


def config_of(net: str, sites: int, images: int, size: int, folder: Path, **engine: Any) -> Config:
    path = folder / f"{sites}x{images}x{size}.npz"
    return resolve(
        {
            "data": {
                "kind": "npz",
                "path": str(path if path.exists() else noise(path, sites * images, size)),
                "image_size": size,
            },
            "partition": {"kind": "iid", "sites": sites},
            "net": {"name": net},
            "train": {"rounds": 10**6, "optimizer": "sgd", "lr": 0.01, "batch_size": 32, "views": ["eval"]},
            "evaluate": {"every": 10**9},
            "engine": engine,
        }
    )


class Bare:
    """The obvious loop: per site a copy of the model, a new optimiser, one epoch; then the weighted mean."""

    def __init__(self, config: Config, dataset: Material, part: slice) -> None:
        samples = dataset.samples
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in NORMS["imagenet"])
        self.sites: list[tuple[Tensor, Tensor]] = []
        for holding in dataset.holdings[part]:
            x = torch.from_numpy(np.array(samples.images[holding.train])).permute(0, 3, 1, 2).contiguous()
            self.sites.append(
                ((x.float() / 255 - mean) / std, torch.from_numpy(samples.labels[holding.train]))
            )
        size = samples.images.shape[1]
        net = build(config.net, classes=CLASSES, image_size=size, seed=0, base=Path())
        self.model = net.to(memory_format=torch.contiguous_format)
        self.options = config.train

    def round(self) -> float:
        start = time.perf_counter()
        states, sizes = [], []
        for x, y in self.sites:
            model = copy.deepcopy(self.model)
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), self.options.lr)
            order = torch.randperm(len(x))
            for i in range(0, len(x), self.options.batch_size):
                rows = order[i : i + self.options.batch_size]
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
            states.append(model.state_dict())
            sizes.append(len(x))
        mean = {
            k: sum(s[k] * (n / sum(sizes)) for s, n in zip(states, sizes, strict=True)) for k in states[0]
        }
        self.model.load_state_dict(mean, strict=False)
        return time.perf_counter() - start


class Loops:
    """Bare loops in processes of their own, side by side, each with its part of the sites."""

    def __init__(self, arguments: list[str], parts: list[str]) -> None:
        command = [sys.executable, __file__, "--bare", *arguments]
        self.processes = [
            subprocess.Popen([*command, part], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for part in parts
        ]
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.readline()

    def round(self) -> float:
        start = time.perf_counter()
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.readline()
        return time.perf_counter() - start

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()


def bare_process(arguments: list[str]) -> None:
    """One bare loop: a round for every line read."""
    table, part = json.loads(arguments[0]), arguments[1]
    torch.set_num_threads(1)
    config = resolve(table)
    dataset = material(config)
    middle = len(dataset.holdings) // 2
    parts = {"all": slice(None), "first": slice(0, middle), "second": slice(middle, None)}
    loop = Bare(config, dataset, parts[part])
    loop.round()
    print("ready", flush=True)
    for _ in sys.stdin:
        loop.round()
        print("done", flush=True)


class Enough(Exception):
    """Ends the engine's loop."""


class Interleave:
    """The loop's observer: times each whole round (the commit of the one before included), then runs the
    references."""

    def __init__(self, rounds: int, references: Mapping[str, Callable[[], float]]) -> None:
        self.rounds, self.references = rounds, references
        self.times: list[float] = []
        self.compared: dict[str, list[float]] = {name: [] for name in references}
        self.facts: Mapping[str, Any] = {}
        self.start = time.perf_counter()

    def wants_tuned(self, round: int) -> bool:
        return False

    def mark(self) -> str:
        return ""

    def pinned(self) -> frozenset[int]:
        return frozenset()

    def observe(self, done: int, server: Tree, ask: Exchange, facts: Mapping[str, Any]) -> None:
        self.times.append(time.perf_counter() - self.start)
        self.facts = facts
        if done > self.rounds:
            raise Enough
        for name, reference in self.references.items():
            self.compared[name].append(reference())
        self.start = time.perf_counter()

    def ratio(self, name: str) -> tuple[float, float, float]:
        """Median, smallest and largest of round ÷ reference; the first round warms up."""
        pairs = zip(self.times[1:], self.compared[name][1:], strict=False)
        ratios = sorted(a / b for a, b in pairs)
        return statistics.median(ratios), ratios[0], ratios[-1]


def federation_of(config: Config, folder: Path, observer: Observer) -> tuple[Federation, Plan]:
    """A run that is ready to go, in its own folder."""
    dataset = material(config)
    plan = prepare(config, dataset.facts, dataset)
    federation = Federation(
        method=config.method,
        engine=make_engine(plan, dataset, RunFolder(folder)),
        ledger=plan.ledger,
        limits=config.exchange,
        journal=Journal(folder / "journal.jsonl"),
        checkpoints=Checkpoints(folder / "checkpoints"),
        sites=tuple(plan.facts.census.sizes),
        rounds=config.train.rounds,
        seed=0,
        participation=1.0,
        config_hash="",
        observer=observer,
    )
    return federation, plan


def engine_rounds(
    config: Config, folder: Path, rounds: int, references: Mapping[str, Callable[[], float]]
) -> dict[str, Any]:
    """Whole rounds of an engine, interleaved with references."""
    observer = Interleave(rounds, references)
    federation, plan = federation_of(config, Path(tempfile.mkdtemp(dir=folder)), observer)
    try:
        federation.run(plan.first)
    except Enough:
        pass
    finally:
        federation.engine.close()
        federation.journal.close()
    return {"observer": observer, "first": observer.times[0]}


def overhead(config: Config, folder: Path, rounds: int) -> float:
    """Share of a serial round that is not training steps."""
    spent: list[float] = []
    plain = Loc.fit

    def timed(self: Loc, *args: Any, **kwargs: Any) -> float:
        start = time.perf_counter()
        try:
            return plain(self, *args, **kwargs)
        finally:
            spent.append(time.perf_counter() - start)

    Loc.fit = timed  # type: ignore[method-assign]
    try:
        found = engine_rounds(config, folder, rounds, {})
    finally:
        Loc.fit = plain  # type: ignore[method-assign]
    sites = config.partition.sites  # type: ignore[attr-defined]
    times = found["observer"].times[1:]
    # The ledger's probe trains two small sites before the first round; whole rounds are counted from the
    # second on.
    steps = [sum(spent[i : i + sites]) for i in range(len(spent) - sites * len(times), len(spent), sites)]
    return statistics.median(whole / step - 1 for whole, step in zip(times, steps, strict=True))


def report(net: str, rounds: int, folder: Path) -> None:
    setting = SETTINGS[net]
    serial = config_of(net, folder=folder, kind="serial", **setting)
    bare = Loops([json.dumps(serial.table())], ["all"])
    alone = engine_rounds(serial, folder, rounds, {"a": bare.round})
    two = config_of(net, folder=folder, kind="pool", workers=2, **setting)
    pair = Loops([json.dumps(serial.table())], ["first", "second"])
    pooled = engine_rounds(two, folder, rounds, {"b": pair.round, "a": bare.round})
    pair.close()
    bare.close()
    facts = alone["observer"].facts
    for text, (middle, low, high) in (
        ("serial engine ÷ (a) bare loop", alone["observer"].ratio("a")),
        ("two workers ÷ (b) two bare loops", pooled["observer"].ratio("b")),
        ("two workers ÷ (a) bare loop", pooled["observer"].ratio("a")),
    ):
        print(f"  {text:36} {middle:5.2f}   ({low:.2f} – {high:.2f} over {rounds} rounds)")
    print(f"  {'overhead beside training steps':36} {overhead(serial, folder, rounds):5.1%}")
    print(f"  {'start-up + first round, s':36} {alone['first']:5.1f} serial, {pooled['first']:.1f} pool")
    print(
        f"  {'bytes per round and site':36} {facts['bytes_up'] // setting['sites']:,} up, "
        f"{facts['bytes_down'] // setting['sites']:,} down"
    )
    sys.stdout.flush()


SAMPLED = 0.1
"""seconds between two looks at the memory of processes"""


def family(pid: int) -> list[int]:
    """A process and all that it started, and so on."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        children = [Path(f"/proc/{pid}/task/{one}/children").read_text().split() for one in threads]
    except OSError:
        return []
    return [pid, *(each for one in children for child in one for each in family(int(child)))]


def shared_once(pid: int) -> int:
    """Memory of a process and all that it started, in MB; what they share counts once."""
    total = 0
    for one in family(pid):
        try:
            total += int(Path(f"/proc/{one}/smaps_rollup").read_text().partition("Pss:")[2].split()[0])
        except (OSError, IndexError):  # it has just ended
            continue
    return total // 1024


def watched(process: subprocess.Popen[Any], seen: Callable[[], bool] = lambda: True) -> tuple[float, int]:
    """Seconds until something is seen, and the most memory until the process ends."""
    start, first, most = time.perf_counter(), 0.0, 0
    while process.poll() is None:
        if not first and seen():
            first = time.perf_counter() - start
        most = max(most, shared_once(process.pid))
        time.sleep(SAMPLED)
    if process.returncode:
        raise SystemExit(f"a measured process failed with code {process.returncode}")
    return first, most


def whole_run(net: str, folder: Path) -> None:
    """`equipoise run` with two workers: until its first round is done, and its memory."""
    setting = SETTINGS[net]
    config = config_of(net, folder=folder, kind="pool", workers=2, **setting)
    table = config.table()
    table["train"] |= {"rounds": 3}
    material(config)  # decoded once, as it would be in all runs but the first
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "config.toml").write_text(tomli_w.dumps(table))
    command = [sys.executable, "-m", "equipoise.cli", "run", str(place / "config.toml"), "--quiet"]
    rows = place / "run" / METRICS
    run = subprocess.Popen([*command, "--out", str(place / "run")], stdout=subprocess.DEVNULL)
    first, ours = watched(run, lambda: rows.exists() and rows.stat().st_size > 0)
    loop = subprocess.Popen(
        [sys.executable, __file__, "--bare", json.dumps(table), "all"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert loop.stdin is not None
    loop.stdin.write("go\n")
    loop.stdin.close()
    _, bare = watched(loop)
    print(f"  {'equipoise run to end of round 1, s':36} {first:5.1f}")
    print(f"  {'memory of its processes, MB':36} {ours:5}   ({bare} of the bare loop)", flush=True)


def scaling(folder: Path) -> None:
    """Cost against images per site, and the coordinator's memory against sites (each in a process of its
    own)."""
    print("\ncost of a round against images per site (small-cnn, 32 px, 4 sites)")
    per_image = {}
    for images in (64, 256, 1024):
        found = engine_rounds(config_of("small-cnn", 4, images, 32, folder, kind="serial"), folder, 4, {})
        per_image[images] = statistics.median(found["observer"].times[1:]) / (4 * images)
    for images, cost in per_image.items():
        print(f"  {images:5} images: {cost / per_image[256]:.2f} of the cost per image at 256")
    print("coordinator memory against sites (small-cnn, 8 images each, pool)")
    for sites in (10, 100, 300):
        out = subprocess.run(
            [sys.executable, __file__, "--memory", str(sites), str(folder)],
            capture_output=True,
            text=True,
            check=True,
        )
        print(f"  {sites:4} sites: {out.stdout.strip()} MB")


def peak_memory() -> int:
    """Most memory this process ever had, in MB (not counting what it was forked from)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def memory(sites: int, folder: Path) -> None:
    config = config_of("small-cnn", sites, 8, 32, folder, kind="pool", workers=2)
    engine_rounds(config, folder, 2, {})
    print(peak_memory())


def main() -> None:
    if sys.argv[1:2] == ["--bare"]:
        return bare_process(sys.argv[2:])
    if sys.argv[1:2] == ["--memory"]:
        return memory(int(sys.argv[2]), Path(sys.argv[3]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="*", default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    given = parser.parse_args()
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        for net in given.nets:
            setting = SETTINGS[net]
            print(f"\n{net}, {setting['sites']} sites × {setting['images']} images at {setting['size']} px")
            if "ratios" in given.parts:
                report(net, given.rounds, Path(folder))
            if "runs" in given.parts:
                whole_run(net, Path(folder))
        if "scaling" in given.parts:
            scaling(Path(folder))


if __name__ == "__main__":
    main()

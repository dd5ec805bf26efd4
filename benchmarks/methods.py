"""Cost of each method relative to FedAvg: time and bytes per round, measured in one run with rounds
interleaved.

    python benchmarks/methods.py [fca fediic …] [--net small-cnn] [--size 32] [--rounds 6] [--bytes] [--write]

Serial engine, the same plain view for all (augmentation is not what is compared), one local epoch, the same
optimiser; noise images, or made-up ones where a method needs several labels per image (half of the labels are
then missing at each site). A method that changes after a warm-up is timed after it. For a few methods the
last column is what their passes alone take: training steps and forward passes of bare PyTorch with the same
network, layout and batches, as a ratio of FedAvg's steps. (Fed-MAS's frozen network is no part of it: its
features are computed once, as the view is always the same.) `--write` keeps the figures in
docs/results/costs.json, with what each method needs and what leaves a site, for the table in docs/methods.md.

An evaluation asks all sites twice at most: for what a method's predictors are made of, if the server lacks
that, and how each predictor, which is sent to them, does on their images. Its bytes beyond those of FedAvg's
evaluation, where the model is sent once, are a ratio of FedAvg's round too. The answers to its last question
are left out: counts and histograms of scores for each prediction, of a size that no network changes.

`--bytes` counts bytes alone, of the methods on file, whose times stay: bytes are the same on every machine,
however busy it is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from engine import federation_of, noise
from equipoise.config import Config, resolve
from equipoise.engine import Serial
from equipoise.methods import METHODS
from equipoise.running import one_thread
from equipoise.server.checkpoint import Commits

WRITTEN = Path(__file__).resolve().parents[1] / "docs" / "results" / "costs.json"
LATE: dict[str, dict[str, Any]] = {
    "fedmas": {"target": "small-cnn"},
    **{name: {"warmup": 0} for name in ("fedmlp", "fedirm", "cbafed", "fednoro", "prr-imb")},
}
"""Options under which the first rounds are like the later ones."""
PASSES = {"fediic": (2, 1), "fedmas": (1, 1), "fedmlp": (1, 3)}
"""views in a training step, and forward passes over all images beside it: class losses; the received model's
distances; features before training, the received model's predictions in every step, features after it"""

FIGURES = {
    "time": "time",
    "bytes": "bytes",
    "evaluation": "bytes more for an evaluation",
    "passes": "for its passes alone",
}
"""what is kept of a method, each as a ratio of FedAvg's round"""


class Nobody:
    """An observer that does not evaluate."""

    def wants_tuned(self, round: int) -> bool:
        return False

    def mark(self) -> str:
        return ""

    def pinned(self) -> frozenset[int]:
        return frozenset()

    def observe(self, *_: Any) -> None:
        pass


class Stepper:
    """One run, a whole round at a time, checkpoint included."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.federation, plan = federation_of(config, folder, Nobody())
        assert isinstance(self.federation.engine, Serial)
        self.host = self.federation.engine.host
        self.commits = Commits(self.federation.checkpoints, "", None, lambda header: None)
        self.server, self.versions, self.done = plan.first(), dict[str, str](), 0
        self.bytes = 0

    def step(self) -> float:
        start = time.perf_counter()
        federation, versions = self.federation, self.versions
        ask = federation.exchange(self.done, versions, federation.sites, versions)
        self.server = federation.method.round(self.server, ask)
        self.done, self.versions = self.done + 1, ask.versions
        self.commits.save(self.server, self.done, self.versions)
        self.bytes = (ask.bytes_up + ask.bytes_down) // len(federation.sites)
        return time.perf_counter() - start

    def evaluated(self) -> int:
        """Bytes per site of an evaluation after the last round, without the counts that are its result."""
        federation = self.federation
        last = self.done - 1, self.versions, federation.sites, self.versions
        ask = federation.exchange(*last, writes=False)
        predictors = federation.method.predictors(self.server, ask).values()
        asked = ask.bytes_up
        for tree in predictors:
            ask(federation.method.evaluate, server=tree, own=torch.tensor(True))
        return (asked + ask.bytes_down) // len(federation.sites)

    def close(self) -> None:
        self.commits.__exit__(None, None, None)
        self.federation.engine.close()
        self.federation.journal.close()

    def bare(self, views: int, passes: int) -> float:
        """Seconds that the steps and passes of one round take by themselves."""
        net, options = self.host.net, self.host.options
        shape = (options.batch_size, *self.host.blueprint.input.shape)
        x = torch.zeros(shape).repeat(views, 1, 1, 1).contiguous(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(net.parameters(), options.lr)
        steps = sum(-(-len(site.splits["train"]) // options.batch_size) for site in self.host.sites.values())
        start = time.perf_counter()
        for _ in range(steps):
            net.train()
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            for _ in range(passes * steps):
                net(x[: options.batch_size])
        return time.perf_counter() - start


def config_of(name: str, task: str, given: argparse.Namespace, folder: Path) -> Config:
    cls = METHODS[name]
    data: dict[str, Any] = {"kind": "npz", "path": str(folder / "noise.npz"), "image_size": given.size}
    partition: dict[str, Any] = {"kind": "iid", "sites": given.sites}
    if task == "multi":
        data = {
            "kind": "phantom",
            "task": "multi",
            "scale": given.sites * given.images / 18_600,
            "image_size": given.size,
        }
        partition["missing"] = 4
    elif not (folder / "noise.npz").exists():
        noise(folder / "noise.npz", given.sites * given.images, given.size)
    train = {"rounds": 10**6, "optimizer": "sgd", "lr": 0.01, "batch_size": 32, "persist_optimizer": False}
    return resolve(
        {
            "data": data,
            "partition": partition,
            "net": {"name": given.net},
            "method": {"name": name, **LATE.get(name, {})},
            "train": train | {"views": ["eval"] * len(cls.views)},
            "evaluate": {"exact": False},
        }
    )


def timed(arm: str, times: list[list[float]], reference: Stepper) -> dict[str, float]:
    """A method's time as a ratio of FedAvg's, and that of its passes alone where it has more than steps."""
    found = {"time": round(statistics.median(own / plain for plain, own in times), 2)}
    if arm in PASSES:
        plain = [reference.bare(*PASSES[arm]) / reference.bare(1, 0) for _ in times]
        found["passes"] = round(statistics.median(plain), 2)
    return found


def told(found: dict[str, float]) -> str:
    """A method's figures in a line."""
    return "   ".join(f"{found[key]:5.2f} × {text}" for key, text in FIGURES.items() if key in found)


def needs(config: Config, stepper: Stepper) -> dict[str, Any]:
    """What a method asks of the house beside FedAvg's one question, and what leaves a site."""
    method = config.method
    lines = [
        row
        for row in stepper.federation.ledger.rows()
        if row["question"] not in ("evaluate", "retrain") and row["leaf"] != "loss"
    ]
    return {
        "statistics": [
            name for name in method.questions() if name in {row["question"] for row in lines} - {"train"}
        ],
        "private": bool(stepper.host.private)
        or any((stepper.federation.checkpoints.folder.parent / "sites").rglob("*.safetensors")),
        "views": len(method.views),
        "frozen": bool(method.frozen()),
        "leaves": {name: kind for name, kind in sorted({(row["leaf"], row["kind"]) for row in lines})},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", default=list(METHODS), help="names; all if none is given")
    parser.add_argument("--net", default="small-cnn")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--bytes", action="store_true", help="count bytes, time nothing")
    parser.add_argument("--write", action="store_true", help="keep the figures for the documentation")
    given = parser.parse_args()
    setting = f"{given.net} at {given.size} px, {given.sites} sites × {given.images} images"
    print(f"{setting}; round ÷ FedAvg's round" + ("" if given.bytes else f", median of {given.rounds}"))
    costs = json.loads(WRITTEN.read_text()) if WRITTEN.exists() else {}
    with one_thread(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for arm in [name for name in given.methods if name in costs or not given.bytes]:
            task = METHODS[arm].tasks[0]
            configs = [config_of(one, task, given, folder) for one in ("fedavg", arm)]
            pair = [Stepper(config, Path(tempfile.mkdtemp(dir=folder))) for config in configs]
            rounds = 1 if given.bytes else given.rounds
            times = [[stepper.step() for stepper in pair] for _ in range(rounds + 1)][1:]
            found = {} if given.bytes else timed(arm, times, pair[0])
            more = pair[1].evaluated() - pair[0].evaluated()
            sent = {"bytes": pair[1].bytes, "evaluation": more}
            found |= {key: round(count / pair[0].bytes, 2) + 0.0 for key, count in sent.items()}  # no -0.0
            print(f"  {arm:12} {told(found)}", flush=True)
            known = costs[arm] | found if given.bytes else found
            figures = {key: known[key] for key in FIGURES if key in known}
            costs[arm] = {**figures, **needs(configs[1], pair[1]), "setting": setting}
            for stepper in pair:
                stepper.close()
    if given.write:
        WRITTEN.write_text(
            json.dumps({name: costs[name] for name in METHODS if name in costs}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()

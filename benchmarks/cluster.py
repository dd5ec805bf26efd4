"""Ray beside the pool, and ours on Ray beside Flower's own simulation on Ray, as ratios measured in one run.

    python benchmarks/cluster.py [--rounds 6] [--workers 2] [--times 2] [--sites 10] [--images 256]

FedAvg with the small CNN: the same sites and images, one local epoch per round, no augmentation, no
evaluation. Each measurement is a process of its own with a cluster of this machine, in turns; the first round
of each, in which processes start, is left out. Flower's client is the loop of its documentation, in PyTorch's
ordinary memory layout, as the bare loop of `engine.py` is; `flower-layout` is the same client with what we
know of layouts (`channels_last` images and weights), to show how much of the difference is that. Printed: the
median round of each kind, with the fastest and the slowest; Ray ÷ pool; ours on Ray ÷ Flower on Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from engine import CLASSES, config_of, engine_rounds
from equipoise.config import Config
from equipoise.nets import build, load
from equipoise.running import one_thread
from equipoise.setup import material
from equipoise.site.views import NORMS

SIZE = 32
FLOWER, LAYOUT = "flower", "flower-layout"


def ours(given: argparse.Namespace, folder: Path) -> list[float]:
    """Seconds of every round of ours, on the engine asked for."""
    config = made(given, folder, kind=given.measure, workers=given.workers)
    with one_thread():
        times: list[float] = engine_rounds(config, folder, given.rounds, {})["observer"].times
    return times[1:]


def made(given: argparse.Namespace, folder: Path, **engine: Any) -> Config:
    return config_of("small-cnn", given.sites, given.images, SIZE, folder, device="cpu", **engine)


def flower(given: argparse.Namespace, folder: Path) -> list[float]:
    """Seconds of every round of Flower's simulation: its FedAvg, its Ray backend, a client as its
    documentation has it."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    config = made(given, folder)
    dataset = material(config)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in NORMS["imagenet"])
    rows = [holding.train for holding in dataset.holdings]
    for place, one in enumerate(rows):
        np.save(folder / f"images-{place}.npy", dataset.samples.images[one])
        np.save(folder / f"labels-{place}.npy", dataset.samples.labels[one])
    net, options, size = config.net, config.train, SIZE
    layout = torch.channels_last if given.measure == LAYOUT else torch.contiguous_format

    def model() -> nn.Module:
        return build(net, classes=CLASSES, image_size=size, seed=0, base=Path()).to(memory_format=layout)

    client, server = ClientApp(), ServerApp()
    ends: list[float] = []

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        place = int(context.node_config["partition-id"])
        x = torch.from_numpy(np.load(folder / f"images-{place}.npy")).permute(0, 3, 1, 2)
        x = ((x.float() / 255 - mean) / std).contiguous(memory_format=layout)
        y = torch.from_numpy(np.load(folder / f"labels-{place}.npy"))
        local = model()
        load(local, message.content["arrays"].to_torch_state_dict())
        local.train()
        optimizer = torch.optim.SGD(local.parameters(), options.lr)
        order = torch.randperm(len(x))
        for i in range(0, len(x), options.batch_size):
            batch = order[i : i + options.batch_size]
            optimizer.zero_grad()
            nn.functional.cross_entropy(local(x[batch]), y[batch]).backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(local.state_dict()),
            "metrics": MetricRecord({"num-examples": len(x)}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    class Timed(FedAvg):
        """Takes note of when a round was done; a client that fails would make it a quick one."""

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            answers = list(replies)
            failed = [one.error.reason for one in answers if one.has_error()]
            if failed or len(answers) != given.sites:
                raise SystemExit(f"{len(answers)} clients answered; errors: {failed[:1]}")
            result = super().aggregate_train(server_round, answers)
            ends.append(time.perf_counter())
            return result

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=given.sites)
        strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=given.rounds + 1)

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=given.sites,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": given.workers, "include_dashboard": False},
        },
    )
    return np.diff(ends).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("rounds", 6), ("workers", 2), ("times", 2), ("sites", 10), ("images", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--kinds", nargs="+", default=["pool", "ray", FLOWER, LAYOUT])
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        if given.measure:
            found = (flower if given.measure in (FLOWER, LAYOUT) else ours)(given, Path(folder))
            print(json.dumps(found))
            return
    times: dict[str, list[float]] = {kind: [] for kind in given.kinds}
    for _ in range(given.times):
        for kind in given.kinds:
            command = [sys.executable, __file__, *sys.argv[1:], "--measure", kind]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            times[kind] += json.loads(done.stdout.splitlines()[-1])
    print(f"small-cnn, {given.sites} sites × {given.images} images, {given.workers} cores: seconds a round")
    middle = {kind: statistics.median(found) for kind, found in times.items()}
    for kind, found in times.items():
        spread = f"({min(found):.3f} – {max(found):.3f} over {len(found)} rounds)"
        print(f"  {kind:13} {middle[kind]:7.3f}   {spread}")
    for one, other in (("ray", "pool"), ("ray", FLOWER), ("ray", LAYOUT)):
        if one in middle and other in middle:
            print(f"  {one} ÷ {other:13} {middle[one] / middle[other]:5.2f}")


if __name__ == "__main__":
    main()

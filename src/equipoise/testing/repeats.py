"""Runs that must end with the same bits, or with others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from equipoise.config import Config
from equipoise.methods import METHODS
from equipoise.testing.bench import ROUNDS, SEED, Bench, global_states, otherwise_seeded
from equipoise.testing.traces import distance, expect, same, same_bits
from equipoise.tree import Tree


def check_same_seed(bench: Bench) -> None:
    """The same seed gives the same bits."""
    if not bench.repeated:
        same(bench.ordinary, bench.run(bench.config()), "a second run with the same seed is not the same")


def check_other_seed(bench: Bench) -> None:
    """Another seed gives other bits."""
    other = bench.run(bench.config(seed=SEED + 1))
    learnt = [name for name in bench.ordinary.tensors if not name.endswith("/steps")]
    moved = any(
        not same_bits(bench.ordinary.tensors[n], other.tensors[n]) for n in learnt if n in other.tensors
    )
    expect(moved, "a run with another seed ends with the same bits")


def check_pool(bench: Bench) -> None:
    """Worker processes give the same bits as one process."""
    pool = bench.run(bench.config().with_engine(kind="pool", workers=2))
    same(bench.ordinary, pool, "two worker processes do not give what one process gives")


def check_site_order(bench: Bench) -> None:
    """The order in which sites answer does not matter."""
    if not bench.repeated:
        reverse = bench.run(bench.config(), reverse=True)
        same(bench.ordinary, reverse, "sites asked in reverse order give another result")


class Stopped(Exception):
    """Stands for a crash."""


def check_resume(bench: Bench) -> None:
    """A run that was stopped before and after every commit ends with the same bits as one that ran straight
    through."""
    folder, config = bench.new_folder(), bench.config()
    for _ in range(ROUNDS):
        for committed in (False, True):
            rounds = 0

            def stop(event: str, facts: dict[str, Any], committed: bool = committed) -> None:
                nonlocal rounds
                rounds += event == "round"
                # A round is committed after it was told of; so the first answer after that comes after the
                # commit.
                if rounds and event == ("answer" if committed else "round"):
                    raise Stopped

            try:
                bench.run(config, folder, watch=stop)
            except Stopped:
                continue
    resumed = bench.run(config, folder)
    same(bench.ordinary, resumed, "a stopped and resumed run is not the same as a straight one")


def check_neutral(bench: Bench) -> None:
    """With its neutral hyper-parameters the method is FedAvg, bit for bit."""
    if bench.cls.neutral is None:
        return
    config = bench.config()
    # FedAvg looks at the first view only, but all of them are drawn.
    train = config.train.model_copy(update={"views": config.train.views or bench.cls.views})
    plain = replace(
        config, method=METHODS["fedavg"](crt=config.method.crt), method_name="fedavg", train=train
    )
    neutral = replace(config, method=bench.method(**bench.cls.neutral), train=train)
    mine, theirs = bench.run(neutral).result.server["model"], _plain(bench, plain)
    common = [name for name in theirs if name in mine]
    expect(any(name.startswith("body.") for name in common), "the body is not among the shared tensors")
    for name in common:
        off = f"'{name}' is off FedAvg's by up to {distance(mine[name], theirs[name]):.3g}"
        expect(same_bits(mine[name], theirs[name]), off)


_PLAIN: dict[str, Tree] = {}
"""FedAvg's models by config: many methods are held against the same one"""


def _plain(bench: Bench, config: Config) -> Tree:
    if config.digest not in _PLAIN:
        _PLAIN[config.digest] = bench.run(config).result.server["model"]
    return _PLAIN[config.digest]


def check_global_rng(bench: Bench) -> None:
    """A run neither moves nor reads the global generators of torch, numpy and Python."""
    if bench.repeated:
        return
    straight = bench.ordinary
    # Without dropout no seed may make a difference.
    with mock.patch.object(torch.nn.functional, "dropout", side_effect=lambda x, *_, **__: x) as dropout:
        before = global_states()
        with otherwise_seeded():
            other = bench.run(bench.config())
        moved = [name for name, state in global_states().items() if state != before[name]]
        if dropout.called:
            straight = bench.run(bench.config())
    expect(not moved, f"a run draws from the global generator of {moved[0] if moved else ''}")
    drawn = "a site draws from a global generator (torch, numpy, Python); use loc.generator(…)"
    same(straight, other, drawn)

"""What a training step would gain from torch.compile and from bfloat16, in one run; what it gains from layers
for small maps; and what a pass without gradients gains from BatchNorm as part of the convolution.

    python benchmarks/steps.py [small-cnn resnet18 efficientnet-lite0] [--steps 12] [--layers | --passes]

A step is forward, cross-entropy, backward and Adam on 32 random images, one thread, the network laid out as
the engine has it. Variants take turns, step by step. Printed: the median of each and its ratio to the step as
it is, and what compiling took. Neither keeps the bits of a plain step. With `--layers` the other step has
PyTorch's own convolutions. With `--passes`, forward passes in eval mode instead of steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from engine import CLASSES, SETTINGS
from equipoise.memory import keep_memory
from equipoise.nets import NetOptions, build
from equipoise.nets.mobile import Depthwise, Pointwise
from equipoise.running import one_thread

BATCH = 32
PLAIN = "as it is"


class Variant:
    """One way to make a step, with a network of its own."""

    def __init__(
        self, net: str, compiled: bool = False, halved: bool = False, borrowed: bool = False
    ) -> None:
        size = SETTINGS[net]["size"]
        built = build(NetOptions(name=net), classes=CLASSES, image_size=size, seed=0, base=Path())
        built.train()
        if borrowed:
            for layer in built.modules():
                if isinstance(layer, Depthwise | Pointwise):
                    layer.__class__ = nn.Conv2d
        self.forward: Callable[[Tensor], Tensor] = torch.compile(built) if compiled else built
        self.optimizer = torch.optim.Adam(built.parameters(), 1e-3, fused=True)
        self.halved = halved

    def step(self, x: Tensor, y: Tensor) -> float:
        """Seconds."""
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        reduced: AbstractContextManager[object] = (
            torch.autocast("cpu", torch.bfloat16) if self.halved else nullcontext()
        )
        with reduced:
            loss = nn.functional.cross_entropy(self.forward(x), y)
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - begin


def measure_compiled(net: str, steps: int) -> None:
    first = measure(
        net,
        steps,
        {
            PLAIN: Variant(net),
            "torch.compile": Variant(net, compiled=True),
            "bfloat16": Variant(net, halved=True),
        },
    )
    print(f"  compiling took {first['torch.compile']:.0f} s")


def measure_layers(net: str, steps: int) -> None:
    measure(net, steps, {PLAIN: Variant(net), "PyTorch's layers": Variant(net, borrowed=True)})


def measure(net: str, steps: int, variants: Mapping[str, Variant]) -> Mapping[str, float]:
    """Steps in turn; the seconds of the first of each, which does not count."""
    size = SETTINGS[net]["size"]
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 3, size, size, generator=draw).contiguous(memory_format=torch.channels_last)
    y = torch.randint(CLASSES, (BATCH,), generator=draw)
    first = {name: variant.step(x, y) for name, variant in variants.items()}
    times = {name: list[float]() for name in variants}
    for _ in range(steps):
        for name, variant in variants.items():
            times[name].append(variant.step(x, y))
    plain = statistics.median(times[PLAIN])
    print(f"\n{net}, {BATCH} images at {size} px")
    for name, found in times.items():
        median = statistics.median(found)
        print(f"  {name:16} {1000 * median:8.1f} ms   {median / plain:.2f}", flush=True)
    return first


def measure_passes(net: str, passes: int) -> None:
    """The two stay two wherever gradients are enabled, also where no tensor asks for one."""
    size = SETTINGS[net]["size"]
    built = build(NetOptions(name=net), classes=CLASSES, image_size=size, seed=0, base=Path())
    built.eval().requires_grad_(False)
    x = torch.randn(BATCH, 3, size, size).contiguous(memory_format=torch.channels_last)
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(passes + 1):
        for enabled, found in times.items():
            with torch.set_grad_enabled(enabled):
                begin = time.perf_counter()
                built(x)
                found.append(time.perf_counter() - begin)
    apart, joined = (1000 * statistics.median(found[1:]) for found in times.values())
    print(
        f"{net}, {BATCH} images at {size} px: {apart:.1f} ms apart, {joined:.1f} joined, {joined / apart:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="*", default=list(SETTINGS))
    parser.add_argument("--steps", type=int, default=12)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--layers", action="store_true", help="steps with PyTorch's own convolutions in turn")
    what.add_argument("--passes", action="store_true", help="forward passes in eval mode")
    given = parser.parse_args()
    chosen = measure_passes if given.passes else measure_layers if given.layers else measure_compiled
    keep_memory()
    with one_thread():
        for net in given.nets:
            chosen(net, given.steps)


if __name__ == "__main__":
    main()

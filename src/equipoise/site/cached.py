"""What frozen stages make of images, computed once and kept: of each view some variants of every image.

The variants are drawn from the run's seed, so training goes over a finite set of them. They are kept in the
image cache, in half precision, as memory-mapped files with a digest that is checked when they are opened
(see `data.cache`): processes share them, and so do runs with the same images, sites, seed, frozen tensors and
views.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor

from equipoise.data.cache import decoded
from equipoise.seeds import generator
from equipoise.site.views import View
from equipoise.version import __version__

if TYPE_CHECKING:
    from equipoise.site.batches import Rows

HALF = np.dtype(np.float16)
TOGETHER = 32
"""images that go through the frozen stages at once: always the same ones, whoever computes them"""


class Cached:
    """A view of which only the frozen stages' output is kept, in `count` variants.

    `below` computes it from images [N, C, H, W]; `about` is what decides it beside image, view and seed.
    """

    def __init__(
        self,
        name: str,
        view: View,
        below: Callable[[Tensor], Tensor],
        *,
        count: int,
        seed: int,
        folder: Path,
        about: dict[str, Any],
    ) -> None:
        self.name, self.view, self.below = name, view, below
        self.count, self.seed, self.folder = 1 if view.deterministic else count, seed, folder
        self.about = about | {
            "view": name,
            "options": view.options.model_dump(mode="json"),
            "mean": view.mean.tolist(),
            "std": view.std.tolist(),
            "seed": None if view.deterministic else seed,
        }
        self._open: dict[str, np.ndarray] = {}

    @property
    def deterministic(self) -> bool:
        return self.view.deterministic

    def of(self, rows: Rows, position: Tensor, which: Tensor) -> Tensor:
        """The outputs for images at these positions, each in one of its variants."""
        if rows.name not in self._open:
            self._open[rows.name] = self._made(rows)
        outputs = torch.from_numpy(self._open[rows.name][position.numpy(), which.numpy()])
        outputs = outputs.to(rows.device, torch.float32)
        return outputs.contiguous(memory_format=torch.channels_last) if outputs.ndim == 4 else outputs

    def _made(self, rows: Rows) -> np.ndarray:
        """float16 [rows, variants, …], computed unless it has been before."""
        pixels = rows.images.shape[1:]
        black = torch.zeros(1, *pixels, dtype=torch.uint8, device=rows.device).permute(0, 3, 1, 2)
        shape = tuple(self.below(self.view(black, torch.Generator())).shape[1:])
        size = int(np.prod(shape)) * HALF.itemsize
        recipe = {
            **self.about,
            "data": rows.source,
            "rows": hashlib.sha256(np.ascontiguousarray(rows.index).tobytes()).hexdigest(),
            "whose": rows.name,
            "device": rows.device.type,
            "code": [__version__, torch.__version__],
        }

        def make(start: int, stop: int) -> list[np.ndarray]:
            outputs = np.empty((stop - start, self.count, *shape), HALF)
            for first in range(start, stop, TOGETHER):
                some = torch.arange(first, min(first + TOGETHER, stop))
                images = rows.pixels(some)
                for variant in range(self.count):
                    draw = generator(self.seed, "kept", rows.name, self.name, variant, first)
                    made = self.below(self.view(images, draw)).contiguous().cpu().numpy()
                    outputs[first - start : first - start + len(some), variant] = made
            return list(outputs.view(np.uint8).reshape(stop - start, self.count, 1, size))

        text = f"computing the frozen stages ({rows.name}, {self.name})"
        stored = decoded(self.folder, recipe, len(rows), (self.count, 1, size), make, text=text)
        result: np.ndarray = stored.images.reshape(-1, self.count, size).view(HALF)
        return result.reshape(-1, self.count, *shape)


def look(
    views: Sequence[Cached], rows: Rows, position: Tensor, generators: Sequence[Generator]
) -> tuple[Tensor, ...]:
    """One variant per image of each view; where a view comes twice, two different ones."""
    seen = dict[str, Tensor]()
    chosen = list[Tensor]()
    for view, draw in zip(views, generators, strict=True):
        which, before = torch.zeros(len(position), dtype=torch.int64), seen.get(view.name)
        if before is not None and view.count > 1:
            which = (before + 1 + torch.randint(view.count - 1, which.shape, generator=draw)) % view.count
        elif view.count > 1:
            which = torch.randint(view.count, which.shape, generator=draw)
        seen[view.name] = which
        chosen.append(view.of(rows, position, which))
    return tuple(chosen)

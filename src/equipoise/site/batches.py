"""Batches inside one hospital: uint8 rows of the shared cache, turned into views on the training device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from equipoise.data.samples import Samples, Task
from equipoise.losses import known
from equipoise.partition import Holding
from equipoise.site.cached import Cached, look
from equipoise.site.views import View

Look = View | Cached
"""how an image is looked at: drawn anew, or one of the variants that are kept"""


@dataclass
class Batch:
    """One step's images: `x` is the first view, `views` are all of them."""

    views: tuple[Tensor, ...]
    y: Tensor
    """int64 [B] for a single-label task; float32 [B, C] of 0, 1, and NaN where the image has no label for a
    class, for a multi-label one"""
    index: Tensor
    """positions within the site's split, 0 … n-1: what private per-image state is kept by"""

    @property
    def x(self) -> Tensor:
        return self.views[0]

    @property
    def known(self) -> Tensor:
        """bool, as `y`: where there is a label."""
        return known(self.y)

    def __len__(self) -> int:
        return len(self.y)


class Rows:
    """The images and labels one site holds for one split; `hidden` (bool [C]) are classes it must not see."""

    def __init__(
        self,
        samples: Samples,
        index: np.ndarray,
        hidden: np.ndarray | None,
        device: torch.device,
        name: str = "",
    ) -> None:
        self.images, self.index, self.device = samples.images, index, device
        self.name, self.source = name, samples.fingerprint
        """whose they are, and the data set that they are of"""
        self.labels = torch.from_numpy(np.ascontiguousarray(samples.labels[index]))
        if hidden is not None:
            self.labels[:, torch.from_numpy(hidden)] = torch.nan

    @cached_property
    def known(self) -> Tensor:
        """bool, as `labels`: where there is one."""
        return known(self.labels)

    @cached_property
    def complete(self) -> bool:
        """Whether no label is missing."""
        return bool(self.known.all())

    def __len__(self) -> int:
        return len(self.index)

    def pixels(self, position: Tensor) -> Tensor:
        """uint8 [B, C, H, W] of the images at these positions."""
        rows = torch.from_numpy(self.images[self.index[position.numpy()]])
        return rows.to(self.device).permute(0, 3, 1, 2)

    def take(self, position: Tensor, views: Sequence[Look], generators: Sequence[torch.Generator]) -> Batch:
        """The batch at these positions, each image once per view; a view draws from its own generator."""
        cached = [view for view in views if isinstance(view, Cached)]
        if cached:  # all of them, or none
            made = look(cached, self, position, generators)
        else:
            pixels = self.pixels(position)
            plain = [view for view in views if not isinstance(view, Cached)]
            made = tuple(view(pixels, draw) for view, draw in zip(plain, generators, strict=True))
        return Batch(views=made, y=self.labels[position].to(self.device), index=position)

    def ends(self, count: int, size: int) -> list[int]:
        """Where each batch of so many rows ends."""
        ends = [*range(size, count, size), count]
        if len(ends) > 1 and ends[-1] - ends[-2] == 1:
            del ends[-2]
        return ends

    def batches(
        self,
        order: Tensor,
        size: int,
        views: Sequence[Look],
        generators: Sequence[torch.Generator],
        lone: bool = False,
    ) -> Iterator[Batch]:
        """Batches along `order`. A last batch of one joins the one before it (batch statistics need two),
        unless `lone`; then no rows at all are one empty batch, so that what is computed from them has a
        shape."""
        ends = [*range(size, len(order), size), len(order)] if lone else self.ends(len(order), size)
        start = 0
        for end in ends:
            if end > start or (lone and not len(order)):
                yield self.take(order[start:end], views, generators)
            start = end


class Pooled(Rows):
    """The training rows of several sites in one place: what no federation has, and a simulation can compare
    with."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.images, self.device = parts[0].images, parts[0].device
        self.name, self.source = "all sites/train", parts[0].source
        self.index = np.concatenate([part.index for part in parts])
        self.labels = torch.cat([part.labels for part in parts])
        self.sizes = tuple(len(part) for part in parts)

    def ends(self, count: int, size: int) -> list[int]:
        """As many batches as the sites would take together, of one size give or take an image, and of two
        images at least."""
        steps = sum(len(super(Pooled, self).ends(one, size)) for one in self.sizes)
        steps = max(1, min(round(steps * count / len(self)), count // 2))
        return [count * (step + 1) // steps for step in range(steps)]


class SiteData:
    """Everything one site holds, and what it knows about its own labels."""

    def __init__(self, samples: Samples, holding: Holding, device: torch.device) -> None:
        self.name = holding.name
        self.task: Task = samples.task
        self.classes = samples.classes
        # A simulation hides labels from training alone: it evaluates with all that there are. A hospital
        # hides from tests what it must not tell.
        hidden = dict(holding.hidden)
        if holding.labelled is not None:
            hidden["train"] = ~holding.labelled
        self.splits = {}
        for split in ("train", "validation", "test"):
            rows, name = getattr(holding, split), f"{holding.name}/{split}"
            self.splits[split] = Rows(samples, rows, hidden.get(split), device, name)
        self.attributes = {
            name: {split: values[getattr(holding, split)] for split in self.splits}
            for name, values in samples.attributes.items()
        }
        self._count()

    def _count(self) -> None:
        train, single = self.splits["train"], self.task == "single"
        self.labelled = None if train.complete else train.known.any(0)
        """bool [C]: the classes that some training image is labelled for; None = each, on every image"""
        self._counts = (
            torch.bincount(train.labels, minlength=len(self.classes)) if single else (train.labels > 0).sum(0)
        ).to(torch.float64)
        known = train.known[:, None] if single else train.known
        labelled = known.sum(0, dtype=torch.float64).expand_as(self._counts)
        self._total = torch.where(labelled > 0, labelled, float(len(train)))

    @property
    def counts(self) -> Tensor:
        """float64 [C]: training images of each class (positives, for multi-label). To ask for them is to look
        at the training images, and whoever watches `splits` is to know."""
        self.splits["train"]
        return self._counts

    @property
    def total(self) -> Tensor:
        """float64 [C]: the images those are out of, which are labelled for the class; all where none is. To
        ask for them is to look at the training images, too."""
        self.splits["train"]
        return self._total

    def train_on(self, rows: Pooled) -> None:
        """Train on the rows of all sites from now on; validation and test rows stay the site's own."""
        self.splits["train"] = rows
        self._count()

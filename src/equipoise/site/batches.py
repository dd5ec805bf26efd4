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
from equipoise.site.views import View


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
        self, samples: Samples, index: np.ndarray, hidden: np.ndarray | None, device: torch.device
    ) -> None:
        self.images, self.index, self.device = samples.images, index, device
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

    def take(self, position: Tensor, views: Sequence[View], generators: Sequence[torch.Generator]) -> Batch:
        """The batch at these positions, each image once per view; a view draws from its own generator."""
        rows = torch.from_numpy(self.images[self.index[position.numpy()]]).to(self.device).permute(0, 3, 1, 2)
        return Batch(
            views=tuple(view(rows, draw) for view, draw in zip(views, generators, strict=True)),
            y=self.labels[position].to(self.device),
            index=position,
        )

    def batches(
        self,
        order: Tensor,
        size: int,
        views: Sequence[View],
        generators: Sequence[torch.Generator],
        lone: bool = False,
    ) -> Iterator[Batch]:
        """Batches along `order`. A last batch of one joins the one before it (batch statistics need two),
        unless `lone`; then no rows at all are one empty batch, so that what is computed from them has a
        shape."""
        ends = [*range(size, len(order), size), len(order)]
        if not lone and len(ends) > 1 and ends[-1] - ends[-2] == 1:
            del ends[-2]
        start = 0
        for end in ends:
            if end > start or (lone and not len(order)):
                yield self.take(order[start:end], views, generators)
            start = end


class SiteData:
    """Everything one site holds, and what it knows about its own labels."""

    def __init__(self, samples: Samples, holding: Holding, device: torch.device) -> None:
        self.name = holding.name
        self.task: Task = samples.task
        self.classes = samples.classes
        # A simulation hides labels from training alone: it evaluates with all that there are.
        hidden = {} if holding.labelled is None else {"train": ~holding.labelled}
        self.splits = {
            split: Rows(samples, getattr(holding, split), hidden.get(split), device)
            for split in ("train", "validation", "test")
        }
        train, single = self.splits["train"], samples.task == "single"
        self.labelled = None if train.complete else train.known.any(0)
        """bool [C]: the classes that some training image is labelled for; None = each, on every image"""
        self.counts = (
            torch.bincount(train.labels, minlength=len(samples.classes))
            if single
            else (train.labels > 0).sum(0)
        ).to(torch.float64)
        """float64 [C]: training images of each class (positives, for multi-label)"""
        known = train.known[:, None] if single else train.known
        found = known.sum(0, dtype=torch.float64).expand_as(self.counts)
        self.total = torch.where(found > 0, found, float(len(train)))
        """float64 [C]: the images those are out of, which are labelled for the class; all where none is"""
        self.attributes = {
            name: {split: values[getattr(holding, split)] for split in self.splits}
            for name, values in samples.attributes.items()
        }

"""Batches inside one hospital: uint8 rows of the shared cache, turned into views on the training device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.data.samples import Samples, Task
from equipoise.partition import Holding
from equipoise.site.views import View


@dataclass
class Batch:
    """One step's images: `x` is the first view, `views` are all of them."""

    views: tuple[Tensor, ...]
    y: Tensor
    """int64 [B] for a single-label task, float32 [B, C] for a multi-label one"""
    index: Tensor
    """positions within the site's split, 0 … n-1: what private per-image state is kept by"""
    mask: Tensor | None
    """bool [C]: classes this site labels (multi-label); None = all"""

    @property
    def x(self) -> Tensor:
        return self.views[0]

    def __len__(self) -> int:
        return len(self.y)


class Rows:
    """The images and labels one site holds for one split."""

    def __init__(
        self,
        samples: Samples,
        index: np.ndarray,
        labelled: np.ndarray | None,
        device: torch.device,
        hidden: np.ndarray | None = None,
    ) -> None:
        self.images, self.index, self.device = samples.images, index, device
        self.labels = torch.from_numpy(np.ascontiguousarray(samples.labels[index]))
        self.told = None if hidden is None else torch.from_numpy(~hidden)
        """bool [C]: the classes that a test may count; None = all"""
        self.mask = None if labelled is None else torch.from_numpy(labelled).to(device)
        if self.mask is not None:
            # What a site does not label it must not see, not even by accident.
            self.labels = self.labels * self.mask.to("cpu", self.labels.dtype)

    def __len__(self) -> int:
        return len(self.index)

    def take(self, position: Tensor, views: Sequence[View], generators: Sequence[torch.Generator]) -> Batch:
        """The batch at these positions, each image once per view; a view draws from its own generator."""
        rows = torch.from_numpy(self.images[self.index[position.numpy()]]).to(self.device).permute(0, 3, 1, 2)
        return Batch(
            views=tuple(view(rows, draw) for view, draw in zip(views, generators, strict=True)),
            y=self.labels[position].to(self.device),
            index=position,
            mask=self.mask,
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
        self.labelled = None if holding.labelled is None else torch.from_numpy(holding.labelled)
        self.splits = {
            # Evaluation reads complete labels: partial labelling is about what a site can train on.
            split: Rows(
                samples,
                getattr(holding, split),
                holding.labelled if split == "train" else None,
                device,
                holding.hidden.get(split),
            )
            for split in ("train", "validation", "test")
        }
        labels = self.splits["train"].labels
        self._counts = (
            torch.bincount(labels, minlength=len(samples.classes)).to(torch.float64)
            if samples.task == "single"
            else labels.sum(0, dtype=torch.float64)
        )
        self.attributes = {
            name: {split: values[getattr(holding, split)] for split in self.splits}
            for name, values in samples.attributes.items()
        }

    @property
    def counts(self) -> Tensor:
        """float64 [C]: training images of each class (positives, for several labels). To ask for them is to
        look at the training images, and whoever watches `splits` is to know."""
        self.splits["train"]
        return self._counts

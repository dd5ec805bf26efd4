"""Where the classes lie in a trained network's features: class means over test images, as a map of two
dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.data.samples import Samples
from equipoise.partition import Holding
from equipoise.predict.predictor import Predictor

IMAGES, PIXELS = 512, 2**23
"""at most so many test images, and fewer of them where they are large: a page is made in a moment"""


def class_maps(model: Predictor, samples: Samples, holdings: Sequence[Holding]) -> dict[str, Any] | None:
    """`images` that were used, and in `maps` by layer the `points` (None for a class without images) and the
    `share` of the spread between class means that each of the two axes holds. None without test images, or
    where the model is not whole."""
    rows = chosen(samples, holdings)
    if not len(rows) or not model.whole():
        return None
    layers, labels = _layers(model, samples.images[rows]), samples.labels[rows]
    single = samples.task == "single"
    truth = labels[:, None] == np.arange(len(samples.classes)) if single else labels > 0.5
    finite = {name: values for name, values in layers.items() if bool(values.isfinite().all())}
    maps = {name: class_map(values, truth) for name, values in finite.items()}
    return {"images": len(rows), "maps": maps} if maps else None


def chosen(samples: Samples, holdings: Sequence[Holding]) -> np.ndarray:
    """The test images to look at: of every class as many, evenly over the sites' rows, as the limit
    allows."""
    rows = np.concatenate([holding.test for holding in holdings])
    labels, width = samples.labels[rows], len(samples.classes)
    most = min(IMAGES, PIXELS // int(np.prod(samples.images.shape[1:3])))
    each = max(1, most // width)
    images: set[int] = set()
    for i in range(width):
        own = rows[labels == i] if samples.task == "single" else rows[labels[:, i] > 0.5]
        places = np.linspace(0, len(own) - 1, min(each, len(own))).round().astype(int)
        images.update(own[np.unique(places)].tolist())
    return np.array(sorted(images), dtype=np.int64)


def _layers(model: Predictor, images: np.ndarray) -> dict[str, Tensor]:
    """The body's features of every image, and the projector's where there is one."""
    net, parts = model.net, list[dict[str, Tensor]]()
    with torch.no_grad():
        for start in range(0, len(images), model.batch):
            z = net.body(model.see(np.ascontiguousarray(images[start : start + model.batch])))
            parts.append(
                {"body": z.cpu()} | ({} if net.projector is None else {"projector": net.projector(z).cpu()})
            )
    return {name: torch.cat([part[name] for part in parts]).double() for name in parts[0]}


def class_map(values: Tensor, truth: np.ndarray) -> dict[str, Any]:
    """The class means of features [N, d] in two dimensions; `truth` [N, C] says which images count for which
    class."""
    known = np.flatnonzero(truth.any(0)).tolist()
    means = torch.stack([values[torch.from_numpy(truth[:, i])].mean(0) for i in known])
    places, share = principal(means)
    points: list[list[float] | None] = [None] * truth.shape[1]
    for i, place in zip(known, places.tolist(), strict=True):
        points[i] = [float(f"{x:.6g}") for x in place]
    return {"points": points, "share": [round(x, 6) for x in share.tolist()]}


def principal(points: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates [C, 2] of points [C, d] along their two principal axes, and the share of the variance on
    each.

    An axis may point either way: it is turned so that its largest component is positive.
    """
    centred = points - points.mean(0)
    u, s, axes = torch.linalg.svd(centred, full_matrices=False)
    turn = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign().T
    total = (s**2).sum().clamp_min(torch.finfo(s.dtype).tiny)
    missing = max(0, 2 - len(s))
    places, share = u * s * turn, s**2 / total
    pad = torch.nn.functional.pad
    return pad(places, (0, missing))[:, :2], pad(share, (0, missing))[:2]

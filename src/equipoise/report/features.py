"""Where the classes lie in a trained network's features: class means over test images, as a map of two
dimensions.

The map is made where the run's data is at hand and kept in the run folder, so that the page can be made again
without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from equipoise.errors import EquipoiseError, Untrusted
from equipoise.report.folder import Run

if TYPE_CHECKING:
    from equipoise.setup import Material
    from equipoise.use.predictor import Predictor

FEATURES = "features.json"
IMAGES, PIXELS = 512, 2**23
"""at most so many test images, and fewer of them where they are large: a page is made in a moment"""


def features(run: Run) -> dict[str, Any] | None:
    """`images` that were used, and in `maps` by layer the `points` (None for a class without images) and the
    `share` of the spread between class means that each of the two axes holds. None where the data or a global
    predictor is not at hand."""
    from equipoise.keeping import read_json, write_json

    path = run.folder / FEATURES
    if path.is_file():
        return read_json(path, f"delete it, then `equipoise report {run.folder}`")
    found = _measured(run.folder)
    if found is not None:
        write_json(path, found)
    return found


def _measured(folder: Path) -> dict[str, Any] | None:
    from equipoise.config import read_folder
    from equipoise.running import one_thread
    from equipoise.setup import material
    from equipoise.use.source import load

    try:
        model, stuff = load(folder), material(read_folder(folder))
    except Untrusted:
        raise
    except EquipoiseError:
        return None
    if stuff.samples.fingerprint != model.facts.fingerprint:
        return None
    rows = chosen(stuff)
    if not len(rows):
        return None
    with one_thread():
        layers = _layers(model, stuff.samples.images[rows])
    labels = stuff.samples.labels[rows]
    truth = (
        labels[:, None] == np.arange(len(stuff.samples.classes))
        if stuff.samples.task == "single"
        else labels > 0.5
    )
    maps = {
        name: class_map(values, truth) for name, values in layers.items() if bool(values.isfinite().all())
    }
    return {"round": model.facts.round, "images": len(rows), "maps": maps} if maps else None


def chosen(stuff: Material) -> np.ndarray:
    """The test images to look at: of every class as many, evenly over the sites' rows, as the limit
    allows."""
    rows = np.concatenate([holding.test for holding in stuff.holdings])
    labels, width = stuff.samples.labels[rows], len(stuff.samples.classes)
    most = min(IMAGES, PIXELS // int(np.prod(stuff.samples.images.shape[1:3])))
    each = max(1, most // width)
    found: set[int] = set()
    for i in range(width):
        own = rows[labels == i] if stuff.samples.task == "single" else rows[labels[:, i] > 0.5]
        found.update(
            own[np.unique(np.linspace(0, len(own) - 1, min(each, len(own))).round().astype(int))].tolist()
        )
    return np.array(sorted(found), dtype=np.int64)


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
    return torch.nn.functional.pad(places, (0, missing))[:, :2], torch.nn.functional.pad(share, (0, missing))[
        :2
    ]

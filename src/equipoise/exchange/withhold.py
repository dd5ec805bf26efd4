"""An answer without what it would tell of some classes: a site has too few images of them.

What is reported class by class has a dimension as long as there are classes. Of a `Sum`, the cells of a
withheld class become 0: the sum is then over the other sites. Of a `Mean` with a weight per class, the weight
becomes 0 along with the values. Anything else cannot be reported in part: a `Mean` with one weight for all
classes, an `Each`, and tensors with two such dimensions, of which nobody knows which one counts whose images.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.exchange.ledger import Entry, entries
from equipoise.exchange.reduction import tensors_of, whole
from equipoise.leaves import Each, Leaf, Mean, Upload

Cells = Callable[[Entry], Tensor]
"""bool [C]: the classes that a tensor must not tell anything of"""


def by_class(entry: Entry, classes: int, parameters: Collection[str]) -> bool:
    """Whether a tensor has one value or row per class without being a part of the network, or a weight per
    class."""
    last = entry.tensor.rpartition("/")[2]
    network = bool(last) and any(name == last or name.endswith(f".{last}") for name in parameters)
    return classes in (entry.weight or ()) or (classes in entry.shape and not network)


def class_dimension(leaf: Sequence[Entry], entry: Entry, classes: int) -> int | None:
    """The dimension of a tensor in which a class can be withheld; None where it cannot. `leaf` are the
    entries of its leaf."""
    weight = next((one.weight for one in leaf if one.weight is not None), None) or ()
    mean = entry.kind == "mean"
    dimensions = [i for i, length in enumerate(weight if mean else entry.shape) if length == classes]
    if len(dimensions) != 1 or entry.kind == "each":
        return None
    fits = all(one.shape[: dimensions[0] + 1][dimensions[0] :] == (classes,) for one in leaf)
    return dimensions[0] if fits or not mean else None


def withhold(
    upload: Upload, cells: Cells, classes: int, parameters: Collection[str]
) -> tuple[Upload, list[str]]:
    """The answer without these cells, and the names of its leaves that were changed.

    A leaf that cannot be reported in part is left as it is: whoever calls must look for those.
    """
    made, changed = dict(upload), list[str]()
    for name, leaf in upload.items():
        leaf_entries = entries({name: leaf})
        masks = {one.tensor: cells(one) for one in leaf_entries if by_class(one, classes, parameters)}
        masks = {path: mask for path, mask in masks.items() if bool(mask.any())}
        places = {
            one.tensor: class_dimension(leaf_entries, one, classes)
            for one in leaf_entries
            if one.tensor in masks
        }
        if not masks or None in places.values():
            continue
        made[name] = _without(leaf, masks, places)
        changed.append(name)
    return made, changed


def _without(leaf: Leaf, masks: dict[str, Tensor], places: dict[str, Any]) -> Leaf:
    tensors = tensors_of(leaf)
    if isinstance(leaf, Mean):
        place = next(iter(places.values()))
        gone = torch.stack(list(masks.values())).any(0)
        weight = _emptied(torch.as_tensor(leaf.weight), place, gone)
        return replace(
            leaf, weight=weight, value=whole({path: _emptied(x, place, gone) for path, x in tensors.items()})
        )
    assert not isinstance(leaf, Each)
    kept = {
        path: _emptied(x, places[path], masks[path]) if path in masks else x for path, x in tensors.items()
    }
    return replace(leaf, value=whole(kept))


def _emptied(x: Tensor, dimension: int, gone: Tensor) -> Tensor:
    return x.index_fill(dimension, gone.nonzero().flatten(), 0)

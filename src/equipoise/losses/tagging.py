"""Images tagged by the nearer of a class's two prototypes (FedMLP's missing-label detection)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.losses.multilabel import known
from equipoise.losses.shaping import positive_prior

NONE = -1
"""tag of an image nothing has been decided about"""


def known_odds(y: Tensor, tags: Tensor) -> Tensor:
    """log(π_1 / π_0) per class, float64: of the labels, and of the tags where labels are missing; finite
    (`positive_prior`)."""
    positive = (y == 1).sum(0) + (tags == 1).sum(0)
    total = known(y).sum(0) + (tags != NONE).sum(0)
    return torch.logit(positive_prior(positive.double(), total))


def tag_nearest(
    tags: Tensor, feature: Tensor, prototypes: Tensor, missing: Tensor, share: Tensor, at_least_one: bool
) -> Tensor:
    """Tags [N, C] with the clearest of the untagged cells among the `missing` ones (bool [N, C]) decided
    (Eq. 7-9).

    `prototypes` [C, 2, d] are those of negatives and positives, `share` [C, 2] how much of each side's pool
    is tagged. A class of which only one prototype is known stays as it is.
    """
    tags, unit = tags.clone(), F.normalize(feature)
    for c in missing.any(0).nonzero().flatten().tolist():
        if (prototypes[c].norm(dim=1) == 0).any():
            continue
        negative, positive = F.normalize(prototypes[c])
        z = unit @ (negative - positive)
        free = missing[:, c] & (tags[:, c] == NONE)
        for value, side in ((0, z), (1, -z)):
            pool = (free & (side >= 0 if value == 0 else side > 0)).nonzero().flatten()
            count = selected(len(pool), float(share[c, value]), at_least_one)
            tags[pool[side[pool].argsort(descending=True, stable=True)[:count]], c] = value
    return tags


def selected(pool: int, share: float, at_least_one: bool) -> int:
    """⌊share · pool⌋, or one where that is none, the pool is not empty and `at_least_one` is on."""
    count = int(share * pool + 1e-9)
    return max(count, 1) if at_least_one and pool and share > 0 else count

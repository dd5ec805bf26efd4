"""What a model makes of a site's images, and how decided it is about classes (FedMLP's learning degree)."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.nets import Net
from equipoise.site import Loc


@torch.no_grad()
def features_and_scores(net: Net, loc: Loc) -> tuple[Tensor, Tensor]:
    """Features [N, d] and probabilities [N, C] of the site's plain training images."""
    features, scores = [], []
    for batch in loc.scan():
        z = net.body(batch.x)
        features.append(z.cpu())
        scores.append(net.head["fed"](z).sigmoid().cpu())
    return torch.cat(features), torch.cat(scores)


def decided_share(decided: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
    """By class: the share of the measured cells [N, C] that are decided, and how many are measured."""
    among = measured.sum(0)
    return (decided & measured).float().sum(0) / among.clamp_min(1), among.double()

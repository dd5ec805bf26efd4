"""Contrast between unit vectors, and class vectors spread apart (FedIIC)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def intra(unit: Tensor, y: Tensor, temperature: Tensor) -> Tensor:
    """Supervised contrast over unit vectors: mean over anchors of −mean over positives of log-softmax over
    all others."""
    similar = (unit @ unit.T) / temperature
    others = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    log_share = similar - similar.masked_fill(~others, -torch.inf).logsumexp(1, keepdim=True)
    positive = (y[:, None] == y[None, :]) & others
    return -((log_share * positive).sum(1) / positive.sum(1)).mean()


def spread_apart(v: Tensor, steps: int, stop_at_zero: bool, rate: float = 0.1) -> Tensor:
    """Gradient descent on Σ_i max_{j≠i} cos(v_i, v_j) (Eq. 5), on raw vectors.

    Every step is a linear combination of the rows, so it runs on C × C coordinates in the space they span:
    the same path, hundreds of times cheaper. With `stop_at_zero` a row whose other cosines are all negative
    no longer pushes.
    """
    basis, coordinates = np.linalg.qr(v.double().numpy().T)
    x = coordinates.T
    itself = np.eye(len(x))
    for _ in range(steps if len(x) > 1 else 0):
        norm = np.sqrt((x * x).sum(1, keepdims=True))
        unit = x / norm
        cosine = unit @ unit.T
        cosine.flat[:: len(x) + 1] = 0.0 if stop_at_zero else -2.0
        nearest = itself[cosine.argmax(1)]
        pairs = nearest + nearest.T
        if stop_at_zero:
            pairs -= pairs * itself
            if not pairs.any():
                break
        pull = pairs @ unit
        x = x - (rate / norm) * (pull - (unit * pull).sum(1, keepdims=True) * unit)
    return torch.from_numpy(x @ basis.T).to(v.dtype)

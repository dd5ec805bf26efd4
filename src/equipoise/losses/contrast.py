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

    Every step is a linear combination of the rows, so it runs on C × C coefficients and the rows' Gram
    matrix: the same path, hundreds of times cheaper. With `stop_at_zero` a row whose other cosines are all
    negative no longer pushes.
    """
    x = v.double().numpy()
    gram, a, rows = x @ x.T, np.eye(len(x)), np.arange(len(x))
    for _ in range(steps if len(x) > 1 else 0):
        inner = a @ gram @ a.T
        norm = np.sqrt(inner.diagonal())
        size = norm[:, None] * norm
        cosine = inner / size
        np.fill_diagonal(cosine, 0.0 if stop_at_zero else -np.inf)
        j = cosine.argmax(1)
        c, i = cosine[rows, j], rows[j != rows]
        j, c = j[i], c[i]
        if not len(i):
            break
        slope = np.zeros_like(a)
        slope[i, j] = pull = 1 / size[i, j]
        slope[j, i] += pull
        slope[i, i] -= c / norm[i] ** 2
        np.add.at(slope, (j, j), -c / norm[j] ** 2)  # several rows may be nearest to the same one
        a = a - rate * (slope @ a)
    return torch.from_numpy(a @ x).to(v.dtype)

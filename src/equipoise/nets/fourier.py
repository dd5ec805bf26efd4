"""The same weight of several nets, mixed by frequency: alike where it is low, each its own where it is
high."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def mix(weights: Sequence[Tensor], share: float, *, rows: bool = False, phase: bool = True) -> list[Tensor]:
    """Each weight with the mean amplitude (and phase) inside the centred low-frequency box that spans `share`
    of every axis.

    A kernel [N, C, k1, k2] is looked at as a (C·k1) × (k2·N) image, a matrix as it is, with `rows` each of
    its rows by itself.
    """
    stack = torch.stack([weight.to(torch.float64) for weight in weights])
    image = stack if stack.dim() == 3 else stack.movedim(1, -1)
    folded = image.flatten(3).flatten(1, 2) if stack.dim() > 3 else image
    axes = (-1,) if rows else (-2, -1)
    spectrum = torch.fft.fftn(folded, dim=axes)
    low = torch.ones(folded.shape[1:], dtype=torch.bool)
    for axis in axes:
        inside = torch.fft.fftfreq(folded.shape[axis], dtype=torch.float64).abs() <= share / 2
        low &= inside if axis == -1 else inside[:, None]
    angle = spectrum.angle()
    angles = angle.mean(0).expand_as(angle) if phase else angle
    mean = torch.polar(spectrum.abs().mean(0).expand_as(angle), angles)
    mixed = torch.fft.ifftn(torch.where(low, mean, spectrum), dim=axes).real.reshape(image.shape)
    back = mixed if stack.dim() == 3 else mixed.movedim(-1, 1)
    return [x.to(weight.dtype).contiguous() for x, weight in zip(back, weights, strict=True)]


def mix_nets(
    nets: Mapping[str, Mapping[str, Tensor]], share: float, phase: bool = True
) -> dict[str, dict[str, Tensor]]:
    """By name, every net with its weights mixed: kernels and matrices as images, heads row by row, and the
    rest plain means."""
    mixed: dict[str, dict[str, Tensor]] = {name: {} for name in nets}
    for key in next(iter(nets.values())):
        tensors = [net[key] for net in nets.values()]
        if tensors[0].dim() < 2:
            blended = [torch.stack(tensors).mean(0)] * len(tensors)
        else:
            blended = mix(tensors, share, rows=key.startswith("head."), phase=phase)
        for name, tensor in zip(nets, blended, strict=True):
            mixed[name][key] = tensor
    return mixed

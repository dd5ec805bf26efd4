"""Mixing weights by frequency against numpy's transforms with an explicit walk over the bins."""

from __future__ import annotations

import cmath

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.nets.fourier import mix, mix_nets


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(images: list[np.ndarray], share: float, phase: bool) -> list[np.ndarray]:
    """Bin by bin: a bin is low if its distance from frequency 0 is at most share/2 of the axis, on both
    axes."""
    spectra = [np.fft.fft2(image) for image in images]
    rows, columns = images[0].shape
    mixed = [spectrum.copy() for spectrum in spectra]
    for u in range(rows):
        for v in range(columns):
            if min(u, rows - u) / rows > share / 2 or min(v, columns - v) / columns > share / 2:
                continue
            amplitude = sum(abs(s[u, v]) for s in spectra) / len(spectra)
            angle = sum(cmath.phase(s[u, v]) for s in spectra) / len(spectra)
            for s, out in zip(spectra, mixed, strict=True):
                out[u, v] = cmath.rect(amplitude, angle if phase else cmath.phase(s[u, v]))
    return [np.fft.ifft2(m).real for m in mixed]


@pytest.mark.parametrize("phase", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.7, 1.0])
def test_matrices(share: float, phase: bool) -> None:
    weights = [drawn(5, 8, seed=s) for s in range(3)]
    expected = by_hand([w.numpy() for w in weights], share, phase)
    for found, wanted in zip(mix(weights, share, phase=phase), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-12)


def test_kernels_are_folded_input_and_height_by_width_and_output() -> None:
    weights = [drawn(4, 2, 3, 3, seed=s) for s in range(2)]
    images = [np.zeros((6, 12)) for _ in weights]
    for weight, image in zip(weights, images, strict=True):
        for n, c, i, j in np.ndindex(4, 2, 3, 3):
            image[c * 3 + i, j * 4 + n] = weight[n, c, i, j]
    for found, wanted in zip(mix(weights, 0.7), by_hand(images, 0.7, True), strict=True):
        assert found.shape == (4, 2, 3, 3) and found.is_contiguous()
        for n, c, i, j in np.ndindex(4, 2, 3, 3):
            assert float(found[n, c, i, j]) == pytest.approx(wanted[c * 3 + i, j * 4 + n], abs=1e-12)


def test_rows_by_themselves() -> None:
    weights = [drawn(3, 7, seed=s) for s in range(3)]
    found = mix(weights, 0.5, rows=True)
    for row in range(3):
        alone = by_hand([w[row : row + 1].numpy() for w in weights], 0.5, True)
        for k in range(3):
            np.testing.assert_allclose(found[k][row].numpy(), alone[k][0], atol=1e-12)


def test_identical_nets_stay_as_they_are() -> None:
    net = {
        "body.conv.weight": drawn(8, 3, 3, 3, seed=1).float(),
        "head.fed.weight": drawn(3, 8, seed=2).float(),
    }
    net["head.fed.bias"] = drawn(3, seed=3).float()
    for mixed in mix_nets({"a": net, "b": dict(net), "c": dict(net)}, 0.8).values():
        for name, tensor in net.items():
            assert mixed[name].dtype == torch.float32
            torch.testing.assert_close(mixed[name], tensor, rtol=0, atol=1e-6)


def test_whole_box_makes_all_alike_and_is_not_the_mean() -> None:
    weights = [drawn(6, 6, seed=s) for s in range(3)]
    first, *others = mix(weights, 1.0)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-12)
    assert float((first - torch.stack(weights).mean(0)).abs().max()) > 0.1


def test_high_band_stays_each_net_s_own() -> None:
    weights = [drawn(1, 64, seed=s) for s in range(2)]
    high = torch.fft.fftfreq(64).abs() > 0.25
    for found, weight in zip(mix(weights, 0.5, rows=True), weights, strict=True):
        torch.testing.assert_close(
            torch.fft.fft(found)[:, high], torch.fft.fft(weight)[:, high], rtol=0, atol=1e-10
        )


def test_nets_mix_heads_by_row_and_biases_by_mean() -> None:
    nets = {
        site: {
            "body.a": drawn(4, 6, seed=s),
            "head.fed.weight": drawn(4, 6, seed=s),
            "head.fed.bias": drawn(4, seed=s),
        }
        for s, site in enumerate(("a", "b"))
    }
    mixed = mix_nets(nets, 0.5)
    for k, site in enumerate(nets):
        torch.testing.assert_close(mixed[site]["body.a"], mix([nets[s]["body.a"] for s in nets], 0.5)[k])
        rows = mix([nets[s]["head.fed.weight"] for s in nets], 0.5, rows=True)[k]
        torch.testing.assert_close(mixed[site]["head.fed.weight"], rows)
        assert not torch.allclose(rows, mixed[site]["body.a"])
        torch.testing.assert_close(
            mixed[site]["head.fed.bias"], (nets["a"]["head.fed.bias"] + nets["b"]["head.fed.bias"]) / 2
        )

"""The mixture of two Gaussians against scikit-learn's."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture
from torch import Tensor

from equipoise.methods.parts.mixture import FLOOR, Mixture, two_groups, two_means


def points(seed: int, gap: float, n: int = 12, d: int = 3) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    x[: n // 3] += gap
    return x


def start(x: Tensor, seed: int) -> Mixture:
    """The first mixture of a fit: the groups of k-means from two points drawn."""
    chosen = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:2]]
    label = KMeans(2, init=chosen.numpy(), n_init=1, tol=0.0).fit_predict(x.numpy())
    return Mixture.of(x, torch.stack([torch.from_numpy(label == g).double() for g in (0, 1)], 1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gap", [0.8, 3.0])
@pytest.mark.parametrize("steps", [1, 7, 60])
def test_fit_is_that_of_scikit_learn_from_the_same_start(seed: int, gap: float, steps: int) -> None:
    x = points(seed, gap)
    found = two_groups(x, torch.Generator().manual_seed(seed), steps=steps, tolerance=0.0)
    first = start(x, seed)
    theirs = GaussianMixture(
        2,
        covariance_type="diag",
        reg_covar=FLOOR,
        max_iter=steps,
        tol=0.0,
        weights_init=first.share.numpy(),
        means_init=first.mean.numpy(),
        precisions_init=1 / first.variance.numpy(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it has not converged, which was the wish
        theirs.fit(x.numpy())
    np.testing.assert_allclose(found.share.numpy(), theirs.weights_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.mean.numpy(), theirs.means_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.variance.numpy(), theirs.covariances_, rtol=1e-6, atol=1e-8)
    assert (found.density(x).argmax(1).numpy() == theirs.predict(x.numpy())).all()


def test_density_by_scipy() -> None:
    x = points(0, 2.0)
    mixture = start(x, 1)
    for g in range(2):
        terms = norm.logpdf(x.numpy(), mixture.mean[g].numpy(), mixture.variance[g].sqrt().numpy()).sum(1)
        np.testing.assert_allclose(
            mixture.density(x)[:, g].numpy(), terms + np.log(float(mixture.share[g])), rtol=1e-10
        )


def test_far_apart_groups_are_found_from_every_draw() -> None:
    x = points(5, 20.0)
    for seed in range(9):
        group = two_groups(x, torch.Generator().manual_seed(seed)).density(x).argmax(1)
        assert len(set(group[:4].tolist())) == len(set(group[4:].tolist())) == 1
        assert group[0] != group[4]


def test_two_points_and_equal_points_are_no_trouble() -> None:
    draw = torch.Generator().manual_seed(0)
    pair = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert two_groups(pair, draw).density(pair.double()).argmax(1).tolist() in ([0, 1], [1, 0])
    same = torch.ones(4, 2)
    assert two_groups(same, draw).density(same.double()).isfinite().all()
    assert two_means(same, draw).tolist() == [0] * 4

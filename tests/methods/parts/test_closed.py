"""The closed-form classifier: against loops, against Gaussians' densities, and however images are divided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from equipoise.methods.parts import closed
from equipoise.nets import Net
from equipoise.testing import same_bits
from equipoise.tree import Tree


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def totals(z: Tensor, member: Tensor, even: bool = False) -> Tree:
    longer = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1)
    each = torch.einsum("nc,nd,ne->cde", member, longer, longer) if even else longer.T @ longer
    sums = {"sums": torch.einsum("n...,nd->...d", member, z), "counts": member.sum(0)}
    return sums | {"second": closed.packed(each)}


def test_a_symmetric_matrix_is_sent_once() -> None:
    """The lower triangle, row by row: its last number is the lower right one, how many images there are."""
    one = torch.tensor([[1.0, 2.0, 4.0], [2.0, 3.0, 5.0], [4.0, 5.0, 6.0]], dtype=torch.float64)
    assert closed.packed(one).tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(closed.unpacked(closed.packed(one)), one)
    for size in (1, 2, 65):
        half = drawn(3, size, size, seed=size)
        each = half + half.mT
        sent = closed.packed(each)
        assert sent.shape == (3, size * (size + 1) // 2)
        assert same_bits(closed.unpacked(sent), each)
        assert same_bits(closed.unpacked(sent)[1], closed.unpacked(sent[1]))


def test_logits_are_those_of_gaussians_with_one_covariance() -> None:
    """Differences between classes are differences of log-densities, whatever the classes' sizes."""
    y = torch.tensor([0] * 40 + [1] * 15 + [2] * 5)
    z = F.normalize(drawn(60, 4, seed=1) + 2 * drawn(3, 4, seed=2)[y])
    solved = closed.solve(totals(z, F.one_hot(y, 3).double()), ridge=0.2 * 60 / 4, corrected=False)
    x, of = z.numpy(), y.numpy()
    means = [x[of == c].mean(0) for c in range(3)]
    within = sum((x[of == c] - means[c]).T @ (x[of == c] - means[c]) for c in range(3)) / 60
    inverse = np.linalg.inv(within + 0.2 * np.trace(within) / 4 * np.eye(4))
    density = np.stack([-0.5 * np.einsum("nd,de,ne->n", x - m, inverse, x - m) for m in means], 1)
    found = closed.logits(z.float() * 7, solved).double().numpy()  # only the direction of features counts
    assert found.max() < closed.LARGEST  # nothing had to be scaled
    np.testing.assert_allclose(found - found[:, :1], density - density[:, :1], atol=2e-4)
    assert solved["seen"].tolist() == [1, 1, 1]


def test_an_even_covariance_is_the_mean_of_those_of_the_classes() -> None:
    """One large class and two small ones; one class has no image, and one that has a single image has no
    covariance of its own."""
    y = torch.tensor([0] * 40 + [1] * 15 + [3] * 5 + [4])
    z = F.normalize(drawn(61, 4, seed=1) + 2 * drawn(5, 4, seed=2)[y])
    z[:40] = F.normalize(z[:40] + 0.5 * drawn(40, 4, seed=8))  # the large class is wider
    solved = closed.solve(totals(z, F.one_hot(y, 5).double(), even=True), ridge=0.2 * 61 / 4)
    of = [z[y == c].numpy() for c in (0, 1, 3, 4)]
    within = sum(np.cov(x.T, bias=True) for x in of) / 4
    expected = np.linalg.inv(within + 0.2 * np.trace(within) / 4 * np.eye(4))
    np.testing.assert_allclose(solved["precision"], expected, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(solved["middle"], sum(x.mean(0) for x in of) / 4, atol=1e-6)
    half = np.trace(expected @ within) / 2
    np.testing.assert_allclose(solved["chance"], [half / 40, half / 15, 0, half / 5, half], rtol=1e-5)


@pytest.mark.parametrize("noise", [1.0, 0.1])
def test_with_many_images_classes_have_covariances_of_their_own(noise: float) -> None:
    """Differences between classes are differences of log-densities: of Gaussians whose covariance is (1 − α)
    times the mean of all and α times the class's own. A class that was never seen changes nothing. Where
    images of a class are nearly alike all of it is scaled."""
    sizes, spread = {0: 40, 1: 15, 3: 24}, 2.0
    y = torch.cat([torch.full((n,), c) for c, n in sizes.items()])
    middles = 2 * drawn(5, 4, seed=2)
    z = F.normalize(noise * drawn(79, 4, seed=1) * (1 + y[:, None] / 3) + middles[y])
    total = totals(z, F.one_hot(y, 5).double(), even=True)
    images = 3 / sum(1 / n for n in sizes.values())
    share = images / (images + spread * 4)
    own = {c: np.cov(z[y == c].numpy().T, bias=True) for c in sizes}
    means = {c: z[y == c].mean(0).numpy() for c in sizes}
    mean, middle = sum(own.values()) / 3, sum(means.values()) / 3
    added = 0.2 * np.trace(mean) / 4 * np.eye(4)
    whole = np.linalg.inv(mean + added)
    reached = max((means[c] - middle) @ whole @ (means[c] - middle) / 2 for c in sizes)
    scale = min(1.0, closed.LARGEST / reached)
    assert (scale == 1.0) == (noise == 1.0)
    between = (middles[[0, 1, 3, 0, 1]] + middles[[1, 3, 0, 1, 3]]) / 2
    fresh, expected = F.normalize(between.repeat(10, 1) + noise * drawn(50, 4, seed=3)), []
    for c in sizes:
        covariance = (1 - share) * mean + share * own[c] + added
        expected.append(scale * stats.multivariate_normal(means[c], covariance).logpdf(fresh.numpy()))
    solved = closed.solve(total, ridge=0.2 * 79 / 4, corrected=False, spread=spread)
    assert solved["precision"].shape == (5, 4, 4)
    np.testing.assert_allclose(solved["precision"][2], scale * whole, rtol=1e-4, atol=1e-4)
    found = closed.logits(3 * fresh.float(), solved)
    assert found[:, [2, 4]].eq(closed.NEVER).all() and found.amax(1).eq(0).all()
    density = np.stack(expected, 1)
    density -= density.max(1, keepdims=True)
    np.testing.assert_allclose(found[:, [0, 1, 3]], np.maximum(density, closed.NEVER), atol=2e-3)
    fair = closed.solve(total, ridge=0.2 * 79 / 4, spread=spread)
    for c, n in sizes.items():
        covariance = (1 - share) * mean + share * own[c]
        back = scale * np.trace(np.linalg.inv(covariance + added) @ covariance) / 2 / n
        assert float(fair["chance"][c] - solved["chance"][c]) == pytest.approx(back, rel=1e-4)


def test_the_class_that_is_farthest_says_how_much_logits_are_held_back() -> None:
    far, near = torch.tensor([[1.0, 0.0], [0.1, 0.0]]), torch.tensor([[0.1, 0.0], [0.0, 0.1]])
    assert float(closed.restrained(far, 100 * torch.eye(2))) == pytest.approx(closed.LARGEST / 50)
    assert float(closed.restrained(near, 100 * torch.eye(2))) == 1.0


def test_a_narrow_class_does_not_flatten_the_logits_of_others() -> None:
    """Three classes as they are, and a fourth whose images are nearly alike: how far the logits of the three
    are apart has nothing to do with how narrow the fourth is."""
    y = torch.arange(8000) % 4
    middle, noise = drawn(4, 32, seed=1) / 2, drawn(8000, 32, seed=2)
    sharp = []
    for narrow in (1.0, 0.03):
        width = torch.tensor([narrow, 1, 1, 1], dtype=torch.float64)[y]
        total = totals(F.normalize(middle[y] + width[:, None] * noise), F.one_hot(y, 4).double(), even=True)
        solved = closed.solve(total, 6.0, spread=10.0)
        assert solved["precision"].shape == (4, 32, 32)
        wide = F.normalize(middle[y] + noise)[y > 0].float()
        sharp.append(float(closed.logits(wide, solved)[:, 1:].softmax(1).amax(1).mean()))
    assert sharp[1] == pytest.approx(sharp[0], abs=0.02)


def test_features_learnt_by_heart_have_logits_with_a_measure() -> None:
    """Images of a class that hardly differ would be told apart by thousands. Means are twice as far from each
    other as from the middle, so four times as much."""
    y = torch.arange(400) % 2
    z = F.normalize(torch.tensor([[1.0, 0.0], [0.0, 1.0]])[y].double() + 1e-3 * drawn(400, 2, seed=3))
    for spread in (None, 10.0):
        solved = closed.solve(totals(z, F.one_hot(y, 2).double(), even=True), 50.0, spread=spread)
        assert solved["precision"].dim() == (2 if spread is None else 3)
        scores = closed.logits(z.float(), solved)
        gap = (scores[:, 0] - scores[:, 1]).abs()
        assert float(gap.min()) > 3.5 * closed.LARGEST and float(gap.max()) < 4.5 * closed.LARGEST
        assert scores.argmax(1).tolist() == y.tolist()


@pytest.mark.parametrize("spread", [None, 2.0])
def test_sums_that_no_features_have_give_numbers(spread: float | None) -> None:
    """A site may send second moments of which a direction has less than none: the covariance is repaired."""
    y = torch.arange(300) % 3
    total = totals(F.normalize(drawn(300, 6, seed=1)), F.one_hot(y, 3).double(), even=True)
    direction = F.normalize(drawn(7, seed=2), dim=0)
    spoiled = closed.unpacked(total["second"]) - 60 * torch.outer(direction, direction)
    solved = closed.solve(total | {"second": closed.packed(spoiled)}, 6.0, spread=spread)
    assert all(bool(value.isfinite().all()) for value in solved.values())
    assert bool(closed.logits(drawn(9, 6, seed=3).float(), solved).isfinite().all())
    matrices = solved["precision"].double().reshape(-1, 6, 6)
    assert float(torch.linalg.eigvalsh(matrices).min()) > 0


def test_a_sites_own_means_count_where_classes_have_covariances_of_their_own() -> None:
    """The density is that around the site's mean."""
    y = torch.arange(400) % 2
    z = F.normalize(drawn(400, 4, seed=1) + 2 * drawn(2, 4, seed=2)[y])
    solved = closed.solve(totals(z, F.one_hot(y, 2).double(), even=True), 1.0, spread=2.0)
    mine = {"sums": drawn(2, 4, seed=4).float(), "counts": torch.tensor([6.0, 3.0])}
    fresh = F.normalize(drawn(7, 4, seed=3)).float()
    mean = closed.own_means(solved, mine, 5.0)
    density = [
        stats.multivariate_normal(mean[c], np.linalg.inv(solved["precision"][c].double())).logpdf(fresh)
        + float(solved["chance"][c])
        + float(np.linalg.slogdet(np.linalg.inv(solved["precision"][c].double()))[1]) / 2
        for c in (0, 1)
    ]
    found = closed.beside(torch.zeros(7, 2), fresh, solved, 1.0, mine, 5.0)["both"]
    np.testing.assert_allclose(found[:, 0] - found[:, 1], density[0] - density[1], atol=1e-3)
    shared = closed.beside(torch.zeros(7, 2), fresh, solved, 1.0, mine, None)["both"]
    assert not torch.allclose(found, shared, atol=0.1)


def test_with_few_images_all_classes_have_the_same_covariance() -> None:
    """As many images as one of the classes has count little: the share follows from the harmonic mean. What
    would be below a twentieth is left out, and only one matrix is sent."""
    assert closed.own_share(torch.tensor([300.0, 300.0]), 64, 10.0) == pytest.approx(300 / 940)
    assert closed.own_share(torch.tensor([300.0, 0.0, 300.0]), 64, 10.0) == pytest.approx(300 / 940)
    assert closed.own_share(torch.tensor([3000.0, 30.0]), 64, 10.0) == pytest.approx(59.4 / 699.4, rel=1e-3)
    assert closed.own_share(torch.tensor([3000.0, 10.0]), 64, 10.0) == 0.0
    assert closed.own_share(torch.zeros(2), 64, 10.0) == 0.0
    y = torch.tensor([0] * 40 + [1] * 2)
    total = totals(F.normalize(drawn(42, 30, seed=4)), F.one_hot(y, 2).double(), even=True)
    plain, wide = closed.solve(total, 6.0), closed.solve(total, 6.0, spread=10.0)
    assert all(same_bits(plain[name], wide[name]) for name in plain)


def test_a_label_is_absent_or_present_and_images_without_it_are_neither() -> None:
    z = F.normalize(drawn(30, 3, seed=3))
    y = (drawn(30, 2, seed=4) > 0).double()
    y[:12, 0] = torch.nan
    member = torch.stack([1 - y, y], 2).nan_to_num(0.0)
    cov = np.cov(z.numpy().T, bias=True)
    inverse = np.linalg.inv(cov + 0.1 * np.trace(cov) / 3 * np.eye(3))
    known = (30 + 18) / 2  # images that are labelled for a label, on average
    plain, fair = (closed.solve(totals(z, member), 0.1 * known / 3, corrected) for corrected in (False, True))
    for label in range(2):
        yes, no = (z[y[:, label] == value].numpy() for value in (1, 0))
        middle, apart = (yes.mean(0) + no.mean(0)) / 2, yes.mean(0) - no.mean(0)
        expected = (z.numpy() - middle) @ inverse @ apart
        np.testing.assert_allclose(closed.logits(z.float(), plain)[:, label], expected, atol=1e-4)
        expected += np.trace(inverse @ cov) / 2 * (1 / len(yes) - 1 / len(no))
        np.testing.assert_allclose(closed.logits(z.float(), fair)[:, label], expected, atol=1e-4)


def test_the_correction_is_what_chance_adds_to_the_length_of_a_mean() -> None:
    """Against a simulation: means of five images from a Gaussian whose mean and covariance are known."""
    draw = np.random.default_rng(3)
    mean, root = draw.normal(size=6), draw.normal(size=(6, 6))
    cov, precision = root @ root.T, np.linalg.inv(root @ root.T + 2 * np.eye(6))
    found = draw.multivariate_normal(mean, cov, size=(40_000, 5)).mean(1)
    lengths = np.einsum("nd,de,ne->n", found, precision, found)
    expected = mean @ precision @ mean + np.trace(precision @ cov) / 5
    assert lengths.mean() == pytest.approx(expected, rel=0.02)
    assert mean @ precision @ mean < 0.9 * expected  # so that it is seen


def test_a_rare_class_among_many_features_is_found_as_often_as_a_frequent_one() -> None:
    """200 images of one class and 8 of another, 60 features: the mean of the eight is mostly chance."""
    y = torch.tensor([0] * 200 + [1] * 8)
    middles = 0.2 * drawn(2, 60, seed=11)
    z = F.normalize(drawn(208, 60, seed=12) + middles[y])
    fresh = torch.arange(2).repeat_interleave(400)
    x = F.normalize(drawn(800, 60, seed=13) + middles[fresh])
    recall = {}
    for corrected in (False, True):
        solved = closed.solve(totals(z, F.one_hot(y, 2).double()), 4.0, corrected)
        right = closed.logits(x.float(), solved).argmax(1) == fresh
        recall[corrected] = [float(right[fresh == c].float().mean()) for c in range(2)]
    assert recall[False][1] < 0.5 < 0.95 < recall[False][0]
    assert abs(recall[True][1] - recall[True][0]) < 0.05 and min(recall[True]) > 0.75


def test_what_was_never_seen() -> None:
    """A class without images is never predicted; of a label that was never present nothing is said."""
    y = torch.tensor([0, 0, 0, 2, 2, 2])
    z = F.normalize(drawn(6, 3, seed=5))
    solved = closed.solve(totals(z, F.one_hot(y, 3).double()), ridge=0.2)
    assert closed.logits(z.float(), solved)[:, 1].tolist() == pytest.approx([closed.NEVER] * 6)
    labels = F.one_hot(y, 3).double()
    solved = closed.solve(totals(z, torch.stack([1 - labels, labels], 2)), ridge=0.2)
    assert solved["seen"].tolist() == [[1, 1], [1, 0], [1, 1]]
    assert closed.logits(z.float(), solved)[:, 1].tolist() == [0.0] * 6


def test_features_that_do_not_differ_and_features_far_apart_give_numbers() -> None:
    y = torch.tensor([0, 0, 1, 1])
    same = torch.tensor([[1.0, 0.0]] * 4, dtype=torch.float64)
    apart = torch.tensor([[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2, dtype=torch.float64)
    for z in (same, apart):
        solved = closed.solve(totals(z, F.one_hot(y, 2).double()), ridge=0.2)
        scores = closed.logits(z.float(), solved)
        assert bool(scores.isfinite().all()) and float(scores.max()) <= closed.LARGEST * 1.001
    assert scores.argmax(1).tolist() == y.tolist()


def test_means_of_a_site_by_hand() -> None:
    """Two classes of one feature: all images lie 0.5 higher here, those of the second class 1.1 higher."""
    solved = {"mean": torch.tensor([[1.0], [3.0], [9.0]])}
    mine = {"sums": torch.tensor([[6 * 1.5], [4 * 4.1], [0.0]]), "counts": torch.tensor([6.0, 4.0, 0.0])}
    shift = (6 * 0.5 + 4 * 1.1) / (10 + 2)
    expected = [1 + shift + 6 * (0.5 - shift) / 8, 3 + shift + 4 * (1.1 - shift) / 6, 9 + shift]
    found = closed.own_means(solved, mine, 2.0)
    assert found.flatten().tolist() == pytest.approx(expected, rel=1e-6)
    assert closed.own_means(solved, mine, 0.0).flatten().tolist()[:2] == pytest.approx([1.5, 4.1])
    far = closed.own_means(solved, mine, 1e9)
    torch.testing.assert_close(far, solved["mean"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("even", [False, True])
def test_sums_of_sites_are_the_sums_of_their_images(
    make_config: Callable[..., Any], visit: Callable[..., Any], even: bool
) -> None:
    config = make_config({"name": "equipoise"})
    parts, features, labels = [], [], []
    for site in ("north", "south", "west"):
        net, loc = visit(config, site, question="describe")
        with torch.no_grad():
            parts.append(closed.sums(net, loc, Net.features, even))
            features += [net.body(batch.x) for batch in loc.scan()]
        labels.append(loc.train.labels)
    z, y = F.normalize(torch.cat(features)).double(), torch.cat(labels)
    pooled = totals(z, F.one_hot(y, 3).double(), even)
    assert parts[0]["second"].shape == ((3, 2_145) if even else (2_145,))
    for name, value in pooled.items():
        torch.testing.assert_close(sum(part[name] for part in parts), value, rtol=1e-5, atol=1e-6)


def test_sums_of_a_site_that_labels_some_findings(
    make_findings: Callable[..., Any], visit: Callable[..., Any]
) -> None:
    net, loc = visit(make_findings({"name": "equipoise"}), "north", question="describe")
    with torch.no_grad():
        found = closed.sums(net, loc, Net.features, True)
    assert found["sums"].shape == (3, 2, net.width)
    known = loc.train.known
    assert not known.all()
    assert found["counts"].sum(1).tolist() == known.sum(0).tolist()
    assert found["second"].shape == ((net.width + 1) * (net.width + 2) // 2,)
    assert float(found["second"][-1]) == loc.samples

"""Reduction: exact sums that no order and no mask can change."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import SiteError
from equipoise.exchange import Answers, Reduction
from equipoise.exchange.reduction import (
    FEW_SITES,
    FINE,
    LARGEST,
    MOST_SITES,
    SCALE,
    add_fixed,
    fine_of,
    fixed,
    fixed_fine,
    largest_whole,
    scale_of,
)
from equipoise.leaves import Each, Mean, Sum, Upload
from equipoise.tree import digest

SITES = tuple(f"site-{i}" for i in range(7))


def reduce(uploads: dict[str, Upload], order: tuple[str, ...] | None = None) -> Answers:
    reduction = Reduction()
    for site in order or tuple(uploads):
        reduction.add(site, uploads[site])
    return reduction.result(tuple(uploads))


def made_up(seed: int = 0) -> dict[str, Upload]:
    draw = torch.Generator().manual_seed(seed)
    return {
        site: {
            "delta": Mean(
                {"w": torch.randn(4, 3, generator=draw), "b": {"c": torch.randn(3, generator=draw)}},
                10.0 * i + 1,
            ),
            "class": Mean(
                torch.randn(5, 2, generator=draw), torch.rand(5, generator=draw, dtype=torch.float64)
            ),
            "loss": Sum(torch.randn(6, generator=draw, dtype=torch.float64)),
            "count": Sum(torch.randint(0, 2**40, (6,), generator=draw)),
            "head": Each({"v": torch.randn(2, generator=draw)}),
        }
        for i, site in enumerate(SITES)
    }


def test_means_and_sums_are_those_of_float64() -> None:
    uploads = made_up()
    answers = reduce(uploads)
    weight = np.array([u["delta"].weight for u in uploads.values()])
    for get in (lambda v: v["w"], lambda v: v["b"]["c"]):
        x = np.stack([get(u["delta"].value).numpy().astype(np.float64) for u in uploads.values()])
        expected = np.average(x, axis=0, weights=weight)
        np.testing.assert_allclose(get(answers["delta"]).numpy(), expected, rtol=0, atol=1e-7)
    assert float(answers.weight["delta"]) == weight.sum()
    losses = np.stack([u["loss"].value.numpy() for u in uploads.values()])
    np.testing.assert_allclose(answers["loss"].numpy(), losses.sum(0), rtol=0, atol=7 * 0.5 / SCALE + 1e-15)


def test_weights_along_the_first_dimension_count_row_by_row() -> None:
    uploads = made_up()
    answers = reduce(uploads)
    x = np.stack([u["class"].value.numpy().astype(np.float64) for u in uploads.values()])
    w = np.stack([u["class"].weight.numpy() for u in uploads.values()])
    np.testing.assert_allclose(
        answers["class"].numpy(), (w[..., None] * x).sum(0) / w.sum(0)[:, None], rtol=0, atol=1e-7
    )
    np.testing.assert_allclose(answers.weight["class"].numpy(), w.sum(0), rtol=0, atol=1e-7)


@pytest.mark.parametrize("unit", [1e-3, 1e-8, 1e-10, 1e-15])
def test_a_mean_does_not_depend_on_the_unit_of_its_weights(unit: float) -> None:
    draw = torch.Generator().manual_seed(3)
    values = [torch.randn(50, generator=draw, dtype=torch.float64) * 1e-3 for _ in SITES]
    shares = [0.7, 0.1, 2.5, 0.0, 1.3, 0.02, 0.9]
    uploads: dict[str, Upload] = {
        site: {
            "delta": Mean(x, share * unit),
            "class": Mean(x.reshape(5, 10), torch.full((5,), share * unit).double()),
        }
        for site, x, share in zip(SITES, values, shares, strict=True)
    }
    answers = reduce(uploads)
    expected = np.average(np.stack([x.numpy() for x in values]), axis=0, weights=shares)
    np.testing.assert_allclose(answers["delta"].numpy(), expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(answers["class"].numpy().ravel(), expected, rtol=0, atol=1e-9)
    assert float(answers.weight["delta"]) == pytest.approx(sum(shares) * unit, rel=1e-7)
    for order in (SITES[::-1], SITES[3:] + SITES[:3]):
        assert digest(reduce(uploads, order).leaves) == digest(answers.leaves)
        assert digest(reduce(uploads, order).weight) == digest(answers.weight)


def test_small_weights_beside_large_ones_and_values_at_the_limit() -> None:
    answers = reduce(
        {
            "a": {"x": Mean(torch.tensor([3.0, LARGEST], dtype=torch.float64), 1e-9)},
            "b": {"x": Mean(torch.tensor([5.0, 0.0], dtype=torch.float64), 1000)},
        }
    )
    assert answers["x"].tolist() == pytest.approx(
        [(3e-9 + 5000) / (1000 + 1e-9), LARGEST * 1e-9 / (1000 + 1e-9)], rel=1e-12
    )
    reduction = Reduction()
    for i in range(1024):
        reduction.add(
            str(i), {"x": Mean(torch.tensor([LARGEST * 2, -0.75 / SCALE], dtype=torch.float64), 0.5)}
        )
    assert reduction.result(())["x"].tolist() == [LARGEST * 2, -0.75 / SCALE]


def test_by_hand() -> None:
    answers = reduce(
        {
            "a": {
                "p": Mean(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([1.0, 0.0, 0.0]))
            },
            "b": {
                "p": Mean(torch.tensor([[3.0, 4.0], [7.0, 8.0], [9.0, 9.0]]), torch.tensor([3.0, 2.0, 0.0]))
            },
        }
    )
    assert answers["p"].tolist() == [[2.5, 3.5], [7.0, 8.0], [0.0, 0.0]]
    assert answers.weight["p"].tolist() == [4.0, 2.0, 0.0]


def test_no_weight_at_all_gives_zero_not_nan() -> None:
    answers = reduce(
        {
            "a": {"delta": Mean({"w": torch.tensor([5.0])}, 0.0)},
            "b": {"delta": Mean({"w": torch.tensor([7.0])}, 0)},
        }
    )
    assert answers["delta"]["w"].tolist() == [0.0]
    assert float(answers.weight["delta"]) == 0


@given(st.permutations(SITES))
@settings(max_examples=40, deadline=None)
def test_any_order_gives_the_same_bits(order: list[str]) -> None:
    uploads = made_up()
    straight, shuffled = reduce(uploads), reduce(uploads, tuple(order))
    assert digest(shuffled.leaves) == digest(straight.leaves)
    assert digest(shuffled.weight) == digest(straight.weight)
    assert shuffled.sites == straight.sites == SITES
    assert list(shuffled["head"]) == list(SITES)


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_masks_that_cancel_change_no_bit(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    values = [torch.randn(50, generator=draw) * 100 for _ in range(5)]
    weight = torch.tensor(321.0, dtype=torch.float64)
    plain = [fixed(x, weight) for x in values]
    masks = [torch.randint(-(2**63), 2**63 - 1, (50,), generator=draw) for _ in range(4)]
    masks.append(-sum(masks[1:], masks[0]))  # int64 wraps around, so all five add up to 0 mod 2^64
    masked = [x + m for x, m in zip(plain, masks, strict=True)]
    assert torch.equal(sum(masked[1:], masked[0]), sum(plain[1:], plain[0]))
    assert not torch.equal(masked[0], plain[0])


def test_whole_numbers_are_summed_exactly() -> None:
    uploads = made_up()
    expected = [sum(int(u["count"].value[i]) for u in uploads.values()) for i in range(6)]
    answers = reduce(uploads)
    assert answers["count"].dtype == torch.int64
    assert answers["count"].tolist() == expected
    odd = 2**52 - 1
    assert reduce({s: {"n": Sum(torch.tensor([odd]))} for s in SITES})["n"].tolist() == [7 * odd]


def test_the_largest_allowed_values_of_many_sites_do_not_overflow() -> None:
    sites, edges = FEW_SITES + 1, [LARGEST, -LARGEST]
    means = [2 * LARGEST, -2 * LARGEST, -0.75 / SCALE]
    told = {
        "x": Sum(torch.tensor(edges, dtype=torch.float64)),
        "n": Sum(torch.tensor([largest_whole(sites)])),
        "m": Mean(torch.tensor(means, dtype=torch.float64), 0.5),
    }
    reduction = Reduction(sites=sites)
    for i in range(sites):
        reduction.add(str(i), told)
    answers = reduction.result(())
    assert answers["x"].tolist() == [edge * sites for edge in edges]
    assert answers["n"].tolist() == [largest_whole(sites) * sites]
    assert answers["m"].tolist() == means


EDGES = (1, 2, 1023, 1024, FEW_SITES, FEW_SITES + 1, 2**13, 2**13 + 1, 2**16, 2**16 + 1, MOST_SITES)


@pytest.mark.parametrize("sites", EDGES)
def test_no_sum_reaches_beyond_an_int64(sites: int) -> None:
    scale, fine = scale_of(sites), fine_of(sites)
    top = torch.tensor([LARGEST, -LARGEST], dtype=torch.float64)
    total = torch.zeros(2, dtype=torch.int64)
    add_fixed(total, top, 1.0, scale)
    assert total.tolist() == fixed(top, None, scale).tolist() == [LARGEST * scale, -LARGEST * scale]
    assert int(total[0]) * sites <= 2**62
    assert largest_whole(sites) * sites <= 2**62
    half = torch.tensor([0.5 / scale], dtype=torch.float64)  # rounding leaves nothing larger over
    _, rest = fixed_fine(half, torch.ones(()), scale, fine)
    assert abs(int(rest)) * sites <= 2**62


def test_the_scale_is_the_same_for_all_runs_there_have_been_and_falls_by_a_bit_per_doubling() -> None:
    assert {scale_of(n) for n in (1, 2, 1024, FEW_SITES)} == {SCALE} == {2.0**28}
    assert {fine_of(n) for n in (1, 2, 1024, FEW_SITES)} == {FINE} == {2.0**50}
    assert {largest_whole(n) for n in (1, 2, 1024)} == {2**52}
    assert [scale_of(n) for n in (FEW_SITES + 1, 2**13, 2**13 + 1, MOST_SITES)] == [
        2.0**27,
        2.0**27,
        2.0**26,
        2.0**23,
    ]


def test_one_site_more_than_there_is_room_for_is_refused() -> None:
    for room in (scale_of, fine_of, largest_whole):
        with pytest.raises(SiteError, match="at most 100,000 sites, not 100,001"):
            room(MOST_SITES + 1)
    with pytest.raises(SiteError, match="at most 100,000 sites"):
        Reduction(sites=MOST_SITES + 1)
    reduction = Reduction()
    for i in range(FEW_SITES):
        reduction.add(str(i), {})
    with pytest.raises(SiteError, match=r"more than 4,096 answers"):
        reduction.add("one more", {})


def test_a_mean_over_many_sites_is_that_of_float64_within_the_coarser_scale() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(50, 3, generator=draw), torch.rand(50, generator=draw) * 100 + 1
    reduction = Reduction(sites=MOST_SITES)
    for i in range(50):
        reduction.add(str(i), {"x": Mean(x[i], float(weight[i]))})
    expected = (x.double() * weight.double()[:, None]).sum(0) / weight.double().sum()
    torch.testing.assert_close(reduction.result(())["x"].double(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_mean_keeps_its_dtype(dtype: torch.dtype) -> None:
    assert reduce({"a": {"x": Mean(torch.ones(2, dtype=dtype), 3)}})["x"].dtype == dtype


def test_a_mean_of_whole_numbers_is_a_fraction() -> None:
    answers = reduce(
        {"a": {"x": Mean(torch.tensor([1, 2]), 1.0)}, "b": {"x": Mean(torch.tensor([2, 2]), 1.0)}}
    )
    assert answers["x"].tolist() == [1.5, 2.0]


def test_sites_that_gave_no_answer_are_not_counted() -> None:
    reduction = Reduction()
    reduction.add("b", {"x": Each(torch.ones(1))})
    answers = reduction.result(("a", "b", "c"))
    assert answers.sites == ("b",)
    assert list(answers["x"]) == ["b"]
    assert "x" in answers
    assert list(answers) == ["x"]


def test_a_leaf_without_tensors_is_an_empty_tree() -> None:
    assert reduce({"a": {"delta": Mean({}, 3.0)}})["delta"] == {}


def test_three_hundred_answers_leave_only_their_sums() -> None:
    reduction, alive = Reduction(), []
    for i in range(300):
        x, n = torch.full((100,), float(i)), torch.full((10,), i)
        alive += [weakref.ref(x), weakref.ref(n)]
        reduction.add(str(i), {"delta": Mean({"w": x}, 1.0), "count": Sum(n)})
        del x, n
    held = [ref for ref in alive if ref() is not None]
    assert not held
    assert sum(t.numel() for t in reduction._sums.values()) == 110
    assert reduction.result(())["count"].tolist() == [sum(range(300))] * 10


def test_adding_does_not_write_into_what_was_added() -> None:
    first = torch.tensor([1, 2])
    reduction = Reduction()
    reduction.add("a", {"n": Sum(first)})
    reduction.add("b", {"n": Sum(torch.tensor([10, 20]))})
    assert first.tolist() == [1, 2]


def test_no_sum_is_given_of_too_few() -> None:
    """A mean over one site is that site's value; so is a sum."""
    reduction = Reduction(least=2)
    for _ in range(2):  # the same site twice is one site
        reduction.add("site-0", {"loss": Mean(torch.tensor(0.25), 3.0)})
        with pytest.raises(SiteError, match="no sum is given of fewer than 2"):
            reduction.result(SITES)
    reduction.add("site-1", {"loss": Mean(torch.tensor(0.75), 6.0)})
    assert float(reduction.result(SITES)["loss"]) == 0.5

"""Robust sums against numpy and against values computed by hand; no order of arrival matters."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.errors import SiteError
from equipoise.exchange import Answers, ExchangeOptions, Reduction
from equipoise.exchange.robust import Robust, median, scores, trimmed
from equipoise.leaves import Each, Mean, Sum, Upload
from equipoise.tree import flatten

ROBUST = ("median", "trimmed", "krum")
SITES = tuple("abcdefghij")


def reduced(uploads: dict[str, Upload], compare: Robust | None, order: tuple[str, ...] = ()) -> Answers:
    reduction = Reduction(compare=compare)
    for site, upload in uploads.items():
        reduction.add(site, upload)
    return reduction.result(order or tuple(sorted(uploads)))


def columns(*rows: list[float]) -> dict[str, Upload]:
    """One site per row, all of weight 1."""
    return {site: {"x": Mean(torch.tensor(row), 1.0)} for site, row in zip(SITES, rows, strict=False)}


def some(seed: int, sites: int = 7) -> dict[str, Upload]:
    draw = torch.Generator().manual_seed(seed)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    return {
        site: {
            "delta": Mean({"w": make(3, 4), "norm.running_var": 100 * make(4)}, 10.0 + i),
            "prototypes": Mean(make(3, 2), torch.tensor([1.0, float(i % 2), 0.5])),
            "loss": Mean(make(1)[0].double(), 10.0 + i),
            "counts": Sum(torch.arange(3) + i),
            "head": Each(make(2)),
        }
        for i, site in enumerate(SITES[:sites])
    }


# Values -----------------------------------------------------------------------------------------------------


def test_the_median_by_hand() -> None:
    odd = reduced(columns([1.0, -5.0], [2.0, 7.0], [900.0, 0.5]), Robust("median", 0.2))
    assert odd["x"].tolist() == [2.0, 0.5]
    even = reduced(columns([1.0], [2.0], [4.0], [900.0]), Robust("median", 0.2))
    assert even["x"].tolist() == [3.0]


@pytest.mark.parametrize("n", [3, 4, 9, 10])
def test_the_median_is_numpys(n: int) -> None:
    x = torch.randn(n, 5, 7, generator=torch.Generator().manual_seed(n))
    got = median(list(x), [torch.ones((), dtype=torch.float64)] * n)
    np.testing.assert_array_equal(got.numpy(), np.median(x.double().numpy(), axis=0).astype(np.float32))


def test_a_long_tensor_is_taken_in_pieces() -> None:
    x = torch.randn(3, 2**15 + 9, generator=torch.Generator().manual_seed(0))
    got = median(list(x), [torch.ones((), dtype=torch.float64)] * 3)
    np.testing.assert_array_equal(got.numpy(), np.median(x.numpy(), axis=0))


def test_the_trimmed_mean_by_hand() -> None:
    """f = ⌈0.2 · 5⌉ = 1: without the smallest and the largest of each column."""
    found = reduced(
        columns([1.0, 9.0], [2.0, -9.0], [3.0, 2.0], [6.0, 3.0], [-900.0, 4.0]), Robust("trimmed", 0.2)
    )
    assert found["x"].tolist() == [2.0, 3.0]


def test_what_is_left_is_averaged_by_weight() -> None:
    uploads: dict[str, Upload] = {
        site: {"x": Mean(torch.tensor([value]), weight)}
        for site, value, weight in (("a", 0.0, 50.0), ("b", 1.0, 1.0), ("c", 5.0, 3.0), ("d", 99.0, 50.0))
    }
    found = reduced(uploads, Robust("trimmed", 0.25))
    assert found["x"].tolist() == [(1.0 * 1 + 5.0 * 3) / 4]
    assert float(found.weight["x"]) == 104.0  # the sum over sites stays what it says


def test_equal_values_are_cut_in_the_order_of_sites() -> None:
    """Values 1, 1, 1, 2, 3: cut are a's and e's, so the mean is of b, c and d, by weights 2, 4 and 8."""
    values = [torch.tensor([v]) for v in (1.0, 1.0, 1.0, 2.0, 3.0)]
    weights = [torch.tensor(w, dtype=torch.float64) for w in (1.0, 2.0, 4.0, 8.0, 16.0)]
    assert trimmed(values, weights, 1).tolist() == pytest.approx([(2 + 4 + 16) / 14], abs=1e-6)


def test_krums_scores_by_hand() -> None:
    """Five numbers, f = 1: each is scored by its 5 - 1 - 2 = 2 nearest."""
    x = torch.tensor([0.0, 1.0, 2.0, 4.0, 50.0], dtype=torch.float64)
    distances = (x[:, None] - x[None]) ** 2
    assert scores(distances, 1).tolist() == [1 + 4, 1 + 1, 1 + 4, 4 + 9, 46**2 + 48**2]


def test_krum_by_hand() -> None:
    sites = columns([0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [50.0, 0.0])
    assert reduced(sites, Robust("krum", 0.2, 1))["x"].tolist() == [1.0, 0.0]
    # The next best are a and c, with 5 each. Without a number, 5 - 1 - 2 = 2 are picked.
    assert reduced(sites, Robust("krum", 0.2))["x"].tolist() == [0.5, 0.0]
    assert reduced(sites, Robust("krum", 0.2, 3))["x"].tolist() == [1.0, 0.0]
    assert reduced(sites, Robust("krum", 0.2, 2))["x"].tolist() == [0.5, 0.0]


@pytest.mark.parametrize("picks", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_krum_against_numpy(seed: int, picks: int) -> None:
    n, bad = 9, 2
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed)).numpy().astype(np.float64)
    far = ((x[:, None] - x[None]) ** 2).sum(-1)
    score = [np.sort(np.delete(far[i], i))[: n - bad - 2].sum() for i in range(n)]
    expected = x[np.argsort(score)[:picks]].mean(0)
    found = reduced(columns(*x.tolist()), Robust("krum", bad / n, picks))
    np.testing.assert_allclose(found["x"].numpy(), expected, atol=1e-6)


def test_krum_picks_statistics_by_themselves() -> None:
    """A site whose weights lie in the middle cannot bring its BatchNorm statistics along."""
    uploads: dict[str, Upload] = {
        site: {"delta": Mean({"w": torch.tensor([w]), "norm.running_mean": torch.tensor([s])}, 1.0)}
        for site, w, s in (
            ("a", 0.0, 1.0),
            ("b", 1.0, 1.1),
            ("c", 2.0, 1.3),
            ("d", 3.0, 1.6),
            ("e", 1.4, 900.0),
        )
    }
    found = reduced(uploads, Robust("krum", 0.2, 1))["delta"]
    assert found["w"].tolist() == pytest.approx([1.4]) and found[
        "norm.running_mean"
    ].tolist() == pytest.approx([1.1])


def test_a_weight_of_nothing_is_no_vote() -> None:
    """Class 0 is known to a, b and c only, class 1 to all."""
    rows = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (0.0, 40.0), (0.0, 50.0)]
    uploads: dict[str, Upload] = {
        site: {"x": Mean(torch.tensor(row), torch.tensor([float(row[0] > 0), 1.0]))}
        for site, row in zip(SITES, rows, strict=False)
    }
    assert reduced(uploads, Robust("median", 0.2))["x"].tolist() == [2.0, 3.0]
    assert reduced(uploads, Robust("trimmed", 0.2))["x"].tolist() == [2.0, 15.0]
    assert reduced(uploads, Robust("krum", 0.2, 1))["x"].tolist() == [1.0, 2.0]
    nobody = {site: {"x": Mean(torch.ones(2), torch.zeros(2))} for site in SITES[:5]}
    for rule in ROBUST:
        assert reduced(nobody, Robust(rule, 0.2))["x"].tolist() == [0.0, 0.0]  # type: ignore[arg-type]


# Rules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compare", [Robust("trimmed", 0.0), Robust("krum", 0.0, 7)], ids=["trimmed", "krum"])
def test_with_nothing_left_out_it_is_the_mean_bit_for_bit(compare: Robust) -> None:
    plain, robust = reduced(some(1), None), reduced(some(1), compare)
    for leaf in plain:
        ours, theirs = (flatten({"x": one[leaf]}) for one in (robust, plain))
        assert all(torch.equal(ours[path], theirs[path]) for path in theirs), leaf


@pytest.mark.parametrize("rule", ROBUST)
def test_no_order_of_arrival_matters(rule: Any) -> None:
    uploads = some(2, 5)
    found = set()
    for order in itertools.islice(itertools.permutations(uploads), 0, 120, 17):
        answers = reduced({site: uploads[site] for site in order}, Robust(rule, 0.2))
        found.add(
            tuple(
                tuple(x.flatten().tolist())
                for leaf in ("delta", "prototypes", "loss")
                for x in flatten({"x": answers[leaf]}).values()
            )
        )
    assert len(found) == 1


@pytest.mark.parametrize("rule", ROBUST)
def test_sums_single_values_and_weights_stay_as_they_are(rule: Any) -> None:
    plain, robust = reduced(some(3), None), reduced(some(3), Robust(rule, 0.2))
    assert torch.equal(robust["counts"], plain["counts"])
    assert list(robust["head"]) == list(plain["head"])
    assert all(torch.equal(robust.weight[leaf], plain.weight[leaf]) for leaf in plain.weight)
    assert robust["delta"]["w"].dtype == torch.float32 and robust["loss"].dtype == torch.float64


@pytest.mark.parametrize("rule", ROBUST)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_two_of_ten_cannot_leave_the_honest_range(rule: Any, data: st.DataObject) -> None:
    number = st.floats(-1e3, 1e3, width=32)
    honest = data.draw(st.lists(st.lists(number, min_size=2, max_size=2), min_size=8, max_size=8))
    bad = data.draw(st.lists(st.lists(number, min_size=2, max_size=2), min_size=2, max_size=2))
    rows = honest + [[1e6 * value for value in row] for row in bad]
    found = reduced(columns(*rows), Robust(rule, 0.2))["x"].double()
    low, high = torch.tensor(honest).double().aminmax(dim=0)
    wide = 1e-5 * (1 + torch.maximum(low.abs(), high.abs()))
    if rule == "krum":  # one of those that were sent; if a hostile one, then one that lies among the honest
        wide = wide + (high - low).norm() * 3
    assert ((low - wide <= found) & (found <= high + wide)).all()


def test_how_many_sites_it_takes() -> None:
    assert [Robust("median", 0.2).needed(n) for n in (3, 10)] == [3, 3]
    assert [Robust("trimmed", 0.2).needed(n) for n in (3, 10, 11)] == [3, 5, 7]
    assert [Robust("krum", 0.2).needed(n) for n in (3, 5, 10, 11)] == [5, 5, 7, 9]
    assert Robust("krum", 0.1).bad(30) == 3 and Robust("krum", 0.2).bad(15) == 3


def test_too_few_answers_are_an_error() -> None:
    """Six of ten answered; with two bad ones among them, Krum needs seven."""
    uploads = {site: upload for site, upload in some(4, 10).items() if site < "g"}
    with pytest.raises(SiteError, match=r"only 6 sites answered, and exchange\.reduce needs 7 of 10"):
        reduced(uploads, Robust("krum", 0.2), SITES)
    reduced(uploads, Robust("trimmed", 0.2), SITES)
    reduced({"a": {"counts": Sum(torch.ones(2))}}, Robust("krum", 0.2), SITES)  # nothing is compared


def test_the_options_say_which_rule() -> None:
    assert ExchangeOptions().compare is None
    assert ExchangeOptions(reduce="krum", hostile=0.1, picks=4).compare == Robust("krum", 0.1, 4)

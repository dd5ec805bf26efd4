"""Folds: every row is tested once, groups stay whole, classes and sites spread evenly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from equipoise.data import Split
from equipoise.data.samples import Samples
from equipoise.errors import PartitionError
from equipoise.partition import Column, Dirichlet, Holding, Iid, PartitionOptions, divide


def samples(labels: Any, *, group: Any = None, site: Any = None, split: Any = None) -> Samples:
    labels = np.asarray(labels)
    multi = labels.ndim == 2
    return Samples(
        images=np.zeros((len(labels), 1, 1, 1), dtype=np.uint8),
        labels=labels.astype(np.float32 if multi else np.int64),
        classes=tuple(f"c{i}" for i in range(labels.shape[1] if multi else 4)),
        task="multi" if multi else "single",
        ids=np.array([f"row{i}" for i in range(len(labels))]),
        fingerprint="",
        group=None if group is None else np.asarray(group, dtype=str),
        site=None if site is None else np.asarray(site, dtype=str),
        split=None if split is None else np.asarray(split, dtype=str),
    )


def all_folds(
    data: Samples, kind: PartitionOptions, count: int, seed: int, validation: float = 0.1
) -> list[tuple[Holding, ...]]:
    return [
        divide(data, kind, Split(folds=count, fold=fold, validation=validation), seed)
        for fold in range(count)
    ]


@st.composite
def data_sets(draw: st.DrawFn) -> Samples:
    """Random data of one or several labels, with or without groups, some of them blank and some at two
    sites."""
    total = draw(st.integers(60, 160))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    labels: np.ndarray = rng.choice(4, size=total, p=[0.6, 0.25, 0.1, 0.05])
    if draw(st.booleans()):
        labels = (rng.random((total, 4)) < [0.5, 0.3, 0.1, 0.02]).astype(np.int64)
    group = rng.integers(0, total // draw(st.integers(1, 3)), size=total).astype(str)
    group[rng.random(total) < 0.1] = ""
    site = np.array(["north", "south", "west"])[np.arange(total) % 3]
    brought = rng.choice(["train", "test"], size=total)
    return samples(
        labels,
        group=draw(st.sampled_from([group, None])),
        site=site,
        split=draw(st.sampled_from([brought, None])),
    )


@settings(max_examples=60, deadline=None)
@given(
    data_sets(),
    st.sampled_from([Column(), Iid(sites=3), Dirichlet(sites=3, alpha=0.5, min_size=15)]),
    st.integers(2, 6),
    st.integers(0, 2**31),
)
def test_every_row_is_tested_in_exactly_one_fold(
    data: Samples, kind: PartitionOptions, count: int, seed: int
) -> None:
    found = all_folds(data, kind, count, seed)
    tested = np.concatenate([holding.test for holdings in found for holding in holdings])
    assert np.array_equal(np.sort(tested), np.arange(len(data)))
    for holdings in found:
        parts = [getattr(h, name) for h in holdings for name in ("train", "validation", "test")]
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(data)))
        assert [h.name for h in holdings] == [h.name for h in found[0]]
        if data.group is not None:
            in_test = np.isin(np.arange(len(data)), np.concatenate([h.test for h in holdings]))
            for name in set(data.group.tolist()) - {""}:
                assert len(set(in_test[data.group == name].tolist())) == 1
    for one in zip(*found, strict=True):  # a site has the same rows in every fold
        rows = [np.sort(np.concatenate([h.train, h.validation, h.test])) for h in one]
        assert all(np.array_equal(row, rows[0]) for row in rows)


def test_each_class_of_each_site_is_spread_within_one_row() -> None:
    rng = np.random.default_rng(0)
    data = samples(
        rng.choice(4, size=400, p=[0.6, 0.25, 0.1, 0.05]), site=rng.choice(["a", "b"], size=400, p=[0.8, 0.2])
    )
    for holdings in zip(*all_folds(data, Column(), 5, 3), strict=True):
        counts = np.array([np.bincount(data.labels[h.test], minlength=4) for h in holdings])
        assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()
        sizes = counts.sum(axis=1)
        assert sizes.max() - sizes.min() <= 1  # the odd rows of different classes do not pile up


def test_single_images_of_a_rare_class_at_many_sites_do_not_meet_in_one_fold() -> None:
    sites = [f"s{i:02d}" for i in range(30)]
    data = samples([0] * 60 + [1] * 30, site=[*sites, *sites, *sites])
    met = [
        sum(int((data.labels[h.test] == 1).sum()) for h in holdings)
        for holdings in all_folds(data, Column(), 3, 0, 0)
    ]
    assert sum(met) == 30 and max(met) < 20


def test_a_site_of_two_images_trains_in_every_fold() -> None:
    data = samples([0, 1, 2, 3], site=["a", "a", "b", "b"])
    for holdings in all_folds(data, Column(), 4, 0, 0):
        assert all(len(h.train) >= 1 for h in holdings)
    with pytest.raises(PartitionError, match="'a' has no training rows"):
        all_folds(samples([0, 1, 2], site=["a", "b", "b"]), Column(), 2, 0, 0)


def test_validation_is_a_share_of_all_rows_and_seeds_differ() -> None:
    data = samples(np.zeros(200, dtype=int), site=["a"] * 200)
    (held,) = divide(data, Column(), Split(folds=5, fold=1, validation=0.2), 0)
    assert (len(held.train), len(held.validation), len(held.test)) == (120, 40, 40)
    (other,) = divide(data, Column(), Split(folds=5, fold=1, validation=0.2), 1)
    assert not np.array_equal(held.test, other.test)


@pytest.mark.parametrize(
    ("given_", "part"),
    [
        ({"folds": 3}, "go together"),
        ({"fold": 0}, "go together"),
        ({"folds": 3, "fold": 3}, "from 0 to folds - 1"),
        ({"folds": 3, "fold": 0, "column": "x"}, "remove the column"),
        ({"folds": 2, "fold": 0, "validation": 0.5}, "nothing to train on"),
        ({"folds": 1, "fold": 0}, "greater than or equal to 2"),
    ],
)
def test_folds_that_make_no_sense_are_refused(given_: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError, match=part):
        Split(**given_)

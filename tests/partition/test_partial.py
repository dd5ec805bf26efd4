"""Partial labels and long tails: who labels what, and which rows are left out."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from equipoise.data.samples import Samples
from equipoise.errors import PartitionError
from equipoise.partition import Column, Dirichlet, Holding, Iid, divide
from equipoise.partition import partial as partial_labels
from equipoise.partition.partial import labelled


@dataclass(frozen=True)
class Split:
    test: float = 0.2
    validation: float = 0.1
    column: str | None = None
    folds: int | None = None
    fold: int | None = None
    seed: int | None = None


def samples(labels: Any, site: Any = None) -> Samples:
    labels = np.asarray(labels)
    multi = labels.ndim == 2
    return Samples(
        images=np.zeros((len(labels), 1, 1, 1), dtype=np.uint8),
        labels=labels.astype(np.float32 if multi else np.int64),
        classes=tuple(f"c{i}" for i in range(labels.shape[1] if multi else int(labels.max()) + 1)),
        task="multi" if multi else "single",
        ids=np.arange(len(labels)).astype(str),
        fingerprint="",
        site=None if site is None else np.asarray(site, dtype=str),
    )


def findings(rows: int, classes: int) -> Samples:
    return samples(np.random.default_rng(0).integers(0, 2, (rows, classes)))


def missing_sets(sites: int, classes: int, missing: int, seed: int) -> list[set[int]]:
    found = labelled(sites, classes, Iid(missing=missing, missing_seed=seed), seed=0)
    assert found is not None
    return [set(np.flatnonzero(~row).tolist()) for row in found]


# Missing labels ---------------------------------------------------------------------------------------------


@given(
    sites=st.integers(1, 12), classes=st.integers(2, 9), missing=st.integers(1, 8), seed=st.integers(0, 2**32)
)
@settings(max_examples=200, deadline=None)
def test_every_class_is_labelled_and_every_site_misses_as_many(
    sites: int, classes: int, missing: int, seed: int
) -> None:
    options = Iid(missing=missing)
    if missing >= classes or sites * (classes - missing) < classes:
        with pytest.raises(PartitionError, match=r"partition\.missing"):
            labelled(sites, classes, options, seed)
        return
    try:
        found = labelled(sites, classes, options, seed)
    except PartitionError:
        reject()  # there is a cover, but it is too unlikely to be drawn
    assert found is not None and found.dtype == bool and found.shape == (sites, classes)
    assert ((~found).sum(axis=1) == missing).all()
    assert found.any(axis=0).all()
    assert np.array_equal(found, labelled(sites, classes, options, seed))


def test_nothing_missing_is_no_mask() -> None:
    assert labelled(5, 5, Iid(), 0) is None
    assert all(holding.labelled is None for holding in divide(findings(60, 3), Iid(sites=3), Split(), 0))


@pytest.mark.parametrize("sites", [5, 8, 11])
def test_all_but_one_missing_gives_site_i_class_i(sites: int) -> None:
    found = labelled(sites, 5, Iid(missing=4), 3)
    assert found is not None
    assert [np.flatnonzero(row).tolist() for row in found] == [[i % 5] for i in range(sites)]


@pytest.mark.parametrize(
    ("size", "missing", "published"),
    [
        (5, 1, [{4}, {2}, {3}, {1}, {1}]),
        (5, 2, [{1, 4}, {1, 2}, {1, 4}, {0, 3}, {3, 4}]),
        (5, 3, [{1, 2, 4}, {1, 2, 4}, {1, 2, 3}, {0, 1, 3}, {0, 2, 3}]),
        (8, 1, [{7}, {3}, {5}, {6}, {0}, {0}, {1}, {0}]),
        (8, 3, [{2, 4, 7}, {3, 4, 6}, {3, 5, 7}, {1, 3, 5}, {1, 3, 7}, {2, 4, 7}, {0, 4, 5}, {0, 2, 7}]),
    ],
)
def test_published_seed_gives_the_published_sets(size: int, missing: int, published: list[set[int]]) -> None:
    assert missing_sets(size, size, missing, 1037) == published


def test_draw_that_leaves_a_class_without_a_labeller_is_repeated() -> None:
    draw = random.Random(1037)
    first, second = ([set(range(8)) - set(draw.sample(range(8), 3)) for _ in range(8)] for _ in range(2))
    assert set.intersection(*first) == {6}
    assert not set.intersection(*second)
    assert missing_sets(8, 8, 5, 1037) == second


def test_missing_seed_alone_decides_when_it_is_given() -> None:
    def found(run: int, seed: int | None) -> list[list[bool]]:
        return np.asarray(labelled(8, 8, Iid(missing=3, missing_seed=seed), run)).tolist()

    assert found(0, 5) == found(1, 5)
    assert found(0, 5) != found(0, 6)
    assert found(0, None) != found(1, None)


def test_global_generator_is_neither_read_nor_moved() -> None:
    before = random.getstate()
    first = missing_sets(8, 8, 3, 7)
    assert random.getstate() == before
    random.random()
    try:
        assert missing_sets(8, 8, 3, 7) == first
    finally:
        random.setstate(before)


def test_division_hands_each_site_its_mask_in_order_of_name() -> None:
    holdings = divide(findings(200, 5), Iid(sites=5, missing=2, missing_seed=1037), Split(), 0)
    found = [set(np.flatnonzero(~np.asarray(holding.labelled)).tolist()) for holding in holdings]
    assert [holding.name for holding in holdings] == sorted(holding.name for holding in holdings)
    assert found == [{1, 4}, {1, 2}, {1, 4}, {0, 3}, {3, 4}]


def test_missing_labels_move_no_row() -> None:
    data = findings(200, 5)
    whole, partly = (divide(data, Dirichlet(sites=5, missing=missing), Split(), 4) for missing in (0, 3))
    for a, b in zip(whole, partly, strict=True):
        assert all(
            np.array_equal(getattr(a, split), getattr(b, split)) for split in ("train", "validation", "test")
        )


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (
            findings(60, 3),
            Iid(sites=4, missing=3),
            "partition.missing is 3, but there are 3 classes; leave at least one labelled",
        ),
        (
            findings(60, 5),
            Iid(sites=2, missing=3),
            "2 sites that label 2 of 5 classes each cannot cover all classes; use more sites",
        ),
        (findings(60, 5), Iid(sites=4, missing=4), "4 sites that label 1 of 5 classes each cannot cover"),
        (samples(np.arange(60) % 3), Iid(sites=4, missing=1), "partition.missing is for multi-label data"),
    ],
)
def test_missing_labels_that_cannot_be_are_refused(data: Samples, kind: Iid, words: str) -> None:
    with pytest.raises(PartitionError, match=words):
        divide(data, kind, Split(), 0)


def test_cover_too_unlikely_to_be_drawn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_labels, "TRIES", 1)
    with pytest.raises(
        PartitionError, match="no draw of 1 left every class labelled somewhere; miss fewer classes"
    ):
        labelled(8, 8, Iid(missing=5, missing_seed=1037), 0)


# Long tails -------------------------------------------------------------------------------------------------


def counts(data: Samples, holdings: tuple[Holding, ...], *splits: str) -> list[int]:
    rows = np.concatenate([getattr(holding, split) for holding in holdings for split in splits])
    return np.bincount(data.labels[rows], minlength=len(data.classes)).tolist()


def even(rows_per_class: int = 500, classes: int = 5) -> Samples:
    return samples(np.random.default_rng(1).permutation(np.repeat(np.arange(classes), rows_per_class)))


def test_class_sizes_fall_geometrically_from_first_to_last() -> None:
    data = even()
    whole, tail = (divide(data, Iid(sites=4, long_tail=ratio), Split(), 2) for ratio in (1, 81))
    before, after = (counts(data, holdings, "train", "validation") for holdings in (whole, tail))
    largest = max(before)
    order = np.argsort(-np.asarray(before), kind="stable")
    assert [after[c] for c in order] == [round(largest * 81 ** (-rank / 4)) for rank in range(5)]
    assert after[order[0]] == 81 * after[order[-1]] + (largest - 81 * round(largest / 81))


def test_class_already_small_keeps_its_rows() -> None:
    data = samples(np.repeat(np.arange(4), [400, 350, 300, 3]))
    tail = divide(data, Iid(sites=2, long_tail=8), Split(test=0, validation=0), 0)
    assert counts(data, tail, "train") == [400, 200, 100, 3]
    assert (
        counts(data, divide(data, Iid(sites=2, long_tail=1e9), Split(test=0, validation=0), 0), "train")[3]
        == 1
    )


@pytest.mark.parametrize("kind", [Iid, Dirichlet])
def test_test_rows_and_the_owner_of_every_row_are_untouched(kind: type[Iid] | type[Dirichlet]) -> None:
    data = even()
    whole, tail = (divide(data, kind(sites=4, long_tail=ratio), Split(), 2) for ratio in (1, 50))
    for a, b in zip(whole, tail, strict=True):
        assert np.array_equal(a.test, b.test)
        assert set(b.train) < set(a.train)
        assert set(b.validation) < set(a.validation)
    assert len(set(np.concatenate([np.concatenate([h.train, h.validation, h.test]) for h in tail]))) == sum(
        len(h.train) + len(h.validation) + len(h.test) for h in tail
    )


def test_long_tail_is_reproducible_and_follows_the_seed() -> None:
    data = samples(even().labels, site=np.arange(2500) % 3)
    first, again, other = (
        divide(data, Column(long_tail=20), Split(test=0, validation=0), seed) for seed in (0, 0, 1)
    )
    assert all(np.array_equal(a.train, b.train) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a.train, b.train) for a, b in zip(first, other, strict=True))
    assert counts(data, first, "train") == counts(data, other, "train")


def test_long_tail_is_for_single_labels() -> None:
    with pytest.raises(PartitionError, match=r"partition\.long_tail is for single-label data"):
        divide(findings(60, 3), Iid(sites=2, long_tail=10), Split(), 0)

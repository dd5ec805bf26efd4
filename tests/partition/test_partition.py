"""Who holds what: every row once, groups whole, classes kept in proportion, and clear refusals."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from equipoise.data.samples import Samples
from equipoise.errors import PartitionError
from equipoise.partition import KINDS, Column, Dirichlet, Holding, Iid, PartitionOptions, divide, table
from equipoise.partition.units import row_classes, units

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    test: float = 0.2
    validation: float = 0.1
    column: str | None = None
    folds: int | None = None
    fold: int | None = None
    seed: int | None = None


def samples(
    labels: Any, *, classes: int | None = None, group: Any = None, site: Any = None, split: Any = None
) -> Samples:
    labels = np.asarray(labels)
    multi = labels.ndim == 2
    count = labels.shape[1] if multi else classes or int(labels.max()) + 1
    return Samples(
        images=np.zeros((len(labels), 1, 1, 1), dtype=np.uint8),
        labels=labels.astype(np.float32 if multi else np.int64),
        classes=tuple(f"c{i}" for i in range(count)),
        task="multi" if multi else "single",
        ids=np.array([f"row{i}" for i in range(len(labels))]),
        fingerprint="",
        group=None if group is None else np.asarray(group, dtype=str),
        site=None if site is None else np.asarray(site, dtype=str),
        split=None if split is None else np.asarray(split, dtype=str),
    )


def rows_of(holding: Holding) -> np.ndarray:
    return np.concatenate([holding.train, holding.validation, holding.test])


def same(a: tuple[Holding, ...], b: tuple[Holding, ...]) -> bool:
    return [h.name for h in a] == [h.name for h in b] and all(
        np.array_equal(getattr(x, s), getattr(y, s)) for x, y in zip(a, b, strict=True) for s in SPLITS
    )


def place(holdings: tuple[Holding, ...], total: int) -> tuple[np.ndarray, np.ndarray]:
    """Site index and split index of every row; -1 where a row was lost."""
    site, split = np.full(total, -1), np.full(total, -1)
    for i, holding in enumerate(holdings):
        for j, name in enumerate(SPLITS):
            site[getattr(holding, name)], split[getattr(holding, name)] = i, j
    return site, split


@st.composite
def data_sets(draw: st.DrawFn) -> Samples:
    """Random data: one or several labels, with or without groups (some blank), always with natural sites."""
    total = draw(st.integers(30, 160))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        labels = (rng.random((total, 4)) < [0.5, 0.3, 0.1, 0.02]).astype(np.int64)
    else:
        labels = rng.choice(4, size=total, p=[0.6, 0.25, 0.1, 0.05])
    group = rng.integers(0, max(8, total // draw(st.integers(1, 4))), size=total).astype(str)
    group[rng.random(total) < 0.1] = ""
    site = np.array(["north", "south", "west"])[np.arange(total) % 3]
    return samples(labels, classes=4, group=draw(st.sampled_from([group, None])), site=site)


KIND = st.sampled_from([Column(), Iid(sites=3), Dirichlet(sites=3, alpha=0.5, min_size=3)])


@settings(max_examples=30, deadline=None)
@given(data_sets(), KIND)
def test_a_seed_of_the_split_tests_every_run_on_the_same_rows(data: Samples, kind: PartitionOptions) -> None:
    split = Split(seed=7)
    try:
        one, other = (place(divide(data, kind, split, seed), len(data))[1] for seed in (0, 1))
    except PartitionError as error:
        if "has no training rows" not in str(error):  # a small site may have drawn test rows only
            raise
        reject()
    assert np.array_equal(one, other)
    assert (one == SPLITS.index("test")).any()
    if data.group is not None:
        for name in set(data.group.tolist()) - {""}:
            assert len(set(one[data.group == name].tolist())) == 1


def test_a_seed_of_the_split_holds_for_reserved_rows_too() -> None:
    even = samples(np.arange(120) % 3)
    kind, split = Dirichlet(sites=3, alpha=0.5, min_size=3, test_per_class=5), Split(test=0, seed=3)
    one, other = (place(divide(even, kind, split, seed), len(even)) for seed in (0, 1))
    assert np.array_equal(one[1], other[1]) and not np.array_equal(one[0], other[0])
    usual = (place(divide(even, kind, Split(test=0), seed), len(even))[1] for seed in (0, 1))
    assert not np.array_equal(*usual)


@settings(max_examples=120, deadline=None)
@given(data_sets(), KIND, st.integers(0, 2**31))
def test_every_row_is_held_once_and_groups_stay_whole(
    data: Samples, kind: PartitionOptions, seed: int
) -> None:
    holdings = divide(data, kind, Split(), seed)
    held = np.concatenate([rows_of(h) for h in holdings])
    assert np.array_equal(np.sort(held), np.arange(len(data)))
    assert [h.name for h in holdings] == sorted(h.name for h in holdings)
    for h in holdings:
        assert len(h.train) >= 1
        assert h.labelled is None
        for name in SPLITS:
            rows = getattr(h, name)
            assert rows.dtype == np.int64
            assert np.array_equal(rows, np.sort(rows))
    if data.group is not None:
        site, split = place(holdings, len(data))
        for name in set(data.group.tolist()) - {""}:
            rows = data.group == name
            assert len(set(split[rows].tolist())) == 1  # also for a group that is at two natural sites
            if kind.kind != "column":
                assert len(set(site[rows].tolist())) == 1
    assert same(holdings, divide(data, kind, Split(), seed))


@settings(max_examples=80, deadline=None)
@given(data_sets(), st.floats(0, 0.5), st.floats(0, 0.4), st.integers(0, 2**31))
def test_each_class_is_within_one_group_of_its_fraction(
    data: Samples, test: float, validation: float, seed: int
) -> None:
    data = replace(data, site=None)  # no group at two sites
    for h in divide(data, Iid(sites=2), Split(test, validation), seed):
        rows = np.sort(rows_of(h))
        movable = units(data, rows)
        wanted = {"train": 1 - test - validation, "validation": validation, "test": test}
        for stratum in np.unique(movable.stratum):
            members = np.flatnonzero(movable.stratum == stratum)
            total, largest = movable.size[members].sum(), movable.size[members].max()
            for name, fraction in wanted.items():
                inside = np.isin(rows, getattr(h, name)) & np.isin(movable.of, members)
                assert abs(inside.sum() - fraction * total) <= largest + 1e-9


def test_another_seed_is_another_partition() -> None:
    data = samples(np.arange(200) % 4, site=np.where(np.arange(200) < 90, "a", "b"))
    for kind in (Column(), Iid(sites=4), Dirichlet(sites=4, alpha=0.5)):
        assert not same(divide(data, kind, Split(), 0), divide(data, kind, Split(), 1))


def test_counts_by_hand_without_groups() -> None:
    """100 rows of one class and 10 of another at one site: 70/10/20 and 7/1/2."""
    data = samples([0] * 100 + [1] * 10, site=["a"] * 110)
    (held,) = divide(data, Column(), Split(), 5)
    counts = table(data, (held,))["sites"]["a"]
    assert counts["train"] == {"rows": 77, "counts": [70, 7]}
    assert counts["validation"] == {"rows": 11, "counts": [10, 1]}
    assert counts["test"] == {"rows": 22, "counts": [20, 2]}


@pytest.mark.parametrize(("groups", "expected"), [(1, [1, 0, 0]), (2, [1, 0, 1]), (3, [2, 0, 1])])
def test_a_rare_class_trains_first_then_tests(groups: int, expected: list[int]) -> None:
    data = samples([0] * 40 + [1] * groups, site=["a"] * (40 + groups))
    for seed in range(5):
        counts = table(data, divide(data, Column(), Split(), seed))["sites"]["a"]
        assert [counts[s]["counts"][1] for s in SPLITS] == expected


def test_a_rare_class_without_a_test_part_goes_to_validation() -> None:
    data = samples([0] * 40 + [1, 1], site=["a"] * 42)
    counts = table(data, divide(data, Column(), Split(test=0), 0))["sites"]["a"]
    assert [counts[s]["counts"][1] for s in SPLITS] == [1, 1, 0]


def test_a_class_trains_even_when_most_rows_are_for_testing() -> None:
    data = samples([0] * 40 + [1] * 3, site=["a"] * 43)
    counts = table(data, divide(data, Column(), Split(test=0.95, validation=0), 0))["sites"]["a"]
    assert [counts[s]["counts"][1] for s in SPLITS] == [1, 0, 2]


def test_large_groups_are_placed_first() -> None:
    """Ten rows in groups of 6, 1, 1, 1, 1: the fractions can be met exactly, but only if the 6 is placed
    first."""
    data = samples([0] * 10, group=["big"] * 6 + list("abcd"), site=["a"] * 10)
    for seed in range(5):
        (held,) = divide(data, Column(), Split(), seed)
        assert (len(held.train), len(held.validation), len(held.test)) == (7, 1, 2)


def test_a_site_splits_alone_as_it_does_in_company() -> None:
    """A hospital that holds only its own rows gets the split that the simulation gave it."""
    rng = np.random.default_rng(3)
    labels = rng.random((90, 3)) < [0.5, 0.2, 0.1]
    site = np.array(["a", "b", "c"])[np.arange(90) % 3]
    group = np.char.add(site, (np.arange(90) // 6).astype(str))
    whole = divide(samples(labels, group=group, site=site), Column(), Split(), 7)
    for held in whole:
        mine = np.flatnonzero(site == held.name)
        (alone,) = divide(samples(labels[mine], group=group[mine], site=site[mine]), Column(), Split(), 7)
        for name in SPLITS:
            assert np.array_equal(mine[getattr(alone, name)], getattr(held, name))


def test_own_split_is_kept_and_validation_is_carved_from_train() -> None:
    split = np.array(["train"] * 80 + ["test"] * 20)
    data = samples(np.arange(100) % 2, site=["a"] * 100, split=split)
    (held,) = divide(data, Column(), Split(test=0.5, validation=0.25, column="fold"), 0)
    assert np.array_equal(held.test, np.arange(80, 100))
    assert table(data, (held,))["sites"]["a"]["validation"] == {"rows": 20, "counts": [10, 10]}
    assert np.array_equal(np.sort(np.concatenate([held.train, held.validation])), np.arange(80))


@pytest.mark.parametrize(
    ("brought", "counts"),
    [
        (["train"], {"train": 52, "validation": 8, "test": 20}),
        (["train", "validation"], {"train": 60, "validation": 20, "test": 20}),
        (["train", "test"], {"train": 72, "validation": 8, "test": 20}),
        (["train", "validation", "test"], {"train": 80, "validation": 20, "test": 20}),
    ],
)
def test_what_the_data_does_not_bring_is_cut_from_train(brought: list[str], counts: dict[str, int]) -> None:
    split = np.array(["train"] * 80 + [name for name in brought[1:] for _ in range(20)])
    data = samples(np.arange(len(split)) % 2, site=["a"] * len(split), split=split)
    (held,) = divide(data, Column(), Split(test=0.25, validation=0.1), 0)
    assert {name: len(getattr(held, name)) for name in SPLITS} == counts
    for name in brought[1:]:
        assert np.array_equal(getattr(held, name), np.flatnonzero(split == name))
    together = np.concatenate([getattr(held, name) for name in SPLITS])
    assert np.array_equal(np.sort(together), np.arange(len(split)))
    if brought == ["train"]:  # as if the data had brought no split at all
        (free,) = divide(samples(data.labels, site=["a"] * len(split)), Column(), Split(0.25, 0.1), 0)
        assert same((held,), (free,))


def test_an_own_split_without_training_rows_is_refused() -> None:
    data = samples(np.arange(20) % 2, site=["a"] * 20, split=np.array(["validation", "test"] * 10))
    with pytest.raises(PartitionError, match="the data's own split has no training rows"):
        divide(data, Column(), Split(), 0)


def test_own_split_with_validation_is_kept_as_it_is() -> None:
    split = np.array(["train", "validation", "test", "train"] * 10)
    data = samples(np.arange(40) % 2, site=["a"] * 40, split=split)
    (held,) = divide(data, Column(), Split(), 0)
    for name in SPLITS:
        assert np.array_equal(getattr(held, name), np.flatnonzero(split == name))


def test_dirichlet_skews_more_when_alpha_is_small() -> None:
    labels = np.arange(4000) % 4

    def spread(alpha: float) -> float:
        found = Dirichlet(sites=8, alpha=alpha).sites_of(samples(labels), 0)
        shares = np.array([np.bincount(labels[rows], minlength=4) / len(rows) for rows in found.values()])
        return float(shares.std(axis=0).mean())

    assert spread(0.1) > 2 * spread(5.0) > 4 * spread(1000.0)


def test_dirichlet_gives_full_sites_no_more() -> None:
    """Four equal classes, four sites: a site at the average is closed, so none passes it by more than a
    class."""
    for seed in range(20):
        found = Dirichlet(sites=4, alpha=0.05, min_size=1).sites_of(samples(np.arange(400) % 4), seed)
        assert max(len(rows) for rows in found.values()) < 200
        assert list(found) == ["site-00", "site-01", "site-02", "site-03"]


def test_dirichlet_first_class_has_the_moments_of_a_dirichlet() -> None:
    """Var of a share of Dir(1,1,1) is (1/3)(2/3)/4 = 1/18; nothing is closed while the first class is cut."""
    data = samples([0] * 300 + [1] * 300)
    shares = [
        len([r for r in rows if r < 300]) / 300
        for seed in range(300)
        for rows in [Dirichlet(sites=3, alpha=1.0, min_size=1).sites_of(data, seed)["site-00"]]
    ]
    assert np.mean(shares) == pytest.approx(1 / 3, abs=0.05)
    assert np.var(shares) == pytest.approx(1 / 18, rel=0.25)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.floats(0.05, 10), st.integers(1, 15), st.integers(0, 2**31))
def test_min_size_holds_unless_it_is_refused(sites: int, alpha: float, least: int, seed: int) -> None:
    data = samples(np.arange(150) % 5, group=np.arange(150) // 2)
    try:
        found = Dirichlet(sites=sites, alpha=alpha, min_size=least, tries=30).sites_of(data, seed)
    except PartitionError:
        reject()  # hypothesis complains when it is refused too often
    assert min(len(rows) for rows in found.values()) >= least


def test_iid_sites_are_equally_large_and_many_sites_sort_by_name() -> None:
    found = Iid(sites=101).sites_of(samples(np.zeros(1000, dtype=int), classes=2), 0)
    assert {len(rows) for rows in found.values()} == {9, 10}
    assert list(found) == sorted(found)
    assert "site-007" in found


def test_several_labels_are_balanced_by_the_rarest_positive() -> None:
    data = samples([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
    assert row_classes(data, np.arange(5)).tolist() == [1, 0, 0, 3, 2]


def test_a_unit_takes_its_majority_class_and_a_tie_the_rarer_one() -> None:
    found = units(samples([0, 0, 1, 0, 1, 0, 0], group=["p", "p", "p", "q", "q", "", ""]), np.arange(7))
    assert found.of.tolist() == [0, 0, 0, 1, 1, 2, 3]
    assert found.size.tolist() == [3, 2, 1, 1]
    assert found.stratum.tolist() == [0, 1, 0, 0]


def test_table_counts_positives_of_several_labels() -> None:
    data = samples([[1, 1], [1, 0], [0, 0], [1, 1]], site=["a", "a", "b", "b"])
    shown = table(data, divide(data, Column(), Split(test=0, validation=0), 0))
    assert shown["classes"] == ["c0", "c1"]
    assert shown["sites"]["a"]["train"] == {"rows": 2, "counts": [2, 1]}
    assert shown["sites"]["b"]["train"] == {"rows": 2, "counts": [1, 1]}
    assert shown["total"]["train"] == {"rows": 4, "counts": [3, 2]}
    assert shown["total"]["test"] == {"rows": 0, "counts": [0, 0]}


PLAIN = samples(np.arange(12) % 2)


@pytest.mark.parametrize(
    ("data", "kind", "split", "words"),
    [
        (PLAIN, Column(), Split(), "site column"),
        (replace(PLAIN, site=np.array(["a"] * 11 + [""])), Column(), Split(), "'row11'"),
        (replace(PLAIN, site=np.array(["a"] * 11 + ["b"])), Column(min_size=2), Split(), r"b \(1\)"),
        (PLAIN, Iid(sites=13), Split(), "only 12 groups"),
        (PLAIN, Dirichlet(sites=2, min_size=7), Split(), "fewer sites"),
        (
            replace(PLAIN, group=np.array(["p"] * 12)),
            Dirichlet(sites=2, min_size=1),
            Split(),
            "only 1 groups",
        ),
        (replace(PLAIN, split=np.array(["train"] * 11 + ["holdout"])), Iid(sites=2), Split(), "'holdout'"),
        (PLAIN, Iid(sites=2), Split(column="fold"), "'fold'"),
        (PLAIN, Iid(sites=2), Split(test=0.6, validation=0.4), "below 1"),
        (PLAIN, Iid(sites=2), Split(test=-0.1), "below 1"),
        (
            replace(PLAIN, site=np.array(["a", "b"] * 6), split=np.array(["train", "test"] * 6)),
            Column(),
            Split(),
            "site 'b' has no training rows",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(
    data: Samples, kind: PartitionOptions, split: Split, words: str
) -> None:
    with pytest.raises(PartitionError, match=words):
        divide(data, kind, split, 0)


def test_empty_data_is_refused() -> None:
    with pytest.raises(PartitionError, match="no rows"):
        Iid(sites=2).sites_of(samples(np.zeros(0, dtype=int), classes=2), 0)


def test_options_are_strict() -> None:
    assert list(KINDS) == ["column", "iid", "dirichlet", "attribute", "limited"]
    for name, kind in KINDS.items():
        assert kind.model_validate({}).kind == name
    for wrong in ({"sites": 0}, {"alpha": 0}, {"alpha": float("nan")}, {"alhpa": 1.0}):
        with pytest.raises(ValidationError):
            Dirichlet(**wrong)


@pytest.fixture
def ham(shared_data: Path) -> Samples:
    with (shared_data / "ham10000" / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    classes = sorted({row["label"] for row in rows})
    return samples(
        [classes.index(row["label"]) for row in rows],
        group=[row["lesion_id"] for row in rows],
        site=[row["site"] for row in rows],
    )


@pytest.mark.parametrize("kind", [Column(), Iid(sites=10), Dirichlet(sites=15, alpha=5.0)])
def test_real_lesions_are_never_cut(ham: Samples, kind: PartitionOptions) -> None:
    holdings = divide(ham, kind, Split(), 0)
    _, split = place(holdings, len(ham))
    assert (split >= 0).all()
    seen: dict[str, set[int]] = defaultdict(set)
    assert ham.group is not None
    for lesion, part in zip(ham.group.tolist(), split.tolist(), strict=True):
        seen[lesion].add(part)
    assert len(seen) == 4505
    assert all(len(parts) == 1 for parts in seen.values())
    # Ten or fifteen small sites round rare classes towards training; the four natural ones hardly do.
    assert [float(np.mean(split == i)) for i in range(3)] == pytest.approx([0.7, 0.1, 0.2], abs=0.02)


def test_real_sites_keep_their_label_skew(ham: Samples) -> None:
    shown = table(ham, divide(ham, Column(), Split(), 0))
    assert list(shown["sites"]) == ["rosendahl", "vidir_modern", "vidir_molemax", "vienna_dias"]
    molemax = shown["sites"]["vidir_molemax"]
    assert all(molemax[s]["counts"][0] == 0 for s in SPLITS)  # no akiec there
    assert sum(site[s]["rows"] for site in shown["sites"].values() for s in SPLITS) == 6039


@pytest.mark.parametrize("name", ["..", "a/b", ".hidden", "", "x" * 101])
def test_a_site_that_could_not_be_a_folder_is_refused(name: str) -> None:
    with pytest.raises(PartitionError, match=r"folder|no site"):
        divide(samples(np.arange(8) % 2, site=[name] * 8), Column(), Split(), 0)

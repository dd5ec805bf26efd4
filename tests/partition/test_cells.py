"""Small cells: which classes they are, and tests that leave them out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.data.samples import Samples, Task
from equipoise.partition import Census, Held, Holding, count, covered, small_cells, without_small_cells
from equipoise.partition.census import TABLE
from equipoise.site import SiteData


def samples(labels: np.ndarray, task: Task = "single") -> Samples:
    images = np.zeros((len(labels), 8, 8, 3), np.uint8)
    return Samples(images, labels, ("a", "b", "c"), task, np.arange(len(labels)).astype(str), "x")


@pytest.mark.parametrize(
    ("counts", "small", "with_other"),
    [
        ([9, 4, 0], [0, 1, 0], [1, 1, 0]),
        ([9, 4, 20], [0, 1, 0], [1, 1, 0]),  # the smallest of the others, or 33 - 9 - 20 would tell 4
        ([9, 5, 0], [0, 0, 0], [0, 0, 0]),
        ([3, 4, 0], [1, 1, 0], [1, 1, 0]),  # there is no other
        ([3, 4, 90], [1, 1, 0], [1, 1, 1]),
    ],
)
def test_which_classes_are_small(counts: list[int], small: list[int], with_other: list[int]) -> None:
    assert small_cells(torch.tensor(counts), 5).int().tolist() == small
    assert covered(torch.tensor(counts), 5).int().tolist() == with_other
    assert not small_cells(torch.tensor(counts), 0).any() and not covered(torch.tensor(counts), 0).any()


def test_images_of_a_small_class_are_not_tested_but_trained_on() -> None:
    labels = np.array([0] * 6 + [1] * 2 + [2] * 5)
    rows = np.arange(13)
    held = without_small_cells(samples(labels), Holding("north", rows, rows[:8], rows), 5)
    assert held.train.tolist() == rows.tolist() and not held.hidden
    assert labels[held.validation].tolist() == [0] * 6
    assert np.bincount(labels[held.test]).tolist() == [6, 0, 5]


def test_with_several_labels_the_class_is_hidden_and_its_images_stay() -> None:
    labels = np.zeros((8, 3), np.float32)
    labels[:6, 0] = labels[:2, 1] = labels[2:7, 2] = 1
    data, rows = samples(labels, "multi"), np.arange(8)
    held = without_small_cells(data, Holding("north", rows, rows, rows[:0]), 5)
    assert held.validation.tolist() == rows.tolist() and set(held.hidden) == {"validation"}
    assert held.hidden["validation"].tolist() == [False, True, False]
    census = count(data, [held]).sites["north"]
    assert census["train"].counts == (6, 2, 5) and census["train"].known is None
    assert census["validation"].counts == (6, 0, 5) and census["validation"].known == (8, 0, 8)


def test_a_hidden_class_is_one_without_labels() -> None:
    """Beside labels that are missing: tests count neither."""
    labels = np.zeros((8, 3), np.float32)
    labels[:6, 0] = labels[:2, 1] = labels[2:7, 2] = 1
    labels[7] = np.nan
    data, rows = samples(labels, "multi"), np.arange(8)
    held = without_small_cells(data, Holding("north", rows, rows[:0], rows), 5)
    census = count(data, [held]).sites["north"]
    assert census["train"].counts == (6, 2, 5) and census["train"].known == (7, 7, 7)
    assert census["test"].counts == (6, 0, 5) and census["test"].known == (7, 0, 7)
    site = SiteData(data, held, torch.device("cpu"))
    assert site.splits["test"].known.sum(0).tolist() == [7, 0, 7]
    assert site.splits["train"].known.sum(0).tolist() == [7, 7, 7] and site.counts.tolist() == [6, 2, 5]


@pytest.mark.parametrize("sites", [2, TABLE + 1])
def test_what_is_withheld_is_read_back_from_a_census(sites: int) -> None:
    told = Held(images=9, counts=(9, None, 0), withheld=(1,))
    plain = Held(images=9, counts=(6, 3, 0))
    held = {
        f"site-{i:04}": {"train": told if i == 1 else plain, "validation": plain, "test": plain}
        for i in range(sites)
    }
    census = Census.model_validate_json(Census.of(held, {"site-0001": 5}).model_dump_json())
    assert {site: dict(splits) for site, splits in census.sites.items()} == held
    assert census.small_cell == {"site-0001": 5}


def test_nothing_changes_where_nothing_is_small() -> None:
    rows = np.arange(10)
    held = Holding("north", rows, rows, rows)
    assert replace(without_small_cells(samples(rows % 2), held, 5)).test is rows

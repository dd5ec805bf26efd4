"""Hospitals that label only some findings, or some images: what they hold counts, and nothing else."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.config import Config, resolve
from equipoise.deploy.card import LONGEST, Card
from equipoise.deploy.policy import Policy
from equipoise.deploy.site import SiteOptions, own_config, own_material
from equipoise.errors import ConfigError
from equipoise.running import run
from equipoise.testing import write_federation

SITES = {"north": (0, 1, 2, 0, 1, 2, 0, 1), "south": (2, 1, 0, 2, 1, 0, 2, 1)}


@pytest.fixture
def partly(tmp_path: Path) -> Config:
    """A federation in which south leaves the last column empty, and every third image misses the first."""
    table = write_federation(tmp_path / "data", SITES, {site: (0, 1, 2, 0) for site in SITES}, task="multi")
    path = Path(table["data"]["path"])
    with open(path) as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        if row["site"] == "south":
            row["c2"] = ""
        if number % 3 == 0:
            row["c0"] = "-1"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    rest = {
        "net": {"name": "small-cnn"},
        "engine": {"device": "cpu"},
        "train": {"rounds": 2, "batch_size": 4, "seed": 3},
        "method": {"name": "fedmlp", "warmup": 1},
        "evaluate": {"exact": False},
    }
    return resolve(table | rest, base=Path.cwd())


def test_a_federation_is_what_the_simulation_is(partly: Config, town: Any, rows: Any, tmp_path: Path) -> None:
    there = town(partly)
    found = there.go()
    expected = run(replace(partly, evaluate=there.config.evaluate), tmp_path / "here")
    assert found.state_hash == expected.state_hash and rows(there.run) == rows(tmp_path / "here")


def site(config: Config, **more: Any) -> Any:
    options = SiteOptions(name="south", data=config.table()["data"], device="cpu", **more)
    theirs = {key: value for key, value in config.table().items() if key != "data"}
    return own_material(options, own_config(options, Path.cwd(), theirs, Policy()))


def test_findings_that_a_site_does_not_label_count_in_its_tests_neither(partly: Config) -> None:
    found = site(partly, labelled=("c0", "c1"))
    assert np.isnan(found.samples.labels[:, 2]).all()
    assert found.facts.partial and found.facts.census.labelled["south"] == (True, True, False)
    for split in ("train", "test"):
        assert found.facts.census.sites["south"][split].known[2] == 0


def test_one_label_per_image_cannot_be_partly_missing(tiny: Any) -> None:
    config = tiny()
    options = SiteOptions(name="north", data=config.table()["data"], device="cpu", labelled=("MEL",))
    own = own_config(options, Path.cwd(), {}, Policy())
    with pytest.raises(ConfigError, match="'labelled' is for several labels per image: remove it"):
        own_material(options, own)


@pytest.mark.parametrize(
    ("known", "problem"),
    [
        ({"train": (9,), "validation": (0,), "test": (0,)}, "'known' is not by split and class"),
        (
            {"train": (9, 11), "validation": (0, 0), "test": (0, 0)},
            "'known' of its train images is",
        ),
    ],
)
def test_a_card_that_cannot_be_true(known: Any, problem: str) -> None:
    told = {"images": {"train": 10, "validation": 0, "test": 0}, "known": known, "input": LONGEST}
    counts = {"train": (1, 1), "validation": (0, 0), "test": (0, 0)}
    with pytest.raises(ValueError, match=problem):
        Card(classes=("a", "b"), task="multi", shape=(16, 16, 3), partial=True, counts=counts, **told)

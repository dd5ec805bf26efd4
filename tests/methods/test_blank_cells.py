"""Partly labelled images: a blank cell of a label column reaches no loss, whatever the method."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.config import Config, resolve
from equipoise.losses import multilabel
from equipoise.methods import METHODS
from equipoise.running import Result, run
from equipoise.setup import material

MakeConfig = Callable[..., Config]
EAGER: dict[str, dict[str, Any]] = {
    "fedavg": {"crt": 1},
    "fedavg-pl": {},
    "fedmlp": {"warmup": 1, "negative_share": 0.3, "positive_share": 0.3},
    "rscfed": {"group": 2, "beta": 50.0},
    "fedfixmatch": {"low": 0.5, "high": 0.5},
    "fedirm": {"warmup": 1, "ramp": 1, "low": 0.5, "high": 0.5},
    "cbafed": {"warmup": 1, "offset": 0.0, "floor": 0.5, "every": 1},
    "fedlsr": {"warmup": 1},
    "fednoro": {"warmup": 0, "ramp": 1},
    "fedproc": {},
    "feddisco": {},
    "climb": {},
}
"""methods that look at labels themselves, with options under which two rounds take every path"""
REST = [name for name, cls in METHODS.items() if "multi" in cls.tasks and name not in EAGER]
BLANKS = ("c0", "c2", "c1", "", "c0 c1", "", "c0 c1 c2")
"""which cells of a training row are blank, one row after another"""


@pytest.fixture(scope="module")
def make(make_findings: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> MakeConfig:
    """make(method, blank=, **train): the federation of findings with blank cells, `-1` or nothing in turns.

    `blank` gives the names of the blank columns of a training row from its number and site.
    """
    plain = make_findings({"name": "fedavg"}, missing=0)
    with open(plain.data.path) as file:  # type: ignore[attr-defined]
        rows = list(csv.DictReader(file))

    def made(method: Mapping[str, Any], blank: Callable[[int, str], str], **train: Any) -> Config:
        folder = tmp_path_factory.mktemp("blank")
        written = [dict(row) for row in rows]
        for number, row in enumerate(written):
            if row["split"] == "train":
                row.update({name: ("", "-1")[number % 2] for name in blank(number, row["site"]).split()})
        with open(folder / "rows.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(written)
        config = make_findings(method, missing=0, **train)
        images = config.data.images or str(Path(config.data.path).parent)  # type: ignore[attr-defined]
        data = config.data.model_dump() | {"path": str(folder / "rows.csv"), "images": images}
        return resolve(config.table() | {"data": data}, base=Path.cwd())

    return made


def some(number: int, site: str) -> str:
    return BLANKS[number % len(BLANKS)]


def trained(make: MakeConfig, method: str, folder: Path, **options: Any) -> Result:
    return run(make({"name": method, **options}, some, batch_size=12), folder)


def check(make: MakeConfig, method: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(make, method, folder / "0", **EAGER.get(method, {}))
    assert all(tensor.isfinite().all() for tensor in first.server["model"].values())
    monkeypatch.setattr(multilabel, "BLANK", 1.0)  # what stands in a cell without a label
    again = trained(make, method, folder / "1", **EAGER.get(method, {}))
    assert again.state_hash == first.state_hash


@pytest.mark.parametrize("method", EAGER)
def test_nothing_depends_on_a_cell_without_a_label(
    make: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    check(make, method, tmp_path, monkeypatch)


@pytest.mark.sweep
@pytest.mark.parametrize("method", REST)
def test_nor_in_any_other_method(
    make: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    check(make, method, tmp_path, monkeypatch)


@pytest.mark.parametrize("method", ["fedmlp", "cbafed"])
def test_blank_columns_of_a_site_are_labels_it_does_not_have(
    make: MakeConfig, make_findings: MakeConfig, tmp_path: Path, method: str
) -> None:
    """What `partition.missing` hides, and what the file leaves blank: the same training, bit for bit."""
    table = {"name": method, **EAGER[method]}
    hidden = make_findings(table, batch_size=12)
    lacks = {
        holding.name: " ".join(f"c{c}" for c in range(3) if not holding.labelled[c])
        for holding in material(hidden).holdings
    }
    blank = make(table, lambda number, site: lacks[site], batch_size=12)
    assert run(blank, tmp_path / "blank").state_hash == run(hidden, tmp_path / "hidden").state_hash


def test_the_census_counts_labelled_cells(make: MakeConfig) -> None:
    found = material(make({"name": "fedavg"}, some))
    facts = found.facts
    assert facts.partial
    labels = torch.from_numpy(found.samples.labels)
    for holding in found.holdings:
        rows = labels[torch.from_numpy(holding.train)]
        held = facts.census.sites[holding.name]["train"]
        assert held.known == tuple((~rows.isnan()).sum(0).tolist())
        assert held.counts == tuple((rows == 1).sum(0).tolist())
        assert facts.census.sites[holding.name]["test"].known is None
    data = found.sites(torch.device("cpu"))["north"]
    assert data.total.tolist() == list(facts.census.sites["north"]["train"].known or ())

"""Everything short of training: used by `check` and `ledger`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.config import Config, departures
from equipoise.data.pixels import Survey
from equipoise.data.warn import warnings_of
from equipoise.errors import DataError
from equipoise.exchange import Ledger
from equipoise.partition.divide import SPLITS
from equipoise.running import one_thread, prepare
from equipoise.setup import Material, device_of, material


@dataclass(frozen=True)
class Trial:
    """What was tried, and the ledger it ended in."""

    checked: dict[str, str]
    dataset: Material
    ledger: Ledger


def trial(config: Config) -> Trial:
    """Read the data, make the sites, the network and the method, and ask every question of two generated
    sites."""
    with one_thread():
        dataset = material(config)
        plan = prepare(config, dataset.facts, dataset)
    samples, ledger, sizes = dataset.samples, plan.ledger, plan.facts.census.sizes.values()
    size = sum(parameter.numel() for parameter in plan.built.net.parameters())
    leaves = sorted({entry.leaf for line in ledger.lines for entry in line.up})
    checked = {
        "config": f"every key is known; digest {config.digest[:12]}",
        "data": f"{len(samples):,} images of {len(samples.classes)} classes ({samples.task}-label); "
        f"{len(samples.skipped)} bad rows skipped",
        "sites": f"{len(dataset.holdings)} sites with {min(sizes):,} to {max(sizes):,} training images",
        "net": f"{config.net.name}, {size:,} parameters, on {device_of(config)}",
        "method": f"{config.method_name} with {'+'.join(part.name for part in config.objective.parts)}",
        "exchange": f"every question asked of two generated sites; what leaves: {', '.join(leaves)}",
    }
    if (known := plan.facts.census.known("train")) is not None:
        labelled = ", ".join(f"{name} {n:,}" for name, n in zip(samples.classes, known, strict=True))
        inspect = "site by site: `equipoise data inspect`"
        checked["labels"] = f"of {sum(sizes):,} training images are labelled: {labelled}; {inspect}"
    if notes := departures(config):
        checked["note"] = "; ".join(notes)
    return Trial(checked, dataset, ledger)


def doubts(config: Config, dataset: Material, seen: Survey) -> list[str]:
    """What may be wrong with the data."""
    return warnings_of(dataset.samples, _splits(dataset), seen, config.data.declared)


def can_be_judged(config: Config, dataset: Material) -> None:
    """Refuse data on which no round could be evaluated or selected."""
    rows = _splits(dataset)
    if not len(rows["test"]):
        raise DataError("no image is for testing, so nothing could be said of a model: set data.split.test")
    if config.evaluate.select == "best_validation" and not len(rows["validation"]):
        raise DataError(
            "evaluate.select is 'best_validation' and no image is for validation: set data.split.validation"
        )


def _splits(dataset: Material) -> dict[str, np.ndarray]:
    """The rows for train, validation and test of all sites."""
    held = dataset.holdings
    return {split: np.concatenate([getattr(holding, split) for holding in held]) for split in SPLITS}


def totals(ledger: Ledger) -> list[dict[str, str | int | bool]]:
    """Bytes per site of each question, once per phase of the method."""
    return [
        {
            "question": line.question,
            "from_round": line.since,
            "up_bytes": line.up_bytes,
            "down_bytes": line.down_bytes,
            "varies": any(None in entry.shape for entry in line.up),
        }
        for line in ledger.lines
    ]

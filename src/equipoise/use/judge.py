"""A trained model on new data: an unseen hospital."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import config
from equipoise.blueprint import Blueprint, Input
from equipoise.data import DataOptions, Progress, Samples, load_samples
from equipoise.errors import ConfigError, DataError
from equipoise.evaluate import by_attribute, from_scores
from equipoise.names import nearest
from equipoise.predict import Predictor
from equipoise.setup import cache_folder

LOOK = ("image_size", "channels", "resize", "crop_keep", "colour_constancy", "brightness", "window", "bits")
"""keys of `[data]` in which new data must be as the model has seen images"""


def evaluate(model: Predictor, file: str | Path, progress: Progress | None = None) -> dict[str, Any]:
    """The model's metrics on the data of a config file: its test rows where it says which those are,
    otherwise all of it."""
    options, base = read_data(Path(file), model.blueprint.input)
    samples = load_samples(options, cache=cache_folder(), base=base, progress=progress)
    facts = model.blueprint
    tested = samples.split == "test" if samples.split is not None else np.zeros(len(samples), bool)
    if not tested.any() and samples.fingerprint == facts.data:
        raise DataError(
            f"{file} is the data this model was trained on: evaluate other images, or see the test in "
            f"report.html"
        )
    rows = np.flatnonzero(tested) if tested.any() else np.arange(len(samples))
    labels = relabelled(samples, rows, facts)
    scores = logits(model, samples.images, rows)
    shots, own = torch.tensor(facts.shots), model.own_metrics

    def metrics(chosen: np.ndarray) -> dict[str, Any]:
        place = torch.from_numpy(np.flatnonzero(chosen))
        return from_scores(scores[place], labels[place], task=facts.task, shots=shots, own=own)

    site = None if samples.site is None else samples.site[rows]
    names = [] if site is None else np.unique(site).tolist()
    return {
        "model": model.title,
        "data": options.name or options.kind,
        "rows": "test" if tested.any() else "all",
        "images": len(rows),
        "classes": list(facts.classes),
        "metrics": metrics(np.ones(len(rows), bool)),
        "sites": {name: metrics(site == name) for name in names},
        "attributes": {
            name: by_attribute(scores, labels, values[rows], task=facts.task, shots=shots, own=own)
            for name, values in samples.attributes.items()
        },
    }


def read_data(file: Path, look: Input) -> tuple[DataOptions, Path]:
    """The `[data]` section of a file with the model's pre-processing, and where its relative paths start."""
    table = config.load(file)
    section: Any = table.get("data")
    if not isinstance(section, Mapping):
        raise ConfigError(f"{file} has no section [data]: say there where the new images are")
    ours = {key: getattr(look, key) for key in LOOK}
    theirs = config.resolve({"data": section}).data
    for key in LOOK:
        if key in section and getattr(theirs, key) != ours[key]:
            raise ConfigError(
                f"{file}: data.{key} is {section[key]}, but the model saw {ours[key]}: remove it there"
            )
    # A key at its default is left out: kinds that draw their images to size take only those they can follow.
    wanted = {key: value for key, value in ours.items() if value != DataOptions.model_fields[key].default}
    wanted |= {key: ours[key] for key in ("image_size", "channels", "window")}
    base = {"base": table["base"]} if "base" in table else {}
    resolved = config.resolve({**base, "data": {**section, **wanted}})
    return resolved.data, resolved.base


def relabelled(samples: Samples, rows: np.ndarray, facts: Blueprint) -> Tensor:
    """The labels in the model's order of classes; of several, those the data has no column for are
    missing."""
    if samples.task != facts.task:
        raise DataError(
            f"the new data is {samples.task}-label and the model {facts.task}-label: label it in the same way"
        )
    strange = [name for name in samples.classes if name not in facts.classes]
    if strange:
        known = {name.lower(): name for name in facts.classes}
        near = nearest(strange[0], known)
        hint = f"did you mean '{known[near]}'? " if near else ""
        raise DataError(
            f"the model knows no class '{strange[0]}': {hint}its classes are {', '.join(facts.classes)}"
        )
    place = np.array([facts.classes.index(name) for name in samples.classes])
    labels = samples.labels[rows]
    if samples.task == "single":
        return torch.from_numpy(place[labels])
    wide = np.full((len(rows), len(facts.classes)), np.nan, np.float32)
    wide[:, place] = labels
    return torch.from_numpy(wide)


@torch.no_grad()
def logits(model: Predictor, images: np.ndarray, rows: np.ndarray) -> Tensor:
    """The scores of some rows of decoded images, float32 [N, classes]."""
    size = model.batch
    parts = [
        model.logits(model.see(images[rows[i : i + size]])).float().cpu() for i in range(0, len(rows), size)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, len(model.classes))

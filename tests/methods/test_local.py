"""Training alone: what is kept, and how it is tested, recomputed from the sites' own folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import balanced_accuracy_score

from equipoise.nets import load
from equipoise.running import run

SITES = ("north", "south", "west")


@pytest.fixture
def alone(make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path) -> dict[str, Any]:
    """A run, and per site the predictions of its own model on every site's test rows."""
    config = make_config({"name": "local"}, rounds=2)
    result, plain = run(config, tmp_path / "run"), bare(config)
    found: dict[str, Any] = {"result": result, "truth": {}, "said": {}, "kept": {}}
    for site in SITES:
        kept = load_file(tmp_path / "run" / "sites" / site / "1.0.safetensors")
        found["kept"][site] = {n.removeprefix("net/"): x for n, x in kept.items() if n.startswith("net/")}
        load(plain.net, found["kept"][site])
        with torch.no_grad():
            found["said"][site] = {
                other: plain.net(plain.rows(other, "test")[0]).argmax(1) for other in SITES
            }
        found["truth"][site] = plain.rows(site, "test")[1]
    return found


def test_generalisation_is_the_mean_over_models_on_all_test_rows(alone: dict[str, Any]) -> None:
    truth = np.concatenate([alone["truth"][site] for site in SITES])
    each = [
        balanced_accuracy_score(truth, np.concatenate([alone["said"][s][o] for o in SITES])) for s in SITES
    ]
    assert len(set(each)) > 1
    found = alone["result"].metrics["test"]["generalisation"]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(each), abs=1e-12)


def test_specialisation_is_each_model_on_its_own_test_rows(alone: dict[str, Any]) -> None:
    each = [balanced_accuracy_score(alone["truth"][site], alone["said"][site][site]) for site in SITES]
    found = alone["result"].metrics["test"]["specialisation"]
    assert found["balanced_accuracy"] == pytest.approx(np.mean(each), abs=1e-12)


def test_sites_never_meet(alone: dict[str, Any], make_config: Callable[..., Any], tmp_path: Path) -> None:
    assert alone["result"].server == {"model": {}}
    run(make_config({"name": "local"}, ["south"], rounds=2), tmp_path / "by itself")
    kept = load_file(tmp_path / "by itself" / "sites" / "south" / "1.0.safetensors")
    for name, tensor in alone["kept"]["south"].items():
        assert torch.equal(tensor, kept[f"net/{name}"])
    assert not torch.equal(
        alone["kept"]["south"]["head.fed.weight"], alone["kept"]["north"]["head.fed.weight"]
    )

"""The map of class means against numpy, and against a run's network applied by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import doctored

from equipoise import run
from equipoise.config import read, resolve
from equipoise.errors import StorageError
from equipoise.predict import features as module
from equipoise.predict.features import chosen, class_map, principal
from equipoise.report.folder import read_run
from equipoise.run_folder import FEATURES
from equipoise.setup import material
from equipoise.use import load

TABLE: dict[str, Any] = {
    "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
    "method": {"name": "fedmas", "target": "small-cnn"},
    "train": {"rounds": 1, "batch_size": 16},
    "engine": {"kind": "serial", "device": "cpu"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(TABLE, tmp_path_factory.mktemp("fedmas")).folder


def features_of(folder: Path) -> dict[str, Any] | None:
    return read_run(folder).features


def by_numpy(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Principal axes as eigenvectors of the covariance, each turned so that its largest component is
    positive."""
    centred = points - points.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    axes = vectors[:, ::-1][:, :2]
    for axis in axes.T:
        axis *= np.sign(axis[np.abs(axis).argmax()])
    return centred @ axes, values[::-1][:2] / values.sum()


def test_principal_axes() -> None:
    points = np.random.default_rng(0).normal(size=(7, 5)) * [3, 1, 0.5, 0.2, 0.1]
    places, share = principal(torch.from_numpy(points))
    wanted, shares = by_numpy(points)
    np.testing.assert_allclose(places.numpy(), wanted, atol=1e-12)
    np.testing.assert_allclose(share.numpy(), shares, atol=1e-12)


def test_the_map_does_not_flip_with_the_sign_a_library_happens_to_give() -> None:
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 4)))
    turned = points[torch.tensor([3, 1, 5, 0, 2, 4])]  # another order of rows gives other signs of u and v
    places, _ = principal(points)
    again, _ = principal(turned)
    np.testing.assert_allclose(again.numpy(), places[torch.tensor([3, 1, 5, 0, 2, 4])].numpy(), atol=1e-12)


@pytest.mark.parametrize("rows", [1, 2])
def test_fewer_classes_than_axes(rows: int) -> None:
    places, share = principal(torch.arange(3.0 * rows, dtype=torch.float64).reshape(rows, 3))
    assert places.shape == (rows, 2) and share.shape == (2,)
    assert bool(places.isfinite().all()) and float(share.sum()) == pytest.approx(rows - 1)


def test_class_means_by_loops() -> None:
    draw = np.random.default_rng(2)
    values, truth = draw.normal(size=(20, 6)), draw.random((20, 4)) < 0.4
    truth[:, 2] = False
    found = class_map(torch.from_numpy(values), truth)
    means = [np.mean([values[n] for n in range(20) if truth[n, c]], axis=0) for c in (0, 1, 3)]
    wanted, shares = by_numpy(np.stack(means))
    assert found["points"][2] is None
    np.testing.assert_allclose([found["points"][c] for c in (0, 1, 3)], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["share"], shares, atol=1e-6)


def test_features_of_a_run_by_hand(folder: Path) -> None:
    found = features_of(folder)
    assert found is not None and list(found["maps"]) == ["body", "projector"]
    dataset, model = material(read(folder / "config.toml")), load(folder)
    rows = np.concatenate([holding.test for holding in dataset.holdings])  # a tiny run: all test images
    assert found["images"] == len(rows) and found["round"] == 1
    means: dict[str, list[np.ndarray]] = {"body": [], "projector": []}
    projector = model.net.projector
    assert projector is not None
    for c in range(len(dataset.samples.classes)):
        own = [row for row in rows if dataset.samples.labels[row] == c]
        body = torch.stack(
            [model.net.body(model.see(np.array(dataset.samples.images[row][None])))[0] for row in own]
        )
        means["body"].append(body.double().mean(0).numpy())
        means["projector"].append(projector(body).double().mean(0).numpy())
    for layer, points in means.items():
        wanted, shares = by_numpy(np.stack(points))
        np.testing.assert_allclose(found["maps"][layer]["points"], wanted, atol=1e-3 * np.abs(wanted).max())
        np.testing.assert_allclose(found["maps"][layer]["share"], shares, atol=1e-3)


def test_the_map_is_kept_and_needs_no_data_then(folder: Path, tmp_path: Path) -> None:
    first = features_of(folder)
    assert first == doctored.table(folder / FEATURES)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shutil.rmtree(copy / "checkpoints")
    assert features_of(copy) == first


def test_no_map_where_the_model_stays_at_the_sites(tmp_path: Path) -> None:
    sites = {"kind": "iid", "sites": 2}
    done = run({**TABLE, "method": {"name": "local"}, "partition": sites}, tmp_path)
    assert features_of(done.folder) is None


def test_a_damaged_map_is_named(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / FEATURES).write_text("{")
    with pytest.raises(StorageError, match=r"features\.json is damaged or was changed: delete it"):
        features_of(copy)


@pytest.mark.parametrize("task", ["single", "multi"])
def test_images_are_few_and_of_every_class(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = material(resolve({"data": {"kind": "phantom", "scale": 0.02, "image_size": 16, "task": task}}))
    rows = np.concatenate([holding.test for holding in dataset.holdings])
    labels = dataset.samples.labels
    held = [
        int((labels[rows] == c).sum() if task == "single" else (labels[rows][:, c] > 0.5).sum())
        for c in range(8)
    ]
    monkeypatch.setattr(module, "IMAGES", 40)
    found = chosen(dataset.samples, dataset.holdings)
    assert len(found) <= 40 and len(set(found.tolist())) == len(found) and set(found) <= set(rows.tolist())
    for c in range(8):
        of_class = int((labels[found] == c).sum() if task == "single" else (labels[found][:, c] > 0.5).sum())
        assert of_class == min(5, held[c]) if task == "single" else of_class >= min(5, held[c])
    monkeypatch.setattr(module, "PIXELS", 16 * 16 * 16)  # two of each class
    assert len(chosen(dataset.samples, dataset.holdings)) <= 16

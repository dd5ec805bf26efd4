"""predict, evaluate, export: from a finished run to answers, on the command line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from equipoise.config import resolve
from equipoise.running import run

CLASSES = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"]

NO_IMAGE = "not an image; save it as PNG, JPEG, TIFF, DICOM or NIfTI"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder."""
    table = {"data": {"scale": 0.004, "image_size": 16}, "method": {"name": "fca"}, "train": {"rounds": 1}}
    return run(resolve(table), tmp_path_factory.mktemp("trained")).folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        Image.fromarray(draw.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_predict_prints_a_table(cli: Callable[..., Any], trained: Path, images: Path) -> None:
    done = cli("predict", trained, images)
    assert done.code == 0
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert list(rows[0]) == ["file", "predicted", *(f"p_{name}" for name in CLASSES)]
    assert [row["file"] for row in rows] == [f"{images}/a.png", f"{images}/b.png"]
    for row in rows:
        chances = {name: float(row[f"p_{name}"]) for name in CLASSES}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        assert row["predicted"] == max(chances, key=lambda name: chances[name])
    assert done.err == "the global predictor of fca after round 1\n"
    told = json.loads(cli("predict", trained, images, "--json").out)
    assert [row["predicted"] for row in told["images"]] == [[row["predicted"]] for row in rows]
    assert told["failed"] == []


def test_a_site_has_answers_of_its_own(
    cli: Callable[..., Any], trained: Path, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "answers.csv"
    done = cli("predict", trained, images, "--site", "bcn", "--out", out)
    assert done.code == 0 and done.out == f"2 images classified, in {out}\n"
    assert out.read_text() != cli("predict", trained, images).out
    done = cli("predict", trained, images, "--site", "bnc")
    assert done.code == 2 and "unknown site 'bnc': did you mean 'bcn'?" in done.err


def test_a_bad_image_is_named_and_the_others_go_on(
    cli: Callable[..., Any], trained: Path, images: Path
) -> None:
    (images / "aa.png").write_bytes(b"broken")
    done = cli("predict", trained, images)
    assert done.code == 3
    assert [row["file"] for row in csv.DictReader(io.StringIO(done.out))] == [
        f"{images}/a.png",
        f"{images}/b.png",
    ]
    assert (
        f"{images}/aa.png cannot be read: not an image" in done.err
        and "1 of 3 images cannot be read" in done.err
    )
    done = cli("predict", trained, images, "--json")
    assert done.code == 3 and done.err == ""
    assert json.loads(done.out)["failed"] == [{"file": f"{images}/aa.png", "error": NO_IMAGE}]
    done = cli("predict", trained, images / "gone.png")
    assert done.code == 3 and "gone.png does not exist" in done.err


def test_evaluate_shows_the_new_data(cli: Callable[..., Any], trained: Path, tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text('[data]\nkind = "phantom"\nscale = 0.004\nseed = 7\n')
    told = json.loads(cli("evaluate", trained, "--data", "new.toml", "--json").out)
    done = cli("evaluate", trained, "--data", "new.toml")
    assert done.code == 0
    assert f"{told['images']} images" in done.out and "the global predictor of fca after round 1" in done.out
    assert f"{100 * told['metrics']['balanced_accuracy']:.1f} %" in done.out
    assert all(name in done.out for name in (*CLASSES, *told["sites"]))


def test_export_writes_what_predict_reads(
    cli: Callable[..., Any], trained: Path, images: Path, tmp_path: Path
) -> None:
    done = cli(
        "export", trained, "--to", "safetensors", "--site", "bcn", "--out", tmp_path / "bcn.safetensors"
    )
    assert done.code == 0 and "largest difference of a probability 0.0e+00" in done.out
    expected = cli("predict", trained, images, "--site", "bcn").out
    assert cli("predict", tmp_path / "bcn.safetensors", images).out == expected
    told = json.loads(cli("export", trained, "--to", "safetensors", "--json").out)
    assert told["file"] == str(trained / "model.safetensors") and told["largest_difference"] == 0
    done = cli("export", trained, "--to", "onx")
    assert done.code == 2 and "did you mean 'onnx'?" in done.err

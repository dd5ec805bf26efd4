"""A model on new data: the same metrics as in the run where the images are the same, and classes that must
match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.data.preprocess import Look
from equipoise.errors import ConfigError, DataError
from equipoise.running import Result, run
from equipoise.use import Predictor, evaluate, load
from equipoise.use.judge import read_data


@pytest.fixture
def model(finished: Callable[..., Result]) -> Predictor:
    return load(finished("fedavg").folder)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def hospital(folder: Path, labels: list[str], extra: str = "") -> Path:
    """Images with these labels, a table of them, and a config file with their [data] section."""
    draw = np.random.default_rng(0)
    lines = ["file,diagnosis"]
    for i, label in enumerate(labels):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{label}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return write(
        folder / "new.toml",
        f'base = "{folder}"\n[data]\nkind = "csv"\npath = "rows.csv"\nlabel = "diagnosis"\nname = "new '
        f'hospital"\n{extra}',
    )


def test_the_runs_own_test_images_give_the_runs_own_metrics(
    finished: Callable[..., Result], tmp_path: Path
) -> None:
    done = finished("fedavg")
    found = evaluate(
        load(done.folder), write(tmp_path / "same.toml", '[data]\nkind = "phantom"\nscale = 0.004\n')
    )
    expected = done.metrics["test"]["generalisation"]
    assert found["rows"] == "test" and found["images"] == sum(expected["support"])
    for key in (
        "accuracy",
        "balanced_accuracy",
        "macro_auc",
        "map",
        "macro_f1",
        "head",
        "tail",
        "recall",
        "support",
    ):
        assert found["metrics"][key] == pytest.approx(expected[key], abs=1e-9)
    assert found["metrics"]["ece"] == pytest.approx(expected["ece"], abs=1e-5)
    assert found["attributes"]["tone"].keys() == done.metrics["test"]["attributes"]["tone"].keys()
    assert sum(sum(one["support"]) for one in found["sites"].values()) == found["images"]


def test_an_unseen_hospital_may_lack_classes_and_order_them_otherwise(
    model: Predictor, tmp_path: Path
) -> None:
    labels = ["VASC", "NV", "NV", "MEL", "VASC", "NV", "MEL"]
    found = evaluate(model, hospital(tmp_path, labels))
    assert found["data"] == "new hospital" and found["rows"] == "all"
    rows = [
        model.decide(row.probabilities)[0]
        for row in model.predict([tmp_path / f"{i}.png" for i in range(len(labels))])
    ]
    assert found["metrics"]["accuracy"] == pytest.approx(
        np.mean([a == b for a, b in zip(rows, labels, strict=True)])
    )
    assert found["metrics"]["support"] == [labels.count(name) for name in model.classes]
    for name, recall in zip(model.classes, found["metrics"]["recall"], strict=True):
        hits = [guess == name for guess, label in zip(rows, labels, strict=True) if label == name]
        assert recall == (pytest.approx(np.mean(hits)) if hits else None)


def test_findings_nobody_labelled_count_nowhere(finished: Callable[..., Result], tmp_path: Path) -> None:
    model = load(finished("fedavg", data={"task": "multi"}).folder)
    draw = np.random.default_rng(0)
    for i in range(6):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    rows = "\n".join(f"{i}.png,{i % 2},{int(i > 2)}" for i in range(6))
    (tmp_path / "rows.csv").write_text(f"file,streaks,asymmetry\n{rows}\n")
    text = (
        f'base = "{tmp_path}"\n[data]\nkind = "csv"\npath = "rows.csv"\nlabels = ["streaks", "asymmetry"]\n'
    )
    found = evaluate(model, write(tmp_path / "new.toml", text))["metrics"]
    chance = torch.tensor(
        [row.probabilities for row in model.predict([tmp_path / f"{i}.png" for i in range(6)])]
    )
    columns = [model.classes.index(name) for name in ("streaks", "asymmetry")]
    truth = torch.tensor([[i % 2, int(i > 2)] for i in range(6)])
    right = (chance[:, columns] > 0.5) == truth.bool()
    assert found["accuracy"] == pytest.approx(right.double().mean().item())
    assert [found["support"][i] for i in columns] == [3, 3] and sum(found["support"]) == 6


def test_a_strange_class_is_named(model: Predictor, tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match="knows no class 'MELL': did you mean 'MEL'? its classes are MEL, NV".replace("?", r"\?"),
    ):
        evaluate(model, hospital(tmp_path, ["NV", "MELL", "NV"]))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("image_size = 32\n", "data.image_size is 32, but the model saw 16: remove it there"),
        ("channels = 1\n", "data.channels is 1, but the model saw 3"),
        ('resize = "pad"\n', "data.resize is pad, but the model saw squash"),
        ("window = [40, 80]\n", r"data.window is \[40, 80\], but the model saw None"),
    ],
)
def test_images_must_look_as_the_model_saw_them(
    extra: str, message: str, model: Predictor, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(model, hospital(tmp_path, ["NV", "MEL"], extra))


def test_the_model_brings_its_window(tmp_path: Path) -> None:
    for i in range(8):
        Image.fromarray(np.full((16, 16), 1000 + 9 * i, np.uint16)).save(tmp_path / f"{i}.png")
    (tmp_path / "rows.csv").write_text("file,label\n" + "".join(f"{i}.png,{'ab'[i % 2]}\n" for i in range(8)))
    data = f'base = "{tmp_path}"\n[data]\nkind = "csv"\npath = "rows.csv"\nlabel = "label"\n'
    rest = (
        "image_size = 16\nwindow = [1000, 100]\n[partition]\nkind = 'iid'\nsites = 1\n[train]\nrounds = 0\n"
    )
    model = load(run(write(tmp_path / "run.toml", data + rest), tmp_path / "run").folder)
    assert model.blueprint.input.decode((tmp_path / "0.png").read_bytes()).max() == 128
    for extra in ("", "window = [1000, 100]\n", "window = [[1000.0, 100]]\n"):
        options, _ = read_data(write(tmp_path / "new.toml", data + extra), model.blueprint.input)
        assert options.look == Look(windows=((1000, 100),))


def test_wrong_files_are_told(model: Predictor, finished: Callable[..., Result], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no section \[data\]"):
        evaluate(model, write(tmp_path / "empty.toml", "[train]\nrounds = 2\n"))
    several = load(finished("fedavg", data={"task": "multi"}).folder)
    with pytest.raises(DataError, match="single-label and the model multi-label"):
        evaluate(several, write(tmp_path / "single.toml", '[data]\nkind = "phantom"\nscale = 0.004\n'))


def test_the_data_of_the_training_is_refused(tmp_path: Path) -> None:
    file = hospital(tmp_path, ["a", "b"] * 20, "image_size = 16\n")
    train = "[train]\nrounds = 1\n[partition]\nkind = 'iid'\nsites = 2\n"
    done = run(write(tmp_path / "run.toml", file.read_text() + train), tmp_path / "run")
    with pytest.raises(DataError, match="is the data this model was trained on"):
        evaluate(load(done.folder), file)

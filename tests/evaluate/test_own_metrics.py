"""Metrics of one's own: computed wherever the scores of images are at hand, refused where they are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from sklearn.metrics import cohen_kappa_score, log_loss

from equipoise.cli import main
from equipoise.config import Config, resolve
from equipoise.deploy.coordinator import federated
from equipoise.errors import ConfigError
from equipoise.evaluate import by_attribute, from_scores
from equipoise.running import run

METRICS = """
import random
import numpy as np
from sklearn.metrics import cohen_kappa_score


def kappa(scores, labels):
    assert scores.dtype == np.float64 and np.allclose(scores.sum(1), 1)
    if len(np.unique(labels)) < 2:
        return None
    return cohen_kappa_score(labels, scores.argmax(1))


def draws(scores, labels):
    return np.random.rand() + random.random()


def spoils(scores, labels):
    scores[:] = 0
    labels[:] = 0
    return np.float32(0.25)


def undefined(scores, labels):
    return float("nan")


def several(scores, labels):
    return [1, 2]


def fails(scores, labels):
    return 1 / 0


def accuracy(scores, labels):
    return 1.0


def one(scores):
    return 1.0


class Kappa:
    pass


def log_loss(scores, labels):
    '''Of several labels per image.'''
    p = np.where(labels > 0, scores, 1 - scores)
    return float(-np.log(p).mean())
"""
OTHER = "def kappa(scores, labels):\n    return 0.0\n"

LOGITS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (40,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(METRICS)
    (tmp_path / "other.py").write_text(OTHER)
    return tmp_path


def config(folder: Path, *names: str, **evaluate: Any) -> Config:
    return resolve(
        {
            "data": {"kind": "phantom", "scale": 0.01, "image_size": 16},
            "partition": {"kind": "iid", "sites": 2},
            "train": {"rounds": 1, "batch_size": 8},
            "evaluate": {"metrics": list(names), **evaluate},
        },
        folder,
    )


def own(folder: Path, *names: str) -> Any:
    return config(folder, *(f"mine.py:{name}" for name in names)).evaluate.own_metrics


def test_the_value_is_that_of_the_function(folder: Path) -> None:
    found = from_scores(LOGITS, Y, task="single", own=own(folder, "kappa", "spoils", "undefined"))
    assert found["kappa"] == pytest.approx(cohen_kappa_score(Y, LOGITS.argmax(1)))
    assert found["spoils"] == 0.25
    assert found["undefined"] is None
    assert found["macro_f1"] == from_scores(LOGITS, Y, task="single")["macro_f1"]
    groups = by_attribute(LOGITS, Y, ["a"] * 20 + ["b"] * 20, task="single", own=own(folder, "kappa"))
    assert groups["b"]["kappa"] == pytest.approx(cohen_kappa_score(Y[20:], LOGITS[20:].argmax(1)))
    assert from_scores(LOGITS[:1], Y[:1], task="single", own=own(folder, "kappa"))["kappa"] is None


def test_several_labels(folder: Path) -> None:
    labels = (torch.rand(40, 3, generator=torch.Generator().manual_seed(2)) < 0.4).float()
    found = from_scores(LOGITS, labels, task="multi", own=own(folder, "log_loss"))
    flat = LOGITS.double().sigmoid().flatten().numpy()
    assert found["log_loss"] == pytest.approx(log_loss(labels.flatten().numpy(), flat))
    labels[3, 1] = torch.nan
    partly = from_scores(LOGITS, labels, task="multi", own=own(folder, "log_loss"))
    assert partly["log_loss"] is None


def test_draws_are_the_same_every_time_and_leave_the_global_generators(folder: Path) -> None:
    before = repr(np.random.get_state(legacy=False))
    first, second = (from_scores(LOGITS, Y, task="single", own=own(folder, "draws")) for _ in range(2))
    assert first["draws"] == second["draws"]
    assert repr(np.random.get_state(legacy=False)) == before


@pytest.mark.parametrize(
    ("names", "evaluate", "why"),
    [
        (("mine.py:accuracy",), {}, "'mine.py:accuracy' has the name of a metric that is always there"),
        (("mine.py:kappa", "other.py:kappa"), {}, "two metrics are called 'kappa': rename one"),
        (("mine.py:one",), {}, "must take 2 arguments, and takes 1"),
        (("mine.py:Kappa",), {}, "is not a function of scores and labels"),
        (("mine.py:nowhere",), {}, "'mine.py' has no 'nowhere'"),
        (("macro_auc",), {}, "'macro_auc' is always computed: remove it"),
        (("kappa",), {}, "'kappa' is not of the form FILE.py:name"),
        (
            ("mine.py:kappa",),
            {"exact": False},
            "need the scores of every image: set evaluate.exact and evaluate.per_site = true",
        ),
    ],
)
def test_what_cannot_be_a_metric_is_refused_before_the_run(
    folder: Path, names: tuple[str, ...], evaluate: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        config(folder, *names, **evaluate)
    assert "\n" not in str(refused.value) and str(refused.value).startswith("evaluate.metrics")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("several", "must give a number or None, and gave a list"),
        ("fails", r"fails on 40 images \(ZeroDivisionError"),
    ],
)
def test_what_goes_wrong_later_is_one_sentence(folder: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^evaluate.metrics: '{name}' {why}"):
        from_scores(LOGITS, Y, task="single", own=own(folder, name))


def test_a_federation_has_no_scores(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.metrics need the scores of single images"):
        federated(config(folder, "mine.py:kappa"))
    assert not federated(config(folder)).evaluate.exact


def test_it_is_everywhere_the_others_are(
    folder: Path, capsys: pytest.CaptureFixture[str], rows: Callable[[Path], list[dict[str, Any]]]
) -> None:
    ours = config(folder, "mine.py:kappa", "mine.py:draws")
    assert resolve(ours.table()).digest == ours.digest
    result = run(ours, folder / "out")
    test = json.loads((folder / "out" / "result.json").read_text())["metrics"]["test"]
    parts = [test[view]["kappa"] for view in ("generalisation", "specialisation", "average")]
    assert parts[2] == pytest.approx(sum(parts[:2]) / 2)
    assert all("kappa" in one for one in (*test["sites"].values(), *test["roles"].values()))
    assert rows(folder / "out")[-1]["test"]["generalisation"]["kappa"] == parts[0]
    assert result.metrics["test"]["generalisation"]["kappa"] == parts[0]
    capsys.readouterr()
    (folder / "other.toml").write_text('[data]\nkind = "phantom"\nscale = 0.01\nseed = 5\n')
    with pytest.raises(SystemExit):
        main(["evaluate", str(folder / "out"), "--data", str(folder / "other.toml")])
    shown = capsys.readouterr()
    assert "kappa" in shown.out, shown.err


def test_a_comparison_has_a_column(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    table = config(folder, "mine.py:kappa").table()
    (folder / "it.toml").write_text(tomli_w.dumps(table))
    words = ["--methods", "fedavg,fedprox", "--seeds", "0", "--out", str(folder / "all")]
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(folder / "it.toml"), *words])
    assert ended.value.code == 0, capsys.readouterr().err
    facts = json.loads((folder / "all" / "comparison.json").read_text())
    figure = facts["arms"]["fedavg"]["figures"]["generalisation"]["kappa"]["mean"]
    text = (folder / "all" / "table.md").read_text()
    assert "G kappa" in text and f"{100 * figure:.1f}" in text
    assert "kappa" in capsys.readouterr().out

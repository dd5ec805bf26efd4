"""A loss of one's own is the criterion of an objective, as ours are."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from equipoise.config import resolve
from equipoise.errors import ConfigError
from equipoise.locate import Parts
from equipoise.losses import Objective, ObjectiveOptions, make_objective, parse_objective

LOSSES = '''
import torch
import torch.nn.functional as F
from torch import nn


def focal(logits, labels, gamma=2.0):
    """One value per image."""
    ce = F.cross_entropy(logits, labels, reduction="none")
    return (1 - torch.exp(-ce)) ** gamma * ce


def mean_focal(logits, labels, gamma=2.0):
    return focal(logits, labels, gamma).mean()


def weighted(logits, labels, counts, power=1.0):
    assert counts.dtype == torch.float32
    return F.cross_entropy(logits, labels, weight=(counts.sum() / counts) ** power)


class Weighted(nn.Module):
    def __init__(self, counts, power=1.0):
        super().__init__()
        self.register_buffer("weight", (counts.sum() / counts) ** power)

    def forward(self, logits, labels):
        return F.cross_entropy(logits, labels, weight=self.weight)


def factory(counts, power=1.0):
    return Weighted(counts, power)


smooth = nn.CrossEntropyLoss(label_smoothing=0.1)


def cells(logits, labels, factor=1.0):
    """One value per image and label."""
    return factor * F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def rows(logits, labels):
    return cells(logits, labels).mean(1)


def whole(logits, labels):
    return cells(logits, labels).mean()


def one(logits):
    return logits.sum()


def needs(logits, labels, *, margin):
    return logits.sum() * margin


def anything(logits, labels, **options):
    return logits.sum() * options["margin"]


def number(logits, labels):
    return 3.0


def wrong(logits, labels):
    return logits[:, :2]


class Refuses:
    def __init__(self, counts):
        raise ValueError("too few classes")


def empty(counts):
    return None


value = 3
'''

COUNTS = torch.tensor([6.0, 3.0, 1.0])
LOGITS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 0])
LABELS = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]])


@pytest.fixture
def parse(tmp_path: Path) -> Any:
    (tmp_path / "mine.py").write_text(LOSSES)
    return lambda value: parse_objective(value, Parts(tmp_path, lambda code: None))


def bound(options: ObjectiveOptions, task: Any = "single", **kwargs: Any) -> Objective:
    return make_objective(options, counts=COUNTS, total=10, task=task, **kwargs)


@pytest.mark.parametrize("name", ["focal", "mean_focal"])
@pytest.mark.parametrize("before", [(), ("balanced_softmax",), ("fedrs", "logit_adjustment")])
def test_it_is_ours_with_the_same_formula(parse: Any, name: str, before: tuple[str, ...]) -> None:
    own = bound(parse([*before, {"name": f"mine.py:{name}", "gamma": 1.5}]))
    ours = bound(parse([*before, {"name": "focal", "gamma": 1.5}]))
    torch.testing.assert_close(own(LOGITS, Y), ours(LOGITS, Y))
    chosen = torch.tensor([True, False, True, True, False])
    torch.testing.assert_close(own(LOGITS, Y, mask=chosen), ours(LOGITS, Y, mask=chosen))
    if name == "focal":
        torch.testing.assert_close(own.each(LOGITS, Y), ours.each(LOGITS, Y))


@pytest.mark.parametrize("name", ["weighted", "Weighted", "factory"])
def test_counts_are_filled_in(parse: Any, name: str) -> None:
    own = bound(parse({"name": f"mine.py:{name}", "power": 0.5}))
    wanted = F.cross_entropy(LOGITS, Y, weight=(10 / COUNTS).sqrt())
    torch.testing.assert_close(own(LOGITS, Y), wanted)


def test_an_object_is_called(parse: Any) -> None:
    own = bound(parse("balanced_softmax+mine.py:smooth"))
    wanted = F.cross_entropy(LOGITS + (COUNTS / 10).log(), Y, label_smoothing=0.1)
    torch.testing.assert_close(own(LOGITS, Y), wanted)


def test_missing_labels_are_left_out_of_cells(parse: Any) -> None:
    known = torch.tensor([True, False, True])
    given = LABELS.masked_fill(~known, torch.nan)
    each_cell = F.binary_cross_entropy_with_logits(LOGITS, LABELS, reduction="none")
    own = bound(parse("mine.py:cells"), "multi", labelled=known)
    torch.testing.assert_close(own(LOGITS, given), each_cell[:, known].mean())
    torch.testing.assert_close(own.each(LOGITS, given), each_cell[:, known].mean(1))
    mask = torch.rand(5, 3, generator=torch.Generator().manual_seed(1)) < 0.5
    torch.testing.assert_close(own(LOGITS, given, mask=mask), each_cell[mask & known].mean())
    torch.testing.assert_close(own(LOGITS, LABELS, mask=mask), each_cell[mask].mean())


@pytest.mark.parametrize("name", ["cells", "rows", "whole"])
def test_several_labels_where_none_is_missing(parse: Any, name: str) -> None:
    own = bound(parse(f"mine.py:{name}"), "multi")
    torch.testing.assert_close(own(LOGITS, LABELS), bound(parse("bce"), "multi")(LOGITS, LABELS))
    if name != "whole":
        torch.testing.assert_close(
            own.each(LOGITS, LABELS), bound(parse("bce"), "multi").each(LOGITS, LABELS)
        )


@pytest.mark.parametrize("name", ["rows", "whole"])
def test_what_is_added_up_already_cannot_leave_labels_out(parse: Any, name: str) -> None:
    known = torch.tensor([True, False, True])
    own = bound(parse(f"mine.py:{name}"), "multi", labelled=known)
    with pytest.raises(ConfigError, match=r"one value per image and label, \[5, 3\]"):
        own(LOGITS, LABELS.masked_fill(~known, torch.nan))
    with pytest.raises(ConfigError, match=r"one value per image and label, \[5, 3\]"):
        bound(parse(f"mine.py:{name}"), "multi")(LOGITS, LABELS, mask=LABELS > 0)


def test_one_number_is_not_one_per_image(parse: Any) -> None:
    with pytest.raises(ConfigError, match=r"'mine.py:mean_focal' gives one number .* let it give \[5\]"):
        bound(parse("mine.py:mean_focal")).each(LOGITS, Y)
    with pytest.raises(ConfigError, match="one value per image and label"):
        bound(parse("mine.py:whole"), "multi").each(LOGITS, LABELS)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            {"name": "mine.py:focal", "gama": 2},
            "option of objective 'mine.py:focal' 'gama': did you mean 'gamma'",
        ),
        (
            {"name": "mine.py:weighted", "counts": 2},
            "unknown option of objective 'mine.py:weighted' 'counts'",
        ),
        ("mine.py:one", "must take 2 arguments, and takes 1"),
        ("mine.py:needs", "needs the option 'margin'"),
        ("mine.py:value", "neither a function nor a class"),
        ("mine.py:nowhere", "'mine.py' has no 'nowhere'"),
        ("gone.py:loss", "there is no file"),
        (
            "mine.py:focal+balanced_softmax",
            "'mine.py:focal' brings its own criterion, so it must be the last",
        ),
        ("focl", "did you mean 'focal'"),
    ],
)
def test_what_is_wrong_is_said_before_the_run(parse: Any, tmp_path: Path, value: Any, why: str) -> None:
    parse("cross_entropy")
    with pytest.raises(ConfigError, match=why) as refused:
        resolve({"train": {"objective": value}}, tmp_path)
    assert str(refused.value).startswith("train.objective") and "\n" not in str(refused.value)
    assert str(refused.value).count("train.objective") == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("number", r"must give a tensor \[\] or \[5\], and gave a float"),
        ("wrong", r"must give a tensor \[\] or \[5\], and gave \[5, 2\]"),
        ("Refuses", "cannot be made: ValueError: too few classes"),
        ("empty", "makes no loss but a NoneType"),
    ],
)
def test_what_goes_wrong_later_is_one_sentence(parse: Any, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^train.objective 'mine.py:{name}' {why}"):
        bound(parse(f"mine.py:{name}"))(LOGITS, Y)


def test_any_option_reaches_a_loss_that_takes_any(parse: Any) -> None:
    own = bound(parse({"name": "mine.py:anything", "margin": 2}))
    torch.testing.assert_close(own(LOGITS, Y), 2 * LOGITS.sum())


@pytest.mark.parametrize(
    "text",
    [
        '"mine.py:focal"',
        '"fedrs+mine.py:focal"',
        '{ name = "mine.py:focal", gamma = 1.5 }',
        '["balanced_softmax", { name = "mine.py:focal", gamma = 1.5 }]',
    ],
)
def test_the_config_spells_it_as_it_was_given(parse: Any, tmp_path: Path, text: str) -> None:
    given = tomllib.loads(f"it = {text}")["it"]
    assert parse(given).toml == text
    config = resolve({"train": {"objective": given}}, tmp_path)
    assert resolve(config.table()).digest == config.digest
    assert set(config.marks) == {"mine.py:focal"}
    assert config.objective.parts[-1].name == "mine.py:focal"

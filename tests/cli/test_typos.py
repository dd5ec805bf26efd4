"""Hundreds of mistyped keys and values: each is refused before any work, with the word that was meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from equipoise import data, partition
from equipoise.config import SECTIONS, resolve
from equipoise.engine import EngineOptions
from equipoise.errors import ConfigError
from equipoise.evaluate import EvaluateOptions
from equipoise.exchange import ExchangeOptions
from equipoise.losses import OBJECTIVES
from equipoise.methods import METHODS
from equipoise.nets import NETS, NetOptions
from equipoise.site import PrivacyOptions, TrainOptions
from equipoise.site.options import OPTIMIZERS

PLAIN: dict[str, type[BaseModel]] = {
    "net": NetOptions,
    "train": TrainOptions,
    "engine": EngineOptions,
    "evaluate": EvaluateOptions,
    "exchange": ExchangeOptions,
    "privacy": PrivacyOptions,
}
NEEDED: dict[str, dict[str, Any]] = {
    "csv": {"path": "x", "label": "y"},
    "joined": {"parts": [{"kind": "phantom"}]},
    **{kind: {"path": "x"} for kind in ("folder", "npz", *data.SETS)},
}


def mistyped(word: str) -> Iterator[str]:
    """A letter dropped, two letters swapped, a letter doubled: all in the middle of the word."""
    i = len(word) // 2
    yield word[:i] + word[i + 1 :]
    yield word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :]
    yield word[:i] + word[i] + word[i:]


def holders() -> Iterator[tuple[str, dict[str, Any], type[BaseModel]]]:
    """Every section in each of its kinds: name, what it needs to be valid, options."""
    for kind, options in data.KINDS.items():
        yield "data", {"kind": kind, **NEEDED.get(kind, {})}, options
    for kind, division in partition.KINDS.items():
        yield "partition", {"kind": kind}, division
    for name, method in METHODS.items():
        yield "method", {"name": name}, method
    for section, plain in PLAIN.items():
        yield section, {}, plain


def wrong_keys() -> Iterator[tuple[str, dict[str, Any], str]]:
    for section in SECTIONS:
        yield from ((wrong, {wrong: {}}, section) for wrong in mistyped(section))
    for section, base, options in holders():
        for key in options.model_fields:
            for wrong in mistyped(key):
                if len(key) > 3 and wrong not in options.model_fields:
                    yield f"{section}.{wrong}", {section: {**base, wrong: 1}}, key


def choices() -> Iterator[tuple[str, dict[str, Any], str, list[str]]]:
    """Every place that takes one word out of several."""
    yield "data", {}, "kind", list(data.KINDS)
    yield "partition", {}, "kind", list(partition.KINDS)
    yield "method", {}, "name", list(METHODS)
    yield "net", {}, "name", list(NETS)
    yield "train", {}, "objective", list(OBJECTIVES)
    yield "train", {}, "optimizer", list(OPTIMIZERS)
    for section, base, options in holders():
        for key, field in options.model_fields.items():
            if key not in base and get_origin(field.annotation) is Literal:
                words = [word for word in get_args(field.annotation) if isinstance(word, str)]
                yield section, base, key, words


def wrong_values() -> Iterator[tuple[str, dict[str, Any], str]]:
    for section, base, key, words in choices():
        for word in words:
            for wrong in mistyped(word):
                if len(word) > 3 and wrong not in words:
                    yield f"{section}.{key}={wrong}", {section: {**base, key: wrong}}, word


TYPOS = {name: (table, meant) for name, table, meant in (*wrong_keys(), *wrong_values())}


def test_there_are_many() -> None:
    assert len(TYPOS) > 300


def refusal(table: dict[str, Any]) -> str:
    """Why a config is refused; nothing where it is not."""
    try:
        resolve(table)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("section", ["", *SECTIONS])
def test_the_word_that_was_meant_is_named(section: str) -> None:
    """All of a section at once, those of the section's own name under no name."""
    typos = {name: told for name, told in TYPOS.items() if name.rpartition(".")[0] == section}
    told = {name: (refusal(table), meant) for name, (table, meant) in typos.items()}
    wrong = [
        (name, text)
        for name, (text, meant) in told.items()
        if f"did you mean '{meant}'?" not in text or "\n" in text
    ]
    assert typos and not wrong


def test_no_typo_is_left_out() -> None:
    assert {name.rpartition(".")[0] for name in TYPOS} == {"", *SECTIONS}


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("data.scal=1", "scale"),
        ("train.optimizer=adm", "adam"),
        ("net.name=resnt18", "resnet18"),
        ("evalute.every=2", "evaluate"),
    ],
)
def test_nothing_is_done_before_the_config_is_right(cli, tiny, override: str, meant: str) -> None:
    for verb in (
        ["run", tiny, override, "--out", "out"],
        ["check", tiny, override],
        ["data", "inspect", tiny, override],
    ):
        done = cli(*verb)
        assert done.code == 2
        assert f"did you mean '{meant}'?" in done.err
    assert sorted(path.name for path in Path().iterdir()) == ["tiny.toml"]

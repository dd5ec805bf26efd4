"""Recipes: one file for every table of the papers, a config and beside it the rows with the numbers that were
published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from equipoise.compare import Arm, numbers
from equipoise.compare.plan import Changes
from equipoise.config import load, validate
from equipoise.errors import ConfigError
from equipoise.names import unknown
from equipoise.options import Options

FOLDER = Path(__file__).parent / "recipes"
TABLES = "*-table*.toml"
"""files that are tables; the others are what tables extend"""

Sections = dict[str, dict[str, Any]]
"""section → key → value"""


class Row(Options):
    """One row of a published table: what it changes in the recipe, and the numbers the paper has for it."""

    data: dict[str, Any] = {}
    partition: dict[str, Any] = {}
    net: dict[str, Any] = {}
    method: dict[str, Any] = {}
    train: dict[str, Any] = {}
    evaluate: dict[str, Any] = {}
    reported: dict[str, float | tuple[float, float]] = {}
    """column → the published mean in per cent, or [mean, standard deviation]"""
    p_value: str = ""
    """the p-value the paper has for the row, as it prints it"""
    cannot: str = ""
    """why the row cannot be run; it is shown with the paper's numbers alone"""
    small: Sections = {}
    """further changes at small scale"""

    @property
    def changes(self) -> Changes:
        """Dotted keys and values, as an arm of a comparison has them."""
        sections = ("data", "partition", "net", "method", "train", "evaluate")
        return flat({section: getattr(self, section) for section in sections})


class Recipe(Options):
    """The `[reproduce]` section of a recipe."""

    title: str
    """what the table compares, on what"""
    source: str
    """the paper and its table"""
    images: int = Field(ge=1)
    """training images of all sites together, for the estimate of the cost"""
    seeds: str = "0..4"
    """seeds the paper's mean goes over, as `--seeds` has them"""
    folds: int | None = Field(default=None, ge=2)
    """folds of the paper's cross-validation, if it has one"""
    columns: dict[str, str | tuple[str, ...]]
    """column → where the metric stands in a run's test metrics, dots between; several are averaged, and with
    none the paper's number stands alone (it goes over several tables)"""
    rows: dict[str, Row]
    weights: dict[str, str] = {}
    """keys that must name a file of pretrained weights → what the paper started from"""
    notes: tuple[str, ...] = ()
    """what the paper leaves open, or prints wrongly"""
    notes_on: dict[str, str] = {}
    """the same about a row, by its label or its method; told where the row is in the table"""
    small: Sections = {}
    """further changes at small scale; keys of [method] count for the rows whose method has them"""

    @model_validator(mode="after")
    def _numbers_have_columns(self) -> Recipe:
        numbers(self.seeds)
        for label, row in self.rows.items():
            for name in row.reported:
                if name not in self.columns:
                    raise ValueError(f"rows.{label}.reported: " + unknown("column", name, self.columns))
        return self


@dataclass(frozen=True)
class Paper:
    """A recipe by name, with the config its rows start from."""

    name: str
    recipe: Recipe
    table: Mapping[str, Any]

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The rows that can be run."""
        return tuple(Arm(label, row.changes) for label, row in self.recipe.rows.items() if not row.cannot)

    @property
    def sets(self) -> tuple[str, ...]:
        """The data sets it needs, by kind."""
        data = self.table["data"]
        return tuple(part["kind"] for part in data["parts"]) if data["kind"] == "joined" else (data["kind"],)


def notes_of(paper: Paper, labels: Iterable[str]) -> list[str]:
    """What there is to say about a table with these rows, in sentences."""
    recipe, labels_by_note = paper.recipe, dict[str, list[str]]()
    for label in labels:
        method = {**paper.table.get("method", {}), **recipe.rows[label].method}.get("name", "")
        for key in dict.fromkeys((label, method)):
            if key in recipe.notes_on:
                labels_by_note.setdefault(recipe.notes_on[key], []).append(label)
    return [*recipe.notes, *(f"{', '.join(about)}: {text}" for text, about in labels_by_note.items())]


def flat(sections: Mapping[str, Mapping[str, Any]]) -> Changes:
    """section → key → value as dotted keys and values."""
    return tuple(
        (f"{section}.{key}", value) for section, keys in sections.items() for key, value in keys.items()
    )


def names() -> tuple[str, ...]:
    """Every table there is a recipe for."""
    return tuple(sorted(path.stem for path in FOLDER.glob(TABLES)))


@cache
def find(name: str) -> Paper:
    """The recipe of a table; several parts of one are named."""
    if name not in names():
        parts = [one for one in names() if one.startswith(f"{name}-")]
        if parts:
            raise ConfigError(f"table '{name}' has {len(parts)} parts: name one of {', '.join(parts)}")
        raise ConfigError(unknown("table", name, names()))
    return read(FOLDER / f"{name}.toml")


def read(path: Path) -> Paper:
    """The recipe in a file."""
    table = load(path)
    recipe = validate(Recipe, table.pop("reproduce", {}), "reproduce")
    return Paper(path.stem, recipe, table)

"""The `[data]` section: what every kind of data set has in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from equipoise.data.samples import Samples
from equipoise.options import Options

Progress = Callable[[str, int, int], None]
"""progress(text, done, total)"""

Resize = Literal["squash", "crop"]

SPLITS: dict[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "validate", "val", "valid", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""The words data sets use for the three parts, and ours."""


class Split(Options):
    """How samples are divided into train, validation and test; a bare string is the name of a column."""

    test: float = Field(default=0.2, ge=0, lt=1)
    """Share of the samples kept for testing, where the data does not bring its own test set."""
    validation: float = Field(default=0.1, ge=0, lt=1)
    """Share of the samples kept for validation, where the data does not bring its own."""
    column: str | None = None
    """A column of train / validation / test (csv only); a missing validation part is cut from train."""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _leaves_train(self) -> Split:
        if self.test + self.validation >= 1:
            raise ValueError("test and validation together leave nothing to train on; make their sum less than 1")
        return self


class DataOptions(Options):
    """What every kind of data set can be told."""

    kind: str
    """Which reader: csv, folder, npz or phantom."""
    name: str | None = None
    """What tables and reports call this data set."""
    image_size: int = Field(default=64, ge=8, le=2048)
    """Side of the square images the network sees, in pixels."""
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for colour; images are converted."""
    resize: Resize = "squash"
    """squash: the whole image becomes the square; crop: the short side fits and the centre is kept."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """What to do with rows that cannot be used: refuse the data set, or leave them out and list them."""
    split: Split = Split()
    """How the samples are divided into train, validation and test."""

    @model_validator(mode="after")
    def _column_needs_a_table(self) -> DataOptions:
        if self.split.column is not None and self.kind != "csv":
            raise ValueError(f"split.column is only for kind = 'csv', and this is kind = '{self.kind}'; remove it")
        return self

    @abstractmethod
    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """Read the data set; images are decoded once into `cache`, relative paths start from `base`."""

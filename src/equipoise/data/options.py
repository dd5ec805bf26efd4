"""The `[data]` section: what every kind of data set has in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from equipoise.data.grey import Window
from equipoise.data.preprocess import Look, Resize
from equipoise.data.samples import Samples
from equipoise.options import Options

Progress = Callable[[str, int, int], None]
"""progress(text, done, total)"""

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
    """A column of train / validation / test (csv only); a part that is missing is cut from train."""
    folds: int | None = Field(default=None, ge=2)
    """Cross-validation: how many folds; a fold takes the place of `test` and of any test set the data
    brings."""
    fold: int | None = Field(default=None, ge=0)
    """Which of the folds is the test set, counted from 0."""
    seed: int | None = Field(default=None, ge=0)
    """Draw the test and validation images from this seed, before sites are drawn: runs with other seeds are
    then tested on the same images. None = site by site, from the run's seed."""

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _leaves_train(self) -> Split:
        if (self.folds is None) != (self.fold is None) or (
            self.folds and self.fold is not None and self.fold >= self.folds
        ):
            raise ValueError("folds and fold go together, with fold from 0 to folds - 1; set both or neither")
        if self.folds and self.column is not None:
            raise ValueError("folds make a split of their own; remove the column of splits, or the folds")
        if self.folds and self.seed is not None:
            raise ValueError("folds are drawn from the run's seed; remove seed, or folds and fold")
        if (1 / self.folds if self.folds else self.test) + self.validation >= 1:
            raise ValueError("test and validation leave nothing to train on; make their sum less than 1")
        return self


class DataOptions(Options):
    """What every kind of data set can be told."""

    kind: str
    """Which reader: csv, folder, npz, stored, phantom, or a data set by name (`equipoise data list`); `sites`
    for a federation's, which stay where they are."""
    name: str | None = None
    """What tables and reports call this data set."""
    image_size: int = Field(default=64, ge=8, le=2048)
    """Side of the square images the network sees, in pixels."""
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for colour; images are converted."""
    resize: Resize = "squash"
    """squash: the whole image becomes the square; crop: the short side fits and the centre is kept; pad: the
    long side fits, the rest is black."""
    crop_keep: float = Field(default=1.0, gt=0, le=1)
    """`crop`: share of the short side that the centre keeps; 0.875 is "resize to 256, cut out 224"."""
    colour_constancy: float | None = Field(default=None, ge=1, le=100)
    """Make the light of every image grey ("shades of grey") with this Minkowski exponent; Fed-ISIC2019 uses
    6."""
    brightness: float | None = Field(default=None, gt=0, lt=1)
    """Bring every image to this mean brightness, of 0 (black) to 1 (white)."""
    window: tuple[Window, ...] | None = None
    """Centre and width of the grey values to show, as [40, 80] for all channels or [[40, 80], [80, 200],
    [600, 2800]] for each of three (Hounsfield units for CT); by default the window that a file names."""
    bits: int | None = Field(default=None, ge=8, le=16)
    """Depth of grey PNG and TIFF files of 16 bits; by default 8, 12 or 16, the fewest that hold an image's
    largest value."""
    bad_rows: Literal["refuse", "skip"] = "refuse"
    """What to do with rows that cannot be used: refuse the data set, or leave them out and list them."""
    split: Split = Split()
    """How the samples are divided into train, validation and test."""

    @model_validator(mode="after")
    def _column_needs_a_table(self) -> DataOptions:
        if self.split.column is not None and self.kind != "csv":
            raise ValueError(
                f"split.column is only for kind = 'csv', and this is kind = '{self.kind}'; remove it"
            )
        return self

    @model_validator(mode="after")
    def _look_has_something_to_act_on(self) -> DataOptions:
        if self.crop_keep < 1 and self.resize != "crop":
            raise ValueError(
                f"crop_keep is for resize = 'crop', and this is resize = '{self.resize}'; change one of them"
            )
        if self.colour_constancy is not None and self.channels == 1:
            raise ValueError("colour_constancy needs colour: set channels = 3, or remove it")
        if self.kind == "phantom" and self.look != Look():
            raise ValueError(
                "phantom images are drawn to size: remove crop_keep, colour_constancy, brightness, window "
                "and bits"
            )
        if self.kind == "npz" and (self.window is not None or self.bits is not None):
            raise ValueError("npz images have 8 bits and are shown whole: remove window and bits")
        return self

    @field_validator("window", mode="before")
    @classmethod
    def _bare_window(cls, value: Any) -> Any:
        bare = isinstance(value, list | tuple) and len(value) == 2
        return [value] if bare and not any(isinstance(one, list | tuple) for one in value) else value

    @field_validator("window")
    @classmethod
    def _window_has_a_width(cls, value: tuple[Window, ...] | None) -> tuple[Window, ...] | None:
        if value is not None and len(value) not in (1, 3):
            raise ValueError("give one window for all channels, or three")
        if value is not None and any(width <= 0 for _, width in value):
            raise ValueError("a window is a centre and a width above 0, such as [40, 80]")
        return value

    @property
    def look(self) -> Look:
        """How images are prepared before they enter the cache."""
        return Look(self.crop_keep, self.colour_constancy, self.brightness, self.window, self.bits)

    @property
    def here(self) -> bool:
        """Whether the images are where the config is read."""
        return True

    @property
    def declared(self) -> bool:
        """Whether the classes are listed, and not merely those found."""
        return getattr(self, "classes", None) is not None

    @property
    def multi(self) -> bool:
        """Whether an image may have several classes, as far as the options tell."""
        return False

    @abstractmethod
    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """Read the data set; images are decoded once into `cache`, relative paths start from `base`."""

"""What is known of images that are about to be stored: labels and columns, checked row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from equipoise.data.options import SPLITS
from equipoise.data.preprocess import Resize
from equipoise.data.stored import Labelled
from equipoise.names import unknown
from equipoise.text import strange

MOST_CLASSES = 10_000
"""classes that numbers alone may stand for"""

FORMS = {int: "a number", str: "a name", list: "a list of 0 and 1"}
UNLABELLED = -1
"""in a list of 0 and 1: the image is not labelled for that class"""


class Notes:
    """Labels and columns of the images so far; a ValueError says what is wrong with a row's."""

    def __init__(self, classes: tuple[str, ...] | None, several: bool = False) -> None:
        self.classes = classes
        self.several = several
        """whether a list of one value is a list of 0 and 1 too"""
        self.labels: list[Any] = []
        self.columns: dict[str, list[str]] = {}
        self._places: dict[str, str] = {}

    def add(self, place: str, label: Any, cells: Mapping[str, Any]) -> None:
        """The label and the cells (id, site, group, split, 'attribute …') of one more image."""
        label = self._checked(_plain(label, self.several))
        texts = {name: _cell(name, value) for name, value in cells.items()}
        if texts["id"] in self._places:
            raise ValueError(f"id '{texts['id']}' is also that of {self._places[texts['id']]}")
        self._places[texts["id"]] = place
        self.labels.append(label)
        for name, text in texts.items():
            self.columns.setdefault(name, []).append(text)

    def table(
        self, *, pixels: str, image_size: int, channels: Literal[1, 3], resize: Resize | None
    ) -> Labelled:
        """All of it, with the names of classes made numbers."""
        first = self.labels[0]
        if self.classes is not None:
            classes = self.classes
        elif isinstance(first, str):
            classes = tuple(sorted(set(self.labels)))
        else:
            count = len(first) if isinstance(first, list) else max(self.labels) + 1
            classes = tuple(str(i) for i in range(count))
        number = {name: i for i, name in enumerate(classes)}
        labels = [number[label] for label in self.labels] if isinstance(first, str) else self.labels
        mark = "attribute "
        attributes = {name: values for name, values in self.columns.items() if name.startswith(mark)}
        return Labelled(
            pixels=pixels,
            image_size=image_size,
            channels=channels,
            resize=resize,
            task="multi" if isinstance(first, list) else "single",
            classes=classes,
            labels=labels,
            id=self.columns["id"],
            site=self.columns.get("site"),
            split=self.columns.get("split"),
            group=self.columns.get("group"),
            attributes={name.removeprefix(mark): values for name, values in attributes.items()},
        )

    def _checked(self, label: int | str | list[int]) -> int | str | list[int]:
        """A label that is of the same form as the first, and of a class that there is."""
        first: Any = self.labels[0] if self.labels else label
        if type(label) is not type(first):
            raise ValueError(f"the label is {FORMS[type(label)]} and the first is {FORMS[type(first)]}")
        if isinstance(label, list):
            count = len(self.classes or (self.labels or [label])[0])
            if len(label) != count:
                raise ValueError(f"the label has {len(label)} values and there are {count} classes")
        elif isinstance(label, str):
            if self.classes is not None and label not in self.classes:
                raise ValueError(unknown("label", label, self.classes))
        elif self.classes is not None and not 0 <= label < len(self.classes):
            last = len(self.classes) - 1
            raise ValueError(f"label {label} is out of range: the {last + 1} classes are 0 to {last}")
        elif not 0 <= label < MOST_CLASSES:
            raise ValueError(f"label {label} is out of range: classes are numbered from 0; or name them")
        return label


def _plain(label: Any, several: bool) -> int | str | list[int]:
    """The number of a class, its name, or zeros and ones with `UNLABELLED` between them; one value in a list
    is a number, as MedMNIST has it."""
    label = label.tolist() if hasattr(label, "tolist") else label
    values = list(label) if isinstance(label, tuple | list) else [label]
    if len(values) == 1 and not several:
        if missing(values[0]) or values[0] == UNLABELLED:
            raise ValueError(f"the label is missing ({values[0]}): leave the image out")
        return _name_or_number(values[0])
    values = [UNLABELLED if missing(value) else value for value in values]
    if not values or any(isinstance(value, str) or value not in (0, 1, UNLABELLED) for value in values):
        shown = ", ".join(map(str, values[:20]))
        raise ValueError(f"the label [{shown}] is no list of 0 and 1 (or -1: not labelled), one per class")
    return [int(value) for value in values]


def _name_or_number(value: Any) -> int | str:
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("the label is empty")
        return value.strip()
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise ValueError(f"the label {value!r} is neither the number nor the name of a class")


def _cell(name: str, value: Any) -> str:
    """A cell as text; only attributes may be empty."""
    text = text_of(value)
    if wrong := strange(text):
        raise ValueError(wrong)
    if not text and not name.startswith("attribute "):
        raise ValueError(f"{name} is empty")
    if name != "split":
        return text
    if text.lower() not in SPLITS:
        raise ValueError(f"split '{text}' is not train, validation or test")
    return SPLITS[text.lower()]


def text_of(value: Any) -> str:
    """A cell as a CSV file would have it: nothing where it is missing, whole numbers without a point."""
    value = value.item() if hasattr(value, "item") else value
    if missing(value):
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, and what pandas has for it."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return True
    return value is None or (isinstance(value, float) and value != value)

"""The metrics of every round as TensorBoard events, beside `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import ConfigError
from equipoise.evaluate.protocol import ENDING

BOARD = "tensorboard"


class Board:
    """Events in the run folder's `tensorboard/`, those of a method's ending under `ending/`.

    Rounds after `done` are forgotten: they come again.
    """

    def __init__(self, folder: Path, classes: Sequence[str], done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ConfigError(
                "evaluate.tensorboard needs the package tensorboard: run pip install "
                "'equipoise[tensorboard]', or set it to false"
            ) from error
        self._classes = classes
        self._writer: Any = SummaryWriter(str(folder / BOARD), purge_step=done + 1)

    def write(self, row: Mapping[str, Any]) -> None:
        """One line of `metrics.jsonl`."""
        for name, value in numbers(row, self._classes, "ending/" if ENDING in row else ""):
            self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def numbers(row: Mapping[str, Any], classes: Sequence[str], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a row under its path, such as test/generalisation/macro_auc or
    test/generalisation/recall/<class>."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from numbers(value, classes, f"{prefix}{key}/")
        elif key == "recall":
            yield from (
                (f"{prefix}recall/{name}", r) for name, r in zip(classes, value, strict=True) if r is not None
            )
        elif isinstance(value, int | float) and key not in ("round", ENDING):
            yield prefix + key, value

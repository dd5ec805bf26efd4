"""What `equipoise predict` says of images: a CSV table, or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import StorageError
from equipoise.text import cell
from equipoise.use import Prediction, Predictor

JOIN = ";"
"""between the findings of an image that may have several"""


def table(model: Predictor, rows: Sequence[Prediction]) -> str:
    """CSV: file, predicted class (or classes), one probability per class. Images that could not be read have
    no row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "predicted", *(cell(f"p_{name}") for name in model.classes)])
    for row in rows:
        if row.probabilities is not None:
            chances = (f"{p:.6f}" for p in row.probabilities)
            writer.writerow([cell(row.file), cell(JOIN.join(model.decide(row.probabilities))), *chances])
    return text.getvalue()


def answers(model: Predictor, rows: Sequence[Prediction]) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "model": model.title,
        "classes": list(model.classes),
        "images": [
            {
                "file": row.file,
                "predicted": model.decide(row.probabilities),
                "probabilities": dict(zip(model.classes, row.probabilities, strict=True)),
            }
            for row in rows
            if row.probabilities is not None
        ],
        "failed": [{"file": row.file, "error": row.error} for row in rows if row.error is not None],
    }


def write(path: Path, text: str) -> None:
    """Write the table; a folder that is not there is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}; choose another --out") from error

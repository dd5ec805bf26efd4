"""A hospital's folder of images, and the command at two widths: what the five ways start from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import Cli, Outcome, cli

__all__ = ["Cli", "Outcome", "cli"]

CLASSES = ("mel", "nv", "bcc")
CONFIG = """
[data]
kind = "csv"
path = "hospital/labels.csv"
images = "hospital/images"
label = "diagnosis"
site = "centre"
group = "patient"
image_size = 16
[partition]
kind = "column"
[train]
rounds = 2
batch_size = 8
[engine]
device = "cpu"
"""


@pytest.fixture
def hospital(cli: Cli, tmp_path: Path) -> Path:
    """A config beside a folder of 60 images with a table, of two centres; the working folder."""
    (tmp_path / "hospital" / "images").mkdir(parents=True)
    draw = np.random.default_rng(0)
    lines = ["file,diagnosis,centre,patient"]
    for i in range(60):
        pixels = draw.integers(0, 120, (24, 24, 3), dtype=np.uint8)
        pixels[..., i % 3] += 100
        Image.fromarray(pixels).save(tmp_path / "hospital" / "images" / f"{i}.png")
        lines.append(f"{i}.png,{CLASSES[i % 3]},{'north' if i < 36 else 'south'},p{i // 2}")
    (tmp_path / "hospital" / "labels.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "mine.toml").write_text(CONFIG)
    return tmp_path


def narrow(text: str, width: int) -> bool:
    """Whether no line of a table is wider than the terminal; sentences and paths it may wrap itself."""
    tables = [line for line in text.splitlines() if "─" in line or "±" in line]
    return all(len(line.rstrip()) <= width for line in tables)

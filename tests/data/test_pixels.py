"""The range of what was decoded, and the contact sheet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equipoise.data import Samples
from equipoise.data.pixels import CAPTION, GAP, contact_sheet, survey, write_contact_sheet
from equipoise.errors import ConfigError, StorageError


def made(counts: dict[str, int], size: int = 16, channels: int = 3) -> Samples:
    """So many images of each class, each of one value: its row."""
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    images = np.broadcast_to(
        np.arange(len(labels), dtype=np.uint8)[:, None, None, None], (len(labels), size, size, channels)
    )
    ids = np.array([str(i) for i in range(len(labels))])
    return Samples(
        images.copy(), labels, tuple(counts), "single", ids, "", site=np.array(["nörd"] * len(labels))
    )


def test_the_range_of_every_image() -> None:
    data = made({"a": 300, "b": 3})
    data.images[:] = np.random.default_rng(0).integers(0, 200, data.images.shape, dtype=np.uint8)
    data.images[7] = 3
    found = survey(data)
    by_row = data.images.reshape(303, -1)
    np.testing.assert_array_equal(found.lowest, by_row.min(1))
    np.testing.assert_array_equal(found.highest, by_row.max(1))
    np.testing.assert_allclose(found.mean, by_row.mean(1))
    assert found.facts() == {
        "lowest": 0,
        "highest": 199,
        "mean": round(float(by_row.mean()), 1),
        "dark": 1,
        "flat": 1,
    }
    assert len(set(found.digests)) == 303


@pytest.mark.parametrize(("size", "channels"), [(16, 3), (64, 1), (300, 3)])
def test_the_sheet_shows_what_the_network_sees(size: int, channels: int) -> None:
    data = made({"a": 200, "b": 3, "c": 40}, size, channels)
    data.images[:, : size // 2] //= 2
    sheet = np.asarray(contact_sheet(data))
    tile = sheet.shape[1] // 5 - GAP
    assert tile % size == 0 and tile >= 160
    assert sheet.shape == (5 * (tile + CAPTION), 5 * (tile + GAP), 3)
    shown = []
    for number in range(25):
        top, left = number // 5 * (tile + CAPTION), number % 5 * (tile + GAP)
        picture = sheet[top : top + tile, left : left + tile]
        row = int(picture[-1, -1, 0])
        np.testing.assert_array_equal(picture[:: tile // size, :: tile // size, :channels], data.images[row])
        caption = sheet[top + tile : top + tile + CAPTION, left : left + tile]
        assert caption.min() < 100 and caption.max() == 255
        shown.append(row)
    classes = data.labels[shown].tolist()
    assert classes == sorted(classes) and len(set(shown)) == 25
    assert {name: classes.count(i) for i, name in enumerate("abc")} == {"a": 11, "b": 3, "c": 11}
    assert max(shown[:11]) - min(shown[:11]) == 199


def test_fewer_than_25_images() -> None:
    assert contact_sheet(made({"a": 4, "b": 3})).size == (5 * (160 + GAP), 2 * (160 + CAPTION))


def test_a_sheet_that_cannot_be_written(tmp_path: Path) -> None:
    data = made({"a": 4, "b": 3})
    write_contact_sheet(data, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.format == "PNG"
    with pytest.raises(ConfigError, match=r"--contact-sheet: .*sheet\.jpg' is not .*: let it end in \.png"):
        write_contact_sheet(data, tmp_path / "sheet.jpg")
    with pytest.raises(StorageError, match=r"none/sheet\.png cannot be written"):
        write_contact_sheet(data, tmp_path / "none" / "sheet.png")

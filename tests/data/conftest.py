"""Miniature images for the readers."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

Encode = Callable[..., bytes]


@pytest.fixture
def encode() -> Encode:
    """encode(red, green, blue): an image of one colour, as a file's bytes."""

    def one(*colour: int, size: tuple[int, int] = (20, 12), form: str = "JPEG") -> bytes:
        file = BytesIO()
        Image.new("RGB", size, colour).save(file, form, **({"quality": 95} if form == "JPEG" else {}))
        return file.getvalue()

    return one


@pytest.fixture
def noise_jpeg() -> bytes:
    """A JPEG with so much detail that half of its bytes are half of its picture."""
    file = BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from equipoise.data.images import decode, fit


def png(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def halves() -> Image.Image:
    """40 x 20: black on the left, white in the middle 20 columns, black on the right."""
    pixels = np.zeros((20, 40), np.uint8)
    pixels[:, 10:30] = 255
    return Image.fromarray(pixels)


def test_an_image_of_the_right_size_keeps_its_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode(png(Image.fromarray(pixels)), 16, 3, "squash"), pixels)


def test_squash_keeps_the_whole_image_and_crop_its_centre() -> None:
    squashed, cropped = fit(halves(), 10, 1, "squash"), fit(halves(), 10, 1, "crop")
    assert squashed.shape == (10, 10, 1)
    assert squashed[5, 0, 0] == 0
    assert squashed[5, 5, 0] == 255
    assert squashed[5, 9, 0] == 0
    by_hand = halves().resize((20, 10), Image.Resampling.BILINEAR).crop((5, 0, 15, 10))
    np.testing.assert_array_equal(cropped[..., 0], np.asarray(by_hand))


def test_shrinking_averages() -> None:
    checks = np.indices((64, 64)).sum(0) % 2 * 255
    small = fit(Image.fromarray(checks.astype(np.uint8)), 8, 1, "squash")
    assert small.min() > 120
    assert small.max() < 135


def test_grey_becomes_three_equal_channels_and_colour_becomes_luminance() -> None:
    assert (fit(Image.new("L", (8, 8), 77), 8, 3, "squash") == 77).all()
    # 0.299 * 200 + 0.587 * 100 + 0.114 * 50 = 124.2
    assert (fit(Image.new("RGB", (8, 8), (200, 100, 50)), 8, 1, "squash") == 124).all()


def test_sixteen_bits_keep_their_upper_eight() -> None:
    deep = np.full((8, 8), 0x80FF, np.uint16)
    assert (decode(png(Image.fromarray(deep)), 8, 1, "squash") == 0x80).all()


def test_a_palette_and_transparency_become_colours() -> None:
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.info["transparency"] = b"\x00\x80"
    assert decode(png(palette), 8, 3, "squash")[0, 0].tolist() == [10, 20, 30]


def test_fractions_are_refused() -> None:
    with pytest.raises(ValueError, match="fractions"):
        fit(Image.new("F", (8, 8)), 8, 1, "squash")


def test_a_photograph_held_sideways_is_turned() -> None:
    image = Image.fromarray(
        np.repeat([[[255], [0]]], 8, axis=0).repeat(4, axis=1).reshape(8, 8).astype(np.uint8)
    )
    file, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6  # turn 90° clockwise to view
    image.save(file, "PNG", exif=exif)
    turned = decode(file.getvalue(), 8, 1, "squash")[..., 0]
    assert (turned[:4] == 255).all()
    assert (turned[4:] == 0).all()


def test_a_large_jpeg_is_reduced_while_decoding_without_a_visible_change() -> None:
    y, x = np.indices((512, 512))
    pixels = np.stack([x // 2, y // 2, (x + y) // 4], -1).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    exact = fit(Image.fromarray(pixels), 32, 3, "squash").astype(int)
    assert np.abs(decode(file.getvalue(), 32, 3, "squash") - exact).max() <= 4

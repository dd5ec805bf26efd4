from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from equipoise.data import FolderData, images
from equipoise.data.images import decode, fit
from equipoise.data.preprocess import Look
from equipoise.errors import DataError


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


def tiff(values: np.ndarray, **tags: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(values).save(file, "TIFF", tiffinfo={258: 16} | {int(k[1:]): v for k, v in tags.items()})
    return file.getvalue()


@pytest.mark.parametrize("encode", [lambda values: png(Image.fromarray(values)), tiff])
@pytest.mark.parametrize(("bits", "shift"), [(8, 0), (12, 4), (16, 8)])
def test_fewer_bits_in_a_file_of_sixteen_fill_the_whole_range(
    encode: Callable[[np.ndarray], bytes], bits: int, shift: int
) -> None:
    values = np.linspace(0, 2**bits - 1, 64).astype(np.uint16).reshape(8, 8)
    found = decode(encode(values), 8, 1, "squash")[..., 0]
    np.testing.assert_array_equal(found, values >> shift)
    assert (found.min(), found.max()) == (0, 255)


def test_the_depth_may_be_given() -> None:
    dark = np.full((8, 8), 1000, np.uint16)
    assert decode(png(Image.fromarray(dark)), 8, 1, "squash").max() == 1000 >> 4
    assert decode(png(Image.fromarray(dark)), 8, 1, "squash", Look(bits=10)).max() == 1000 >> 2
    assert decode(png(Image.fromarray(dark)), 8, 1, "squash", Look(bits=16)).max() == 1000 >> 8
    assert decode(png(Image.fromarray(4 * dark)), 8, 1, "squash", Look(bits=10)).max() == 255


def test_a_tiff_whose_zero_is_white_is_turned() -> None:
    values = np.linspace(0, 65535, 64).astype("<u2").reshape(8, 8)
    np.testing.assert_array_equal(decode(tiff(values, t262=0), 8, 1, "squash")[..., 0], 255 - (values >> 8))


def test_a_window_says_which_grey_values_are_black_and_white() -> None:
    values = np.arange(-32, 32, dtype=np.int32).reshape(8, 8) * 10
    by_hand = [0 if v <= -60 else 255 if v >= 140 else round(255 * (v + 60) / 200) for v in values.ravel()]
    for held in (values, values.astype(np.float32)):
        found = decode(tiff(held, t258=32), 8, 3, "squash", Look(windows=((40, 200),)))
        for channel in range(3):
            assert found[..., channel].ravel().tolist() == by_hand
        three = decode(tiff(held, t258=32), 8, 3, "squash", Look(windows=((0, 10), (40, 200), (0, 640))))
        assert three[..., 1].ravel().tolist() == by_hand
        first = decode(tiff(held, t258=32), 8, 1, "squash", Look(windows=((40, 200), (0, 10), (0, 640))))
        assert first.ravel().tolist() == by_hand


@pytest.mark.parametrize(
    ("data", "look", "words"),
    [
        (b"", Look(), "the file is empty; copy it again"),
        (png(Image.new("RGB", (8, 8))), Look(windows=((40, 80),)), "in colour and data.window is for grey"),
        (tiff(np.full((8, 8), -5, np.int32), t258=32), Look(), r"from -5 to -5; say with data.window"),
        (tiff(np.full((8, 8), 70000, np.int32), t258=32), Look(), r"to 70000; say with data.window"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_the_fix(data: bytes, look: Look, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(data, 8, 1, "squash", look)


def raw_png(width: int, height: int, bits: int, lines: bytes) -> bytes:
    """A colour PNG written by hand; its lines may be fewer than it promises."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head, pixels = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0), zlib.compress(lines)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def deep_colour(high: int) -> bytes:
    """8 x 8 pixels with 16 bits for each of red, green and blue."""
    return raw_png(8, 8, 16, (b"\0" + struct.pack(">H", high) * 24) * 8)


def test_colours_of_sixteen_bits() -> None:
    assert (decode(deep_colour(0x8000), 8, 3, "squash") == 0x80).all()
    with pytest.raises(ValueError, match="lower 12 of 16 bits only; save it with 8 bits a channel"):
        decode(deep_colour(0x0FFF), 8, 3, "squash")


def test_huge_empty_and_broken_files_are_each_one_sentence_with_the_fix(
    tmp_path: Path, noise_jpeg: bytes
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "half.jpg").write_bytes(noise_jpeg[: len(noise_jpeg) // 2])
    (tmp_path / "a" / "huge.png").write_bytes(raw_png(40_000, 30_000, 8, b""))
    (tmp_path / "a" / "none.png").write_bytes(b"")
    (tmp_path / "b" / "text.png").write_text("not an image")
    with pytest.raises(DataError) as refusal:
        FolderData(path=str(tmp_path)).load(cache=tmp_path / "cache", base=tmp_path)
    half, *lines = [line.strip() for line in str(refusal.value).splitlines()[1:]]
    assert half.startswith("a/half.jpg: image 'a/half.jpg' is broken: image file is truncated")
    assert half.endswith("; copy it again")
    assert lines == [
        "a/huge.png: image 'a/huge.png' is broken: it has 1,200,000,000 pixels; save it smaller, or cut it",
        "a/none.png: image 'a/none.png' is broken: the file is empty; copy it again",
        "b/text.png: image 'b/text.png' is broken: not an image; save it as PNG, JPEG, TIFF, DICOM or NIfTI",
    ]


def test_pixels_read_before_the_depth_counted_are_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "x.png").write_bytes(png(halves()))
    options = FolderData(path="images", image_size=8)
    options.load(cache=tmp_path / "cache", base=tmp_path)
    monkeypatch.setattr(images, "DECODING", images.DECODING - 1)
    options.load(cache=tmp_path / "cache", base=tmp_path)
    assert len(list((tmp_path / "cache").glob("*.raw"))) == 2


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

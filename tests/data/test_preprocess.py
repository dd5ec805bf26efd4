"""Colour constancy, brightness and the ways to a square, each against a computation of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError
from scipy.stats import pmean

from equipoise.data import FolderData, NpzData, PhantomData
from equipoise.data.images import fit
from equipoise.data.preprocess import Look, shades_of_grey, squared, toned


def picture(height: int = 9, width: int = 12, low: int = 0, high: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, (height, width, 3), dtype=np.uint8)


def tinted(height: int = 20, width: int = 30) -> np.ndarray:
    """A reddish image of middle values, so that nothing is cut at white."""
    return (picture(height, width, 40, 120) * np.array([1.2, 0.9, 0.7])).astype(np.uint8)


def shown(pixels: np.ndarray, **look: Any) -> np.ndarray:
    return np.asarray(toned(Image.fromarray(pixels), Look(**look)))


# Colour constancy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 6, 2.5])
def test_shades_of_grey_like_explicit_loops(p: float) -> None:
    pixels = picture(high=200)
    light = []
    for channel in range(3):
        total = 0.0
        for row in pixels[..., channel]:
            for value in row:
                total += float(value) ** p
        light.append((total / pixels[..., 0].size) ** (1 / p))
    length = sum(value**2 for value in light) ** 0.5
    expected = np.zeros_like(pixels)
    for i, row in enumerate(pixels):
        for j, pixel in enumerate(row):
            for channel, value in enumerate(pixel):
                unit = light[channel] / length
                expected[i, j, channel] = min(255, round(float(value) / (3**0.5 * unit)))
    found = shown(pixels, constancy=p)
    np.testing.assert_array_equal(found, expected)
    assert (found != pixels).any()


def test_light_is_the_power_mean_and_becomes_grey() -> None:
    pixels = tinted()
    counts = np.stack([np.bincount(pixels[..., c].ravel(), minlength=256) for c in range(3)]).astype(float)
    light = np.array([pmean(pixels[..., c].ravel().astype(float), 6) for c in range(3)])
    np.testing.assert_allclose(shades_of_grey(counts, 6), np.sqrt((light**2).mean()) / light, rtol=1e-12)
    after = [pmean(shown(pixels, constancy=6)[..., c].ravel().astype(float), 6) for c in range(3)]
    assert after == pytest.approx([np.sqrt((light**2).mean())] * 3, abs=0.3)  # rounding of the pixels
    assert light.max() - light.min() > 30


def test_a_grey_image_and_a_black_one_stay() -> None:
    grey = np.repeat(picture()[..., :1], 3, axis=2)
    np.testing.assert_array_equal(shown(grey, constancy=6), grey)
    black = np.zeros((4, 4, 3), np.uint8)
    np.testing.assert_array_equal(shown(black, constancy=6, brightness=0.5), black)


def test_a_channel_without_light_stays_black_and_the_rest_is_cut_at_white() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = 200, 10
    # |e| / sqrt(3) = sqrt((200² + 10²) / 3) = 115.6: red falls to it, green rises to it.
    assert shown(pixels, constancy=6)[0, 0].tolist() == [116, 116, 0]
    pixels[0, 0, 1] = 40  # one bright pixel of a dark channel rises beyond white
    assert shown(pixels, constancy=1)[0, 0, 1] == 255


# Brightness -------------------------------------------------------------------------------------------------


def test_brightness_becomes_what_was_asked() -> None:
    pixels = tinted()
    found = shown(pixels, brightness=0.3)
    factor = 0.3 * 255 / (pixels.reshape(-1, 3).mean(axis=0) @ [0.299, 0.587, 0.114])
    np.testing.assert_array_equal(found, np.rint(pixels * factor))
    assert found.reshape(-1, 3).mean(axis=0) @ [0.299, 0.587, 0.114] == pytest.approx(0.3 * 255, abs=0.1)
    flat = np.full((4, 4), 50, np.uint8)
    assert (shown(flat, brightness=0.4) == 102).all()


def test_brightness_is_measured_after_colour_constancy() -> None:
    found = shown(tinted(), constancy=6, brightness=0.3)
    assert found.reshape(-1, 3).mean(axis=0) @ [0.299, 0.587, 0.114] == pytest.approx(0.3 * 255, abs=0.2)
    light = [pmean(found[..., c].ravel().astype(float), 6) for c in range(3)]
    assert light == pytest.approx([np.mean(light)] * 3, abs=0.3)


# The way to a square ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(20, 40), (40, 20)])
def test_pad_keeps_all_of_the_image_between_black_bars(height: int, width: int) -> None:
    pixels = picture(height, width, low=50)
    found = np.asarray(squared(Image.fromarray(pixels), 40, "pad", 1.0))
    across = found if height < width else found.transpose(1, 0, 2)
    np.testing.assert_array_equal(across[10:30], pixels if height < width else pixels.transpose(1, 0, 2))
    assert (across[:10] == 0).all()
    assert (across[30:] == 0).all()
    small = np.asarray(squared(Image.fromarray(pixels), 20, "pad", 1.0))
    expected = np.asarray(
        Image.fromarray(pixels).resize((width // 2, height // 2), Image.Resampling.BILINEAR)
    )
    np.testing.assert_array_equal(small[5:15] if height < width else small[:, 5:15], expected)


def test_pad_of_a_very_long_image_keeps_a_line() -> None:
    assert np.asarray(squared(Image.new("L", (1000, 3), 200), 16, "pad", 1.0)).max() == 200


def test_resize_to_256_and_cut_out_224() -> None:
    y, x = np.indices((320, 400))
    pixels = np.stack([x * 255 // 400, y * 255 // 320, (x + y) * 255 // 720], -1).astype(np.uint8)
    by_hand = Image.fromarray(pixels).resize((320, 256), Image.Resampling.BILINEAR).crop((48, 16, 272, 240))
    found = np.asarray(squared(Image.fromarray(pixels), 224, "crop", 224 / 256))
    assert np.abs(found.astype(int) - np.asarray(by_hand)).max() <= 1


def test_colours_are_measured_on_the_whole_image_before_it_is_cut() -> None:
    pixels = np.full((10, 30, 3), 100, np.uint8)
    pixels[:, :10] = (200, 50, 50)
    pixels[:, 20:] = (200, 50, 50)
    cropped = fit(Image.fromarray(pixels), 10, 3, "crop", Look(constancy=1))
    means = np.array([500, 200, 200]) / 3
    even = np.sqrt((means**2).mean())
    assert cropped[5, 5].tolist() == np.rint(100 * even / means).tolist()


# The cache --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(picture(24, 32, seed=i) // 2).save(tmp_path / "images" / label / f"{i}.png")
    return tmp_path / "images"


def test_every_look_has_its_own_cache(folder: Path, tmp_path: Path) -> None:
    looks: list[dict[str, Any]] = [
        {},
        {"colour_constancy": 6},
        {"colour_constancy": 5},
        {"brightness": 0.4},
        {"resize": "crop"},
        {"resize": "crop", "crop_keep": 0.875},
        {"resize": "pad"},
    ]
    cache = tmp_path / "cache"
    prints = set()
    for number, look in enumerate(looks, start=1):
        options = FolderData(path=str(folder), image_size=16, **look)
        found = options.load(cache=cache, base=tmp_path)
        prints.add(found.fingerprint)
        assert len(list(cache.glob("*.raw"))) == number
        for row, name in enumerate(found.ids):
            path = next(folder.glob(f"{name}*"))
            expected = fit(Image.open(path), 16, 3, options.resize, options.look)
            np.testing.assert_array_equal(found.images[row], expected)
        options.load(cache=cache, base=tmp_path)
        assert len(list(cache.glob("*.raw"))) == number  # the second time it is found
    assert len(prints) == len(looks)


def test_an_image_left_as_it_is_adds_nothing_to_the_key() -> None:
    assert Look().recipe == {}
    assert Look(0.875, 6, 0.4).recipe == {"keep": 0.875, "constancy": 6, "brightness": 0.4}


def test_arrays_are_prepared_too(tmp_path: Path) -> None:
    pixels = np.stack([tinted(16, 16)] * 2)
    np.savez(tmp_path / "x.npz", train_images=pixels, train_labels=np.array([[0], [1]]))
    options = NpzData(path="x.npz", image_size=16, colour_constancy=6)
    found = options.load(cache=tmp_path / "cache", base=tmp_path)
    np.testing.assert_array_equal(found.images[0], shown(pixels[0], constancy=6))
    NpzData(path="x.npz", image_size=16).load(cache=tmp_path / "cache", base=tmp_path)
    assert len(list((tmp_path / "cache").glob("*.raw"))) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"crop_keep": 0.9}, "crop_keep is for resize = 'crop'"),
        ({"colour_constancy": 6, "channels": 1}, "needs colour"),
        ({"colour_constancy": 0.5}, "greater than or equal to 1"),
        ({"brightness": 1.0}, "less than 1"),
    ],
)
def test_a_look_with_nothing_to_act_on_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        FolderData(path="x", **options)
    with pytest.raises(ValidationError, match="phantom images are drawn to size"):
        PhantomData(brightness=0.5)

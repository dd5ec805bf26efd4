"""Grey values of any depth become the 256 levels of an image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

Window = tuple[float, float]
"""centre and width, in the values of the file (Hounsfield units for CT)"""

DEPTHS = (8, 12, 16)
"""bits that grey values in files of 16 bits usually have"""

MOST_VALUES = 2**28
"""values of the largest image or volume that is read"""


def window(values: np.ndarray, centre: float, width: float) -> np.ndarray:
    """0 at centre − width / 2 and below, 255 at centre + width / 2 and above, straight between; rounded."""
    share = (values - (centre - width / 2)) / width
    result: np.ndarray = np.rint(255 * share.clip(0, 1)).astype(np.uint8)
    return result


def windowed(values: np.ndarray, windows: Sequence[Window], channels: int) -> Image.Image:
    """A channel for each window; one channel, or one window, is the first."""
    if channels == 1 or len(windows) == 1:
        return Image.fromarray(window(values, *windows[0]))
    return Image.fromarray(np.stack([window(values, *limits) for limits in windows], -1))


def span(values: np.ndarray) -> Window:
    """The window that shows all values."""
    low, high = float(values.min()), float(values.max())
    return (low + high) / 2, (high - low) or 1.0


def eight_bits(values: np.ndarray, bits: int | None) -> np.ndarray:
    """The upper 8 of `bits`; where nobody says how many, the fewest of 8, 12 and 16 that hold the largest
    value."""
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= 2 ** DEPTHS[-1]:
        raise ValueError(
            f"its pixels go from {low} to {high}; say with data.window which of them are black and white"
        )
    if bits is None:
        bits = next(depth for depth in DEPTHS if high < 2**depth)
    return (values.clip(0, 2**bits - 1) >> (bits - 8)).astype(np.uint8)

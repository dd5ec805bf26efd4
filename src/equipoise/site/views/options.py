"""How strongly views change an image, and the mean and standard deviation that images are normalised with."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from equipoise.errors import ConfigError, DataError
from equipoise.options import Options

Channels = tuple[float, ...]

NORMS: dict[str, tuple[Channels, Channels]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and standard deviation per channel, of values between 0 and 1."""


class ViewOptions(Options):
    """How strongly views change an image; each strength has a value that switches it off. A paper's views
    have their own."""

    normalise: Literal["imagenet", "half", "data"] | tuple[Channels, Channels] = "imagenet"
    """mean and standard deviation per channel: a known pair, measured on the training images, or `[[mean],
    [std]]`; the weights of EfficientNet-Lite0 were trained with `"half"`, the others with `"imagenet"`"""
    horizontal: bool = True
    """flip left and right (every random view)"""
    vertical: bool = True
    """flip top and bottom (`flip`, `weak`, `rand`); switch it off where up and down matter, as in chest
    images"""
    rotation: float = Field(default=10.0, ge=0, le=180)
    """`weak`: largest angle in degrees; 0 is off"""
    shift: float = Field(default=0.0, ge=0, lt=1)
    """`weak`: largest shift along each side, as a share of it; 0 is off"""
    crop: float = Field(default=0.8, gt=0, le=1)
    """`weak`: smallest share of the image's area that a crop keeps; 1 is off"""
    strong_crop: float = Field(default=0.2, gt=0, le=1)
    """`rand` and `sim`: the same; the papers use 0.08 on images of 224 pixels; 1 is off"""
    blur: float = Field(default=5.0, ge=0)
    """`weak`: largest Gaussian sigma on an image of 224 pixels, scaled with the image's size; 0 is off"""
    operations: int = Field(default=2, ge=0)
    """`rand`: operations per image; 0 is off"""
    magnitude: float = Field(default=10.0, ge=0, le=30)
    """`rand`: strength of the operations, out of 30"""
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """`sim`: largest relative change of brightness, contrast and saturation, and largest turn of hue; 0 is
    off"""
    jitter_share: float = Field(default=0.8, ge=0, le=1)
    """`sim`: share of images with colour jitter"""
    grey_share: float = Field(default=0.2, ge=0, le=1)
    """`sim`: share of images turned grey"""
    blur_share: float = Field(default=0.5, ge=0, le=1)
    """`sim`: share of images blurred, with a sigma up to 2/5 of `blur`"""

    @model_validator(mode="after")
    def _within_range(self) -> ViewOptions:
        if not all(0 <= value <= 1 for value in self.jitter[:3]) or not 0 <= self.jitter[3] <= 0.5:
            raise ConfigError(
                f"augment: jitter = {self.jitter} must be three values in 0..1 and a hue in 0..0.5"
            )
        if not isinstance(self.normalise, str):
            mean, std = self.normalise
            if not mean or len(mean) != len(std) or min(std) <= 0:
                raise ConfigError(
                    "augment: normalise must be [[mean per channel], [positive std per channel]]"
                )
        return self


def channel_statistics(images: np.ndarray, index: np.ndarray, chunk: int = 256) -> tuple[Channels, Channels]:
    """Mean and standard deviation per channel, on a scale of 0 to 1, of the rows `index` of uint8 [N, H, W,
    C].

    Counts the 256 values chunk by chunk: exact, and never more than a chunk in memory. A constant channel
    gets the standard deviation of one grey level, so that it can be divided by.
    """
    if len(index) == 0:
        raise DataError("channel statistics need at least one image, and the training split is empty")
    index = np.sort(index)
    counts = np.zeros((images.shape[3], 256), dtype=np.int64)
    for start in range(0, len(index), chunk):
        part = images[index[start : start + chunk]]
        for channel, row in enumerate(counts):
            row += np.bincount(part[..., channel].ravel(), minlength=256)
    level = np.arange(256, dtype=np.float64) / 255
    share = counts / counts.sum(axis=1, keepdims=True)
    mean = share @ level
    spread = (share * (level - mean[:, None]) ** 2).sum(axis=1)
    return tuple(mean.tolist()), tuple(np.maximum(np.sqrt(spread), 1 / 255).tolist())


def statistics(
    options: ViewOptions, channels: int, measured: tuple[Channels, Channels] | None = None
) -> tuple[Channels, Channels]:
    """The mean and standard deviation the options ask for; `measured` is what "data" stands for."""
    if options.normalise == "data":
        if measured is None:
            raise ConfigError('augment: normalise = "data" needs statistics measured on the training images')
        mean, std = measured
    elif isinstance(options.normalise, str):
        mean, std = NORMS[options.normalise]
        if channels == 1:
            mean, std = (sum(mean) / 3,), (sum(std) / 3,)
    else:
        mean, std = options.normalise
    if len(mean) != channels:
        raise ConfigError(f"augment: normalise has {len(mean)} channels and the images have {channels}")
    return mean, std

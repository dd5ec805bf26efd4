"""`kind = "phantom"`: generated dermoscopy images at six hospitals, for tests and examples without real data.

Classes, hospitals and their label skew are those of Fed-ISIC2019, scaled down. Every image is drawn from
traits (size, asymmetry, border, colours, network, dots, vessels, …). A class is a distribution over traits,
and the distributions overlap as the diseases do: some lesions look like another disease. A hospital has its
own cameras, light and patients. Nothing here is tuned for or against a method.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from equipoise.data.cache import STEP, decoded
from equipoise.data.draw import CAMERAS, TONES, draw
from equipoise.data.options import DataOptions, Progress
from equipoise.data.samples import Samples, fingerprint

VERSION = 1
"""Part of the cache key: raised when the same options give other images."""

BATCH = STEP
"""Images drawn at once: few enough for the processor's cache, and a divisor of every chunk of the image
cache."""

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
SITES = ("bcn", "vidir_molemax", "vidir_modern", "rosendahl", "msk4", "vienna_dias")

# Images per site (rows) and class (columns) in the published train/test split of Fed-ISIC2019.
TRAIN = np.array([
    [2279, 3363, 2245, 606, 923, 97, 87, 330],
    [20, 2977, 2, 0, 96, 23, 45, 0],
    [533, 1470, 174, 20, 379, 40, 64, 11],
    [276, 649, 223, 86, 406, 20, 3, 144],
    [166, 349, 0, 0, 140, 0, 0, 0],
    [58, 276, 5, 0, 6, 4, 2, 0],
])  # fmt: skip
TEST = np.array([
    [578, 843, 564, 131, 215, 27, 24, 101],
    [4, 743, 0, 0, 28, 7, 9, 0],
    [147, 362, 37, 1, 96, 11, 18, 0],
    [66, 154, 73, 23, 84, 10, 0, 42],
    [49, 66, 0, 0, 49, 0, 0, 0],
    [9, 74, 0, 0, 4, 0, 1, 0],
])  # fmt: skip

TRAITS = (
    "radius", "asymmetry", "border", "soft", "dark", "red", "yellow", "colours",
    "network", "dots", "streaks", "veil", "vessels", "scales", "lacunae", "patch", "cysts",
)  # fmt: skip

# Mean of each trait (columns as in TRAITS) for each class; all lie in [0, 1].
MEANS = np.array([
    [.60, .58, .55, .40, .66, .16, .10, .66, .38, .40, .38, .36, .14, .05, .00, .08, .05],
    [.45, .28, .28, .40, .50, .12, .15, .28, .52, .36, .10, .05, .05, .02, .00, .05, .06],
    [.45, .40, .36, .50, .26, .58, .10, .36, .06, .16, .04, .18, .58, .16, .06, .10, .05],
    [.45, .42, .40, .68, .24, .56, .30, .26, .18, .14, .00, .00, .32, .46, .00, .05, .05],
    [.50, .36, .36, .18, .46, .12, .52, .36, .22, .38, .05, .05, .06, .24, .00, .05, .50],
    [.36, .22, .22, .60, .38, .30, .16, .22, .42, .10, .00, .00, .10, .05, .00, .60, .00],
    [.36, .26, .26, .26, .36, .80, .00, .26, .00, .05, .00, .15, .10, .00, .70, .00, .00],
    [.50, .46, .45, .50, .28, .58, .24, .36, .03, .10, .00, .04, .44, .58, .00, .14, .00],
])  # fmt: skip
SPREAD = 0.20
"""Standard deviation of every trait within a class."""

# The disease each class is most often mistaken for, and how often an image of it looks like that one.
LOOK_ALIKE = np.array([CLASSES.index(name) for name in ("NV", "MEL", "SCC", "SCC", "MEL", "NV", "BCC", "AK")])
ATYPICAL = 0.12

# The findings of the multi-label task: the trait that shows each, and the share of images that have it.
FINDINGS: dict[str, tuple[str, float]] = {
    "asymmetry": ("asymmetry", 0.35),
    "irregular_border": ("border", 0.28),
    "pigment_network": ("network", 0.20),
    "dots": ("dots", 0.14),
    "streaks": ("streaks", 0.10),
    "blue_white_veil": ("veil", 0.06),
    "vessels": ("vessels", 0.04),
    "scales": ("scales", 0.02),
}


class PhantomData(DataOptions):
    """Images drawn from a seed; train and test are given, validation is cut from train."""

    kind: Literal["phantom"] = "phantom"
    image_size: int = Field(default=32, ge=8, le=2048)
    """Side of the square images, in pixels."""
    seed: int = 0
    """Another seed, other images; the counts stay."""
    scale: float = Field(default=0.05, gt=0, le=4)
    """Size relative to Fed-ISIC2019 (18,597 train and 4,650 test images)."""
    task: Literal["single", "multi"] = "single"
    """single: one of eight diseases; multi: any of eight visible findings."""

    @property
    def multi(self) -> bool:
        return self.task == "multi"

    @property
    def declared(self) -> bool:
        return True

    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """Draw the images into the cache; `base`, `resize` and `bad_rows` have nothing to act on."""
        # Here, because it brings torch, which the other readers do without.
        from equipoise.seeds import numpy_generator

        rng = numpy_generator(self.seed, "phantom", self.task, "rows")
        site, disease, split = rows(self.scale, rng)
        tone = np.array([rng.choice(len(TONES), p=CAMERAS[name].tones) for name in np.array(SITES)[site]])
        classes: tuple[str, ...] = CLASSES if self.task == "single" else tuple(FINDINGS)
        labels = disease.astype(np.int64) if self.task == "single" else findings(site, rng)
        traits = disease_traits(labels, rng) if self.task == "single" else finding_traits(labels, rng)

        def make(start: int, stop: int) -> Sequence[np.ndarray]:
            made: list[np.ndarray] = []
            for first in range(start, stop, BATCH):
                part = slice(first, min(first + BATCH, stop))
                cameras = [CAMERAS[SITES[i]] for i in site[part]]
                named = {name: traits[part, i] for i, name in enumerate(TRAITS)}
                pixels = numpy_generator(self.seed, "phantom", self.task, "pixels", first)
                made.extend(draw(named, tone[part], cameras, self.image_size, self.channels, pixels))
            return made

        recipe = {"phantom": VERSION, "seed": self.seed, "scale": self.scale, "task": self.task}
        shape = (self.image_size, self.image_size, self.channels)
        pixels = decoded(cache, recipe, len(site), shape, make, progress, "drawing images")
        ids = np.array([f"phantom-{i:06d}" for i in range(len(site))])
        columns = {"site": np.array(SITES)[site], "split": split, "tone": np.array(TONES)[tone]}
        return Samples(
            images=pixels.images,
            labels=labels,
            classes=classes,
            task=self.task,
            ids=ids,
            fingerprint=fingerprint(pixels.digest, labels, classes, {"id": ids, **columns}),
            site=columns["site"],
            split=columns["split"],
            attributes={"tone": columns["tone"]},
        )


def scaled(table: np.ndarray, scale: float) -> np.ndarray:
    """Counts times `scale`, rounded by largest remainder; a count that is not zero stays at least one."""
    exact = table * scale
    counts = np.maximum(np.floor(exact).astype(np.int64), (table > 0).astype(np.int64))
    left = round(float(exact.sum())) - int(counts.sum())
    remainder = (exact - counts).ravel()
    for cell in np.argsort(-remainder, kind="stable")[: max(left, 0)]:
        counts.ravel()[cell] += 1
    return counts


def rows(scale: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Site, class and split of every image, in random order."""
    site, disease, split = [], [], []
    for name, table in (("train", TRAIN), ("test", TEST)):
        counts = scaled(table, scale)
        where, which = np.indices(counts.shape)
        site.append(np.repeat(where.ravel(), counts.ravel()))
        disease.append(np.repeat(which.ravel(), counts.ravel()))
        split.append(np.full(counts.sum(), name, dtype="U10"))
    order = rng.permutation(sum(map(len, site)))
    return np.concatenate(site)[order], np.concatenate(disease)[order], np.concatenate(split)[order]


def disease_traits(disease: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Traits [N, len(TRAITS)] of lesions of the given classes."""
    looks = np.where(rng.random(len(disease)) < ATYPICAL, LOOK_ALIKE[disease], disease)
    return np.clip(MEANS[looks] + SPREAD * rng.standard_normal((len(disease), len(TRAITS))), 0, 1)


def findings(site: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Zeros and ones [N, 8] with the wanted prevalences; findings come together a little, and differ by
    site."""
    severity = rng.standard_normal((len(site), 1))
    by_site = rng.standard_normal((len(SITES), len(FINDINGS)))[site]
    score = rng.standard_normal((len(site), len(FINDINGS))) + 0.5 * severity + 0.4 * by_site
    rank = np.argsort(np.argsort(-score, axis=0), axis=0)
    positives = np.maximum(1, np.round([share * len(site) for _, share in FINDINGS.values()]))
    result: np.ndarray = (rank < positives).astype(np.float32)
    return result


def finding_traits(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Traits of lesions that show the given findings and are otherwise like any."""
    traits = np.clip(0.4 + SPREAD * rng.standard_normal((len(labels), len(TRAITS))), 0, 1)
    for name in ("veil", "lacunae", "patch", "cysts"):
        traits[:, TRAITS.index(name)] *= 0.3
    present = 0.70 + 0.20 * rng.standard_normal(labels.shape)
    absent = 0.10 + 0.14 * rng.standard_normal(labels.shape)
    for i, (name, _) in enumerate(FINDINGS.values()):
        values = np.where(labels[:, i] == 1, present[:, i], absent[:, i])
        traits[:, TRAITS.index(name)] = np.clip(values, 0, 1)
    return traits

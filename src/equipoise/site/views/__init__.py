"""Augmented views of a whole batch as tensor code: uint8 [N, C, H, W] in, normalised float32 of the same size
out.

Every random number comes from the CPU generator passed in, so a view gives the same bits on every run; every
image of a batch has its own parameters. All geometry of a view (crop, flips, rotation, shear, shift) becomes
one affine map per image and one resampling; borders are filled by reflection, which leaves no black corners
for a network to learn from.

Three differences from the per-image pipelines of the papers: a crop whose sides would leave the image is cut
to it, not drawn again; in `rand` geometry comes before colour; in `sim` one order of the colour changes is
drawn per batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equipoise.errors import ConfigError
from equipoise.names import unknown
from equipoise.site.views.base import View
from equipoise.site.views.kinds import Eval, Flip, Rand, Sim, Weak
from equipoise.site.views.options import NORMS, Channels, ViewOptions, channel_statistics, statistics
from equipoise.site.views.own import Maker, own_view, try_view
from equipoise.site.views.papers import (
    Fca,
    FedIicFirst,
    FedIicSecond,
    FedMas,
    FedMlp,
    FedMlpStrong,
    FedSdcBlood,
    FedSdcSkin,
)

VIEWS: dict[str, type[View]] = {
    "eval": Eval,
    "flip": Flip,
    "weak": Weak,
    "rand": Rand,
    "sim": Sim,
    "fca": Fca,
    "fediic-1": FedIicFirst,
    "fediic-2": FedIicSecond,
    "fedmlp": FedMlp,
    "fedmlp-strong": FedMlpStrong,
    "fedmas": FedMas,
    "fedsdc-skin": FedSdcSkin,
    "fedsdc-blood": FedSdcBlood,
}
"""Every view by name."""


def make_view(
    name: str,
    options: ViewOptions,
    mean: Sequence[float],
    std: Sequence[float],
    own: Mapping[str, Maker] | None = None,
) -> View:
    """A view by name; `mean` and `std` per channel come from `statistics`, `own` are views of one's own."""
    kinds: dict[str, Maker] = {**VIEWS, **(own or {})}
    if name not in kinds:
        raise ConfigError(unknown("view", name, kinds))
    return kinds[name](options, mean, std)


__all__ = [
    "NORMS",
    "VIEWS",
    "Channels",
    "Eval",
    "Maker",
    "View",
    "ViewOptions",
    "channel_statistics",
    "make_view",
    "own_view",
    "statistics",
    "try_view",
]

"""The views named after a paper: its augmentation with the paper's own strengths, at which they stay.

The options do not reach them, but for `normalise`. Geometry comes first, and blur and shift are those of an
image of 224 pixels, scaled.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from equipoise.site.views.base import View
from equipoise.site.views.geometry import chance, resample, slant_map, turn_map, uniform, zoom_map
from equipoise.site.views.kinds import Rand, Sim, Weak
from equipoise.site.views.options import ViewOptions


class Fca(Weak):
    """FCA, and Fed-MAS on Fed-ISIC2019: flips, a rotation of up to 10°, and always a blur, 5 pixels wide and
    9 high."""

    fixed = ViewOptions(crop=1, rotation=10, blur=5)
    kernel = (4, 2)


class FedIicFirst(Rand):
    """FedIIC's first view: a strong crop, a flip, colour jitter, then RandAugment at full strength on half of
    the turns.

    The strength of an operation is 10 ± 0.5 out of 10, drawn per batch. Colours go either way, where the
    released code only raises them; `solarise` at full strength inverts, which is an operation of its own
    there.
    """

    fixed = ViewOptions(
        vertical=False, strong_crop=0.08, operations=2, jitter=(0.4, 0.4, 0.4, 0), jitter_share=1
    )

    def drawn(self, count: int, generator: Generator) -> Tensor:
        chosen = super().drawn(count, generator)
        return chosen * chance(0.5, chosen.numel(), generator).view(chosen.shape)  # 0 is the identity

    def parts(self, generator: Generator) -> list[float]:
        return (1 + 0.05 * torch.randn(self.options.operations, generator=generator)).clamp_(0, 1).tolist()

    def tinted(self, x: Tensor, generator: Generator) -> Tensor:
        return self.coloured(x, generator)


class FedIicSecond(Sim):
    """FedIIC's second view: a strong crop, a flip, colour jitter on four images of five, one of five grey."""

    fixed = ViewOptions(
        strong_crop=0.08, jitter=(0.4, 0.4, 0.4, 0.1), jitter_share=0.8, grey_share=0.2, blur_share=0
    )


class FedMlp(Weak):
    """FedMLP, and both views of FedIIC on brain scans: a rotation of up to 10°, a shift of up to 2 %, a flip
    left and right."""

    fixed = ViewOptions(crop=1, vertical=False, rotation=10, shift=0.02, blur=0)


class FedMlpStrong(Rand):
    """The strong view FedMLP gives FedFixMatch: that of FedMLP, then two operations of RandAugment."""

    fixed = ViewOptions(strong_crop=1, vertical=False, rotation=10, shift=0.02, operations=2, magnitude=10)

    def placed(self, x: Tensor, smallest: float, generator: Generator, vertical: bool = True) -> list[Tensor]:
        return [*super().placed(x, smallest, generator, vertical), *self.turned(x, generator)]


class FedMas(View):
    """Fed-MAS on skin tones: a zoom of 0.95 to 1.2, a shift of up to 5 % or a rotation of up to 45°; then
    colour jitter and flips."""

    fixed = ViewOptions(jitter=(0.25, 0.25, 0.25, 0.01), jitter_share=1)

    def change(self, x: Tensor, generator: Generator) -> Tensor:
        count, _, height, width = x.shape
        which = torch.randint(3, (count,), generator=generator)
        zoom = torch.where(which == 0, uniform(0.95, 1.2, count, generator), 1.0)
        along, down = ((which == 1) * uniform(-0.05, 0.05, count, generator) for _ in range(2))
        degrees = (which == 2) * uniform(-45, 45, count, generator)
        straight = torch.zeros(count)
        moved = [
            zoom_map(zoom),
            slant_map(straight, straight, along, down, height, width),
            turn_map(degrees, height, width),
        ]
        return self.coloured(resample(x, [*moved, *self.placed(x, 1.0, generator)]), generator)


class FedSdcSkin(Weak):
    """FedSDC on HAM10000: flips, a rotation of up to 20°, jitter of brightness, contrast and hue."""

    fixed = ViewOptions(crop=1, rotation=20, blur=0, jitter=(0.1, 0.1, 0, 0.1), jitter_share=1, grey_share=0)

    def change(self, x: Tensor, generator: Generator) -> Tensor:
        return self.greyed(self.coloured(super().change(x, generator), generator), generator)


class FedSdcBlood(FedSdcSkin):
    """FedSDC on blood cells: a mild crop, a flip left and right, any rotation, colour jitter, every other
    image grey."""

    fixed = ViewOptions(
        crop=0.8,
        vertical=False,
        rotation=180,
        blur=0,
        jitter=(0.2, 0.2, 0.2, 0.2),
        jitter_share=1,
        grey_share=0.5,
    )

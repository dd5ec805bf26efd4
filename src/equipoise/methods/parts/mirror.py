"""Mirror images: what a network says of an image does not depend on which way round it lies."""

from __future__ import annotations

from torch import Tensor

from equipoise.nets import Net

AXES = ((), (3,), (2,), (2, 3))
"""as it is, left and right, top and bottom exchanged, both"""


def mirrored(net: Net, x: Tensor) -> Tensor:
    """The mean of the features [N, width] of images [N, C, H, W] and their three mirror images. A network
    with frozen stages, whose outputs may be all that was kept of an image, sees it as it is alone."""
    if hasattr(net.body, "halfway"):
        return net.features(x)
    total = net.features(x)
    for axes in AXES[1:]:
        total = total + net.features(x.flip(axes))
    return total / len(AXES)

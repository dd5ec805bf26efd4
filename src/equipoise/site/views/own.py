"""Views of one's own, named in `train.views`: a function on batches, or a transform of single images.

Images arrive as float32 between 0 and 1, before normalisation, which follows as for every view. Around the
code torch's, numpy's and Python's global generators are seeded from the view's own generator and put back
afterwards, so that it may draw from any of them. Packages are recognised by the names of their modules; none
is imported here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from equipoise.errors import ConfigError, DataError
from equipoise.seeds import generator as new_generator
from equipoise.seeds import isolated, seed_all
from equipoise.signatures import parameters
from equipoise.site.views.base import View
from equipoise.site.views.options import ViewOptions

TRIED, PIXELS = 16, 2**22
"""images that a view is tried on before a run begins, fewer where they would have more pixels than this"""

Change = Callable[[Tensor, Generator], Tensor]
"""float [N, C, H, W] between 0 and 1 to the same, of any height and width"""
Maker = Callable[[ViewOptions, Sequence[float], Sequence[float]], View]
"""a class of views, or what stands for one"""


class Own(View):
    """What somebody's code shows of the images, normalised."""

    def __init__(
        self, name: str, code: Change, options: ViewOptions, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__(options, mean, std)
        self.name, self.code = name, code

    @torch.no_grad()
    def change(self, x: Tensor, generator: Generator) -> Tensor:
        if not len(x):
            return x
        shown = self.code(x.contiguous(), generator)
        if not isinstance(shown, Tensor) or shown.ndim != 4 or shown.shape[:2] != x.shape[:2]:
            count, channels = x.shape[:2]
            raise DataError(
                f"train.views: '{self.name}' must give a tensor [{count}, {channels}, height, width] for "
                f"images {list(x.shape)}, and gave {_described(shown)}"
            )
        # A copy: the code may have given what it keeps, and images are normalised in place.
        return _scaled(shown, self.name).clone(memory_format=torch.channels_last)


def own_view(name: str, code: Any) -> Maker:
    """The view that a name of a config leads to: a class of views, a function on batches, or a transform."""
    if isinstance(code, type) and issubclass(code, View):
        return code
    if isinstance(code, type) or (inspect.isfunction(code) and not parameters(code)):
        try:
            code = code()
        except Exception as error:
            raise ConfigError(
                f"train.views: '{name}' cannot be made without arguments ({type(error).__name__}: {error}): "
                "make the transform in the file and name that"
            ) from error
    if not callable(code):
        raise ConfigError(f"train.views: '{name}' is neither a function nor a transform of images")
    if "generator" in (parameters(code) or ()):
        return partial(Own, name, _on_batches(code))
    if "kornia" in _packages(code):
        return partial(Own, name, _on_batches(lambda x, generator: code(x)))
    return partial(Own, name, _on_images(code, name))


def try_view(name: str, maker: Maker, channels: int, size: int) -> None:
    """Refuse a view that fails on generated images, or does not give the same twice for the same seed."""
    view = maker(ViewOptions(), (0.0,) * channels, (1.0,) * channels)
    shape = (max(2, min(TRIED, PIXELS // size**2)), size, size, channels)
    x = torch.randint(256, shape, dtype=torch.uint8, generator=new_generator(0, "trial")).permute(0, 3, 1, 2)
    try:
        first, second = (view(x, new_generator(1, "trial")) for _ in range(2))
    except DataError as error:
        raise ConfigError(str(error)) from None
    except Exception as error:
        raise ConfigError(
            f"train.views: '{name}' fails on images {list(x.shape)}: {type(error).__name__}: {error}"
        ) from error
    if not first.isfinite().all():
        raise ConfigError(f"train.views: '{name}' gives values that are not finite")
    if not torch.equal(first, second):
        raise ConfigError(
            f"train.views: '{name}' gives different images for the same seed, so no run could be repeated: "
            "let it keep nothing between calls and draw from the generator it is given, or name the "
            "transform itself"
        )


# What is done to a batch ------------------------------------------------------------------------------------


def _on_batches(function: Change) -> Change:
    """A function that takes whole batches."""

    def change(x: Tensor, generator: Generator) -> Tensor:
        with isolated(_seeds(1, generator)[0], x.device):
            return function(x, generator)

    return change


def _on_images(transform: Callable[..., Any], name: str) -> Change:
    """A transform that takes one image at a time; each has a seed of its own."""
    show = _with_arrays if "albumentations" in _packages(transform) else _with_tensors
    # MONAI's transforms and albumentations' draw from generators of their own, which these set.
    own_seed = getattr(transform, "set_random_state", getattr(transform, "set_random_seed", None))

    def change(x: Tensor, generator: Generator) -> Tensor:
        images = []
        with isolated(0, x.device):
            for image, seed in zip(x, _seeds(len(x), generator), strict=True):
                seed_all(seed, x.device)
                if own_seed is not None:
                    own_seed(seed)
                images.append(_scaled(show(transform, image), name))
        sizes = sorted({tuple(image.shape) for image in images})
        if len(sizes) > 1:
            raise DataError(
                f"train.views: '{name}' gives images of different sizes, such as {list(sizes[0])} and "
                f"{list(sizes[1])}: let it end with one size"
            )
        return torch.stack(images)

    return change


def _with_tensors(transform: Callable[..., Any], image: Tensor) -> Any:
    """As most packages call a transform: [C, H, W]; a batch of one is taken for its image."""
    shown = transform(image.clone())
    shown = torch.from_numpy(shown) if isinstance(shown, np.ndarray) else shown
    return shown[0] if isinstance(shown, Tensor) and shown.ndim == 4 and len(shown) == 1 else shown


def _with_arrays(transform: Callable[..., Any], image: Tensor) -> Any:
    """As albumentations calls its own: uint8 [H, W, C] as `image`, and so the answer."""
    array = image.mul(255).round().to("cpu", torch.uint8).permute(1, 2, 0).contiguous().numpy()
    shown = transform(image=array)["image"]
    if isinstance(shown, np.ndarray):
        wide = shown[:, :, None] if shown.ndim == 2 else shown
        shown = torch.from_numpy(np.ascontiguousarray(wide)).permute(2, 0, 1)
    return shown.to(image.device) if isinstance(shown, Tensor) else shown


def _scaled(shown: Any, name: str) -> Tensor:
    """Float32 of a result, plain, whatever subclass of tensor it is; whole numbers of 8 bits are scaled to
    0..1."""
    if not isinstance(shown, Tensor) or not (shown.dtype == torch.uint8 or shown.is_floating_point()):
        raise DataError(
            f"train.views: '{name}' must give tensors of floats between 0 and 1, or of uint8, and gave "
            f"{_described(shown)}"
        )
    plain = shown.detach().as_subclass(Tensor)
    return plain.to(torch.float32).div(255) if plain.dtype == torch.uint8 else plain.to(torch.float32)


def _seeds(count: int, generator: Generator) -> list[int]:
    return torch.randint(2**31, (count,), generator=generator).tolist()


def _described(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _packages(transform: Any) -> set[str]:
    """The packages that the classes of an object come from."""
    return {cls.__module__.partition(".")[0] for cls in type(transform).__mro__}

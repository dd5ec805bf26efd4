"""Views of one's own, functions on batches and other packages' transforms: the same bits for the same seed,
or refused.

torchvision and albumentations are stood in for by small packages that draw and answer as they do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.own_code import forgotten
from torch import Tensor

from equipoise.config import Config, resolve
from equipoise.errors import ConfigError, DataError
from equipoise.seeds import generator
from equipoise.site.views import View

VIEWS = '''
import random
import numpy as np
import torch
from torch import nn

from equipoise.site.views import View


def noisy(images, generator):
    """As the documentation has it: draws from the generator it is given."""
    assert images.dtype == torch.float32 and 0 <= images.min() and images.max() <= 1
    return (images + 0.1 * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def careless(images, generator):
    """Draws from every global generator there is."""
    return images * torch.rand(1) * np.random.rand() * random.random()


def smaller(images, generator):
    return images[:, :, 2:-2, 4:-4]


class Batches:
    def __call__(self, images, generator):
        return images.flip(3)


class Mine(View):
    """A class of views."""

    def change(self, x, generator):
        return 1 - x


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5))

    def forward(self, image):
        return image * self.factor * torch.rand(1)


def one(image):
    assert image.shape[0] == 3 and image.dtype == torch.float32
    return image * np.random.rand() * random.random() * torch.rand(1)


def whole_numbers(image):
    return (image * 255).round().to(torch.uint8)


def factory():
    return one


instance = Module()
scale = 0.5


class Needs:
    def __init__(self, size):
        self.size = size


class Counts:
    """Not the same twice."""

    def __init__(self):
        self.calls = 0

    def __call__(self, images, generator):
        self.calls += 1
        return images / self.calls


RNG = np.random.default_rng()


def unseeded(image):
    return image * RNG.random()


def broken(image):
    return image[:, 99]


def flat(images, generator):
    return images.flatten(1)


def nothing(image):
    return None


def ragged(image):
    return image[:, : int(torch.randint(4, 9, (1,)))]


def undefined(image):
    return image * float("nan")


KEPT = torch.full((16, 3, 16, 16), 0.5)


def kept(images, generator):
    return KEPT
'''

MONAI = """
from monai.transforms import Compose, RandFlip, RandGaussianNoise, RandRotate90, RandFlipd

strong = Compose([RandFlip(prob=0.5, spatial_axis=1), RandRotate90(prob=0.5), RandGaussianNoise(prob=0.9)])
lone = RandGaussianNoise(prob=1.0, std=0.2)
wrapped = lambda image: lone(image)
tables = RandFlipd(keys="image")
"""

KORNIA = """
import kornia.augmentation as K
from torch import nn

strong = K.ImageSequential(K.RandomHorizontalFlip(p=0.5), K.ColorJiggle(0.3, 0.3, 0.3, 0.1, p=0.8))
pair = K.AugmentationSequential(K.RandomRotation(20.0, p=0.9), data_keys=["input"])
inside = nn.Sequential(K.RandomVerticalFlip(p=0.5), K.RandomGaussianNoise(p=1.0))
"""

TORCHVISION = '''
"""As torchvision's transforms: a module on [..., C, H, W] that draws from torch's global generator."""
import torch
from torch import nn


class Image(torch.Tensor):
    """A subclass of tensor, as its own are."""


class RandomHorizontalFlip(nn.Module):
    def forward(self, *inputs):
        flipped = inputs[0].flip(-1) if torch.rand(1) < 0.5 else inputs[0]
        return (flipped * float(torch.empty(1).uniform_(0.9, 1.0))).as_subclass(Image)
'''

ALBUMENTATIONS = '''
"""As albumentations' transforms: called with image=, uint8 [H, W, C], answer in a dict, generators of their
own."""
import numpy as np


class BasicTransform:
    def __init__(self):
        self.random_generator = np.random.default_rng()

    def set_random_seed(self, seed):
        self.random_generator = np.random.default_rng(seed)


class RandomBrightness(BasicTransform):
    def __call__(self, *args, force_apply=False, **data):
        image = data["image"]
        assert image.dtype == np.uint8 and image.shape[2] in (1, 3) and not args
        bright = (image * self.random_generator.uniform(0.5, 1.0)).astype(np.uint8)
        return {**data, "image": bright[:, :, 0] if image.shape[2] == 1 else bright}
'''


STAND_INS = {"torchvision": TORCHVISION, "albumentations": ALBUMENTATIONS}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Code of views, some beside packages that stand in for others; afterwards these are unknown again."""
    for name, text in {"mine": VIEWS, "of_monai": MONAI, "of_kornia": KORNIA}.items():
        (tmp_path / f"{name}.py").write_text(text)
    for package, text in STAND_INS.items():
        (tmp_path / f"stand_in_{package}").mkdir()
        (tmp_path / f"stand_in_{package}" / package).mkdir()
        (tmp_path / f"stand_in_{package}" / package / "__init__.py").write_text(text)
        last = next(word for word in reversed(text.split("class ")) if word).partition("(")[0]
        own = f"from {package} import {last}\nstrong = {last}()\n"
        (tmp_path / f"stand_in_{package}" / "mine.py").write_text(own)
    with forgotten(tmp_path):
        yield tmp_path


def config(folder: Path, *views: str, channels: int = 3, **train: Any) -> Config:
    return resolve(
        {
            "data": {"kind": "phantom", "scale": 0.004, "image_size": 16, "channels": channels},
            "train": {"views": list(views), **train},
        },
        folder,
    )


def made(folder: Path, name: str, channels: int = 3) -> View:
    return config(folder, name, channels=channels).train.make_views((0.0,) * channels, (1.0,) * channels)[
        name
    ]


def images(count: int = 16, channels: int = 3) -> Tensor:
    shape = (count, 16, 16, channels)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator(3)).permute(0, 3, 1, 2)


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), repr(np.random.get_state(legacy=False)), random.getstate()


WORKING = [
    "mine.py:noisy",
    "mine.py:careless",
    "mine.py:smaller",
    "mine.py:Batches",
    "mine.py:Mine",
    "mine.py:Module",
    "mine.py:one",
    "mine.py:whole_numbers",
    "mine.py:factory",
    "mine.py:instance",
    "of_monai.py:strong",
    "of_monai.py:lone",
    "of_kornia.py:strong",
    "of_kornia.py:pair",
    "of_kornia.py:inside",
    "stand_in_torchvision/mine.py:strong",
    "stand_in_albumentations/mine.py:strong",
]
STILL = {"mine.py:smaller", "mine.py:Batches", "mine.py:Mine", "mine.py:whole_numbers"}
BATCHES = {"mine.py:noisy", "mine.py:careless", "of_kornia.py:strong", "of_kornia.py:pair"}
"""those that draw for a batch at once, as ours do"""


@pytest.mark.parametrize("name", WORKING)
def test_a_view_depends_on_its_generator_and_on_nothing_else(folder: Path, name: str) -> None:
    view, x = made(folder, name), images()
    before, kept = states(), x.clone()
    first = view(x, generator(5))
    assert states() == before
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    assert torch.equal(view(x, generator(5)), first)
    assert torch.equal(x, kept)
    assert type(first) is Tensor and first.dtype == torch.float32 and not first.requires_grad
    assert first.shape[:2] == (16, 3) and first.isfinite().all()
    assert torch.equal(view(x, generator(6)), first) == (name in STILL)


@pytest.mark.parametrize("name", sorted(set(WORKING) - BATCHES))
def test_an_image_is_shown_the_same_in_batches_of_any_size(folder: Path, name: str) -> None:
    view, x = made(folder, name), images(12)
    draw = generator(5)
    parts = torch.cat([view(part, draw) for part in x.split([5, 1, 6])])
    assert torch.equal(parts, view(x, generator(5)))


def test_images_of_a_batch_have_draws_of_their_own(folder: Path) -> None:
    same = images(1).expand(16, -1, -1, -1)
    for name in set(WORKING) - STILL - {"mine.py:careless"}:
        shown = made(folder, name)(same, generator(5))
        assert len(torch.unique(shown.flatten(1), dim=0)) > 3, name


def test_the_values_are_those_of_the_code_and_then_normalised(folder: Path) -> None:
    x = images(4)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    views = config(folder, "mine.py:Batches", "mine.py:whole_numbers").train.make_views(mean, std)
    for name, shown in (("mine.py:Batches", x.flip(3)), ("mine.py:whole_numbers", x)):
        wanted = (shown / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        torch.testing.assert_close(views[name](x, generator(0)), wanted)
    assert made(folder, "mine.py:smaller")(x, generator(0)).shape == (4, 3, 12, 8)


def test_monai_is_seeded_as_it_documents(folder: Path) -> None:
    from monai.transforms import RandGaussianNoise

    x = images(2)
    shown = made(folder, "of_monai.py:lone")(x, generator(5))
    for image, seed, found in zip(x, torch.randint(2**31, (2,), generator=generator(5)), shown, strict=True):
        wanted = RandGaussianNoise(prob=1.0, std=0.2).set_random_state(int(seed))(image / 255)
        torch.testing.assert_close(found, torch.as_tensor(wanted).as_subclass(Tensor))


def test_grey_images_and_empty_batches(folder: Path) -> None:
    for name in ("stand_in_albumentations/mine.py:strong", "stand_in_torchvision/mine.py:strong"):
        shown = made(folder, name, channels=1)(images(3, 1), generator(0))
        assert shown.shape == (3, 1, 16, 16) and shown.min() >= 0 and shown.max() <= 1
        assert made(folder, name)(images(0), generator(0)).shape == (0, 3, 16, 16)


def test_what_the_code_keeps_is_not_normalised_in_place(folder: Path) -> None:
    view = config(folder, "mine.py:kept").train.make_views((0.5,) * 3, (0.5,) * 3)["mine.py:kept"]
    assert (view(images(), generator(0)) == 0).all()
    assert (view(images(), generator(0)) == 0).all()


REFUSED: list[tuple[str, str]] = [
    ("mine.py:Counts", "gives different images for the same seed"),
    ("mine.py:unseeded", "gives different images for the same seed"),
    ("of_monai.py:wrapped", "gives different images for the same seed.*name the transform itself"),
    ("of_monai.py:tables", r"fails on images \[16, 3, 16, 16\]"),
    ("mine.py:broken", r"fails on images \[16, 3, 16, 16\]: IndexError"),
    ("mine.py:flat", r"must give a tensor \[16, 3, height, width\].*gave torch.float32 \[16, 768\]"),
    ("mine.py:nothing", "must give tensors of floats between 0 and 1, or of uint8, and gave a NoneType"),
    ("mine.py:ragged", "gives images of different sizes"),
    ("mine.py:undefined", "values that are not finite"),
    ("mine.py:Needs", "cannot be made without arguments"),
    ("mine.py:scale", "is neither a function nor a transform"),
    ("mine.py:nowhere", "'mine.py' has no 'nowhere'"),
    ("missing.py:strong", "there is no file"),
    ("waek", "did you mean 'weak'"),
]


@pytest.mark.parametrize(("name", "why"), REFUSED, ids=[name for name, _ in REFUSED])
def test_what_cannot_be_a_view_is_refused_before_the_run(folder: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^train\.views: .*{why}") as refused:
        config(folder, name)
    assert "\n" not in str(refused.value)


def test_a_shape_that_goes_wrong_later_is_one_sentence(folder: Path) -> None:
    view = made(folder, "mine.py:kept")
    with pytest.raises(DataError, match=r"'mine.py:kept' must give a tensor \[5, 3, height, width\]"):
        view(images(5), generator(0))


def test_the_config_keeps_the_name_and_a_copy_keeps_the_view(folder: Path) -> None:
    one = config(folder, "mine.py:noisy")
    again = resolve(one.table())
    assert one.table()["train"]["views"] == ["mine.py:noisy"]
    assert again.digest == one.digest and set(one.marks) == {"mine.py:noisy"}
    assert "mine.py:noisy" in one.train.model_copy(update={"seed": 3}).make_views((0.0,) * 3, (1.0,) * 3)


def test_no_view_is_found_without_a_config(tiny: Callable[..., Config]) -> None:
    from equipoise.site import TrainOptions

    with pytest.raises(ConfigError, match="only a config may name"):
        TrainOptions(views=("mine.py:noisy",))

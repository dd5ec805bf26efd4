"""From a config to things that run: samples, holdings, and a host. The coordinator and every worker do the
same."""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from equipoise.config import Config
from equipoise.data import Progress, Samples, Task, load_samples
from equipoise.engine import Host
from equipoise.errors import ConfigError, MethodError, WeightsError
from equipoise.evaluate import shot_groups
from equipoise.evaluate.plausible import Held
from equipoise.losses import make_objective
from equipoise.methods import Method
from equipoise.nets import Cosine, Net, NetOptions, build
from equipoise.options import Options
from equipoise.partition import Holding, divide
from equipoise.seeds import derive
from equipoise.server import countable
from equipoise.site import SiteData, Store
from equipoise.site.views import Channels, channel_statistics, statistics

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""glibc's names for what `keep_memory` sets"""


def cache_folder() -> Path:
    """Where decoded images are kept: $EQUIPOISE_CACHE, or the user's cache folder."""
    given = os.environ.get("EQUIPOISE_CACHE")
    return (
        Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "equipoise"
    )


def keep_memory() -> None:
    """Ask the C library to keep large freed blocks for reuse instead of giving them back to the system after
    every batch.

    Otherwise each step's activations arrive as fresh pages that the kernel has to clear first. Only glibc
    knows these knobs; elsewhere nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for knob, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26)):
            libc.mallopt(knob, value)


@dataclass(frozen=True)
class Material:
    """The data of a run: what there is and who holds it."""

    samples: Samples
    holdings: tuple[Holding, ...]

    @property
    def sizes(self) -> dict[str, int]:
        return {holding.name: len(holding.train) for holding in self.holdings}

    def counts(self) -> torch.Tensor:
        """Training images per class over all sites (positives, for multi-label)."""
        index = np.concatenate([holding.train for holding in self.holdings])
        labels = torch.from_numpy(self.samples.labels[index])
        if self.samples.task == "single":
            return torch.bincount(labels, minlength=len(self.samples.classes))
        return labels.sum(0).to(torch.int64)

    def held(self) -> dict[str, dict[str, Held]]:
        """By site and split: how many images there are, in all and of each class."""
        return {
            holding.name: {
                split: self._held(getattr(holding, split)) for split in ("train", "validation", "test")
            }
            for holding in self.holdings
        }

    def _held(self, index: np.ndarray) -> Held:
        labels = self.samples.labels[index]
        single = self.samples.task == "single"
        counts = np.bincount(labels, minlength=len(self.samples.classes)) if single else labels.sum(0)
        return Held(len(index), tuple(int(n) for n in counts))


def material(config: Config, progress: Progress | None = None) -> Material:
    """Read the data and divide it among sites; refuse a method or objective that does not fit the task."""
    samples = load_samples(config.data, cache=cache_folder(), base=config.base, progress=progress)
    fits(config, samples.task)
    holdings = divide(samples, config.partition, config.data.split, config.train.seed)
    countable(len(holdings))
    return Material(samples, holdings)


def fits(config: Config, task: Task) -> None:
    """Refuse what cannot work for this task."""
    objective = config.method.base_loss(config.objective)
    if task not in config.method.tasks:
        raise MethodError(
            f"method '{config.method_name}' is for {' and '.join(config.method.tasks)}-label data and this "
            f"is {task}-label; "
            "see `equipoise methods` for those that fit"
        )
    if task not in objective.tasks:
        names = "+".join(part.name for part in objective.parts)
        raise ConfigError(
            f"train.objective '{names}' is for {objective.tasks[0]}-label data and this is {task}-label"
        )
    make_objective(objective, counts=torch.ones(2), total=2, task=task)
    if objective.scale is not None and not gives_cosines(config):
        raise ConfigError(
            f"train.objective 'ldam' needs a head that gives cosines, and method '{config.method_name}' "
            f"brings "
            "another: choose another objective"
        )


def gives_cosines(config: Config) -> bool:
    """Whether the classifier of a run, the method's own or the one that the config names, is a cosine
    head."""
    with torch.random.fork_rng(devices=[]):
        own = config.method.make_head(8, 2)
    return config.net.head == "cosine" if own is None else isinstance(own, Cosine)


def device_of(config: Config) -> torch.device:
    """The device asked for; `auto` takes CUDA, then MPS, then the CPU."""
    name = config.engine.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f'engine.device \'{name}\' is not there: use "auto" or "cpu"') from error
    return device


def located(options: NetOptions, config: Config) -> NetOptions:
    """The options with the path of their weights; where others name them, only files that the config lists
    are opened."""
    if options.weights is None or config.weights is None:
        return options
    path = config.weights.get((options.sha256 or "").lower(), config.weights.get(options.weights))
    if path is None:
        raise WeightsError(
            f"this site has no weights '{options.weights}': say in site.toml, section [weights], which "
            f"file they are"
        )
    return options.model_copy(update={"weights": path})


def frozen_net(
    options: NetOptions, name: str, config: Config, channels: int, image_size: int, device: torch.device
) -> torch.nn.Module:
    """The body of a network that never trains: in eval mode from the start, without gradients."""
    seed = derive(config.train.seed, "frozen", name)
    net = build(
        located(options, config),
        classes=1,
        channels=channels,
        image_size=image_size,
        seed=seed,
        base=config.base,
    )
    return net.body.to(device).eval().requires_grad_(False)


def make_net(
    options: NetOptions,
    method: Method,
    classes: int,
    channels: int,
    image_size: int,
    seed: int,
    base: Path = Path(),
) -> Net:
    """The network a method needs: its heads and projector on the body that the options name."""
    return build(
        options,
        classes=classes,
        heads=method.heads,
        projector=method.projection(),
        make_head=method.make_head,
        channels=channels,
        image_size=image_size,
        seed=seed,
        base=base,
    )


def normalisation(config: Config, stuff: Material) -> tuple[Channels, Channels]:
    """Mean and standard deviation per channel that images are normalised with."""
    images, measured = stuff.samples.images, None
    if config.train.augment.normalise == "data":
        measured = channel_statistics(images, np.concatenate([h.train for h in stuff.holdings]))
    return statistics(config.train.augment, images.shape[3], measured)


SIGHT = "model.json"
"""the file of a run folder that holds its `Sight`"""


class Sight(Options):
    """What the network of a run sees and answers: all that using it needs to know of the data."""

    task: Task
    classes: tuple[str, ...]
    image_size: int
    channels: int
    mean: Channels
    std: Channels
    shots: tuple[int, ...]
    """per class: 0 head, 1 medium, 2 tail, by training images"""
    fingerprint: str
    """of the data"""


def short(values: Channels) -> Channels:
    """The shortest numbers that are the same in single precision: 0.485, not 0.48500001430511475."""
    return tuple(float(str(np.float32(value))) for value in values)


def make_sight(config: Config, stuff: Material, measured: tuple[Channels, Channels] | None = None) -> Sight:
    """The sight of a run; `measured` is its normalisation, where that is known already."""
    samples, evaluate = stuff.samples, config.evaluate
    mean, std = normalisation(config, stuff) if measured is None else measured
    shots = shot_groups(stuff.counts(), evaluate.shots, head=evaluate.head_over, tail=evaluate.tail_under)
    return Sight(
        task=samples.task,
        classes=samples.classes,
        image_size=samples.images.shape[1],
        channels=samples.images.shape[3],
        mean=short(mean),
        std=short(std),
        shots=tuple(shots.tolist()),
        fingerprint=samples.fingerprint,
    )


def make_host(config: Config, stuff: Material, private: Path) -> Host:
    """A host that can play every site of the run; `private` is where sites keep their own state."""
    device, samples = device_of(config), stuff.samples
    _, height, _, channels = samples.images.shape
    seed = derive(config.train.seed, "net")
    net = make_net(
        located(config.net, config), config.method, len(samples.classes), channels, height, seed, config.base
    ).to(device)
    mean, std = normalisation(config, stuff)
    return Host(
        method=config.method,
        net=net,
        sites={holding.name: SiteData(samples, holding, device) for holding in stuff.holdings},
        options=config.train,
        objective=config.method.base_loss(config.objective),
        views=config.train.make_views(mean, std),
        store=Store(private),
        device=device,
        frozen={
            name: frozen_net(options, name, config, channels, height, device)
            for name, options in config.method.frozen().items()
        },
        local_batch_norm=config.net.batch_norm == "local" or config.method.local_batch_norm,
    )

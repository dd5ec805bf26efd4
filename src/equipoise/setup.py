"""From a config to things that run: samples, holdings, a blueprint and a host."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from equipoise.blueprint import Blueprint, Built, Place, frozen_tensors
from equipoise.blueprint import draw as draw_blueprint
from equipoise.config import Config, resolve
from equipoise.data import Progress, Samples, Task, load_samples
from equipoise.engine import Host
from equipoise.errors import ConfigError, MethodError, StorageError
from equipoise.evaluate import shot_groups
from equipoise.initial import chosen
from equipoise.losses import make_objective
from equipoise.memory import keep_memory
from equipoise.nets import Cosine, load
from equipoise.partition import ByName, Facts, Holding, Holdings, count, divide
from equipoise.server import countable
from equipoise.site import Pooled, SiteData, Store
from equipoise.site.views import Channels, channel_statistics, statistics
from equipoise.tree import flat_digest
from equipoise.trust import only
from equipoise.version import __version__

SITES_KEPT = 4096
"""sites whose labels a host keeps in memory at most"""


def cache_folder() -> Path:
    """Where decoded images are kept: $EQUIPOISE_CACHE, or the user's cache folder."""
    chosen = os.environ.get("EQUIPOISE_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(chosen) if chosen else home / "equipoise"


@dataclass(frozen=True)
class Material:
    """The data of a run: what there is and who holds it."""

    samples: Samples
    holdings: Sequence[Holding]

    @cached_property
    def facts(self) -> Facts:
        """What a run must know of it."""
        samples, census = self.samples, count(self.samples, self.holdings)
        height, width, channels = samples.images.shape[1:]
        return Facts(
            task=samples.task,
            classes=samples.classes,
            shape=(height, width, channels),
            fingerprint=samples.fingerprint,
            census=census,
            partial=census.partial,
        )

    def measured(self) -> tuple[Channels, Channels]:
        """Mean and standard deviation of the training images, per channel."""
        return channel_statistics(self.samples.images, np.concatenate([h.train for h in self.holdings]))

    def sites(self, device: torch.device, pooled: bool = False) -> Mapping[str, SiteData]:
        """The data of every site, as a host takes it, made when a site is first asked; `pooled`: each may
        train on the rows of all."""
        rows = None
        if pooled:
            every = (SiteData(self.samples, one, device) for one in self.holdings)
            rows = Pooled([one.splits["train"] for one in every])

        def made(place: int) -> SiteData:
            site = SiteData(self.samples, self.holdings[place], device)
            if rows is not None:
                site.train_on(rows)
            return site

        return ByName(Holdings.of(self.holdings).places, made, keep=SITES_KEPT)


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
            f"is {task}-label; see `equipoise methods` for those that fit"
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
            "brings another: choose another objective"
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


LOOK = {"resize", "crop_keep", "colour_constancy", "brightness", "window", "bits"}
"""keys of [data] that say how an image file is read"""


def place_of(config: Config) -> Place:
    """Where this process computes and finds files of weights."""
    return Place(device_of(config), config.base, config.weights, cache_folder() / "kept")


def draw(config: Config, facts: Facts, dataset: Material | None = None) -> tuple[Blueprint, Built]:
    """The blueprint of a run and its networks; `dataset` is its data, where that is at hand."""
    evaluate, augment = config.evaluate, config.train.augment
    measured = dataset.measured() if dataset and augment.normalise == "data" else None
    bounds = {"head": evaluate.head_over, "tail": evaluate.tail_under}
    shots = shot_groups(facts.census.counts(), evaluate.shots, **bounds)
    place = place_of(config)
    blueprint, built = draw_blueprint(
        facts,
        net=config.net,
        method_name=config.method_name,
        method=config.method,
        train=config.train,
        objective=config.objective,
        privacy=config.privacy,
        look=config.data.model_dump(include=LOOK) if facts.look is None else facts.look,
        normalisation=statistics(augment, facts.shape[2], measured),
        shots=tuple(shots.tolist()),
        config=config.digest,
        version=__version__,
        place=place,
    )
    load(built.net, chosen(built.net, blueprint, config.train, place.base))
    if blueprint.frozen:
        digest = flat_digest(frozen_tensors(built.net))
        blueprint = blueprint.model_copy(update={"frozen_sha256": digest})
    return blueprint, built


def make_host(config: Config, dataset: Material, private: Path, shared: bool = False) -> Host:
    """A host that can play every site of the run; `private` is where sites keep their own state, which other
    machines may write to as well (`shared`)."""
    blueprint, built = draw(config, dataset.facts, dataset)
    place = place_of(config)
    store = Store(private, shared=shared)
    sites = dataset.sites(place.device, config.method.standard == "pooled")
    host = Host(blueprint, sites, store, place, built)
    host.clip = config.exchange.clip
    return host


def order(config: Config, blueprint: Blueprint, private: Path, noise: Mapping[str, float] = {}) -> bytes:
    """What another process needs to make the same host: see `host_of`; `noise` is of private training."""
    table = {
        "config": config.table(),
        "code": config.marks,
        "blueprint": blueprint.digest,
        "data": blueprint.data,
        "private": str(private),
        "noise": dict(noise),
    }
    return json.dumps(table).encode()


def host_of(ordered: bytes, shared: bool = False) -> Host:
    """The host of a run in another process than the run's own; refused where it would not be the same."""
    setup = json.loads(ordered)
    torch.set_num_threads(1)
    keep_memory()
    config = resolve(setup["config"], allow=only(setup["code"]))
    dataset = material(config)
    if dataset.samples.fingerprint != setup["data"]:
        raise StorageError(
            "the data changed while the run was starting: leave them as they are, then `equipoise resume`"
        )
    host = make_host(config, dataset, Path(setup["private"]), shared)
    if host.blueprint.digest != setup["blueprint"]:
        raise StorageError("a worker's blueprint is not the run's: install the same Equipoise everywhere")
    host.noise = setup["noise"]
    return host

"""Frozen stages computed once: the same run from a new cache, a used one and a damaged one; what is sent,
loaded and predicted with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.light import LIGHT

from equipoise import load
from equipoise.config import resolve
from equipoise.deploy.coordinator import same_frozen
from equipoise.engine import host as hosts
from equipoise.errors import SiteError, StorageError
from equipoise.evaluate.metrics import from_scores
from equipoise.methods import METHODS
from equipoise.nets import below
from equipoise.running import resume, run
from equipoise.setup import material
from equipoise.site import Cached
from equipoise.site.cached import look
from equipoise.site.views import ViewOptions, make_view
from equipoise.tree import flatten

TABLE: dict[str, Any] = {
    "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
    "partition": {"kind": "iid", "sites": 2},
    "net": {"name": "small-cnn", "freeze": "block2", "views_kept": 3},
    "train": {"rounds": 2, "batch_size": 8},
    "engine": {"device": "cpu"},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images went through the frozen stages at each time."""
    counts = list[int]()

    def counted(body: Any, x: torch.Tensor) -> torch.Tensor:
        counts.append(len(x))
        return below(body, x)

    monkeypatch.setattr(hosts, "below", counted)
    return counts


def test_once_per_image_and_variant(computed: list[int], own_cache: Path, tmp_path: Path) -> None:
    dataset = material(resolve(TABLE))
    first = run(TABLE, tmp_path / "first")
    train = sum(len(one.train) for one in dataset.holdings)
    rest = sum(len(one.validation) + len(one.test) for one in dataset.holdings)
    files = 2 * 3  # sites × splits; one black image for each, to learn the shape
    assert sum(computed) == 3 * train + rest + files
    computed.clear()
    again = run(TABLE, tmp_path / "again")
    assert again.state_hash == first.state_hash and set(computed) == {1}
    damaged = max((own_cache / "kept").glob("*.raw"), key=lambda path: path.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[5] ^= 64
    damaged.write_bytes(data)
    assert run(TABLE, tmp_path / "mended").state_hash == first.state_hash
    other = run({**TABLE, "train": {**TABLE["train"], "seed": 1}}, tmp_path / "other")
    assert other.state_hash != first.state_hash


def test_two_views_of_an_image_are_two_variants(own_cache: Path) -> None:
    data = material(resolve(TABLE)).sites(torch.device("cpu"))
    held = next(iter(data.values())).splits["train"]
    view = make_view("weak", ViewOptions(), (0.5,) * 3, (0.5,) * 3)
    kept = Cached("weak", view, lambda x: x.half(), count=3, seed=0, folder=own_cache, about={})
    position = torch.arange(len(held)).repeat(20)
    draws = [torch.Generator().manual_seed(i) for i in (1, 2)]
    one, two = look([kept, kept], held, position, draws)
    assert one.dtype == torch.float32 and one.shape == (len(position), 3, 16, 16)
    assert not any(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    first = {tuple(x.flatten().tolist()) for x, i in zip(one, position, strict=True) if i == 0}
    assert len(first) == 3  # all of its variants, and no other


def test_what_is_frozen_is_neither_sent_nor_lost(tmp_path: Path) -> None:
    free = run({**TABLE, "net": {"name": "small-cnn"}}, tmp_path / "free")
    held = run(TABLE, tmp_path / "held")
    assert not [name for name in held.server["model"] if "conv1" in name or "norm2" in name]
    assert held.history[0]["bytes_up"] < free.history[0]["bytes_up"]
    model = load(tmp_path / "held")
    data = material(resolve(TABLE))
    test = np.concatenate([holding.test for holding in data.holdings])
    with torch.no_grad():
        logits = model.logits(model.see(np.ascontiguousarray(data.samples.images[test])))
    found = from_scores(logits, torch.from_numpy(data.samples.labels[test]), task="single")
    expected = held.metrics["test"]["generalisation"]
    assert found["balanced_accuracy"] == pytest.approx(expected["balanced_accuracy"], abs=1e-6)
    path = tmp_path / "held" / "frozen.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"frozen\.safetensors is damaged"):
        load(tmp_path / "held")


def test_resumed_it_ends_as_it_would_have(tmp_path: Path) -> None:
    expected = run(TABLE, tmp_path / "straight")

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(TABLE, tmp_path / "stopped", watch=stop)
    assert resume(tmp_path / "stopped").state_hash == expected.state_hash


def test_a_run_may_start_from_a_frozen_one(tmp_path: Path) -> None:
    run(TABLE, tmp_path / "first")
    train = {**TABLE["train"], "init": str(tmp_path / "first")}
    free = {**TABLE, "net": {"name": "small-cnn"}, "train": {**train, "rounds": 0}}
    second = run(free, tmp_path / "second")
    given = load(tmp_path / "first").tensors["net"]
    assert all(torch.equal(given[name], tensor) for name, tensor in second.server["model"].items())
    run({**TABLE, "train": train}, tmp_path / "third")
    one, other = (load(tmp_path / name).blueprint.frozen_sha256 for name in ("first", "third"))
    assert one is not None and one == other


def test_a_federation_needs_the_same_frozen_tensors_everywhere() -> None:
    plan: Any = SimpleNamespace(blueprint=SimpleNamespace(frozen_sha256="a" * 64))
    ours: Any = SimpleNamespace(frozen="a" * 64)
    same_frozen(plan, {"north": ours})
    for theirs in ("b" * 64, None):
        cards: Any = {"north": ours, "south": SimpleNamespace(frozen=theirs)}
        with pytest.raises(SiteError, match="site 'south' has other frozen tensors"):
            same_frozen(plan, cards)


@pytest.mark.sweep
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_above_a_frozen_stage(name: str, tmp_path: Path) -> None:
    task = METHODS[name].tasks[0]
    table = TABLE | {
        "data": {**TABLE["data"], "task": task},
        "partition": {**TABLE["partition"], "missing": 2 if task == "multi" else 0},
        "method": {"name": name, **LIGHT.get(name, {})},
    }
    result = run(table, tmp_path / "run")
    assert all(bool(torch.isfinite(x).all()) for x in flatten(result.server).values())
    assert not [name for name in result.server["model"] if "conv1" in name]


@pytest.mark.slow
def test_workers_give_what_one_process_gives(tmp_path: Path) -> None:
    one = run(TABLE, tmp_path / "serial")
    pool = {**TABLE, "engine": {"device": "cpu", "kind": "pool", "workers": 2}}
    assert run(pool, tmp_path / "pool").state_hash == one.state_hash

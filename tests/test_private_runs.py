"""Whole runs with differential privacy: the same bits everywhere, what they cost, and what they are refused
for."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from equipoise import running
from equipoise.config import Config, resolve
from equipoise.errors import ConfigError
from equipoise.keeping import read_json
from equipoise.methods import METHODS
from equipoise.report import write_report
from equipoise.running import prepare, resume, run
from equipoise.server import spending
from equipoise.server.checkpoint import Checkpoints
from equipoise.setup import material
from equipoise.site import accounting

MakeConfig = Callable[..., Config]
NET = {"name": "small-cnn", "batch_norm": "group"}
FEW_IMAGES = {"scale": 0.002}
"""every image has a gradient of its own"""


@pytest.fixture
def private(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> MakeConfig:
    """Tiny private runs, whose ε is as cheap as it is wrong: steps · rate² over noise²."""

    def cheap(steps: tuple[tuple[float, float, int], ...], delta: float) -> float:
        return sum(count * (rate / noise) ** 2 for noise, rate, count in steps)

    monkeypatch.setattr(accounting, "_epsilon", cheap)

    def make(method: str = "fedavg", **sections: Any) -> Config:
        train = {"views": ["eval"] * len(METHODS[method].views), **sections.pop("train", {})}
        lighter = {"data": FEW_IMAGES, "net": NET, "train": train, "privacy": {"noise": 2.0}}
        return tiny(method, **{**lighter, "evaluate": {"every": 2}, **sections})

    return make


@pytest.mark.parametrize("method", ["fca", pytest.param("fedavg", marks=pytest.mark.sweep)])
def test_serial_pool_and_resume_give_the_same_bits(
    method: str, private: MakeConfig, tmp_path: Path, rows: Callable[[Path], Any]
) -> None:
    config = private(method)
    serial = run(config, tmp_path / "serial")
    pool = run(config.with_engine(kind="pool", workers=2), tmp_path / "pool")
    assert serial.state_hash == pool.state_hash and rows(tmp_path / "serial") == rows(tmp_path / "pool")
    half = tmp_path / "half"
    with pytest.raises(KeyboardInterrupt):
        run(config, half, watch=_stop_after_one)
    assert Checkpoints(half / "checkpoints").newest()[1].round < 2
    assert resume(half).state_hash == serial.state_hash
    assert rows(half) == rows(tmp_path / "serial")


def _stop_after_one(event: str, facts: Mapping[str, Any]) -> None:
    if event == "answer" and _stop_after_one.seen > 4:  # type: ignore[attr-defined]
        _stop_after_one.seen = 0  # type: ignore[attr-defined]
        raise KeyboardInterrupt
    _stop_after_one.seen += event == "answer"  # type: ignore[attr-defined]


_stop_after_one.seen = 0  # type: ignore[attr-defined]


def test_noise_changes_the_model_and_another_seed_changes_the_noise(private: MakeConfig) -> None:
    hashes = {
        run(private(train={"rounds": 1, "seed": 1})).state_hash,
        run(private(train={"rounds": 1, "seed": 2})).state_hash,
        run(private(train={"rounds": 1, "seed": 1}, privacy={"noise": 3.0})).state_hash,
    }
    assert len(hashes) == 3


def test_every_round_says_what_it_has_cost(private: MakeConfig, tmp_path: Path) -> None:
    """Rows, result, ledger, note, page and card."""
    notes = list[str]()
    config = private(train={"rounds": 2, "objective": "balanced_softmax"})
    result = run(config, tmp_path, watch=lambda event, facts: notes.append(facts.get("text", "")))
    first, last = (row["epsilon"] for row in result.history)
    assert set(first) == {"site-00", "site-01", "site-02"} and all(first[site] < last[site] for site in first)
    assert result.privacy is not None and result.privacy["epsilon"] == last
    missing = [
        "evaluate (test images, validation images)",
        "class counts, as the loss of train knows them",
    ]
    assert result.privacy["not_covered"] == missing and result.privacy["unit"] == "one training image"
    assert any("differential privacy: ε ≤" in text and missing[0] in text for text in notes)
    covered = {row["question"]: row["covered"] for row in read_json(tmp_path / "ledger.json", "")["leaves"]}
    assert covered["train"] == "yes, given the class counts" and covered["evaluate"].startswith("no")
    write_report(tmp_path)
    page, card = (tmp_path / "report.html").read_text(), (tmp_path / "model-card.md").read_text()
    for text in (page, card):
        assert f"{max(last.values()):g}" in text and "one training image" in text and missing[1] in text
    assert "seeded" in card and "δ" in card


def test_no_loss_is_told(private: MakeConfig) -> None:
    """It would tell of the images without noise."""
    assert [row["train.loss"] for row in run(private(train={"rounds": 1})).history] == [0.0]


def test_planned_is_what_is_done(private: MakeConfig) -> None:
    """Endings included, and rounds for which a site is not drawn left out."""
    config = private("fedbabu", train={"rounds": 3, "participation": 0.7})
    dataset = material(config)
    plan = prepare(config, dataset.facts, dataset)
    assert plan.spending is not None and plan.ledger.passes(0) == 1 and plan.ledger.ending == 5
    assert run(config).privacy["epsilon"] == plan.spending.planned()
    assert len(set(plan.spending.epsilon(1, 0).values())) > 1


def test_a_target_is_met_site_by_site(tiny: MakeConfig) -> None:
    """With the true ε: never above, hardly below, and more noise where images are fewer."""
    sizes = {"kind": "dirichlet", "sites": 2, "alpha": 1.0}
    config = tiny(
        net=NET, privacy={"epsilon": 4.0}, train={"rounds": 2, "batch_size": 8, "epochs": 2}, partition=sizes
    )
    dataset = material(config)
    plan = prepare(config, dataset.facts, dataset)
    assert plan.spending is not None
    assert all(3.98 <= value <= 4.0 for value in plan.spending.planned().values() if value is not None)
    images, noise = plan.spending.images, plan.spending.noise
    assert sorted(images, key=lambda site: images[site]) == sorted(noise, key=lambda site: -noise[site])


def test_epsilon_is_told_rounded_up() -> None:
    assert spending.rounded(1.23451) == 1.2346 and spending.rounded(float("inf")) is None
    assert spending.largest({"a": 1.5, "b": 2.0}) == "2" and spending.largest({"a": 1.5, "b": None}) == "∞"


def test_batch_norm_is_refused_with_the_fix(private: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r'net.batch_norm = "group"'):
        run(private(net={"name": "small-cnn"}))


def test_frozen_batch_norm_keeps_its_statistics(private: MakeConfig) -> None:
    result = run(private(net={"name": "small-cnn", "batch_norm": "frozen"}, train={"rounds": 1}))
    model = result.server["model"]
    assert all(bool((model[name] == 0).all()) for name in model if name.endswith("running_mean"))


def test_a_delta_too_large_for_a_site_is_refused(private: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"privacy.delta = 0.1 is not below"):
        run(private(privacy={"noise": 1.0, "delta": 0.1}))


def test_runs_without_the_section_are_as_they_were(tiny: MakeConfig) -> None:
    """Neither their config nor their ledger nor their rows speak of it."""
    config = tiny(train={"rounds": 1})
    assert "privacy" not in config.table() and config.privacy is None
    assert resolve(config.table()).digest == config.digest
    dataset = material(config)
    plan = prepare(config, dataset.facts, dataset)
    assert plan.spending is None and all("covered" not in row for row in plan.ledger.rows())
    result = run(config)
    assert result.privacy is None and all("epsilon" not in row for row in result.history)
    assert running.privacy_of(plan, result.history) is None


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'epsilon'"):
        resolve({"privacy": {"epsilonn": 8.0}})
    with pytest.raises(ConfigError, match="either epsilon"):
        resolve({"privacy": {}})


# Every method -----------------------------------------------------------------------------------------------

# By its path: other projects install a package of the name `benchmarks`.
MEASURE = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "private.py"))
KNOWN: dict[str, dict[str, str]] = json.loads(MEASURE["FOUND"].read_text())
FEW = ("fediic", "isfl", "cbafed", "fednoro")


def test_the_documented_list_has_every_method() -> None:
    assert set(KNOWN) == set(METHODS)


@pytest.mark.parametrize("name", FEW)
def test_a_method_is_private_as_documented(name: str) -> None:
    assert MEASURE["tried"](name) == KNOWN[name]


@pytest.mark.sweep
@pytest.mark.parametrize("name", [name for name in METHODS if name not in FEW])
def test_every_method_is_private_as_documented(name: str) -> None:
    assert MEASURE["tried"](name) == KNOWN[name]

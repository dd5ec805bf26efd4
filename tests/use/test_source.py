"""A predictor made from a run folder answers exactly as the run's own evaluation did."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import doctored

import equipoise
from equipoise.config import Config, read, read_folder
from equipoise.data.phantom import PhantomData
from equipoise.errors import ConfigError, MethodError, StorageError
from equipoise.evaluate import from_scores
from equipoise.evaluate.scores import read_scores
from equipoise.running import Result, run
from equipoise.setup import material
from equipoise.use import Predictor, load
from equipoise.use.judge import logits

CREFF = {"features": 4, "match_steps": 2, "head_epochs": 2, "draws": 1}
GLOBAL: dict[str, dict[str, Any]] = {"fedavg": {}, "fca": {}, "fedsdc": {}, "creff": CREFF, "ldam-fl": {}}
OWN = (*GLOBAL, "prr-imb", "local", "fedrep")


def own_metrics(model: Predictor, folder: Path, site: str) -> dict[str, Any]:
    """What the predictor reaches on a site's test images."""
    dataset = material(read(folder / "config.toml"))
    (rows,) = (holding.test for holding in dataset.holdings if holding.name == site)
    labels = torch.from_numpy(dataset.samples.labels[rows])
    found = logits(model, dataset.samples.images, rows)
    return from_scores(found, labels, task=dataset.samples.task, shots=torch.tensor(model.blueprint.shots))


@pytest.mark.parametrize("method", GLOBAL)
def test_the_global_predictor_gives_the_scores_of_the_run(
    method: str, finished: Callable[..., Result]
) -> None:
    done = finished(method, GLOBAL[method])
    model, kept = load(done.folder), read_scores(done.folder / "scores", done.rounds)
    samples = material(read(done.folder / "config.toml")).samples
    place = {name: i for i, name in enumerate(samples.ids.tolist())}
    rows = np.array([place[name] for name in kept.ids.tolist()])
    torch.testing.assert_close(logits(model, samples.images, rows), kept.logits[0], rtol=1e-4, atol=1e-5)
    assert model.classes == done.classes and model.origin.site is None and model.origin.round == 2


@pytest.mark.parametrize("method", OWN)
def test_a_sites_own_predictor_reaches_what_the_run_says(
    method: str, finished: Callable[..., Result]
) -> None:
    done = finished(method, GLOBAL.get(method))
    for site, expected in done.metrics["test"]["sites"].items():
        found = own_metrics(load(done.folder, site), done.folder, site)
        for key in ("accuracy", "balanced_accuracy", "macro_auc", "recall"):
            assert found[key] == pytest.approx(expected[key], abs=1e-9)


@pytest.mark.parametrize("method", ["prr-imb", "local", "fedrep"])
def test_a_method_whose_parts_stay_at_the_sites_asks_for_one(
    method: str, finished: Callable[..., Result]
) -> None:
    with pytest.raises(
        MethodError,
        match=r"leaves parts of the model at the sites.*name a site \(site-00, site-01, site-02\)",
    ):
        load(finished(method).folder)


def test_local_batch_norm_asks_for_a_site(finished: Callable[..., Result]) -> None:
    done = finished("fedavg", net={"batch_norm": "local"})
    with pytest.raises(MethodError, match="name a site"):
        load(done.folder)
    expected = done.metrics["test"]["sites"]["site-01"]["accuracy"]
    assert own_metrics(load(done.folder, "site-01"), done.folder, "site-01")["accuracy"] == expected


# Which round ------------------------------------------------------------------------------------------------

STILL = {"rounds": 5, "lr": 0.0, "batch_size": 8}
"""nothing moves, so the first round is as good as any and is the one selected"""


def test_private_versions_of_the_selected_round_are_kept(finished: Callable[..., Result]) -> None:
    done = finished("fca", evaluate={"select": "best_validation"}, train=STILL)
    assert done.rounds == [1]
    model = load(done.folder, "site-02")
    assert model.origin.round == 1
    kept = sorted(path.stem for path in (done.folder / "sites" / "site-02").glob("*.safetensors"))
    assert {"0.0", "4.0"} <= set(kept) and "1.0" not in kept


def test_they_are_kept_after_a_crash_too(tiny: Callable[..., Config], tmp_path: Path) -> None:
    config = tiny("fca", evaluate={"select": "best_validation"}, train=STILL)

    def stop(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, watch=stop)
    assert run(config, tmp_path).rounds == [1]
    assert load(tmp_path, "site-00").origin.round == 1


def test_without_the_rule_old_versions_go(finished: Callable[..., Result]) -> None:
    done = finished("fca", train=STILL, evaluate={"every": 5})
    kept = sorted(path.stem for path in (done.folder / "sites" / "site-02").glob("*.safetensors"))
    assert done.rounds == [5] and "4.0" in kept and "0.0" not in kept


def test_of_several_rounds_the_last_is_used_and_said(finished: Callable[..., Result]) -> None:
    done = finished("fedavg", evaluate={"select": "mean_last_5"})
    assert load(done.folder).title == (
        "the global predictor of fedavg after round 2, the last of the rounds whose mean is reported"
    )


def test_training_after_the_last_round_is_what_is_used(finished: Callable[..., Result]) -> None:
    done = finished("fedavg", {"crt": 1})
    assert done.rounds == [3]
    model = load(done.folder)
    assert model.origin.round == 3
    assert torch.equal(model.server["model"]["head.fed.bias"], done.server["model"]["head.fed.bias"])


def test_a_round_and_its_ending_have_each_their_own_checkpoint(
    finished: Callable[..., Result], tmp_path: Path
) -> None:
    done = finished("fedavg", {"crt": 1})
    copy = Path(shutil.copytree(done.folder, tmp_path / "copy"))
    doctored.change(copy / "result.json", selected_rounds=[2], ending_of=[])
    before, after = load(copy), load(done.folder)
    assert (before.origin.round, after.origin.round) == (2, 3)
    assert before.origin.state != after.origin.state == done.state_hash
    assert before.title == "the global predictor of fedavg after round 2"
    assert after.title == "the global predictor of fedavg after round 2 and the method's ending"
    doctored.change(copy / "result.json", selected_rounds=[4])
    with pytest.raises(StorageError, match="is missing or damaged"):
        load(copy)


# What the run noted -----------------------------------------------------------------------------------------


def test_the_data_need_not_be_there(
    finished: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = finished("fedavg", train={"augment": {"normalise": "data"}})
    fingerprint = material(read_folder(done.folder)).samples.fingerprint
    monkeypatch.setattr(PhantomData, "load", lambda *_, **__: pytest.fail("the data was read"))
    assert load(done.folder).blueprint.data == fingerprint
    copy = Path(shutil.copytree(done.folder, tmp_path / "copy"))
    (copy / "blueprint.json").write_text("{}")
    with pytest.raises(StorageError, match=r"blueprint\.json is damaged"):
        load(copy)
    (copy / "blueprint.json").unlink()
    with pytest.raises(StorageError, match=r"has no blueprint\.json: `equipoise resume .*` writes it"):
        load(copy)


def test_it_is_part_of_the_public_surface(finished: Callable[..., Result]) -> None:
    assert equipoise.load(finished().folder).blueprint.task == "single"


def test_what_cannot_be_loaded_is_told(finished: Callable[..., Result], tmp_path: Path) -> None:
    done = finished("fca")
    with pytest.raises(ConfigError, match="unknown site 'site-0': did you mean 'site-0"):
        load(done.folder, "site-0")
    with pytest.raises(StorageError, match="is not a run folder"):
        load(tmp_path)
    copy = Path(shutil.copytree(done.folder, tmp_path / "copy"))
    shutil.rmtree(copy / "sites")
    assert load(copy).origin.site is None
    with pytest.raises(StorageError, match="does not hold what site 'site-01' keeps"):
        load(copy, "site-01")
    (copy / "result.json").unlink()
    with pytest.raises(StorageError, match=r"has no result\.json: finish the run"):
        load(copy)


def test_a_site_that_never_took_part_has_nothing_of_its_own(
    finished: Callable[..., Result], tmp_path: Path
) -> None:
    done = finished("fca", train={"rounds": 1, "participation": 0.4})
    rows = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    (drawn,) = rows[0]["sites"]
    assert load(done.folder, drawn).origin.site == drawn
    (other, *_) = (site for site in done.metrics["test"]["sites"] if site != drawn)
    with pytest.raises(StorageError, match=f"site '{other}' was never drawn"):
        load(done.folder, other)

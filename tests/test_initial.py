"""A run that starts from another run's model: whole or body, noticed when it changes, the same everywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.config import Config, read_folder, resolve
from equipoise.errors import ConfigError, StorageError, WeightsError
from equipoise.nets import state
from equipoise.report import write_report
from equipoise.running import Result, resume, run
from equipoise.server import Checkpoints
from equipoise.tree import digest
from equipoise.use import load

MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def source(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Three rounds of FedAvg, of which the best on validation images is not the last."""
    folder = tmp_path_factory.mktemp("source") / "first"
    train = {"rounds": 4, "lr": 0.02, "seed": 5, "batch_size": 8}
    result = run(tiny(train=train, evaluate={"select": "best_validation"}), folder)
    assert result.rounds != [4]
    return result


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """What the predictor of a run has."""
    return {name: tensor.clone() for name, tensor in state(load(folder).net).items()}


def first_model(folder: Path) -> dict[str, torch.Tensor]:
    """The server's model before the first round."""
    return Checkpoints(folder / "checkpoints").load(0)[0]["model"]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.equal(one, other))


# What is taken ----------------------------------------------------------------------------------------------


def test_the_whole_model_of_the_round_that_was_selected(
    tiny: MakeConfig, source: Result, tmp_path: Path
) -> None:
    config = tiny(train={"rounds": 1, "init": str(source.folder)})
    selected, header = Checkpoints(source.folder / "checkpoints").load(source.rounds[-1])
    assert config.train.init_sha256 == header.state == digest(selected)
    result = run(config, tmp_path / "second")
    given, started = tensors(source.folder), first_model(result.folder)
    assert set(started) == set(given)
    assert all(same(started[name], given[name]) for name in given)
    assert "From the model of another run (first), 1 rounds." in write_report(result.folder).read_text()


def test_a_body_keeps_a_new_head_for_other_classes(tiny: MakeConfig, source: Result, tmp_path: Path) -> None:
    table: dict[str, Any] = {"rounds": 1, "init": str(source.folder)}
    findings = {"data": {"task": "multi"}}
    with pytest.raises(WeightsError, match=r'tells apart .* set train\.init_parts = "body"'):
        run(tiny(**findings, train=table), tmp_path / "refused")
    result = run(tiny(**findings, train=table | {"init_parts": "body"}), tmp_path / "second")
    plain = run(tiny(**findings, train={"rounds": 1}), tmp_path / "plain")
    given, started, new = tensors(source.folder), first_model(result.folder), first_model(plain.folder)
    for name, tensor in started.items():
        assert same(tensor, given[name] if name.startswith("body.") else new[name]), name
    assert "From the body of the model of another run" in write_report(result.folder).read_text()


def test_a_head_that_only_the_new_model_has_stays_new(
    tiny: MakeConfig, source: Result, tmp_path: Path
) -> None:
    """FCA has a personal head beside the shared one, which FedAvg's model has not."""
    result = run(tiny("fca", train={"rounds": 1, "init": str(source.folder)}), tmp_path / "second")
    given, started = tensors(source.folder), first_model(result.folder)
    assert all(same(started[name], given[name]) for name in given)


def test_paths_start_where_those_of_the_config_do(tiny: MakeConfig, source: Result) -> None:
    given = {"rounds": 1, "init": source.folder.name}
    found = tiny(train=given, base=source.folder.parent)
    assert found.train.init_sha256 == tiny(train={"init": str(source.folder)}).train.init_sha256


# The same everywhere ----------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def test_the_same_bits_in_a_pool_and_after_a_break(
    tiny: MakeConfig, source: Result, rows: Rows, tmp_path: Path
) -> None:
    """With heads that stay at the sites, one of which is first asked after the break."""
    train = {"rounds": 4, "participation": 0.4, "init": str(source.folder)}
    config = tiny("fedrep", train=train)
    straight = run(config, tmp_path / "straight")
    pool = run(config.with_engine(kind="pool", workers=2), tmp_path / "pool")
    assert pool.state_hash == straight.state_hash and rows(pool.folder) == rows(straight.folder)

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 2:
            raise Broken

    with pytest.raises(Broken):
        run(config, tmp_path / "broken", watch=watch)
    again = resume(tmp_path / "broken")
    assert again.state_hash == straight.state_hash and rows(again.folder) == rows(straight.folder)
    other = run(tiny("fedrep", train=train | {"init_parts": "body"}), tmp_path / "body")
    assert other.state_hash != straight.state_hash  # heads that stay at the sites start from it too


def test_a_source_that_has_changed_is_noticed(tiny: MakeConfig, source: Result, tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(source.folder, copy)
    table = {"rounds": 2, "init": str(copy)}
    before = tiny(train=table)

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            raise Broken

    with pytest.raises(Broken):
        run(before, tmp_path / "second", watch=watch)
    shutil.rmtree(copy)
    with pytest.raises(ConfigError, match="is not a run folder"):
        resume(tmp_path / "second")
    run(tiny(train={"rounds": 1, "seed": 6}), copy)
    assert read_folder(tmp_path / "second").train.init_sha256 == before.train.init_sha256
    with pytest.raises(StorageError, match=r"train\.init: the model of .* bring that model back"):
        resume(tmp_path / "second")
    with pytest.raises(StorageError, match="holds a run with another config"):
        run(tiny(train=table), tmp_path / "second")


# What is refused --------------------------------------------------------------------------------------------


def test_another_network_is_refused_with_its_first_tensor(
    tiny: MakeConfig, source: Result, tmp_path: Path
) -> None:
    config = tiny(net={"name": "resnet18"}, train={"init": str(source.folder), "init_parts": "body"})
    with pytest.raises(WeightsError, match=r"'body\.conv1\.weight' is 16×3×3×3 there and 64×3×7×7 here"):
        run(config, tmp_path / "second")


def test_a_model_without_what_is_wanted_is_refused(tiny: MakeConfig, source: Result, tmp_path: Path) -> None:
    apart = run(tiny("fedrep", train={"rounds": 1}), tmp_path / "apart")
    with pytest.raises(WeightsError, match=r'shares no head with this one: set train\.init_parts = "body"'):
        run(tiny(train={"init": str(apart.folder)}), tmp_path / "whole")
    run(tiny(train={"rounds": 1, "init": str(apart.folder), "init_parts": "body"}), tmp_path / "body")
    alone = run(tiny("local", train={"rounds": 1}), tmp_path / "alone")
    with pytest.raises(WeightsError, match=r"'body\.conv1\.weight' is not in it"):
        run(tiny(train={"init": str(alone.folder), "init_parts": "body"}), tmp_path / "none")


def test_what_is_no_finished_run_is_refused(tiny: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.init: .*nowhere is not a run folder"):
        tiny(train={"init": str(tmp_path / "nowhere")})

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            raise Broken

    with pytest.raises(Broken):
        run(tiny(), tmp_path / "half", watch=watch)
    with pytest.raises(StorageError, match="finish the run with `equipoise resume"):
        tiny(train={"init": str(tmp_path / "half")})
    with pytest.raises(ConfigError, match="name a run there"):
        tiny(train={"init_parts": "body"})


def test_one_start_is_enough(source: Result) -> None:
    table = {"net": {"weights": "w.safetensors"}, "train": {"init": str(source.folder)}}
    with pytest.raises(ConfigError, match=r"net\.weights and train\.init"):
        resolve(table)


def test_a_config_without_a_start_has_the_digest_it_had(tiny: MakeConfig) -> None:
    """Nothing is added to its table, so that a run which was begun before can be resumed."""
    assert not {"init", "init_parts", "init_sha256", "stop"} & set(tiny().table()["train"])

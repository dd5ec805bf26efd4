"""MLflow: the real package, with a database in the run folder."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.trackers.reading import interrupted, twice

from equipoise.config import Config
from equipoise.running import run
from equipoise.trackers.base import Run, numbers
from equipoise.trackers.mlflow import MLflow

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def kept(uri: str) -> tuple[Any, list[Any]]:
    """A client of a store, and its runs."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    return client, list(client.search_runs([one.experiment_id for one in client.search_experiments()]))


def local(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}"


def steps(client: Any, run_id: str, name: str) -> list[tuple[int, float]]:
    return sorted((one.step, one.value) for one in client.get_metric_history(run_id, name))


def stored(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every metric in the database itself: MLflow answers for one at a time."""
    found: dict[str, list[tuple[int, float]]] = {}
    with closing(sqlite3.connect(folder / "mlflow" / "mlflow.db")) as base:
        for name, *row in base.execute("SELECT key, step, value FROM metrics ORDER BY key, step"):
            found.setdefault(name, []).append(tuple(row))
    return found


def test_an_interrupted_run_is_one_run_with_every_round_once(
    tiny: Callable[..., Config], tmp_path: Path, with_store: Callable[[Path], Path]
) -> None:
    with_store(tmp_path)
    config = tiny(evaluate={"trackers": ["mlflow"]}, train={"rounds": 3})
    done, rows = twice(config, tmp_path)
    client, runs = kept(local(tmp_path))
    assert len(runs) == 1
    (one,) = runs
    assert one.info.run_id == json.loads((tmp_path / "mlflow" / "run.json").read_text())["run"]
    assert one.info.status == "FINISHED"
    wanted: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in numbers(row, done.classes).items():
            wanted.setdefault(name, []).append((row["round"], value))
    assert {"train.loss", "test/generalisation/balanced_accuracy", "bytes_up"} <= set(wanted)
    assert steps(client, one.info.run_id, "train.loss") == wanted["train.loss"]
    found = stored(tmp_path)
    assert {name: found[name] for name in wanted} == wanted
    assert set(one.data.metrics) == set(wanted) | {n for n in one.data.metrics if n.startswith("result/")}


def test_config_tags_and_result_are_there(
    tiny: Callable[..., Config], tmp_path: Path, with_store: Callable[[Path], Path]
) -> None:
    with_store(tmp_path)
    config = tiny(evaluate={"trackers": [{"name": "mlflow", "experiment": "skin"}]})
    done = run(config, tmp_path)
    client, (one,) = kept(local(tmp_path))
    assert client.get_experiment(one.info.experiment_id).name == "skin"
    assert one.info.run_name == f"{tmp_path.parent.name}/{tmp_path.name}"
    assert one.data.params["train.batch_size"] == "64"
    assert one.data.params["method.name"] == "fedavg"
    assert not [name for name in one.data.params if "trackers" in name or name == "base"]
    assert one.data.tags["equipoise.method"] == "fedavg"
    assert one.data.tags["equipoise.config"] == config.digest
    assert len(one.data.tags["equipoise.code"]) == 64
    assert one.data.tags["equipoise.state_hash"] == done.state_hash
    assert one.data.tags["equipoise.selected_rounds"] == "2"
    wanted = done.metrics["test"]["generalisation"]["balanced_accuracy"]
    assert one.data.metrics["result/test/generalisation/balanced_accuracy"] == pytest.approx(wanted)


def test_it_says_that_it_was_interrupted(
    tiny: Callable[..., Config], tmp_path: Path, with_store: Callable[[Path], Path]
) -> None:
    with_store(tmp_path)
    interrupted(tiny(evaluate={"trackers": ["mlflow"]}), tmp_path, 1)
    _, (one,) = kept(local(tmp_path))
    assert one.info.status == "KILLED"


def test_runs_in_one_store_stay_apart(
    tiny: Callable[..., Config], tmp_path: Path, with_store: Callable[[Path], Path]
) -> None:
    uri = local(with_store(tmp_path / "all"))
    for name in ("a", "b"):
        trackers = [{"name": "mlflow", "uri": uri}]
        run(tiny(evaluate={"trackers": trackers}, train={"rounds": 1}), tmp_path / name)
        assert not (tmp_path / name / "mlflow" / "mlflow.db").exists()
    client, runs = kept(uri)
    assert len({one.info.run_id for one in runs}) == 2
    for one in runs:
        assert [step for step, _ in steps(client, one.info.run_id, "train.loss")] == [1]


def begun(tracker: MLflow, folder: Path, history: tuple[tuple[int, dict[str, float]], ...] = ()) -> None:
    tracker.begin(Run("run", folder, {"train": {"rounds": 3}}, ("x",), {"method": "fedavg"}, history))


def test_a_round_that_comes_out_otherwise_the_second_time_is_added(
    tmp_path: Path, with_store: Callable[[Path], Path]
) -> None:
    with_store(tmp_path)
    first, second = MLflow(), MLflow()
    begun(first, tmp_path)
    for round in (1, 2):
        first.row(round, {"loss": 0.5 / round, "acc": 0.5, "odd": float("nan")})
    begun(second, tmp_path, ((1, {"loss": 0.5, "acc": 0.5, "odd": float("nan")}),))
    second.row(2, {"loss": 0.125, "acc": 0.5, "odd": float("nan")})
    second.end(None)
    client, (one,) = kept(local(tmp_path))
    assert steps(client, one.info.run_id, "acc") == [(1, 0.5), (2, 0.5)]
    assert steps(client, one.info.run_id, "loss") == [(1, 0.5), (2, 0.125), (2, 0.25)]
    assert len(client.get_metric_history(one.info.run_id, "odd")) == 2


def test_a_run_that_was_deleted_there_is_begun_anew(
    tmp_path: Path, with_store: Callable[[Path], Path]
) -> None:
    with_store(tmp_path)
    first, second = MLflow(), MLflow()
    begun(first, tmp_path)
    client, (one,) = kept(local(tmp_path))
    client.delete_run(one.info.run_id)
    begun(second, tmp_path, ((1, {"loss": 0.5}), (2, {"loss": 0.25})))
    client, (other,) = kept(local(tmp_path))
    assert other.info.run_id != one.info.run_id
    assert steps(client, other.info.run_id, "loss") == [(1, 0.5), (2, 0.25)]


def test_any_class_name_is_taken(tmp_path: Path, with_store: Callable[[Path], Path]) -> None:
    with_store(tmp_path)
    names = ["Bowen's disease", "a+b", "a*b", "../up", "naïve", "x" * 300, "/", "a//b", "."]
    tracker = MLflow()
    begun(tracker, tmp_path)
    tracker.row(1, {f"recall/{name}": i / 10 for i, name in enumerate(names)})
    _, (one,) = kept(local(tmp_path))
    assert sorted(one.data.metrics.values()) == [i / 10 for i in range(len(names))]
    assert one.data.metrics["recall/Bowen_s disease"] == 0.0


def test_a_server_that_is_not_there_does_not_stop_the_run(
    tiny: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    done = run(tiny(evaluate={"trackers": [{"name": "mlflow", "uri": uri}]}), tmp_path)
    assert done.rounds == [2]
    said = [line for line in capsys.readouterr().err.splitlines() if "tracker" in line]
    assert len(said) == 1 and said[0].startswith("the tracker 'mlflow' is left out from here on (")


def test_a_folder_that_was_moved_goes_on_with_its_run(
    tmp_path: Path, with_store: Callable[[Path], Path]
) -> None:
    begun(MLflow(), with_store(tmp_path / "here"))
    (tmp_path / "here").rename(tmp_path / "there")
    begun(MLflow(), tmp_path / "there")
    assert len(kept(local(tmp_path / "there"))[1]) == 1

"""MLflow: a run of an experiment, in a database in the run folder's `mlflow/` or where `uri` says."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise.keeping import read_json, write_json
from equipoise.trackers.base import Numbers, Run, Summary, Tracker

FOLDER, KEPT = "mlflow", "run.json"
PATIENCE = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""a server that does not answer must not hold up the run; who sets these for himself keeps them"""
LONGEST_KEY, LONGEST_VALUE, MOST_PARAMS, MOST_METRICS = 250, 6000, 100, 1000
"""what MLflow takes of a name, of a parameter's value, and at a time"""


class MLflow(Tracker):
    """Metrics by round, the config as parameters; the same MLflow run when the run is resumed."""

    packages = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, uri: str = "", experiment: str = "equipoise") -> None:
        if not isinstance(uri, str) or not isinstance(experiment, str) or not experiment:
            raise ValueError("uri and experiment are texts")
        self.uri, self.experiment = uri, experiment
        self._client: Any = None
        self._run = ""
        self._known: dict[tuple[str, int], float] = {}
        self._keys: dict[str, str] = {}

    def begin(self, run: Run) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        folder = run.folder / FOLDER
        folder.mkdir(exist_ok=True)
        uri = self.uri or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        self._client = MlflowClient(uri)
        before = self._find(folder / KEPT)
        if before is None:
            self._run = self._new(run, folder)
            write_json(folder / KEPT, {"uri": self.uri, "run": self._run})
        else:
            self._run = before
            self._client.update_run(before, status="RUNNING")
            self._known = dict(self._stored())
        for round, numbers in run.history:
            self.row(round, numbers)

    def row(self, round: int, numbers: Numbers) -> None:
        """Rounds come again when a run is resumed, with the same numbers: what is there is not added
        twice."""
        new = {name: value for name, value in numbers.items() if not self._has(name, round, value)}
        self._log(new, round)

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            for name, text in summary.facts.items():
                self._client.set_tag(self._run, f"equipoise.{name}", text)
            self.row(0, summary.numbers)
        self._client.set_terminated(self._run, "KILLED" if summary is None else "FINISHED")

    def _find(self, path: Path) -> str | None:
        """The run that an earlier session began in this store, if it is still there."""
        from mlflow.exceptions import MlflowException

        if not path.exists():
            return None
        noted = read_json(path, "delete it to begin another run in MLflow")
        if noted["uri"] != self.uri:
            return None
        try:
            there = self._client.get_run(noted["run"]).info.lifecycle_stage == "active"
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return str(noted["run"]) if there else None

    def _new(self, run: Run, folder: Path) -> str:
        from mlflow.entities import Param

        tags = {f"equipoise.{name}": text for name, text in run.tags.items()}
        made = self._client.create_run(self._experiment(folder), run_name=run.name, tags=tags)
        params = [Param(_allowed(key), text[:LONGEST_VALUE]) for key, text in _flat(run.config) if text]
        for i in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(made.info.run_id, params=params[i : i + MOST_PARAMS])
        return str(made.info.run_id)

    def _experiment(self, folder: Path) -> str:
        """The experiment of our name; of two processes that make it at once, one finds it made."""
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(self.experiment)
        if experiment is None:
            place = None if self.uri else (folder / "artifacts").resolve().as_uri()
            try:
                return str(self._client.create_experiment(self.experiment, artifact_location=place))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                experiment = self._client.get_experiment_by_name(self.experiment)
        return str(experiment.experiment_id)

    def _stored(self) -> Iterator[tuple[tuple[str, int], float]]:
        for key in self._client.get_run(self._run).data.metrics:
            for metric in self._client.get_metric_history(self._run, key):
                yield (key, metric.step), metric.value

    def _has(self, name: str, round: int, value: float) -> bool:
        known = self._known.get((self._key(name), round))
        return known is not None and (known == value or (math.isnan(known) and math.isnan(value)))

    def _log(self, numbers: Mapping[str, float], round: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(self._key(name), value, now, round) for name, value in numbers.items()]
        for i in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[i : i + MOST_METRICS])

    def _key(self, name: str) -> str:
        """The name as MLflow takes it, and another for each: class names may hold any sign."""
        if name not in self._keys:
            key, taken, n = _allowed(name), set(self._keys.values()), 2
            while key in taken:
                key, n = f"{_allowed(name)[: LONGEST_KEY - 8]}_{n}", n + 1
            self._keys[name] = key
        return self._keys[name]


def _allowed(name: str) -> str:
    """A name with `_` for every sign and every part of a path that MLflow refuses."""
    parts = re.sub(r"[^\w.\- :/]", "_", name)[:LONGEST_KEY].split("/")
    return "/".join(part if part.strip(".") else "_" * max(1, len(part)) for part in parts)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`train.rounds`, `30` and so on; lists as JSON."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

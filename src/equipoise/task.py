"""One site's answer as a task of a cluster: what `engine.ray` runs on a node.

A process of the cluster builds the run's host once and keeps it; like a worker of the pool, it resolves the
config, reads the data and checks the blueprint itself.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from equipoise.engine import Call, Host
from equipoise.engine.ray import framed, node
from equipoise.errors import EquipoiseError, StorageError
from equipoise.setup import host_of


def answer(order: bytes, call: str, payload: bytes, extra: bytes) -> bytes:
    """The answer of one site, or the error that there is instead."""
    here = node()
    try:
        host = _host(order)
        question = Call.model_validate_json(call)
        return framed({"node": here}, host.answer(question, host.same(payload), extra or None))
    except EquipoiseError as error:
        return framed({"node": here, "error": type(error).__name__, "message": str(error)})


@lru_cache(maxsize=1)
def _host(order: bytes) -> Host:
    folder = Path(json.loads(order)["private"]).parent
    if not folder.is_dir():
        raise StorageError(f"the run folder {folder} is not there: put it on a file system all nodes share")
    return host_of(order, shared=True)

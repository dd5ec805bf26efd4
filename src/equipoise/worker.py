"""A worker process of the pool: builds a host from the config, then answers until its input ends.

Started as `python -m equipoise.worker`; see `engine.pool` for the other end and `engine.frames` for what is
spoken.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import torch

from equipoise.config import resolve
from equipoise.engine import Call, Host, frames
from equipoise.engine.members import concealed
from equipoise.errors import EquipoiseError, StorageError
from equipoise.exchange import ExchangeOptions
from equipoise.setup import keep_memory, make_host, material
from equipoise.trust import only


def main() -> None:
    """Serve one pool."""
    inbox, pipe_out = pipes()
    setup = json.loads(inbox.get())
    host: Host | EquipoiseError
    limits = ExchangeOptions.model_validate(setup["config"]["exchange"])
    try:
        host = _host(setup)
    except EquipoiseError as error:
        host = error  # told to whoever asks first
    payload = b""
    while True:
        call, sent = Call.model_validate_json(inbox.get()), inbox.get()
        extra, masks = inbox.get(), inbox.get()
        payload = sent or payload  # empty: the same as before
        try:
            if isinstance(host, EquipoiseError):
                raise host
            answer, status = host.answer(call, payload, extra or None), dict[str, str]()
            if masks:
                answer = concealed(answer, masks, limits)
        except EquipoiseError as error:
            answer, status = b"", {"error": type(error).__name__, "message": str(error)}
        frames.write(pipe_out, json.dumps(status).encode(), answer)


def pipes() -> tuple[queue.SimpleQueue[bytes], BinaryIO]:
    """What arrives on standard input, frame by frame, and where to send frames; the process ends when its
    input does."""
    pipe_in = os.fdopen(os.dup(0), "rb")
    pipe_out = os.fdopen(os.dup(1), "wb")
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe_in, inbox), daemon=True).start()
    os.dup2(2, 1)  # what a library prints must not end up between the frames
    return inbox, pipe_out


def _listen(pipe: BinaryIO, inbox: queue.SimpleQueue[bytes]) -> None:
    """Pass frames on until the pool is gone, then end the process at once: half-done work of a killed run
    must not go on beside the run that resumes it."""
    try:
        while True:
            inbox.put(frames.read(pipe))
    except EOFError:
        os._exit(0)


def _host(setup: dict[str, Any]) -> Host:
    torch.set_num_threads(1)
    keep_memory()
    config = resolve(setup["config"], allow=only(setup["code"]))
    dataset = material(config)
    if dataset.samples.fingerprint != setup["data"]:
        raise StorageError(
            "the data changed while the run was starting: leave them as they are, then `equipoise resume`"
        )
    host = make_host(config, dataset, Path(setup["private"]))
    if host.blueprint.digest != setup["blueprint"]:
        raise StorageError("a worker's blueprint is not the run's: install the same Equipoise everywhere")
    return host


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)

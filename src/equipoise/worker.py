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
from typing import BinaryIO

from equipoise.engine import Call, Host, frames
from equipoise.errors import EquipoiseError
from equipoise.setup import host_of


def main() -> None:
    """Serve one pool."""
    inbox, pipe_out = pipes()
    host: Host | EquipoiseError
    try:
        host = host_of(inbox.get())
    except EquipoiseError as error:
        host = error  # told to whoever asks first
    payload = b""
    while True:
        call, sent, extra = Call.model_validate_json(inbox.get()), inbox.get(), inbox.get()
        payload = sent or payload  # empty: the same as before
        try:
            if isinstance(host, EquipoiseError):
                raise host
            answer, status = host.answer(call, payload, extra or None), dict[str, str]()
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


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)

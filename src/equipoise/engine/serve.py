"""The worker's end of a pool: questions on standard input, answers on standard output, both as frames."""

from __future__ import annotations

import json
import os
import queue
import threading
from typing import BinaryIO

from equipoise.engine import frames
from equipoise.engine.host import Host
from equipoise.engine.members import concealed
from equipoise.engine.shared import Rooms, can_share, mapped
from equipoise.errors import EquipoiseError
from equipoise.exchange.guard import ExchangeOptions
from equipoise.exchange.question import Call
from equipoise.memory import free_memory

Inbox = queue.SimpleQueue[bytes]
LARGE = 2**23
"""bytes of an answer after which freed memory is given back: of a small network it is little, and to ask for
it again took a tenth of a round (small-cnn, 10 sites of 256 images)"""


def serve(host: Host | EquipoiseError, limits: ExchangeOptions, inbox: Inbox, outbox: BinaryIO) -> None:
    """Answer until the input ends; whoever asks learns why a host could not be made."""
    payload: bytes | memoryview = b""
    rooms = Rooms()
    if isinstance(host, Host) and can_share():
        host.room = rooms.room
    while True:
        call, sent, place = Call.model_validate_json(inbox.get()), inbox.get(), inbox.get()
        extra, masks = inbox.get(), inbox.get()
        rooms.close()  # who asks again has mapped the answer before
        if sent or place:  # neither: the same as before
            payload = mapped(place) if place else sent
        answer, status = b"", dict[str, str]()
        try:
            if isinstance(host, EquipoiseError):
                raise host
            answer = host.answer(call, payload, extra or None)
            if masks:
                answer = concealed(answer, masks, limits)
        except EquipoiseError as error:
            status = {"error": type(error).__name__, "message": str(error)}
        place, large = rooms.place(answer), len(answer) > LARGE
        frames.write(outbox, json.dumps(status).encode(), b"" if place else answer, place)
        del answer, sent, extra, masks  # not kept while the next site trains
        if large:
            free_memory()


def pipes() -> tuple[Inbox, BinaryIO]:
    """What arrives on standard input, frame by frame, and where to send frames; the process ends when its
    input does."""
    pipe_in = os.fdopen(os.dup(0), "rb")
    pipe_out = os.fdopen(os.dup(1), "wb")
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe_in, inbox), daemon=True).start()
    os.dup2(2, 1)  # what a library prints must not end up between the frames
    return inbox, pipe_out


def _listen(pipe: BinaryIO, inbox: Inbox) -> None:
    """Pass frames on until the pool is gone, then end the process at once: half-done work of a killed run
    must not go on beside the run that resumes it."""
    try:
        while True:
            inbox.put(frames.read(pipe))
    except EOFError:
        os._exit(0)

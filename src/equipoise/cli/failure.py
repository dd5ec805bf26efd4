"""How a failure becomes one sentence and an exit code."""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from equipoise.errors import INTERRUPTED, TERMINATED, ConfigError, EquipoiseError, StorageError
from equipoise.text import printable

if TYPE_CHECKING:
    from types import FrameType

FLOWER = "flwr>=1.41,<1.43"
"""what the extra `flower` of pyproject.toml has"""


class Stopped(Exception):
    """The user (or the system) asked us to end; what was done is kept."""

    def __init__(self, command: str, exit_code: int) -> None:
        super().__init__(f"interrupted; `{command}` continues")
        self.exit_code = exit_code


class Terminated(KeyboardInterrupt):
    """SIGTERM, treated like Ctrl-C: the run ends between two writes and can be resumed."""


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Turn an interruption into a sentence that names the command that goes on."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Stopped(command, TERMINATED if isinstance(stop, Terminated) else INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def refusal(error: Exception) -> tuple[str, int]:
    """The sentence and the exit code of a failure."""
    if isinstance(error, EquipoiseError | Stopped):
        return str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"the disk is full ({error.filename or 'while writing'}): free some space, then run again"
        return text, StorageError.exit_code
    text = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
    return f"unexpected {text} (a bug: set EQUIPOISE_DEBUG=1 to see the traceback)", 1


def say(sentence: str) -> None:
    """One red sentence on standard error."""
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"{red}{printable(sentence)}{plain}", file=sys.stderr)


def need() -> None:
    """Refuse a verb of real hospitals where Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(
            f'hospitals are reached through Flower, which is not installed: run pip install "{FLOWER}"'
        )

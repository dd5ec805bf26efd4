"""Every failure a user can meet, with the exit code the command line ends with.

A message is one sentence that names the place and the fix. `EXIT_CODES` is the table the documentation shows.
"""

from __future__ import annotations


class EquipoiseError(Exception):
    """Anything Equipoise refuses to do, said in one sentence."""

    exit_code = 1


class ConfigError(EquipoiseError):
    """A key, a value or a combination in the config is wrong; nothing has been done yet."""

    exit_code = 2


class Untrusted(ConfigError):
    """A run folder names Python code that this user has neither run nor said to trust; it was not run."""


class DataError(EquipoiseError):
    """Images or labels cannot be used as they are."""

    exit_code = 3


class PartitionError(EquipoiseError):
    """The asked division of the data among sites is impossible."""

    exit_code = 4


class WeightsError(EquipoiseError):
    """A weights file is missing, is not the expected one, or does not fit the network."""

    exit_code = 5


class MethodError(EquipoiseError):
    """A method cannot be used for this task, or broke its contract."""

    exit_code = 6


class SiteError(EquipoiseError):
    """A site failed, or too few sites gave a usable answer."""

    exit_code = 7


class StorageError(EquipoiseError):
    """A folder cannot be written, or what it holds is damaged or was changed."""

    exit_code = 8


class Rejected(EquipoiseError):
    """One answer broke a rule of the exchange; the site is named and left out of the round."""

    exit_code = 7


class RunsFailed(EquipoiseError):
    """Some runs of a comparison failed; the others are in its table."""

    exit_code = 9


class RunStopped(EquipoiseError):
    """A run across hospitals was stopped by its coordinator; what was done is kept."""

    exit_code = 10


INTERRUPTED, TERMINATED = 130, 143

EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "an error that has no code of its own",
    2: "the command line or the config is wrong (nothing was done)",
    3: "images or labels cannot be used",
    4: "the data cannot be divided among sites as asked",
    5: "weights are missing, are not the expected file, or do not fit",
    6: "the method does not support this task, or broke its contract",
    7: "a site failed, or too few sites answered",
    8: "a folder cannot be written, or something in it is damaged or was changed (`equipoise verify` says "
    "what)",
    9: "some runs of a comparison failed; the others are in its table",
    10: "the run was stopped by `equipoise stop`; submitted again with the same `--out`, it continues",
    INTERRUPTED: "interrupted from the keyboard; `equipoise resume DIR` continues",
    TERMINATED: "asked to end (SIGTERM); `equipoise resume DIR` continues",
}

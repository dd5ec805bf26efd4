"""Whose Python code is run here: what this user has run before, or has said to trust.

The fingerprints are in one small file of the user's, a line each: $EQUIPOISE_TRUSTED, or
`equipoise/trusted.jsonl` in the user's config folder. Code that a config of one's own names is run, and noted
there; code that a run folder names is run only if it is noted already, because anybody may have made the
folder.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from equipoise.errors import ConfigError, StorageError, Untrusted
from equipoise.locate import Allow, Code
from equipoise.opening import read_regular
from equipoise.run_folder import CODE, RunFolder

here: set[str] = set()
"""fingerprints of the code that this process was allowed to run"""


def trusted_file() -> Path:
    """Where the fingerprints are kept."""
    chosen = os.environ.get("EQUIPOISE_TRUSTED")
    home = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config"))
    return Path(chosen) if chosen else home / "equipoise" / "trusted.jsonl"


def trusted() -> set[str]:
    """The fingerprints this user has noted, unless others can write to the file."""
    path, fingerprints = trusted_file(), set[str]()
    try:
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return fingerprints
        lines = read_regular(path).splitlines()
    except OSError:
        return fingerprints
    for line in lines:
        with suppress(ValueError, LookupError, TypeError):  # a line that is damaged trusts nothing
            fingerprints.add(str(json.loads(line)["fingerprint"]))
    return fingerprints


def remember(code: Code) -> None:
    """Let the code pass, and note that this user runs it; where nothing can be written, for this process
    only."""
    note(code.fingerprint, code.name, str(code.path or ""))


def note(fingerprint: str, name: str, source: str = "") -> None:
    """Note what this user runs."""
    known = trusted()
    here.add(fingerprint)
    if fingerprint in known:
        return
    path = trusted_file()
    line = json.dumps({"fingerprint": fingerprint, "name": name, "path": source})
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
            file.write(line + "\n")


def of_folder(folder: RunFolder, trust: bool = False) -> Allow:
    """For what a run folder's config names: only code that is trusted, or that `trust` says to trust from now
    on."""

    def allow(code: Code) -> None:
        if code.fingerprint in here | trusted():
            return
        made = recorded(folder).get(code.name)
        changed = f" (the run was made with {made})" if made not in (None, code.fingerprint) else ""
        raise Untrusted(
            f"{folder} would run {code.title}, which you have not run before (fingerprint "
            f"{code.fingerprint}){changed}: read it, then say --trust (in Python: trust=True)"
        )

    return remember if trust else allow


def allow_encoder(fingerprint: str, where: Path, trust: bool) -> None:
    """For the ONNX encoder in a run folder or an exported file, known by its sha256: it can run no code, but
    take memory and time as it likes."""
    if not trust and fingerprint not in here | trusted():
        raise Untrusted(
            f"{where} would run an ONNX encoder that you have not run before (sha256 {fingerprint}): say "
            "--trust if you know where it is from (in Python: trust=True)"
        )
    note(fingerprint, "onnx")


def nothing(code: Code) -> None:
    """For names that must not lead to any code but Equipoise's."""
    raise Untrusted(f"{code.where}: '{code.name}' is not one of Equipoise's own")


def only(marks: Mapping[str, str]) -> Allow:
    """For code that was permitted already and is read again by another process: it must be the same.

    `marks` has its fingerprints by name.
    """

    def allow(code: Code) -> None:
        if code.fingerprint != marks.get(code.name):
            raise ConfigError(
                f"{code.where}: {code.title} has changed since the run began: start the run again"
            )

    return allow


def recorded(folder: RunFolder) -> dict[str, str]:
    """By name: the fingerprints of the code of one's own that a run folder was made with."""
    if not folder.has(CODE):
        return {}
    try:
        return {str(name): str(mark) for name, mark in folder.read(CODE)["code"].items()}
    except (LookupError, AttributeError) as error:
        raise StorageError(f"{folder / CODE} is damaged: {folder.fix(CODE)}") from error

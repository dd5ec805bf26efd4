"""One file per federated method, and where they are found by name.

A name is one of `METHODS`, or `path/to/file.py:Class`, or `package.module:Class` for a method of your own.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from pathlib import Path

from equipoise.errors import ConfigError
from equipoise.exchange import Ask
from equipoise.locate import Allow, Code, Parts, named
from equipoise.methods.balancefl import BalanceFL
from equipoise.methods.base import Method, Standard
from equipoise.methods.cbafed import CBAFed
from equipoise.methods.centralised import Centralised
from equipoise.methods.climb import CLIMB
from equipoise.methods.creff import CReFF
from equipoise.methods.disco import FedDisco
from equipoise.methods.equipoise import Equipoise
from equipoise.methods.fca import FCA
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedbabu import FedBABU
from equipoise.methods.fediic import FedIIC
from equipoise.methods.fedirm import FedIRM
from equipoise.methods.fedlsr import FedLSR
from equipoise.methods.fedmas import FedMAS
from equipoise.methods.fedmlp import FedMLP
from equipoise.methods.fednoro import FedNoRo
from equipoise.methods.fedproc import FedProc
from equipoise.methods.fedprox import FedProx
from equipoise.methods.fedrep import FedRep
from equipoise.methods.fedsdc import FedSDC, FedSDCPlus
from equipoise.methods.fixmatch import FedFixMatch
from equipoise.methods.isfl import ISFL
from equipoise.methods.local import Local
from equipoise.methods.moon import MOON
from equipoise.methods.opt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from equipoise.methods.prr import PRRImb
from equipoise.methods.rscfed import RSCFed
from equipoise.methods.shaped import BSMFL, LDAMFL, FedAvgPL, FedFocal, FedLC, FedRS
from equipoise.names import unknown
from equipoise.trust import remember
from equipoise.verb import Verb

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "centralised": Centralised,
    "fedavg": FedAvg,
    "equipoise": Equipoise,
    "fca": FCA,
    "fediic": FedIIC,
    "fedmlp": FedMLP,
    "fedmas": FedMAS,
    "fedsdc": FedSDC,
    "fedsdc+": FedSDCPlus,
    # what those five were compared with
    "fedavg-pl": FedAvgPL,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedprox": FedProx,
    "moon": MOON,
    "fedproc": FedProc,
    "fedrs": FedRS,
    "fedlc": FedLC,
    "fedfocal": FedFocal,
    "ldam-fl": LDAMFL,
    "bsm-fl": BSMFL,
    "balancefl": BalanceFL,
    "creff": CReFF,
    "climb": CLIMB,
    "prr-imb": PRRImb,
    "feddisco": FedDisco,
    "isfl": ISFL,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "rscfed": RSCFed,
    "fedfixmatch": FedFixMatch,
    "fedirm": FedIRM,
    "cbafed": CBAFed,
    "fedlsr": FedLSR,
    "fednoro": FedNoRo,
}
"""Every method by name. cRT is no method but a stage after any: `method.crt`."""


def find(name: str, base: Path, allow: Allow = remember) -> type[Method]:
    """The method class of that name; `base` is where a relative path starts.

    A file or module is run only if `allow` lets it pass; without one it is taken for the user's own choice,
    and noted as trusted.
    """
    return look_up(name, Parts(base, allow))


def look_up(name: str, parts: Parts) -> type[Method]:
    """The method class of that name, one of Equipoise's or one of `parts`."""
    if name in METHODS:
        return METHODS[name]
    if not named(name):
        raise ConfigError("method.name: " + unknown("method", name, METHODS) + ", or FILE.py:Class")
    method = parts.find(name, "method.name")
    if not (isinstance(method, type) and issubclass(method, Method)):
        source, _, attribute = name.rpartition(":")
        raise ConfigError(f"method.name: '{attribute}' of '{source}' is not a method class")
    return method


@cache
def fingerprint(cls: type[Method]) -> str:
    """sha256 over the files that define a method of Equipoise's: its own and those of other methods and their
    parts that it builds on. Read once: the class is not loaded anew either."""
    return Code(f"{inspect.getfile(cls)}:{cls.__name__}", Path(), "method.name").approval


__all__ = ["METHODS", "Ask", "Method", "Standard", "find", "fingerprint", "look_up"]

sys.modules[__name__].__class__ = Verb

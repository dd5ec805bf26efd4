"""One file per federated method, and where they are found by name.

A name is one of `METHODS`, or `path/to/file.py:Class`, or `package.module:Class` for a method of your own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from equipoise.errors import ConfigError
from equipoise.methods.balancefl import BalanceFL
from equipoise.methods.base import Ask, Method
from equipoise.methods.cbafed import CBAFed
from equipoise.methods.climb import CLIMB
from equipoise.methods.creff import CReFF
from equipoise.methods.disco import FedDisco
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

METHODS: dict[str, type[Method]] = {
    "local": Local,
    "fedavg": FedAvg,
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


def find(name: str, base: Path) -> type[Method]:
    """The method class of that name; `base` is where a relative path starts."""
    if name in METHODS:
        return METHODS[name]
    source, _, attribute = name.rpartition(":")
    if not source:
        raise ConfigError("method.name: " + unknown("method", name, METHODS) + ", or FILE.py:Class")
    if source.endswith(".py"):
        path = (base / source).resolve()
        spec = importlib.util.spec_from_file_location(f"equipoise_method_{path.stem}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ConfigError(f"method.name: there is no file {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where pydantic looks up what a field's annotation names
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise ConfigError(f"method.name: {path} cannot be read as Python ({type(error).__name__}: {error})") from error
    else:
        try:
            module = importlib.import_module(source)
        except ImportError as error:
            raise ConfigError(f"method.name: the module '{source}' cannot be imported ({error})") from error
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f"method.name: '{source}' has no method class '{attribute}'")
    return found


__all__ = ["METHODS", "Ask", "Method", "find"]

"""Carries questions to sites and answers back."""

from equipoise.engine.host import Host
from equipoise.engine.options import EngineOptions
from equipoise.engine.pool import Pool
from equipoise.engine.probe import probe
from equipoise.engine.serial import Serial
from equipoise.exchange.question import Call, Engine, Question

__all__ = ["Call", "Engine", "EngineOptions", "Host", "Pool", "Question", "Serial", "probe"]

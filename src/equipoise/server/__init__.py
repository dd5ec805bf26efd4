"""The only training loop: rounds, checkpoints, journal."""

from equipoise.server.ask import Exchange
from equipoise.server.checkpoint import Checkpoints, Header, check_same
from equipoise.server.journal import Journal
from equipoise.server.loop import Federation, Observer, countable, drawn, sample

__all__ = [
    "Checkpoints",
    "Exchange",
    "Federation",
    "Header",
    "Journal",
    "Observer",
    "check_same",
    "countable",
    "drawn",
    "sample",
]

"""The only training loop: rounds, checkpoints, journal."""

from equipoise.server.ask import Exchange
from equipoise.server.checkpoint import Checkpoints, Header, check_same
from equipoise.server.journal import Journal
from equipoise.server.loop import Federation, Observer, countable, drawn, sample
from equipoise.server.spending import Spending, planned_passes

__all__ = [
    "Checkpoints",
    "Exchange",
    "Federation",
    "Header",
    "Journal",
    "Observer",
    "Spending",
    "check_same",
    "countable",
    "drawn",
    "planned_passes",
    "sample",
]

"""The tables of the papers: recipes, the published numbers beside them, and ours next to those."""

from __future__ import annotations

import sys

from equipoise.reproduce.beside import reproduce, settled, sheet, texts
from equipoise.reproduce.cost import estimate, listing
from equipoise.reproduce.plan import SCALES, Task, prepare
from equipoise.reproduce.recipe import Paper, Recipe, Row, find, names, read
from equipoise.verb import Verb

__all__ = [
    "SCALES",
    "Paper",
    "Recipe",
    "Row",
    "Task",
    "estimate",
    "find",
    "listing",
    "names",
    "prepare",
    "read",
    "reproduce",
    "settled",
    "sheet",
    "texts",
]

sys.modules[__name__].__class__ = Verb

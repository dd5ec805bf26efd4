"""A question on its way to the sites, and the interface of what carries it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from pydantic import Field

from equipoise.exchange.reduction import MOST_SITES
from equipoise.options import Options

Version = Annotated[str, Field(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$")]
"""of a site's private tree: a file name there, so it must be nothing more"""


class Call(Options):
    """What one site is told of a question beside the tensors. It travels as JSON and is checked where it
    arrives."""

    question: str
    round: int = Field(ge=0, strict=True)
    site: str
    read: Version | None
    """the version of its private tree to read (none: the site is new)"""
    write: Version | None
    """the version to write (none: the question changes nothing at the site)"""
    keep: tuple[Version, ...]
    """versions the site must not drop yet"""
    asked: tuple[str, ...] = Field(max_length=MOST_SITES)
    """the sites this question goes to: a site may want to be one of several"""
    tuned: bool
    """whether the site keeps its locally trained model as its own predictor"""


@dataclass(frozen=True)
class Question:
    """One question to several sites. `payload` is the broadcast, the same bytes for all; `each` has what only
    one site gets. The other fields are those of `Call`; of `read` and `keep`, each site is told its own."""

    name: str
    round: int
    payload: bytes
    each: Mapping[str, bytes] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    write: str | None = None
    keep: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    tuned: bool = False
    letters: Mapping[str, bytes] = field(default_factory=dict)
    """by site: how to mask the answer, where it is to be masked"""

    def call(self, site: str) -> Call:
        """What one site is told beside the tensors."""
        return Call(
            question=self.name,
            round=self.round,
            site=site,
            read=self.read.get(site),
            write=self.write,
            keep=self.keep.get(site, ()),
            asked=self.asked,
            tuned=self.tuned,
        )


class Engine(Protocol):
    """Carries a question to sites and their answers back, in any order. A site that does not answer is left
    out."""

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]: ...

    def close(self) -> None: ...

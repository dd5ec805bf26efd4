"""A question on its way to the sites, and the interface every engine has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Question:
    """One question to several sites. `payload` is the broadcast, the same bytes for all; `each` has what only
    one site gets."""

    name: str
    round: int
    payload: bytes
    each: Mapping[str, bytes] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    """by site: the version of its private tree to read (none: the site is new)"""
    write: str | None = None
    """the version to write, or None for a question that changes nothing at the site"""
    keep: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """by site: versions the site must not drop yet"""
    asked: tuple[str, ...] = ()
    """the sites that are asked: a site may want to be one of several"""
    tuned: bool = False
    """whether the site keeps its locally trained model as its own predictor"""

    def call(self, site: str) -> dict[str, Any]:
        """What one site is told beside the tensors."""
        return {
            "question": self.name,
            "round": self.round,
            "site": site,
            "read": self.read.get(site),
            "write": self.write,
            "keep": list(self.keep.get(site, ())),
            "asked": list(self.asked),
            "tuned": self.tuned,
        }


class Engine(Protocol):
    """Carries a question to sites and their answers back, in any order. A site that does not answer is left
    out."""

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]: ...

    def close(self) -> None: ...

"""`ask`: how a method's round speaks with the sites. Packing, reducing and private versions happen here,
once; who answers, and what is done with what arrives, is up to the kind of conversation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.exchange.clip import received_by
from equipoise.exchange.codec import Room, heap, pack
from equipoise.exchange.question import Question
from equipoise.exchange.reduction import Answers, Compare, Reduction
from equipoise.leaves import Upload
from equipoise.seeds import generator
from equipoise.tree import Tree, flatten


class Ask(ABC):
    """One round's (or one evaluation's) conversation with `sites`; `everyone` are those of the federation."""

    def __init__(
        self,
        *,
        sites: tuple[str, ...],
        round: int,
        rounds: int,
        seed: int,
        everyone: tuple[str, ...] = (),
        versions: Mapping[str, str] | None = None,
        durable: Mapping[str, str] | None = None,
        pinned: Sequence[Mapping[str, str]] = (),
        step: int | None = None,
        writes: bool = True,
        tuned: bool = False,
        least: int = 1,
        compare: Compare | None = None,
        room: Room = heap,
    ) -> None:
        self.sites, self.round, self.rounds = sites, round, rounds
        self._start = versions or {}
        self.versions = dict(self._start)
        """private versions as they will be if this conversation is committed"""
        self.numbers: dict[str, float] = {}
        """every single number the sites' answers came to, train.loss for one"""
        self.durable = self._start if durable is None else durable
        """private versions of the newest checkpoint known to be on disk, if it is not the one this
        conversation starts from"""
        self._everyone, self._seed, self._least = everyone or sites, seed, least
        self._compare, self._room = compare, room
        self._pinned, self._writes, self._tuned = pinned, writes, tuned
        # Private versions are named by it; the endings of several rounds are conversations of the same round.
        self._step, self._count = round if step is None else step, 0

    def generator(self, *purpose: object) -> torch.Generator:
        """Draws of the coordinator for one purpose in this round."""
        return generator(self._seed, self.round, "server", *purpose)

    def __call__(
        self,
        question: Callable[..., Upload],
        *,
        each: Mapping[str, Tree] | None = None,
        everyone: bool = False,
        one: bool = False,
        **down: Any,
    ) -> Answers:
        """Ask all sites still in the conversation; their reduced leaves.

        `everyone` asks the whole federation but the sites that fell out, also sites that were not drawn for
        this round. Such a question only looks: nothing is kept at the sites, and who answers it does not join
        the round. `one` asks the federation's first site and no other, whoever was drawn.
        """
        writes = self._writes and not everyone
        sites = self._present() if everyone or one else self.sites
        sites = sites[:1] if one else sites
        broadcast = flatten(down)
        own = {site: flatten(each[site]) for site in sites if each and site in each}
        asked = Question(
            name=question.__name__,
            round=self.round,
            payload=pack({}, broadcast, self._room),
            each={site: pack({}, tensors) for site, tensors in own.items()},
            read={site: self.versions[site] for site in sites if site in self.versions},
            write=f"{self._step}.{self._count}" if writes else None,
            # The checkpoint of the round before may or may not have reached the disk: a crash resumes from it
            # or from the one before that. Pinned are the private versions of rounds that may be selected.
            keep={site: kept for site in sites if (kept := self._kept(site))},
            asked=sites,
            tuned=self._tuned and writes,
        )
        self._count += 1
        sent = {**broadcast, **next(iter(own.values()), {})}
        received = received_by(sent)
        reduction = Reduction(self._least, len(sites), self._compare)
        for site, wrote, upload in self._answers(asked, received):
            reduction.add(site, upload)
            if wrote and asked.write is not None:
                self.versions[site] = asked.write
        answers = self._completed(reduction).result(sites)
        self.numbers |= {
            f"{asked.name}.{leaf}": float(answers[leaf])
            for leaf in answers
            if isinstance(answers[leaf], Tensor) and answers[leaf].dim() == 0
        }
        return answers

    def _completed(self, reduction: Reduction) -> Reduction:
        """The reduction with all that is known only when every answer has come."""
        return reduction

    def _present(self) -> tuple[str, ...]:
        """The federation's sites that can be asked."""
        return self._everyone

    def _kept(self, site: str) -> tuple[str, ...]:
        """The private versions a site must not drop in this conversation."""
        return tuple(sorted({one[site] for one in (self._start, self.durable, *self._pinned) if site in one}))

    @abstractmethod
    def _answers(self, asked: Question, sent: Mapping[str, Tensor]) -> Iterator[tuple[str, bool, Upload]]:
        """The answers that count: the site, whether it wrote its private tree, and its leaves. `sent` are the
        tensors a site received, by the names they have in its answer."""

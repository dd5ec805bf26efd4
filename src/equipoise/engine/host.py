"""A host answers questions for the sites whose data it can read: one in a hospital, all of them in a
simulation.

Net and buffers are reused in place from question to question; everything a question may depend on is set anew
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from equipoise.blueprint import HERE, Blueprint, Built, Place
from equipoise.errors import EquipoiseError, MethodError, SiteError
from equipoise.exchange import clipped, encode_upload, received_by, unpack
from equipoise.exchange.codec import Room, heap
from equipoise.exchange.question import Call
from equipoise.losses import knows_counts, make_objective
from equipoise.names import unknown
from equipoise.nets import below, load, state
from equipoise.seeds import derive, isolated
from equipoise.site import Cached, Loc, Look, SiteData, Store
from equipoise.site.accounting import Spent
from equipoise.site.measure import LEAST
from equipoise.site.noise import Seeded, Source
from equipoise.site.privacy import Mechanism, Trace
from equipoise.site.views import VIEWS
from equipoise.tree import Tree, flatten, unflatten


class Host:
    """Sites, the network of a blueprint, and the private stores.

    `built` are the networks as the blueprint makes them, where that has been done already.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        sites: Mapping[str, SiteData],
        store: Store,
        place: Place = HERE,
        built: Built | None = None,
    ) -> None:
        self.blueprint, self.sites, self.store, self.device = blueprint, sites, store, place.device
        self.method, self.options, self.objective = blueprint.method, blueprint.train, blueprint.objective
        self.shared, self.private = blueprint.shared, blueprint.private
        built = built or blueprint.build(place)
        self.net, self.frozen = built.net, built.frozen
        self.views = self._views(place)
        self.initial = {name: tensor.detach().cpu().clone() for name, tensor in state(self.net).items()}
        self.least = LEAST
        """images in a bin of what is told for one site alone, at least"""
        self.clip: float | None = None
        """largest norm of an update that a site sends; none: as it is"""
        self.noise: Mapping[str, float] = {}
        """with differential privacy: the noise of each site's training"""
        self.source: Source = Seeded
        """where that noise comes from"""
        self.spend: Callable[[str, Spent], None] = lambda site, spent: None
        """told of private steps before a site takes them; may refuse them"""
        self.trace = Trace()
        """what the last answer was computed from"""
        self._by_counts = blueprint.privacy is not None and knows_counts(
            blueprint.objective, blueprint.task, len(blueprint.classes)
        )
        self._remembered: dict[str, set[str]] = {}
        self.room: Room = heap
        """where the bytes of an answer are put"""
        self.begin: Callable[[], None] = lambda: None
        """called when the method's own code is about to answer a question"""
        self._decoded: tuple[bytes | memoryview, Tree] | None = None
        self._caches: dict[str, dict[str, Any]] = {}

    def _views(self, place: Place) -> Mapping[str, Look]:
        """All views by name; with frozen stages, as far as they are computed once. Private training tries its
        loss on generated images, so there nothing is kept."""
        plan = self.blueprint
        views = plan.train.make_views(plan.input.mean, plan.input.std)
        self.halfway = bool(plan.views_kept) and place.cache is not None and plan.privacy is None
        if not self.halfway or place.cache is None:
            return views
        return {
            name: Cached(
                name,
                view,
                lambda x: below(self.net.body, x),
                count=plan.views_kept,
                seed=plan.train.seed,
                folder=place.cache,
                about={"net": plan.net.name, "stage": plan.net.stage, "frozen": plan.frozen_sha256},
            )
            for name, view in views.items()
            if name in VIEWS
        }

    def answer(self, call: Call, payload: bytes | memoryview, extra: bytes | None = None) -> bytes:
        """The bytes of one site's answer; errors name site, round and question."""
        name, round, question = call.site, call.round, call.question
        if name not in self.sites:
            raise SiteError(unknown("site", name, self.sites))
        if question not in self.method.questions():
            raise MethodError(unknown("question", question, self.method.questions()))
        try:
            with isolated(derive(self.options.seed, round, name, question, "layers"), self.device):
                return self._answer(call, payload, extra)
        except EquipoiseError:
            raise
        except Exception as error:
            raise SiteError(
                f"site '{name}' failed in round {round + 1} at '{question}': {type(error).__name__}: {error}"
            ) from error

    def _answer(self, call: Call, payload: bytes | memoryview, extra: bytes | None) -> bytes:
        data = self.sites[call.site]
        down = self._decode(payload) | (unflatten(unpack(extra)[1]) if extra else {})
        private_state = unflatten(self.store.read(data.name, call.read)) if call.read is not None else None
        loc = Loc(
            data=data,
            options=self.options,
            objective=self._objective(data, call.round),
            views=self.views,
            wanted=self.options.views or self.method.views,
            round=call.round,
            question=call.question,
            down=down,
            private=self.private,
            frozen=self.frozen,
            cache=self._caches.setdefault(data.name, {}),
            device=self.device,
            least=self.least,
            mechanism=self._mechanism(data.name),
            by_counts=self._by_counts,
        )
        load(self.net, self.initial | (private_state or {}).get("net", {}) | down.get("model", {}))
        self.net.restart()
        self.net.eval()
        self.net.expect(self.halfway)
        if private_state is None:
            loc.mine = self.method.init_site(self.net, loc)
        else:
            loc.mine, loc.tuned = private_state.get("mine", {}), private_state.get("tuned", {})
            loc.moments = private_state.get("optimizer", {})
        self.begin()
        upload = getattr(self.method, call.question)(self.net, loc)
        if self.clip is not None:
            upload, factors = clipped(upload, received_by(flatten(down)), self.clip)
            loc.notes |= {f"clipped.{leaf}": factor for leaf, factor in factors.items()}
        kept = self._kept(call, loc)
        header = {"site": call.site, "round": call.round, "question": call.question, "wrote": bool(kept)}
        answer = encode_upload(upload, header, self.room)
        del upload  # before the site's own state is copied, too: each may be a whole model
        if kept and call.write is not None:
            keep = (*call.keep, *([call.read] if call.read else []))
            self.store.write(call.site, call.write, kept, keep)
        self._note_reads(data.name, loc, bool(kept))
        if loc.notes:
            self.store.note(data.name, {"round": call.round, "question": call.question, **loc.notes})
        return answer

    def _mechanism(self, site: str) -> Mechanism | None:
        """How a site trains with differential privacy, where the run asks for it."""
        privacy = self.blueprint.privacy
        if privacy is None:
            return None
        noise = self.noise[site] if privacy.noise is None else privacy.noise
        return Mechanism(privacy.clip, noise, self.source, lambda spent: self.spend(site, spent))

    def _note_reads(self, site: str, loc: Loc, wrote: bool) -> None:
        """What an answer was computed from: also what the site remembers of earlier questions was."""
        known = self._remembered.setdefault(site, set())
        if loc.mine:
            loc.trace.reads |= known
        if wrote and loc.mine:
            known |= loc.trace.reads
        self.trace = loc.trace

    def _objective(self, data: SiteData, round: int) -> Any:
        return make_objective(
            self.objective,
            counts=data.counts,
            total=data.total,
            task=data.task,
            labelled=data.labelled,
            round=round,
            rounds=self.options.rounds,
        )

    def same(self, payload: bytes) -> bytes:
        """The broadcast, or the one that was decoded last where it has the same bytes."""
        return self._decoded[0] if self._decoded and self._decoded[0] == payload else payload

    def _decode(self, payload: bytes | memoryview) -> Tree:
        """The broadcast, decoded once for all sites that get the same bytes."""
        if self._decoded is None or self._decoded[0] is not payload:
            self._decoded = (payload, unflatten(unpack(payload)[1]))
        return dict(self._decoded[1])

    def _kept(self, call: Call, loc: Loc) -> dict[str, Tensor]:
        """What the site must remember, if there is anything and the question may change it."""
        if call.write is None:
            return {}
        live = state(self.net)
        mine: dict[str, Tensor] = {f"net/{name}": live[name] for name in self.private}
        mine |= flatten(loc.mine, "mine/") | flatten(loc.moments, "optimizer/")
        if call.tuned:
            mine |= {f"tuned/{name}": live[name] for name in self.shared}
        return mine

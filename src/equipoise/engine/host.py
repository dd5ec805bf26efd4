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
from equipoise.exchange import encode_upload, unpack
from equipoise.exchange.question import Call
from equipoise.losses import make_objective
from equipoise.names import unknown
from equipoise.nets import load, state
from equipoise.seeds import derive, isolated
from equipoise.site import Loc, SiteData, Store
from equipoise.site.measure import LEAST
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
        self.views = blueprint.train.make_views(blueprint.input.mean, blueprint.input.std)
        self.initial = {name: tensor.detach().cpu().clone() for name, tensor in state(self.net).items()}
        self.least = LEAST
        """images in a bin of what is told for one site alone, at least"""
        self.begin: Callable[[], None] = lambda: None
        """called when the method's own code is about to answer a question"""
        self._decoded: tuple[bytes, Tree] | None = None
        self._caches: dict[str, dict[str, Any]] = {}

    def answer(self, call: Call, payload: bytes, extra: bytes | None = None) -> bytes:
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
                f"site '{name}' failed in round {round} at '{question}': {type(error).__name__}: {error}"
            ) from error

    def _answer(self, call: Call, payload: bytes, extra: bytes | None) -> bytes:
        data = self.sites[call.site]
        down = self._decode(payload) | (unflatten(unpack(extra)[1]) if extra else {})
        kept = unflatten(self.store.read(data.name, call.read)) if call.read is not None else None
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
        )
        load(self.net, self.initial | (kept or {}).get("net", {}) | down.get("model", {}))
        self.net.restart()
        self.net.eval()
        if kept is None:
            loc.mine = self.method.init_site(self.net, loc)
        else:
            loc.mine, loc.tuned = kept.get("mine", {}), kept.get("tuned", {})
            loc.moments = kept.get("optimizer", {})
        self.begin()
        upload = getattr(self.method, call.question)(self.net, loc)
        wrote = self._keep(call, loc)
        if loc.notes:
            self.store.note(data.name, {"round": call.round, "question": call.question, **loc.notes})
        header = {"site": call.site, "round": call.round, "question": call.question, "wrote": wrote}
        return encode_upload(upload, header)

    def _objective(self, data: SiteData, round: int) -> Any:
        return make_objective(
            self.objective,
            counts=data.counts,
            total=len(data.splits["train"]),
            task=data.task,
            labelled=data.labelled,
            round=round,
            rounds=self.options.rounds,
        )

    def same(self, payload: bytes) -> bytes:
        """The broadcast, or the one that was decoded last where it has the same bytes."""
        return self._decoded[0] if self._decoded and self._decoded[0] == payload else payload

    def _decode(self, payload: bytes) -> Tree:
        """The broadcast, decoded once for all sites that get the same bytes."""
        if self._decoded is None or self._decoded[0] is not payload:
            self._decoded = (payload, unflatten(unpack(payload)[1]))
        return dict(self._decoded[1])

    def _keep(self, call: Call, loc: Loc) -> bool:
        """Write what the site must remember, if there is anything and the question may change it."""
        if call.write is None:
            return False
        live = state(self.net)
        mine: dict[str, Tensor] = {f"net/{name}": live[name] for name in self.private}
        mine |= flatten(loc.mine, "mine/") | flatten(loc.moments, "optimizer/")
        if call.tuned:
            mine |= {f"tuned/{name}": live[name] for name in self.shared}
        if not mine:
            return False
        keep = (*call.keep, *([call.read] if call.read else []))
        self.store.write(call.site, call.write, mine, keep)
        return True

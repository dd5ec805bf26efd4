"""A host answers questions for the sites whose data it can read: one in a hospital, all of them in a
simulation.

Net and buffers are reused in place from question to question; everything a question may depend on is set anew
before it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import EquipoiseError, MethodError, SiteError
from equipoise.exchange import encode_upload, unpack
from equipoise.leaves import Mean
from equipoise.losses import make_objective
from equipoise.methods.base import Method
from equipoise.names import unknown
from equipoise.nets import Net, batch_norm_names, load, state
from equipoise.seeds import derive, isolated
from equipoise.site import Loc, SiteData, Store, TrainOptions
from equipoise.site.measure import LEAST
from equipoise.site.views import View
from equipoise.tree import Tree, flatten, unflatten


class Host:
    """Sites, one net, one method, and the private stores."""

    def __init__(
        self,
        *,
        method: Method,
        net: Net,
        sites: Mapping[str, SiteData],
        options: TrainOptions,
        objective: Any,
        views: Mapping[str, View],
        store: Store,
        device: torch.device,
        frozen: Mapping[str, nn.Module] | None = None,
        local_batch_norm: bool = False,
    ) -> None:
        self.method, self.net, self.sites, self.options = method, net, sites, options
        self.objective, self.views, self.store, self.device = objective, views, store, device
        self.frozen = frozen or {}
        own = set(batch_norm_names(net)) if local_batch_norm else set()
        names = list(state(net))
        self.private = tuple(
            n for n in names if n in own or any(fnmatchcase(n, glob) for glob in method.private)
        )
        self.shared = tuple(name for name in names if name not in self.private)
        self.initial = {name: tensor.detach().cpu().clone() for name, tensor in state(net).items()}
        self.least = LEAST
        """images in a bin of what is told for one site alone, at least"""
        self._decoded: tuple[bytes, Tree] | None = None
        self._caches: dict[str, dict[str, Any]] = {}

    def elsewhere(self, sites: Mapping[str, SiteData], options: TrainOptions, store: Store) -> Host:
        """The same method and net with other sites."""
        other = copy.copy(self)
        other.sites, other.options, other.store, other._caches = sites, options, store, {}
        return other

    def init(self) -> Tree:
        """The first server tree."""
        load(self.net, self.initial)
        return self.method.init(self.net, {name: self.initial[name] for name in self.shared})

    def answer(self, call: Mapping[str, Any], payload: bytes, extra: bytes | None = None) -> bytes:
        """The bytes of one site's answer; errors name site, round and question."""
        name, round, question = call["site"], call["round"], call["question"]
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

    def _answer(self, call: Mapping[str, Any], payload: bytes, extra: bytes | None) -> bytes:
        data = self.sites[call["site"]]
        down = self._decode(payload) | (unflatten(unpack(extra)[1]) if extra else {})
        kept = unflatten(self.store.read(data.name, call["read"])) if call["read"] is not None else None
        loc = Loc(
            data=data,
            options=self.options,
            objective=self._objective(data, call["round"]),
            views=self.views,
            wanted=self.options.views or self.method.views,
            round=call["round"],
            question=call["question"],
            down=down,
            private=self.private,
            frozen=self.frozen,
            cache=self._caches.setdefault(data.name, {}),
            device=self.device,
            least=self.least,
        )
        load(self.net, self.initial | (kept or {}).get("net", {}) | down.get("model", {}))
        self.net.eval()
        if kept is None:
            loc.mine = self.method.init_site(self.net, loc)
        else:
            loc.mine, loc.tuned = kept.get("mine", {}), kept.get("tuned", {})
            loc.moments = kept.get("optimizer", {})
        upload = getattr(self.method, call["question"])(self.net, loc)
        wrote = call["write"] is not None and self._keep(call, loc)
        delta = upload.get("delta")
        if isinstance(delta, Mean) and not isinstance(delta.weight, Tensor):
            loc.note(
                "weight", delta.weight
            )  # how much we count in the aggregate: no other place tells it site by site
        if loc.notes:
            self.store.note(data.name, {"round": call["round"], "question": call["question"], **loc.notes})
        header = {key: call[key] for key in ("site", "round", "question")} | {"wrote": wrote}
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

    def _decode(self, payload: bytes) -> Tree:
        """The broadcast, decoded once for all sites that get the same bytes."""
        if self._decoded is None or self._decoded[0] is not payload:
            self._decoded = (payload, unflatten(unpack(payload)[1]))
        return dict(self._decoded[1])

    def _keep(self, call: Mapping[str, Any], loc: Loc) -> bool:
        """Write what the site must remember, if there is anything."""
        live = state(self.net)
        mine: dict[str, Tensor] = {f"net/{name}": live[name] for name in self.private}
        mine |= flatten(loc.mine, "mine/") | flatten(loc.moments, "optimizer/")
        if call["tuned"]:
            mine |= {f"tuned/{name}": live[name] for name in self.shared}
        if not mine:
            return False
        keep = (*call["keep"], *([call["read"]] if call["read"] else []))
        self.store.write(call["site"], call["write"], mine, keep)
        return True

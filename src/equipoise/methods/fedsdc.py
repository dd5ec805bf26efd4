"""FedSDC and FedSDC+: shuffle-diversity collaboration.

Gao, Lan, Liu, Wang, Fan, "Shuffle-diversity collaborative federated learning for imbalanced medical image
analysis", MICCAI 2025. The coordinator owns one body and a bank of H classifier heads that differ in width:
Linear d → ⌊ρ d⌋, dropout, Linear → C, no activation, with ρ drawn once per head, one in each of H equal bins
of [0.4, 1]. Every round the heads are dealt to the participants in random order (Eq. 6-7); each trains body
and head together with the base loss. The body moves with server momentum, v ← β v + Δ, φ ← φ − v with Δ = Σ
(n_k/Σn)(φ − φ_k) (Eq. 4-5); a head simply comes back, and one whose site drops out stays as it was. All heads
vote; a tie goes to the largest sum of logits. FedSDC+ (γ < 1) lets only the best ⌈γH⌉ heads vote, ranked on
the validation images of all sites, also of those not drawn for the round: by balanced accuracy, or by
micro-F1 as the paper says (published code: micro-F1 on test images, later balanced accuracy on train images).
The paper counts the second layer and its dropout as part of diversity (§2.2), so without it a head is one
linear layer. cRT draws every head anew in its width and deals them to all sites in each of its rounds, on the
body as it is; a head that several sites held (where fewer took part in training) is their mean.
Choices: H is the number of participants; momentum moves parameters only, BatchNorm statistics are plainly
averaged; a narrow head is a full-width head with its unused units switched off, which is the same function.
Leaves the site: delta, loss (means); head (each); FedSDC+ also the heads' confusion matrices (sum). Stays:
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from equipoise.errors import MethodError
from equipoise.exchange import Ask
from equipoise.leaves import Each, Limit, Sum, Upload
from equipoise.methods.base import Method
from equipoise.methods.opt import heavy_ball, parameters
from equipoise.methods.parts import bank as banks
from equipoise.nets import HEAD, Net, load
from equipoise.site import Loc
from equipoise.tree import Tree, plus, zeros_like


class FedSDC(Method):
    """Heads of different widths, shuffled among sites, vote on one body."""

    paper: ClassVar[str] = "Gao et al. 2025"
    tasks = ("single",)
    keeps_tuned: ClassVar[bool] = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "m1": {"diversity": False, "shuffle": False},
        "m2": {"shuffle": False},
        "m3": {"diversity": False},
    }

    beta: float = Field(0.5, ge=0, lt=1)
    """server momentum of the body"""
    gamma: float = Field(1.0, gt=0, le=1)
    """share of the heads that vote, best on validation first"""
    diversity: bool = True
    """two-layer heads of different widths with dropout; off = linear heads"""
    shuffle: bool = True
    """deal the heads anew every round; off = each site keeps its head, so all must always take part"""
    ensemble: bool = True
    """all chosen heads vote; off = the best-ranked head (the first, without ranking) decides alone"""
    narrowest: float = Field(0.4, gt=0, le=1)
    """smallest compression ρ"""
    dropout: float = Field(0.2, ge=0, lt=1)
    """inside a head"""
    rank_on: Literal["validation", "train"] = "validation"
    """images the heads are ranked on, those of all sites"""
    rank_by: Literal["balanced_accuracy", "micro_f1"] = "balanced_accuracy"
    """what the heads are ranked by; micro-F1 of one label per image is accuracy"""

    def make_head(self, width: int, classes: int) -> nn.Module:
        return banks.Bottleneck(width, classes, self.dropout) if self.diversity else nn.Linear(width, classes)

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        server = super().init(net, {name: t for name, t in shared.items() if not name.startswith(HEAD)})
        momentum = zeros_like(parameters(net, server["model"]))
        return server | {"momentum": momentum, "shape": torch.tensor([net.width, net.classes])}

    def round(self, server: Tree, ask: Ask) -> Tree:
        if not self.shuffle:
            present = torch.tensor(list("\n".join(ask.sites).encode()), dtype=torch.uint8)
            server = {"owners": present} | server
            if not torch.equal(server["owners"], present):
                fix = "set train.participation = 1, or method.shuffle = true"
                raise MethodError(f"without shuffling each site keeps its head: {fix}")
        heads = server.get("heads") or self.bank(server, ask)
        draw = ask.generator("shuffle") if self.shuffle else None
        slots = banks.dealt(sorted(heads), ask.sites, len(heads), draw)
        each = {site: {"head": heads[slot]} for site, slot in slots.items()}
        up = ask(self.train, model=server["model"], each=each)
        velocity, moved = heavy_ball(server["momentum"], up["delta"], self.beta)
        heads = heads | {slots[site]: head for site, head in up["head"].items()}
        server = server | {"model": plus(server["model"], moved), "momentum": velocity, "heads": heads}
        return server | {"chosen": self.best(server, ask)}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"rank.confusion": Limit(images=1.0, split=self.rank_on)}

    def bank(self, server: Tree, ask: Ask) -> Tree:
        """One head per participant, drawn by the coordinator; named by slot."""
        (width, classes), narrowest = server["shape"].tolist(), self.narrowest if self.diversity else None
        return banks.draw_bank(len(ask.sites), width, classes, narrowest, ask.generator("heads"))

    def train(self, net: Net, loc: Loc) -> Upload:
        load(net, {HEAD + name: tensor for name, tensor in loc.down["head"].items()})
        return super().train(net, loc) | {"head": Each(banks.head_of(net))}

    def finish(self, server: Tree, ask: Ask) -> Tree:
        """cRT: the heads drawn anew and dealt to all sites, `crt` times."""
        if not self.crt or "heads" not in server:
            return server
        server = server | {"heads": banks.retrained(server, ask, self.retrain, self.crt, self.shuffle)}
        return server | {"chosen": self.best(server, ask)}

    def retrain(self, net: Net, loc: Loc) -> Upload:
        load(net, {HEAD + name: tensor for name, tensor in loc.down["head"].items()})
        return super().retrain(net, loc) | {"head": Each(banks.head_of(net))}

    def best(self, server: Tree, ask: Ask) -> Tensor:
        """The slots that vote, best first: all, or the ⌈γH⌉ that rank highest over all sites' images."""
        count = math.ceil(self.gamma * len(server["heads"]) - 1e-9)
        if count == len(server["heads"]):
            return torch.arange(count)
        up = ask(self.rank, everyone=True, model=server["model"], heads=server["heads"])
        if not up["confusion"].any():
            fix = "set data.split.validation above 0"
            raise MethodError(f"FedSDC+ has no {self.rank_on} images to rank heads on: {fix}")
        return banks.ranked(up["confusion"].double(), micro=self.rank_by == "micro_f1")[:count]

    @torch.no_grad()
    def rank(self, net: Net, loc: Loc) -> Upload:
        """Question: the confusion matrix of every head, [H, C, C], true by predicted class."""
        seen = banks.confusions(net, loc.down["heads"], loc.scan(self.rank_on), len(loc.classes))
        return {"confusion": Sum(seen)}

    def serving(self, server: Tree) -> Tree:
        slots = [f"{slot:03d}" for slot in server["chosen"].tolist()] if "chosen" in server else []
        slots = slots if self.ensemble else slots[:1]
        return {"model": server["model"], "heads": {slot: server["heads"][slot] for slot in slots}}

    def predict(self, net: Net, x: Tensor, mine: Tree | None, server: Tree) -> dict[str, Tensor]:
        logits = banks.bank_logits(net.body(x), server["heads"])
        mean = logits.log_softmax(2).logsumexp(0) - math.log(len(logits))
        return {"vote": banks.vote(logits), "mean": mean}


class FedSDCPlus(FedSDC):
    """FedSDC whose best heads alone vote."""

    gamma: float = Field(0.3, gt=0, le=1)
    """share of the heads that vote, best on validation first"""

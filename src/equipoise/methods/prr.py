"""PRR-Imb: a personal model at every site, protected by a deputy that travels.

Chen, Yang, Zhu, Peng, Yuan, "Personalized retrogress-resilient federated learning towards imbalanced medical
data", IEEE TMI 2022. Three parts. PFA, at the coordinator: each deputy's weights get the mean amplitude and
phase of all inside a low-frequency box that grows from `low` to `high` of the spectrum, and keep their own
high band; biases are plain means. BatchNorm layers never leave a site. DET, at a site: personal model and
deputy train side by side; while the deputy's macro-F1 is below α1 of the personal model's it learns from that
(recover), then both learn from each other (exchange), from α2 on the personal model learns from it
(sublimate); each round starts at recover. CPA, the loss of both, with n the round's counts over all sites:
    ℓ = −log e^{z_y} / (e^{z_y} + Σ_{j≠y} S_yj e^{z_j}),  S_yj = (n_j/n_y)^β if n_y > n_j else 1;
after `warmup` rounds times (1 + τ) / (cos(own prototype_y, shared prototype_y) + τ). It is in the place of
the base loss. Choices: macro-F1 is of the predictions made while training an epoch, instead of two further
passes; one local epoch a round is all exchange, as released; prototypes are the personal model's class means
over plain images, exchanged once a round, not every epoch; the shared one is a draw from N(mean, max(std, 1))
over sites (`prototype = "mean"`: the mean). The personal head starts as a draw of the site's own: with equal
starts the first deputy would be the personal model. `phase = false` is the amplitude-only aggregation of
2021. The global model, for tests only, is the mean of the deputies by samples, as FedIIC did; at each site it
has that site's BatchNorm layers.
Leaves the site: deputy, samples (each, since every site gets another deputy back); loss (mean); class counts
(sum); after warm-up prototypes and their squares (means over the sites that have the class). Stays: personal
model, BatchNorm layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from equipoise.exchange import Ask
from equipoise.leaves import ONE, SAMPLES, Each, Limit, Mean, Sum, Upload
from equipoise.losses import kl
from equipoise.losses.seesaw import refinement, seesaw, shared_prototypes
from equipoise.methods.base import PERSONAL, Method
from equipoise.methods.parts.apart import COUNTED, blend
from equipoise.methods.parts.personal import class_features, copied, first_personal, macro_f1, personal_of
from equipoise.nets import Net
from equipoise.nets.fourier import mix_nets
from equipoise.site import Batch, Loc
from equipoise.tree import Tree

Stage = Literal["recover", "exchange", "sublimate"]
PAIR = ("deputy", "personal")


class PRRImb(Method):
    """Personal models learn with deputies that are mixed by frequency."""

    paper: ClassVar[str] = "Chen et al. 2022"
    tasks = ("single",)
    keeps_tuned: ClassVar[bool] = False
    local_batch_norm: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {"fediic": {}}

    low: float = Field(0.7, ge=0, le=1)
    """share of the spectrum that is averaged in the first round"""
    high: float = Field(0.95, ge=0, le=1)
    """and what it grows towards"""
    phase: bool = True
    """average phases too, not amplitudes alone"""
    exchange_at: float = Field(0.7, ge=0)
    """α1: share of the personal model's macro-F1 from which both models learn from each other"""
    sublimate_at: float = Field(0.9, ge=0)
    """α2: and from which the personal model learns from the deputy"""
    beta: float = Field(0.8, ge=0)
    """how much less a rarer class is pushed down by a frequent one; 0 = cross-entropy"""
    tau: float = Field(3.0, gt=1)
    """the larger, the less prototypes matter"""
    warmup: int = Field(15, ge=0)
    """rounds before prototypes count"""
    prototype: Literal["gaussian", "mean"] = "gaussian"
    """shared prototypes: drawn around the mean over sites, or the mean"""

    def phases(self, rounds: int) -> Sequence[int]:
        return (0, self.warmup) if 0 < self.warmup < rounds else (0,)

    def round(self, server: Tree, ask: Ask) -> Tree:
        about = ask(self.describe)
        shared: Tree = {}
        if ask.round >= self.warmup:
            draw = ask.generator("prototypes") if self.prototype == "gaussian" else None
            shared["prototypes"] = shared_prototypes(about["prototype"], about["square"], draw)
        deputies = server.get("deputies", {})
        models = {site: {"model": deputies.get(site, server["model"])} for site in ask.sites}
        up = ask(self.train, each=models, count=about["count"], **shared)
        share = self.low + ask.round / ask.rounds * (self.high - self.low)
        mixed = mix_nets(up["deputy"], share, self.phase)
        samples = torch.stack(list(up["samples"].values())).double()
        return {"model": blend(up["deputy"], samples / samples.sum()), "deputies": deputies | mixed}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        sums = {"describe.count": SAMPLES, "train.samples": COUNTED}
        return sums | {"describe.prototype": ONE, "describe.square": ONE}

    def init_site(self, net: Net, loc: Loc) -> Tree:
        return {PERSONAL: first_personal(net, loc.generator("personal head"))}

    def describe(self, net: Net, loc: Loc) -> Upload:
        """Question: how many images of each class, and after warm-up how the personal model sees them."""
        if loc.round < self.warmup:
            return {"count": Sum(loc.counts)}
        own, has = class_features(personal_of(net, loc), loc), (loc.counts > 0).double()
        return {"count": Sum(loc.counts), "prototype": Mean(own, has), "square": Mean(own**2, has)}

    def train(self, net: Net, loc: Loc) -> Upload:
        personal = personal_of(net, loc)
        loc.scratch["stage"] = "recover" if loc.options.epochs > 1 else "exchange"
        if "prototypes" in loc.down:
            own = class_features(personal, loc)
            loc.scratch["weight"] = refinement(own, loc.down["prototypes"], self.tau)
        pair = nn.ModuleDict({"deputy": net, "personal": personal})
        loss = loc.fit(pair, self.pair_loss, order=lambda epoch: self.turn(epoch, loc))
        loc.mine[PERSONAL], deputy = copied(personal), copied(net)
        shown = {name: deputy[name] for name in loc.down["model"]}
        mean = Mean(torch.tensor(loss, dtype=torch.float64), loc.samples)
        return {"deputy": Each(shown), "samples": Each(torch.tensor(loc.samples)), "loss": mean}

    def turn(self, epoch: int, loc: Loc) -> Tensor:
        """The rows of an epoch, and the stage it is in."""
        if epoch:
            score = {name: macro_f1(confusion) for name, confusion in loc.scratch["confusion"].items()}
            loc.scratch["stage"] = self.next_stage(loc.scratch["stage"], score["deputy"], score["personal"])
        loc.scratch["confusion"] = {name: torch.zeros(len(loc.classes), len(loc.classes)) for name in PAIR}
        return loc.order(epoch)

    def next_stage(self, stage: Stage, deputy: float, personal: float) -> Stage:
        """DET: one step up at a time, and all the way down when the deputy falls behind."""
        if deputy < self.exchange_at * personal:
            return "recover"
        return "exchange" if stage == "recover" or deputy < self.sublimate_at * personal else "sublimate"

    def pair_loss(self, pair: nn.ModuleDict, batch: Batch, loc: Loc) -> Tensor:
        """CPA of both models, and what they learn from each other; neither moves the other."""
        logits = {name: pair[name](batch.x) for name in PAIR}
        stage, weight = loc.scratch["stage"], loc.scratch.get("weight")
        total = torch.zeros((), device=batch.y.device)
        for name, other in (PAIR, PAIR[::-1]):
            total = total + seesaw(logits[name], batch.y, loc.down["count"], self.beta, weight)
            if stage == "exchange" or stage == {"deputy": "recover", "personal": "sublimate"}[name]:
                total = total + kl(logits[other].detach(), logits[name])
            cells = (batch.y.cpu(), logits[name].argmax(1).cpu())
            loc.scratch["confusion"][name].index_put_(cells, torch.ones(()), accumulate=True)
        return total

    def predict(self, net: Net, x: Tensor, mine: Tree | None, server: Tree) -> dict[str, Tensor]:
        return {"fed" if mine is None else "personal": net(x)}

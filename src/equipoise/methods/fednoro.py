"""FedNoRo: noise-robust learning where classes are imbalanced and some sites' labels are wrong.

Wu, Yu, Jiang, Cheng, Yan, "FedNoRo: Towards noise-robust federated learning by addressing class imbalance and
label noise heterogeneity", IJCAI 2023. Stage 1, `warmup` rounds: FedAvg with logits adjusted by the site's
class shares, z + log π_k. Then every site answers once with its mean loss per class under the stage-1 model;
a class it lacks counts as the smallest of the others, each class is scaled to 0..1, and two Gaussians are
fitted from nine draws: the noisy sites are those that most fits put in the group of larger losses. Stage 2:
clean sites as before, noisy ones with the received model as teacher and λ = strength · exp(−5 (1 − t)²), t =
(r − warmup)/ramp,
    L = λ KL(softmax(z_T / 0.8) ‖ softmax(z + log π_k)) + (1 − λ) CE(z + log π_k, y)
and ω_k ∝ n_k e^{−D_k}, D_k a noisy site's distance to the nearest clean model (Σ over tensors ‖·‖; 0 for
clean ones), over the largest. With several labels per image (so Sun et al., FedMLP, 2024) there is only stage
2, a plain mean of models, and every site that misses labels is noisy: L = (1 − λ) BCE(z + log-odds, labelled
cells) + λ mean over missing cells of (σ(z) − σ(z_T / 0.8))². Choices: CE and BCE are the base loss; where it
shifts by class shares itself (balanced softmax), that shift stands for log π_k, which counts once; classes a
site lacks are left out of the KL; logits are adjusted also with several labels (switched off in FedMLP's
code: `adjust = false`); covariances are diagonal; a site that first takes part later is judged then, by the
same model. Leaves the site: delta, loss (means); single-label, after warm-up: class losses (each, once), and
with `daagg` every round delta and samples (each: the coordinator sees every site's model) instead of the
mean. Stays: nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import Each, Limit, Upload
from equipoise.losses import ObjectiveOptions, masked_mean, parts, prior_of
from equipoise.losses.shaping import prior_shift
from equipoise.methods.base import Method
from equipoise.methods.parts.apart import COUNTED, blend, nearness, shown
from equipoise.methods.parts.mixture import ABSENT, noisy_sites
from equipoise.methods.parts.teacher import rise, still
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus

FITS = 9
"""mixtures that vote on who is noisy"""


class FedNoRo(Method):
    """Sites with noisy labels are found, taught by the received model, and count less the further they
    stray."""

    paper: ClassVar[str] = "Wu et al. 2023"
    recommends: ClassVar[dict[str, Any]] = {"objective": {"name": "bce"}}
    neutral: ClassVar[dict[str, Any] | None] = {"adjust": False, "strength": 0.0, "daagg": False}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fedmlp": {"warmup": 10, "ramp": 489, "strength": 0.8, "temperature": 0.8, "adjust": False},
    }

    warmup: int = Field(10, ge=0)
    """rounds before noisy sites are looked for"""
    ramp: int = Field(39, ge=0)
    """rounds after warm-up over which the teacher's weight rises"""
    strength: float = Field(0.8, ge=0, le=1)
    """λ: the teacher's weight once it has risen"""
    temperature: float = Field(0.8, gt=0)
    """divides the teacher's logits"""
    adjust: bool = True
    """logits adjusted by the site's class shares"""
    daagg: bool = True
    """distance-aware aggregation, for which the coordinator sees each site's model; off = the mean by
    samples"""

    def base_loss(self, objective: ObjectiveOptions) -> ObjectiveOptions:
        if not self.adjust or objective.prior:
            return objective
        return objective.after(parts.LogitAdjustment())

    def phases(self, rounds: int) -> Sequence[int]:
        return (0, self.warmup) if 0 < self.warmup < rounds else (0,)

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"train.samples": COUNTED, "class_loss.loss": Limit(plain=math.inf, least=ABSENT)}

    def round(self, server: Tree, ask: Ask) -> Tree:
        if ask.round < self.warmup:
            return super().round(server, ask)
        server = self.judged(server, ask)
        each = {site: {"noisy": flag} for site, flag in server["noisy"].items()}
        up = ask(self.train, model=server["model"], each=each)
        change = up["delta"]
        if self.daagg and any(losses.numel() for losses in server["losses"].values()):
            samples = torch.stack(list(up["samples"].values())).double()
            noisy = {site for site, flag in server["noisy"].items() if flag}
            change = blend(change, nearness(change, samples, noisy))
        return server | {"model": plus(server["model"], change)}

    def judged(self, server: Tree, ask: Ask) -> Tree:
        """The server tree with a verdict on every site of this round."""
        server = {"judge": server["model"], "losses": {}} | server
        if set(ask.sites) <= set(server["losses"]):
            return server
        losses = server["losses"] | ask(self.class_loss, model=server["judge"])["loss"]
        draws = [ask.generator("mixture", i) for i in range(FITS)]
        flags = noisy_sites(torch.stack(list(losses.values())), draws)
        return server | {"losses": losses, "noisy": dict(zip(losses, flags, strict=True))}

    @torch.no_grad()
    def class_loss(self, net: Net, loc: Loc) -> Upload:
        """Question: mean cross-entropy per class of the stage-1 model; nothing where images have several
        labels."""
        if loc.task == "multi":
            return {"loss": Each(torch.zeros(0, dtype=torch.float64))}
        total = torch.zeros(len(loc.classes), dtype=torch.float64)
        for batch in loc.scan():
            loss = F.cross_entropy(net(batch.x), batch.y, reduction="none")
            total.index_add_(0, batch.y.cpu(), loss.cpu().double())
        return {"loss": Each(torch.where(loc.counts > 0, total / loc.counts.clamp_min(1), ABSENT))}

    def prepare(self, net: Net, loc: Loc) -> None:
        noisy = bool(loc.down.get("noisy", False)) if loc.task == "single" else not loc.train.complete
        if noisy and self.strength > 0:
            loc.scratch["teacher"] = still(net)

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        return shown(up, loc) if self.daagg and loc.task == "single" and loc.round >= self.warmup else up

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        logits = net(batch.x)
        total = loc.objective(logits, batch.y)
        if "teacher" not in loc.scratch:
            return total
        with torch.no_grad():
            guide = loc.scratch["teacher"](batch.x) / self.temperature
        weight = self.strength * rise(loc.round - self.warmup, self.ramp)
        if loc.task == "multi":
            distilled = masked_mean((logits.sigmoid() - guide.sigmoid()) ** 2, ~batch.known)
        else:
            student = self.shaped(logits, loc).log_softmax(1)
            terms = F.kl_div(student, guide.log_softmax(1), reduction="none", log_target=True)
            distilled = terms[:, loc.counts > 0].sum(1).mean()
        return (1 - weight) * total + weight * distilled

    def shaped(self, logits: Tensor, loc: Loc) -> Tensor:
        """z + log π_k."""
        return prior_shift(prior_of(loc.counts))(logits) if self.adjust else logits

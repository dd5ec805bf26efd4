"""ISFL: sites draw their images with weights by class, away from classes whose gradients change fastest.

Zhu, Shi, Fan, et al., "ISFL: Federated learning for non-i.i.d. data with local importance sampling", IoT
Journal 2024. With p the class shares over the participants, π_k the site's own, and after local training for
every class
    L_kc = max over probe images of class c of ‖∇ℓ(w_k) − ∇ℓ(w)‖ / ‖w_k − w‖                     (gradient
    Lipschitz estimate) γ_c = 1 − C L_c² / Σ L²,  a = γ/‖γ‖,  Γ = min over a_c < 0 of (p_c − σ π_kc) / (−a_c),
    q = p + Γ a        (water-filling)
the next round draws n_k · ratio images with replacement, each with weight q_y / π_ky; a site's first round
has q = p. The loss is the base loss, the average uniform.
Choices: the published probe is a set of 1,000 images shared by all and each client's L is estimated by the
server; here a site probes its own images, `probe` of them spread over its classes, and the last mean of L
over the sites that hold a class stands in for classes it lacks. Gradients are of the classifier by default
(`scope = "all"`: of the whole net, one backward pass per image and model). C counts the classes with p_c > 0;
Γ is at least 0. Several labels per image: shares of positives, and an image's weight is the mean over its
findings, 1 without any. Leaves the site: counts (sum), smoothness L (mean by class), delta, loss (means).
Stays: the class shares q drawn by.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import ONE, SAMPLES, Limit, Mean, Sum, Upload
from equipoise.methods.base import Method
from equipoise.methods.parts.importance import members, own_shares, water_filling
from equipoise.nets import HEAD, Net
from equipoise.site import Loc
from equipoise.tree import Tree, plus


class ISFL(Method):
    """FedAvg on images drawn by class importance."""

    paper: ClassVar[str] = "Zhu et al. 2024"

    sigma: float = Field(0.02, gt=0, le=1)
    """least share of a class, relative to its share at the site"""
    ratio: float = Field(1.0, gt=0)
    """images drawn per epoch, relative to those the site has"""
    probe: int = Field(64, ge=1)
    """images on which a site measures how fast gradients change"""
    scope: Literal["head", "all"] = "head"
    """gradients of the classifier, or of the whole net"""

    def round(self, server: Tree, ask: Ask) -> Tree:
        prior = ask(self.count)["counts"]
        up = ask(self.train, **server, prior=prior / prior.sum().clamp_min(1))
        old = server.get("smoothness", torch.zeros_like(prior))
        smoothness = torch.where(up.weight["smoothness"] > 0, up["smoothness"], old)
        return {**server, "model": plus(server["model"], up["delta"]), "smoothness": smoothness}

    def count(self, net: Net, loc: Loc) -> Upload:
        """Question: images per class (positives, for several labels per image)."""
        return {"counts": Sum(loc.counts)}

    def fit(self, net: Net, loc: Loc) -> float:
        weight = self.weights(loc)
        return loc.fit(net, self.loss, order=lambda epoch: self._drawn(weight, loc, epoch))

    def train(self, net: Net, loc: Loc) -> Upload:
        received = copy.deepcopy(net).eval()
        up = super().train(net, loc)
        smoothness, held = self.smoothness(net, received, loc), (loc.counts > 0).double()
        loc.mine = {"shares": self.shares(smoothness, loc)}
        return up | {"smoothness": Mean(smoothness, held)}

    def weight(self, loc: Loc) -> float:
        return 1

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"count.counts": SAMPLES, "train.delta": ONE, "train.smoothness": ONE}

    def weights(self, loc: Loc) -> Tensor:
        """The weight of every training image, q_y / π_y."""
        own, classes = own_shares(loc), members(loc)
        target = loc.mine["shares"] if "shares" in loc.mine else loc.down["prior"]
        importance = torch.where(own > 0, target / own.clamp_min(1e-12), 0.0)
        return torch.where(classes.sum(1) > 0, classes @ importance / classes.sum(1).clamp_min(1), 1.0)

    def shares(self, smoothness: Tensor, loc: Loc) -> Tensor:
        """q for the next round. What L is for a class the site lacks, the others have said, or else it is as
        for its own."""
        held = loc.counts > 0
        guess = torch.full_like(smoothness, float(smoothness.sum() / held.sum().clamp_min(1)))
        shared = loc.down.get("smoothness", torch.zeros_like(smoothness))
        smoothness = torch.where(held, smoothness, torch.where(shared > 0, shared, guess))
        return water_filling(loc.down["prior"], own_shares(loc), smoothness, self.sigma)

    def _drawn(self, weight: Tensor, loc: Loc, epoch: int) -> Tensor:
        draws = max(min(2, loc.samples), int(self.ratio * loc.samples + 1e-9))  # batch statistics need two
        return torch.multinomial(weight, draws, replacement=True, generator=loc.generator("shuffle", epoch))

    def smoothness(self, net: Net, received: Net, loc: Loc) -> Tensor:
        """L_c [C]: the fastest change of a probe image's gradient between the two models; 0 for classes the
        site lacks."""
        rows, classes = self._probe(loc), members(loc)
        batch = loc.train.take(rows, [loc.view("eval")], [loc.generator("probe view")])
        pairs = zip(self._scope(net), self._scope(received), strict=True)
        way = torch.cat([(a - b).detach().flatten() for a, b in pairs]).norm()
        result = torch.zeros(len(loc.classes), dtype=torch.float64)
        for i, row in enumerate(rows.tolist()):
            image = batch.x[i : i + 1], batch.y[i : i + 1]
            now, then = (self._gradient(model, *image, loc) for model in (net, received))
            slope = float((now - then).norm() / way.clamp_min(1e-12))
            result = torch.where(classes[row] > 0, result.clamp_min(slope), result)
        return result

    def _probe(self, loc: Loc) -> Tensor:
        """The same number of images of every class the site has (all, where it has fewer), drawn anew each
        round."""
        classes, held = members(loc), int((loc.counts > 0).sum())
        order = torch.randperm(loc.samples, generator=loc.generator("probe"))
        share = -(-self.probe // max(1, held))
        chosen = [order[classes[order, c] > 0][:share] for c in range(len(loc.classes))]
        result: Tensor = torch.cat(chosen).unique()
        return result

    def _scope(self, net: Net) -> list[Tensor]:
        start = "" if self.scope == "all" else HEAD
        return [p for name, p in net.named_parameters() if name not in net.fixed and name.startswith(start)]

    def _gradient(self, net: Net, x: Tensor, y: Tensor, loc: Loc) -> Tensor:
        """The gradient of one image's loss, as one vector."""
        with torch.set_grad_enabled(self.scope == "all"):
            z = net.body(x)
        with torch.enable_grad():
            gradients = torch.autograd.grad(loc.objective(net.head["fed"](z), y), self._scope(net))
        return torch.cat([g.flatten() for g in gradients])

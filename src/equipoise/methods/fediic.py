"""FedIIC: intra- and inter-client contrast with difficulty-aware logit adjustment.

Wu, Yu, Yang, Cheng, Yan, "FedIIC: Towards robust federated learning for class-imbalanced medical image
classification", MICCAI
2023. Before training, the sites' per-class losses under the global model are added up (difficulty ℓ_c),
and the coordinator makes class prototypes from the classifier's rows through the projector, spread apart (Eq.
5). Locally, on two views:  L = L_DALA + k_intra L_intra + k_inter L_inter (Eq. 7), all means.
    DALA (Eq. 6), view 1:  CE(z + log π_k − log(ℓ^q + 1e-5));  a class the site lacks has logit −∞, so exactly
    no gradient intra (Eq. 3), both views: supervised contrast with a temperature per pair, here max((π_i
    π_j)^t, 0.07) inter (Eq. 4), both views: −log softmax_c(⟨ẑ, V_c⟩ / 0.1)
Choices between paper and code: the pair temperature is the released one, with a floor and without the base τ;
`temperature = "paper"` is (π_i π_j)^t τ as Eq. 3 prints it, without the floor (with real class shares every
pair would be at it). At t = 0 the first is 1 for every pair and the second τ. Prototypes are spread until
they form a simplex, as Eq. 5 reads (`spread = "released"` stops once no cosine is positive); ℓ_c is measured
on plain images, not on one frozen augmentation.
Leaves the site: loss and count per class (sums), delta, loss (means). Stays: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import POSITIVE, SAMPLES, Limit, Sum, Upload
from equipoise.losses.contrast import intra, spread_apart
from equipoise.methods.base import Method
from equipoise.nets import HEAD, Net, ProjectorSpec
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus

FLOOR, SMOOTH = 0.07, 1e-5
"""lowest pair temperature of the released code; keeps empty classes and zero losses finite"""


class FedIIC(Method):
    """Contrast within and across sites, and margins by class share and difficulty."""

    paper: ClassVar[str] = "Wu et al. 2023"
    tasks = ("single",)
    views = ("rand", "sim")
    neutral: ClassVar[dict[str, Any] | None] = {"dala": False, "k_intra": 0.0, "k_inter": 0.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "dala": {"k_intra": 0.0, "k_inter": 0.0},
        "dala+intra": {"k_inter": 0.0},
        "dala+inter": {"k_intra": 0.0},
        "t=0": {"t": 0.0},
        "no-orthogonalisation": {"spread": "none"},
        "q=0": {"q": 0.0},
        "released": {"spread": "released"},
        "paper": {"temperature": "paper"},
        "paper-t=0": {"temperature": "paper", "t": 0.0},
    }

    dala: bool = True
    """difficulty-aware logit adjustment; off = the base loss"""
    k_intra: float = Field(2.0, ge=0)
    """weight of the contrast among a site's own images"""
    k_inter: float = Field(2.0, ge=0)
    """weight of the contrast with the prototypes all sites share"""
    q: float = Field(0.25, ge=0)
    """how strongly difficulty counts; 0 = plain logit adjustment"""
    t: float = Field(0.5, ge=0)
    """how strongly class shares set the intra temperature"""
    tau: float = Field(0.1, gt=0)
    """temperature of the inter contrast (and base of the intra one under `temperature = "paper"`)"""
    temperature: Literal["released", "paper"] = "released"
    """intra temperature of a pair: (π_i π_j)^t but at least 0.07, or (π_i π_j)^t τ as Eq. 3 prints it"""
    spread: Literal["paper", "released", "none"] = "paper"
    """how prototypes are pushed apart: to a simplex, until no cosine is positive, or not at all"""
    spread_steps: int = Field(1000, ge=0)
    """descent steps of the spreading"""
    relu: bool = False
    """an activation inside the projector (the released one has none)"""

    def projection(self) -> ProjectorSpec:
        return ProjectorSpec((0, 1024), activation=self.relu)

    def round(self, server: Tree, ask: Ask) -> Tree:
        s = ask(self.class_loss, model=server["model"])
        model, difficulty = server["model"], s["loss"] / (SMOOTH + s["count"])
        up = ask(self.train, model=model, prototypes=self.prototypes(model), difficulty=difficulty)
        return {"model": plus(server["model"], up["delta"])}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"class_loss.loss": POSITIVE, "class_loss.count": SAMPLES}

    def prototypes(self, model: dict[str, Tensor]) -> Tensor:
        """Unit class vectors V_c [C, 1024]: classifier rows through the projector, spread apart (step 1 of
        the algorithm)."""
        v = F.linear(model[f"{HEAD}weight"], model["projector.0.weight"], model["projector.0.bias"])
        last = "projector.2" if self.relu else "projector.1"
        v = F.linear(F.relu(v) if self.relu else v, model[f"{last}.weight"], model[f"{last}.bias"])
        if self.spread != "none":
            v = spread_apart(v, self.spread_steps, stop_at_zero=self.spread == "released")
        return F.normalize(v)

    @torch.no_grad()
    def class_loss(self, net: Net, loc: Loc) -> Upload:
        """Question: summed cross-entropy of the received model on the site's training images, and their
        number, per class."""
        total = torch.zeros(len(loc.classes), dtype=torch.float64)
        for batch in loc.scan():
            loss = F.cross_entropy(net(batch.x), batch.y, reduction="none")
            total.index_add_(0, batch.y.cpu(), loss.cpu().double())
        return {"loss": Sum(total), "count": Sum(loc.counts)}

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        contrast = self.k_intra > 0 or self.k_inter > 0
        z = net.body(torch.cat(batch.views[:2]) if contrast else batch.x)
        logits = net.head["fed"](net.dropout(z[: len(batch)]))
        if self.dala:
            total = F.cross_entropy(logits + self.margin(loc).to(logits), batch.y)
        else:
            total = loc.objective(logits, batch.y)
        if contrast:
            assert net.projector is not None
            unit, y = F.normalize(net.projector(z)), batch.y.repeat(2)
            if self.k_intra > 0:
                total = total + self.k_intra * intra(unit, y, self.pair_temperature(loc.prior.to(unit), y))
            if self.k_inter > 0:
                cosines = unit @ loc.down["prototypes"].to(unit).T
                total = total + self.k_inter * F.cross_entropy(cosines / self.tau, y)
        return total

    def margin(self, loc: Loc) -> Tensor:
        """log π_k − log(ℓ^q + 1e-5) per class."""
        return torch.log(loc.prior.double()) - torch.log(loc.down["difficulty"].double() ** self.q + SMOOTH)

    def pair_temperature(self, prior: Tensor, y: Tensor) -> Tensor:
        """T_ij for every pair of labels."""
        share = (prior[y][:, None] * prior[y][None, :]) ** self.t
        return share * self.tau if self.temperature == "paper" else share.clamp_min(FLOOR)

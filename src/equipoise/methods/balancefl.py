"""BalanceFL: local updates as if each site had all classes, equally often.

Shuai, Shen, Jiang, Zhao, Yan, Xing, "BalanceFL: Addressing class imbalance in long-tail federated learning",
IPSN 2022. Rows are drawn so that a site's classes come equally often; the feature f of an image of class y
gets, with probability 1 − n_y / max n, a noise vector of the site's shared within-class covariance; what the
site cannot teach comes from the received model T. With P the classes the site has and A those it lacks:
    L = L_base(z(f + noise) over P) + λ KD − η Σ_i H(softmax z_P)
    KD = −mean_i Σ_{c∈A} softmax(z^T_A / τ)_c log softmax(z_A / τ)_c               (no τ²; 0 where the site
    lacks no class)
The covariance is never formed: Σ_c √(n_c/n) g_cᵀ X̄_c / √(n_c − 1), with g standard normal and X̄_c the
centred features, has it.
Deviations of the published code are options: `present = "batch"` takes P from the labels of each batch,
`teacher = "batch"` lets T normalise by the batch, `bias = false` leaves out the classifier's bias (preset
"released"). `present = "all"` restricts nothing. The base loss is cross-entropy unless the config says
otherwise; the published local re-training of the classifier is off.
Leaves the site: as FedAvg. Stays: the noise.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from equipoise.losses import among
from equipoise.methods.base import Method
from equipoise.methods.parts.teacher import still
from equipoise.nets import Net
from equipoise.site import Batch, Loc


class BalanceFL(Method):
    """Balanced draws, noise for rare classes, and the received model's word on absent ones."""

    paper: ClassVar[str] = "Shuai et al. 2022"
    tasks = ("single",)
    neutral: ClassVar[dict[str, Any] | None] = {
        "balanced": False,
        "noise": 0.0,
        "distil": 0.0,
        "entropy": 0.0,
        "present": "all",
        "bias": True,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "fca": {},
        "released": {"present": "batch", "teacher": "batch", "bias": False},
    }

    balanced: bool = True
    """draw rows so that the site's classes come equally often"""
    noise: float = Field(1.0, ge=0)
    """scale of the noise on features of rarer classes"""
    vectors: int = Field(500, ge=1)
    """noise vectors drawn per round, from which every image picks one"""
    distil: float = Field(1.0, ge=0)
    """λ: weight of what the received model says about absent classes"""
    temperature: float = Field(2.0, gt=0)
    """τ: of that distillation"""
    entropy: float = Field(0.002, ge=0)
    """η: reward for undecided predictions, summed over the batch"""
    present: Literal["site", "batch", "all"] = "site"
    """classes the loss is restricted to: those the site has, those in the batch, or no restriction"""
    teacher: Literal["eval", "batch"] = "eval"
    """how the received model normalises: by its running statistics, or by the batch's"""
    bias: bool = True
    """whether the classifier has a bias"""

    def make_head(self, width: int, classes: int) -> nn.Module | None:
        return None if self.bias else nn.Linear(width, classes, bias=False)

    def prepare(self, net: Net, loc: Loc) -> None:
        if self.distil:
            teacher = still(net)
            teacher.body.train(self.teacher == "batch" and loc.samples > 1)  # one image has no statistics
            loc.scratch["teacher"] = teacher
        if self.noise:
            with torch.no_grad():
                features = torch.cat([net.body(batch.x) for batch in loc.scan()])
            loc.scratch["draw"] = loc.generator("noise")
            labels, draw = loc.train.labels, loc.scratch["draw"]
            loc.scratch["noise"] = noise_vectors(features, labels, loc.counts, self.vectors, draw)

    def fit(self, net: Net, loc: Loc) -> float:
        return loc.fit(net, self.loss, order=loc.balanced if self.balanced else None)

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        z = net.features(batch.x)
        logits, present = net.head["fed"](z), self.classes_of(batch, loc)
        noisy = net.head["fed"](z + self.draw_noise(batch, loc).to(z)) if self.noise else logits
        total = loc.objective(among(noisy, present), batch.y)
        if self.distil and not present.all():
            with torch.no_grad():
                teacher = loc.scratch["teacher"]
                target = teacher.head["fed"](teacher.body(batch.x))
            missing = distillation(target[:, ~present], logits[:, ~present], self.temperature)
            total = total + self.distil * missing
        if self.entropy:
            share = logits[:, present].log_softmax(1)
            total = total + self.entropy * (share.exp() * share).sum()
        return total

    def classes_of(self, batch: Batch, loc: Loc) -> Tensor:
        """bool [C]: the classes P."""
        if self.present == "all":
            return torch.ones(len(loc.classes), dtype=torch.bool)
        if self.present == "site":
            return loc.counts > 0
        return torch.bincount(batch.y.cpu(), minlength=len(loc.classes)) > 0

    def draw_noise(self, batch: Batch, loc: Loc) -> Tensor:
        """[B, d]: a noise vector for an image of a rarer class, or none."""
        draw, vectors = loc.scratch["draw"], loc.scratch["noise"]
        chance = 1 - loc.counts[batch.y.cpu()] / loc.counts.max()
        chosen = torch.rand(len(batch), generator=draw) < chance
        pick = torch.randint(len(vectors), (len(batch),), generator=draw)
        result: Tensor = self.noise * vectors[pick] * chosen[:, None]
        return result


def noise_vectors(features: Tensor, y: Tensor, counts: Tensor, number: int, draw: torch.Generator) -> Tensor:
    """[number, d] draws from N(0, Σ), Σ the mean of the class covariances weighted by class size; one image
    has none."""
    features, counts = features.cpu(), counts.to(features.dtype)
    sums = torch.zeros(len(counts), features.shape[1], dtype=features.dtype).index_add_(0, y, features)
    centred = features - (sums / counts.clamp_min(1)[:, None])[y]
    scale = (counts / counts.sum() / (counts - 1).clamp_min(1)).sqrt()[y]
    return torch.randn(number, len(y), generator=draw, dtype=features.dtype) @ (centred * scale[:, None])


def distillation(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the student's softened softmax under the teacher's, mean over the batch."""
    return F.cross_entropy(student / temperature, (teacher / temperature).softmax(1))

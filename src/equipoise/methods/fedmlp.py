"""FedMLP: multi-label learning when every site labels only some of the classes.

Sun, Wu, Shi, Yu, Cheng, Yan, "FedMLP: Federated multi-label medical image classification under task heterogeneity", MICCAI 2024.
Warm-up rounds train on what each site labels (two views), each logit shifted by the log-odds of the class at the site (weighted
partial-class loss WPC, Eq. 3-4). From the last warm-up round on, sites also answer with class prototypes of the classes they
label (Eq. 5-6) and, for those they miss, how decided the model is (learning degree d_c, Eq. 9-10). After it, with the received
model and prototypes, a site tags images of its missing classes for good (missing-label detection MLD, Eq. 7-8, 11): of the
untagged images nearer the negative (positive) prototype, the share d_c T_0 (d_c T_1) that are nearest become 0 (1). Cells that
are neither labelled nor tagged are held to the received model's prediction (consistency CR, Eq. 12).
Choices: all four components are on (the published code has three switched off); d_c is averaged over the sites that miss c,
prototypes over those that label it, unweighted; the loss is one mean over all B·C cells; a tagged class's prior is
pos/(pos+neg) among its tags; features come from plain images. A pool too small for one whole image still gives one when
`at_least_one` is on (by default: at sites with fewer than 2/T_0 images), and the site notes it. Without WPC the loss is plain BCE on
the known cells.
Leaves the site: delta, loss (means); from the last warm-up round prototypes and degree (means masked by class).
Stays: tags.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from equipoise.leaves import ONE, Limit, Mean, Upload
from equipoise.losses import class_means, masked_mean, positive_prior
from equipoise.losses.shaping import odds_shift
from equipoise.methods.base import Ask, Method
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus

NONE = -1
"""tag of an image nothing has been decided about"""


class FedMLP(Method):
    """Sites teach each other the classes they do not label."""

    paper: ClassVar[str] = "Sun et al. 2024"
    tasks = ("multi",)
    views = ("weak", "weak")
    recommends: ClassVar[dict[str, Any]] = {"objective": {"name": "bce", "over": "all"}}
    neutral: ClassVar[dict[str, Any] | None] = {"warmup": 0, "mld": False, "wpc": False, "cr": False}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "mld": {"wpc": False, "cr": False, "st": False},
        "mld+wpc": {"cr": False, "st": False},
        "mld+wpc+cr": {"st": False},
        "mld+wpc+cr+st": {},
    }

    warmup: int = Field(50, ge=0)
    """rounds before missing labels are looked for"""
    mld: bool = True
    """missing-label detection"""
    wpc: bool = True
    """logits shifted by the site's log-odds of each class"""
    cr: bool = True
    """consistency with the received model where nothing is known"""
    st: bool = True
    """self-adaptive threshold: the share tagged grows with the learning degree"""
    negative_share: float = Field(0.005, ge=0, le=1)
    """T_0: share of the pool tagged negative per round"""
    positive_share: float = Field(0.01, ge=0, le=1)
    """T_1: share of the pool tagged positive per round"""
    low: float = Field(0.3, ge=0, le=1)
    """a prediction below this counts as decided"""
    high: float = Field(0.7, ge=0, le=1)
    """and so does one above this"""
    at_least_one: bool | None = None
    """tag one image where the share is less than one; none = at small sites"""

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        classes = shared["head.fed.weight"].shape[0]
        state = {"prototypes": torch.zeros(classes, 2, net.width), "degree": torch.ones(classes)}
        return super().init(net, shared) | state

    def phases(self, rounds: int) -> Sequence[int]:
        return (0, self.warmup - 1) if 1 < self.warmup <= rounds else (0,)

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, **server)
        model = plus(server["model"], up["delta"])
        if ask.round < self.warmup - 1:
            return server | {"model": model}
        seen = up.weight["prototypes"][..., None] > 0
        missed = up.weight["degree"] > 0
        return {
            "model": model,
            "prototypes": torch.where(seen, up["prototypes"], server["prototypes"]),
            "degree": torch.where(missed, up["degree"], server["degree"]),
        }

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {"train.prototypes": ONE}

    def init_site(self, net: Net, loc: Loc) -> Tree:
        return {"tags": torch.full((loc.samples, len(loc.classes)), NONE, dtype=torch.int8)}

    def train(self, net: Net, loc: Loc) -> Upload:
        late = loc.round >= self.warmup
        if late and self.mld:
            self._tag(net, loc)
        loc.scratch["shift"] = self.shift(loc)
        if late and self.cr:
            loc.scratch["received"] = copy.deepcopy(net).eval().requires_grad_(False)
        loss = loc.fit(net, self.late_loss if late else self.loss, views=(loc.options.views or self.views)[: 1 if late else 2])
        mean_loss = torch.tensor(loss, dtype=torch.float64)
        up: Upload = {"delta": Mean(loc.delta(net), loc.samples), "loss": Mean(mean_loss, loc.samples)}
        return up | self._describe(net, loc) if loc.round >= self.warmup - 1 else up

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        """Warm-up: WPC, the mean over both views."""
        return torch.stack(
            [self.known_loss(net(x), batch.y, loc.annotated.expand_as(batch.y), loc) for x in batch.views]
        ).mean()

    def known_loss(self, logits: Tensor, y: Tensor, known: Tensor, loc: Loc) -> Tensor:
        """BCE of shifted logits over the known cells, divided by all B·C."""
        return masked_mean(
            F.binary_cross_entropy_with_logits(logits + loc.scratch["shift"].to(logits), y, reduction="none"), known, "all"
        )

    def late_loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        """After warm-up: labels and tags where there are any, the received model's prediction elsewhere."""
        logits, tags = net(batch.x), loc.mine["tags"][batch.index].to(batch.y.device)
        known = loc.annotated.to(tags.device) | (tags != NONE)
        total = self.known_loss(logits, torch.where(tags == 1, 1.0, batch.y), known, loc)
        if self.cr:
            with torch.no_grad():
                guide = loc.scratch["received"](batch.x).sigmoid()
            total = total + masked_mean((logits.sigmoid() - guide) ** 2, ~known, "all")
        return total

    def shift(self, loc: Loc) -> Tensor:
        """log(π_1 / π_0) per class, from labels or, for a missing class, from tags; kept half a sample away from 0 and 1."""
        if not self.wpc:
            return torch.zeros(len(loc.classes))
        tags, own = loc.mine["tags"], loc.annotated
        positive = torch.where(own, loc.counts, (tags == 1).sum(0))
        total = torch.where(own, torch.tensor(loc.samples), (tags != NONE).sum(0))
        shift = odds_shift(positive_prior(positive, total)).shift
        assert shift is not None
        return shift.float()

    @torch.no_grad()
    def _tag(self, net: Net, loc: Loc) -> None:
        """MLD: decide about the images whose features lie most clearly with one of a missing class's two prototypes."""
        feature = F.normalize(torch.cat([net.body(batch.x) for batch in loc.scan()]).cpu())
        prototypes, tags = loc.down["prototypes"], loc.mine["tags"].clone()
        small = loc.samples * self.negative_share < 2 if self.at_least_one is None else self.at_least_one
        loc.note("at_least_one", float(small))
        for c in (~loc.annotated).nonzero().flatten().tolist():
            if (prototypes[c].norm(dim=1) == 0).any():
                continue  # nobody has shown both kinds of this class yet
            unit = F.normalize(prototypes[c])
            z = feature @ (unit[0] - unit[1])
            degree = float(loc.down["degree"][c]) if self.st else 1.0
            free = tags[:, c] == NONE
            for value, side, share in ((0, z, self.negative_share), (1, -z, self.positive_share)):
                pool = (free & (side >= 0 if value == 0 else side > 0)).nonzero().flatten()
                count = selected(len(pool), degree * share, small)
                tags[pool[side[pool].argsort(descending=True, stable=True)[:count]], c] = value
        loc.mine["tags"] = tags

    @torch.no_grad()
    def _describe(self, net: Net, loc: Loc) -> Upload:
        """Prototypes of labelled classes (masked mean) and learning degree of missing ones, under the trained local net."""
        features, scores = [], []
        for batch in loc.scan():
            z = net.body(batch.x)
            features.append(z.cpu())
            scores.append(net.head["fed"](z).sigmoid().cpu())
        feature, score, y, own = torch.cat(features), torch.cat(scores), loc.train.labels, loc.annotated
        prototypes, count = class_means(feature, y)
        decided = ((score < self.low) | (score > self.high)).float().mean(0)
        return {
            "prototypes": Mean(prototypes * own[:, None, None], ((count > 0) & own[:, None]).double()),
            "degree": Mean(decided, loc.samples * (~own).double()),
        }


def selected(pool: int, share: float, at_least_one: bool) -> int:
    """⌊share · pool⌋, or one where that is none, the pool is not empty and `at_least_one` is on."""
    count = int(share * pool + 1e-9)
    return max(count, 1) if at_least_one and pool and share > 0 else count

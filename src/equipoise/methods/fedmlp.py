"""FedMLP: multi-label learning when every site labels only some of the classes.

Sun, Wu, Shi, Yu, Cheng, Yan, "FedMLP: Federated multi-label medical image classification under task
heterogeneity", MICCAI 2024. Warm-up rounds train on what each site labels (two views), each logit shifted by
the log-odds of the class at the site (weighted partial-class loss WPC, Eq. 3-4). From the last warm-up round
on, sites also answer with class prototypes of the classes they label (Eq. 5-6) and, for those they miss, how
decided the model is (learning degree d_c, Eq. 10). After it, with the received model and prototypes, a site
tags images of its missing classes for good (missing-label detection MLD, Eq. 7-9): of the untagged images
nearer the negative (positive) prototype, the share d_c T_0 (d_c T_1) that are nearest become 0 (1). Cells
that are neither labelled nor tagged are held to the received model's prediction by their squared distance
(consistency CR, Sec. 2.4, which has no equation). Choices: all four components are on; d_c is averaged over
the sites that miss c, as the text says (Eq. 10 sums over those that label it: preset `eq-10`), prototypes
over those that label it, unweighted; a loss is one mean over all B·C cells; a tagged class's prior is
pos/(pos+neg) among its tags; features come from plain images. A pool too small for one whole image still
gives one when `at_least_one` is on (by default: at sites with fewer than 2/T_0 images), and the site notes
it. Without WPC the loss is plain BCE on the known cells.
`released` is the published code: of the four only MLD is on, warm-up has a consistency of its own, and losses
and prototypes are divided otherwise. What is not taken over: features and d_c from augmented images, the last
batch of an epoch divided by the size of a full one, and positives dropped in a round in which no negative is
tagged. Leaves the site: delta, loss (means); from the last warm-up round prototypes and degree (means masked
by class). Stays: tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import ONE, Limit, Mean, Upload
from equipoise.losses import ObjectiveOptions, bce_cells, class_means, filled, masked_mean, parts
from equipoise.losses.multilabel import Over
from equipoise.losses.tagging import NONE, known_odds, tag_nearest
from equipoise.methods.base import Method
from equipoise.methods.parts.degree import decided_share, features_and_scores
from equipoise.methods.parts.teacher import still
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus


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
        "eq-10": {"degree_of": "labelling"},
        "released": {
            "wpc": False,
            "cr": False,
            "st": False,
            "warmup_cr": True,
            "over": "labelled",
            "prototypes_by": "samples",
            "at_least_one": False,
        },
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
    warmup_cr: bool = False
    """consistency with the received model on missing classes while warming up, too (the published code)"""
    degree_of: Literal["missing", "labelling"] = "missing"
    """sites that measure a class's learning degree: those that miss it (text), or label it (Eq. 10)"""
    over: Over = "all"
    """what a loss is divided by: all cells (Eq. 4), or the labelled ones, and consistency's by the others"""
    prototypes_by: Literal["sites", "samples"] = "sites"
    """prototypes averaged over labelling sites alike (Eq. 6), or by their images (the published code)"""
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

    def base_loss(self, objective: ObjectiveOptions) -> ObjectiveOptions:
        """Always plain BCE, as Eq. 4 divides it: what is on top of it are the method's own parts."""
        return ObjectiveOptions(parts=(parts.BCE(over=self.over),))

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        state = {"prototypes": torch.zeros(net.classes, 2, net.width), "degree": torch.ones(net.classes)}
        return super().init(net, shared) | state

    def phases(self, rounds: int) -> Sequence[int]:
        return (0, self.warmup - 1) if 1 < self.warmup <= rounds else (0,)

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, **server)
        model = plus(server["model"], up["delta"])
        if ask.round < self.warmup - 1:
            return server | {"model": model}
        seen = up.weight["prototypes"][..., None] > 0
        prototypes = torch.where(seen, up["prototypes"], server["prototypes"])
        degree = torch.where(up.weight["degree"] > 0, up["degree"], server["degree"])
        return {"model": model, "prototypes": prototypes, "degree": degree}

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        return {} if self.prototypes_by == "samples" else {"train.prototypes": ONE}

    def init_site(self, net: Net, loc: Loc) -> Tree:
        return {"tags": torch.full((loc.samples, len(loc.classes)), NONE, dtype=torch.int8)}

    def prepare(self, net: Net, loc: Loc) -> None:
        late = loc.round >= self.warmup
        if late and self.mld:
            self._tag(net, loc)
        loc.scratch["shift"] = self.shift(loc)
        if self.cr if late else self.warmup_cr:
            loc.scratch["received"] = still(net)

    def fit(self, net: Net, loc: Loc) -> float:
        late, views = loc.round >= self.warmup, loc.options.views or self.views
        return loc.fit(net, self.late_loss if late else self.loss, views=views[: 1 if late else 2])

    def train(self, net: Net, loc: Loc) -> Upload:
        up = super().train(net, loc)
        return up | self._describe(net, loc) if loc.round >= self.warmup - 1 else up

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        """Warm-up: the mean over both views, labels only where the site has them."""
        y, known = batch.y, batch.known
        losses = [self.view_loss(net, x, y, known, loc, self.warmup_cr) for x in batch.views]
        return torch.stack(losses).mean()

    def late_loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        """After warm-up: labels and tags where there are any."""
        tags = loc.mine["tags"][batch.index].to(batch.y.device)
        decided = tags != NONE
        y = torch.where(decided, tags.to(batch.y.dtype), batch.y)
        return self.view_loss(net, batch.x, y, batch.known | decided, loc, self.cr)

    def view_loss(self, net: Net, x: Tensor, y: Tensor, known: Tensor, loc: Loc, consistent: bool) -> Tensor:
        """BCE of shifted logits over the known cells; `consistent` holds the others to the received model's
        prediction."""
        logits = net(x)
        shifted = logits + loc.scratch["shift"].to(logits)
        total = masked_mean(bce_cells(shifted, filled(y)), known, self.over)
        if consistent:
            with torch.no_grad():
                guide = loc.scratch["received"](x).sigmoid()
            total = total + masked_mean((logits.sigmoid() - guide) ** 2, ~known, self.over)
        return total

    def shift(self, loc: Loc) -> Tensor:
        """log(π_1 / π_0) per class, from labels and, where they are missing, from tags."""
        odds = known_odds(loc.train.labels, loc.mine["tags"]).float()
        return odds if self.wpc else torch.zeros_like(odds)

    @torch.no_grad()
    def _tag(self, net: Net, loc: Loc) -> None:
        """MLD: decide about the images whose features lie most clearly with one of a missing class's two
        prototypes."""
        feature = torch.cat([net.body(batch.x) for batch in loc.scan()]).cpu()
        small = loc.samples * self.negative_share < 2 if self.at_least_one is None else self.at_least_one
        loc.note("at_least_one", float(small))
        share = torch.tensor([self.negative_share, self.positive_share], dtype=torch.float64)
        degree = loc.down["degree"].double() if self.st else torch.ones(len(loc.classes), dtype=torch.float64)
        missing = ~loc.train.known
        tags, prototypes = loc.mine["tags"], loc.down["prototypes"]
        loc.mine["tags"] = tag_nearest(tags, feature, prototypes, missing, degree[:, None] * share, small)

    @torch.no_grad()
    def _describe(self, net: Net, loc: Loc) -> Upload:
        """Prototypes of labelled images and learning degree on those whose label is missing, class by class
        (masked means), under the trained local net."""
        feature, score = features_and_scores(net, loc)
        known = loc.train.known
        prototypes, count = class_means(feature, loc.train.labels)
        images = known.sum(0, dtype=torch.float64)[:, None]
        shown = (count > 0).double() * (images if self.prototypes_by == "samples" else 1)
        measured = known if self.degree_of == "labelling" else ~known
        degree, among = decided_share((score < self.low) | (score > self.high), measured)
        return {"prototypes": Mean(prototypes, shown), "degree": Mean(degree, among)}

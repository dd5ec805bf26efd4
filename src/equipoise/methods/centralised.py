"""Centralised training: one model on the images of all sites in one place. The reference for what joining can
reach at most.

No federation may do this; a simulation can, and a coordinator refuses it. The network, its first weights, the
loss, the optimiser and its rate by rounds are those of any other run. A round sees the same images as a round
of FedAvg, each as often (`train.epochs`), in as many gradient steps as all sites take together. Its batches
are drawn from all images and have one size, give or take an image: `train.batch_size`, or less where sites
end their epochs with a smaller batch. Priors and class weights of the loss are those of all images; labels
that a site does not have are left out (or negative) image by image. With `train.participation` below 1 a
round goes over that share of all images. The optimiser starts anew every round unless
`train.persist_optimizer` is set, as at the sites.
Generalisation is the model on the union of test sets, specialisation the same model on each site's.
Leaves the site: every image; within the simulation, delta and loss (means).
"""

from __future__ import annotations

from typing import ClassVar

from equipoise.exchange import Ask
from equipoise.methods.base import Method, Standard
from equipoise.methods.parts import crt
from equipoise.nets import Net
from equipoise.site import Loc
from equipoise.tree import Tree, plus


class Centralised(Method):
    """Training on all images in one place."""

    paper: ClassVar[str] = "reference with pooled images"
    standard: ClassVar[Standard | None] = "pooled"
    keeps_tuned: ClassVar[bool] = False

    def round(self, server: Tree, ask: Ask) -> Tree:
        up = ask(self.train, one=True, model=server["model"])
        return {**server, "model": plus(server["model"], up["delta"])}

    def finish(self, server: Tree, ask: Ask) -> Tree:
        return crt.stage(self, server, ask, one=True) if self.crt else server

    def fit(self, net: Net, loc: Loc) -> float:
        share = round(loc.options.participation * loc.samples)
        return loc.fit(net, self.loss, order=lambda epoch: loc.order(epoch)[: max(1, share)])

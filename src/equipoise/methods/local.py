"""Local learning: every site trains alone. The reference for what a site gains by joining.

No communication; each site trains rounds × epochs on its own data from the same first weights. Specialisation
is its own model on its own test set; generalisation is the mean over sites of each local model on the union
of test sets (so FCA, Table 4). cRT re-trains each site's head on its own body, by itself.
Leaves the site: loss (mean) while training; for the generalisation figure the model itself (each), which only
a simulation asks. Stays: everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.exchange import Ask
from equipoise.leaves import Each, Mean, Upload
from equipoise.methods.base import Method, Standard
from equipoise.nets import Net, state
from equipoise.site import Loc
from equipoise.tree import Tree


class Local(Method):
    """Training alone: all tensors are private."""

    paper: ClassVar[str] = "reference without collaboration"
    private: ClassVar[tuple[str, ...]] = ("*",)
    standard: ClassVar[Standard | None] = "alone"

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        return {"model": {}}

    def round(self, server: Tree, ask: Ask) -> Tree:
        ask(self.train, model={})
        return server

    def train(self, net: Net, loc: Loc) -> Upload:
        loss = loc.fit(net, self.loss)
        return {"loss": Mean(torch.tensor(loss, dtype=torch.float64), loc.samples)}

    def reveal(self, net: Net, loc: Loc) -> Upload:
        """Question: the site's own model, so that it can be tested elsewhere."""
        return {"model": Each({name: tensor.detach().clone() for name, tensor in state(net).items()})}

    def predictors(self, server: Tree, ask: Ask) -> Mapping[str, Tree]:
        return {site: {"model": model} for site, model in ask(self.reveal, model={})["model"].items()}

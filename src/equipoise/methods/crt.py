"""cRT: the classifier re-trained on frozen features, as a stage after any method.

Kang et al., "Decoupling representation and classifier for long-tailed recognition", ICLR 2020, in the federated form: after the
last round the head `fed` is drawn anew, once for all sites, and for `crt` rounds every site trains it alone, on a body that
stays in eval mode. Images are drawn so that the site's classes come equally often, logits of classes it lacks are left out, and
the heads' changes are averaged by samples. The loss is cross-entropy whatever the base loss: sampling does the balancing. With
several labels per image no sampler can do that; there, the positives and the negatives of each label weigh the same, and a
label of which the site knows only one kind is left out. The rate falls from `train.lr` to 0 along a cosine, as published.
A site's own predictor is then the global body with the head as it trained it last.
Leaves the site: the head's change, loss (means).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.errors import MethodError
from equipoise.leaves import Mean, Upload
from equipoise.losses import among, bce_cells, masked_mean
from equipoise.nets import Net
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus

if TYPE_CHECKING:
    from equipoise.methods.base import Ask

WEIGHT, BIAS = "head.fed.weight", "head.fed.bias"


def stage(server: Tree, ask: Ask, question: Callable[[Net, Loc], Upload], rounds: int) -> Tree:
    """The server tree with its classifier re-trained for so many rounds of the question."""
    model = server["model"] | fresh_head(server["model"], ask.generator("crt"))
    for step in range(rounds):
        up = ask(question, model=model, step=torch.tensor(step))
        model = model | plus({name: model[name] for name in (WEIGHT, BIAS)}, up["delta"])
    return {**server, "model": model}


def fresh_head(model: Tree, draw: torch.Generator) -> dict[str, Tensor]:
    """A linear classifier as torch would initialise it, in place of the model's."""
    if {name for name in model if name.startswith("head.fed.")} != {WEIGHT, BIAS}:
        raise MethodError("cRT re-trains a linear classifier that all sites share, and this run has none: set method.crt = 0")
    bound = model[WEIGHT].shape[1] ** -0.5
    return {name: (torch.rand(model[name].shape, generator=draw) * 2 - 1) * bound for name in (WEIGHT, BIAS)}


def answer(net: Net, loc: Loc, rounds: int, views: Sequence[str]) -> Upload:
    """One round at a site: its head's change."""
    step, epochs = int(loc.down["step"]), loc.options.epochs
    loss = loc.fit(
        net,
        balanced_loss,
        epochs=range(step * epochs, (step + 1) * epochs),
        only=lambda name: name in (WEIGHT, BIAS),
        views=views,
        order=loc.balanced if loc.task == "single" else None,
        rate=loc.options.lr * 0.5 * (1 + math.cos(math.pi * step / rounds)),
    )
    change = {name: delta for name, delta in loc.delta(net).items() if name in (WEIGHT, BIAS)}
    return {"delta": Mean(change, loc.samples), "loss": Mean(torch.tensor(loss, dtype=torch.float64), loc.samples)}


def balanced_loss(net: Net, batch: Batch, loc: Any) -> Tensor:
    """Cross-entropy among the site's classes; or binary cross-entropy with both sides of each label weighing the same."""
    logits = net(batch.x)
    if loc.task == "single":
        return F.cross_entropy(among(logits, loc.counts > 0), batch.y)
    positives, negatives = loc.counts.to(logits), (loc.samples - loc.counts).to(logits)
    known = loc.annotated.to(logits.device) & (positives > 0) & (negatives > 0)
    side = torch.where(batch.y > 0, positives, negatives).clamp_min(1)
    return masked_mean(bce_cells(logits, batch.y) * loc.samples / (2 * side), known)

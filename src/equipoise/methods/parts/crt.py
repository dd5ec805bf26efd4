"""cRT: the classifier re-trained on frozen features, as a stage after any method.

Kang et al., "Decoupling representation and classifier for long-tailed recognition", ICLR 2020, in the
federated form: after the last round the classifier (the tensors that the method's `classifier` names) is
drawn anew, once for all sites, and for `crt` rounds every site trains it alone, on a body that stays in eval
mode. Images are drawn so that the site's classes come equally often, logits of classes it lacks are left out,
and the changes are averaged by samples. The loss is cross-entropy of the net's logits,
whatever the base loss: sampling does the balancing. With several labels per image no sampler can do that;
there, the positives and the negatives of each label weigh the same, and a label of which the site knows only
one kind is left out. The rate falls from `train.lr` to 0 along a cosine, as published.
A site's own predictor is then the global body with the classifier as it trained it last. A classifier that
stays at the sites (FedRep, training alone) is re-trained there and never leaves; a bank of heads (FedSDC) is
dealt to the sites, as it is in training.
Leaves the site: the classifier's change (mean, if it is shared), loss (mean).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.errors import MethodError
from equipoise.exchange import Ask
from equipoise.leaves import Mean, Upload
from equipoise.losses import among, bce_cells, filled, known, masked_mean
from equipoise.nets import HEAD, Net, load, state
from equipoise.seeds import generator
from equipoise.site import Batch, Loc
from equipoise.tree import Tree, plus

if TYPE_CHECKING:
    from equipoise.methods.base import Method

WEIGHT, BIAS = f"{HEAD}weight", f"{HEAD}bias"


def stage(method: Method, server: Tree, ask: Ask, one: bool = False) -> Tree:
    """The server tree with its classifier re-trained for `method.crt` rounds, at all sites or at `one`."""
    model = server["model"]
    shared = [name for name in model if name.startswith(method.classifier)]
    model = model | fresh({name: model[name] for name in shared}, ask.generator("crt"))
    for step in range(method.crt):
        up = ask(method.retrain, one=one, model=model, step=torch.tensor(step))
        if shared:
            model = model | plus({name: model[name] for name in shared}, up["delta"])
    return {**server, "model": model}


def fresh(layers: Mapping[str, Tensor], draw: torch.Generator) -> dict[str, Tensor]:
    """The weights and biases of linear layers as torch would initialise them: uniform, up to 1/√inputs."""
    tensors = {}
    for name in sorted(layers, reverse=True):
        weight = layers[name.removesuffix("bias") + "weight"] if name.endswith("bias") else layers[name]
        tensors[name] = (torch.rand(layers[name].shape, generator=draw) * 2 - 1) * weight.shape[1] ** -0.5
    return tensors


def answer(method: Method, net: Net, loc: Loc) -> Upload:
    """One round at a site: its classifier's change, unless that stays."""
    names = [name for name in state(net) if name.startswith(method.classifier)]
    if not names:
        raise MethodError(
            f"cRT re-trains a classifier and {type(method).__name__} has no tensors '{method.classifier}…': "
            "set method.crt = 0, or name its last layer in the method's `classifier`"
        )
    step, epochs = int(loc.down["step"]), loc.options.epochs
    own = {name: state(net)[name] for name in names if name in loc.private}
    if step == 0:
        load(net, fresh(own, generator(loc.options.seed, loc.round, "crt")))

    def loss(net: Net, batch: Batch, loc: Loc) -> Tensor:
        return balanced_loss(net(batch.x), batch.y, loc)

    mean = loc.fit(
        net,
        loss,
        epochs=range(step * epochs, (step + 1) * epochs),
        only=lambda name: name in names,
        views=(loc.options.views or method.views)[:1],
        order=loc.balanced if loc.task == "single" else None,
        rate=loc.options.lr * 0.5 * (1 + math.cos(math.pi * step / method.crt)),
    )
    up: Upload = {"loss": Mean(torch.tensor(mean, dtype=torch.float64), loc.samples)}
    received = loc.down.get("model", {})
    change = {name: state(net)[name].detach().cpu() - received[name] for name in names if name in received}
    if not change:
        return up
    loc.note("weight", loc.samples)
    return up | {"delta": Mean(change, loc.samples)}


def balanced_loss(logits: Tensor, y: Tensor, loc: Any) -> Tensor:
    """Cross-entropy among the site's classes; or binary cross-entropy with both sides of each label weighing
    the same, where there is a label."""
    if loc.task == "single":
        return F.cross_entropy(among(logits, loc.counts > 0), y)
    positives, negatives = loc.counts.to(logits), (loc.total - loc.counts).to(logits)
    both = loc.annotated.to(logits.device) & (positives > 0) & (negatives > 0)
    side = torch.where(y > 0, positives, negatives).clamp_min(1)
    cells = bce_cells(logits, filled(y)) * loc.total.to(logits) / (2 * side)
    return masked_mean(cells, known(y) & both)

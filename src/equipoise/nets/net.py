"""A network is one body, named classifier heads on its pooled features, and sometimes a projector."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.errors import WeightsError
from equipoise.names import nearest
from equipoise.nets.norm import batch_norms

FED = "fed"
"""the head that is shared"""
HEAD = f"head.{FED}."
"""how the names of its tensors begin"""


@dataclass(frozen=True)
class ProjectorSpec:
    """An MLP on the pooled features: the sizes of its layers, and what stands between them."""

    sizes: tuple[int, ...]
    """output size of each linear layer; 0 means the width of the features"""
    batch_norm: bool = False
    activation: bool = False
    classifier: bool = False
    """a further classifier, on the projector's output: `net.free`"""
    like: str = ""
    """the frozen network whose features the output is as wide as, whatever the last size says"""

    def make(self, width: int) -> nn.Sequential:
        """The MLP for features of this width."""
        layers: list[nn.Module] = []
        inputs = width
        for size in (size or width for size in self.sizes):
            if layers and self.batch_norm:
                layers.append(nn.BatchNorm1d(inputs))
            if layers and self.activation:
                layers.append(nn.ReLU(inplace=True))
            layers.append(nn.Linear(inputs, size))
            inputs = size
        return nn.Sequential(*layers)


class Cosine(nn.Module):
    """A classifier that answers with the cosine between features and class vectors, times a fixed scale."""

    def __init__(self, width: int, classes: int, scale: float = 1.0):
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(classes, width), std=width**-0.5))

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(z), F.normalize(self.weight))


class Net(nn.Module):
    """Body, dropout, heads and projector; parameters are called `body.…`, `head.<name>.…` and
    `projector.…`."""

    def __init__(
        self,
        name: str,
        body: nn.Module,
        width: int,
        classes: int,
        head: Mapping[str, nn.Module],
        *,
        projector: nn.Module | None = None,
        free: nn.Module | None = None,
        dropout: float = 0.0,
        frozen: bool = False,
    ):
        super().__init__()
        self.name = name
        self.width, self.classes = width, classes
        self.frozen = frozen
        self.body = body
        self.dropout = nn.Dropout(dropout)
        self.head = nn.ModuleDict(dict(head))
        self.projector = projector
        self.free = free
        for layer in batch_norms(self):
            # Only a cumulative average would read this counter. Without it, all state is float and can be
            # averaged.
            layer.num_batches_tracked = None
        self.fixed = frozenset(key for key, p in self.named_parameters() if not p.requires_grad)
        """names of parameters that were built to stay as they are"""
        self.still: frozenset[str] = frozenset()
        """names of tensors that are frozen: the same at every site, and not exchanged"""
        self._still_layers = list[nn.Module]()
        shared = state(self)
        self._first = {key: one.clone() for key, one in self.named_buffers() if key not in shared}

    def freeze(self, names: Collection[str]) -> None:
        """Keep tensors as they are: without gradients, and layers of which nothing trains in eval mode."""
        self.still = frozenset(names)
        self._still_layers = list(whole(self, "", self.still))
        self.fixed |= self.still & {key for key, _ in self.named_parameters()}

    def expect(self, halfway: bool) -> None:
        """Whether the network is given what its frozen stages make of images, and not the images."""
        if hasattr(self.body, "halfway"):
            self.body.halfway = halfway  # type: ignore[assignment]

    def features(self, x: Tensor) -> Tensor:
        """Pooled features [N, width], after dropout: what a head reads."""
        result: Tensor = self.dropout(self.body(x))
        return result

    def forward(self, x: Tensor, head: str = FED) -> Tensor:
        """Logits of one head."""
        result: Tensor = self.head[head](self.features(x))
        return result

    def restart(self) -> None:
        """Give counters and all other buffers that `state` leaves out their first values again."""
        put_back(self, self._first)

    def train(self, mode: bool = True) -> Net:
        """As usual, except that frozen BatchNorm layers keep using, and never change, their statistics."""
        if any(layer.training != mode for layer in self.modules()):
            super().train(mode)
        if self.frozen:
            for layer in batch_norms(self):
                layer.eval()
        for still in self._still_layers:
            still.eval()
        return self


def whole(layer: nn.Module, prefix: str, still: Collection[str]) -> Iterator[nn.Module]:
    """The outermost layers of which every parameter is named; those without parameters follow the one around
    them."""
    names = [f"{prefix}{key}" for key, _ in layer.named_parameters()]
    if names and all(name in still for name in names):
        yield layer
        return
    for name, inner in layer.named_children():
        yield from whole(inner, f"{prefix}{name}.", still)


def put_back(net: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    """Give buffers these values again; those of layers that were removed are left out."""
    live = dict(net.named_buffers())
    for name, value in buffers.items():
        if name in live:
            parent, _, leaf = name.rpartition(".")
            setattr(net.get_submodule(parent), leaf, value.to(live[name].device, copy=True))


def state(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and float buffers by name, one that has several under the first. Detached, but the live
    memory: writing into one changes the net."""
    tensors: dict[str, Tensor] = {}
    _gather(net, "", tensors, set())
    return tensors


def _gather(layer: nn.Module, prefix: str, tensors: dict[str, Tensor], seen: set[int]) -> None:
    """The tensors of a layer and of those in it, in the order of `state_dict`, which takes twice as long."""
    for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
        if tensor is None or name in layer._non_persistent_buffers_set:
            continue
        if tensor.is_floating_point() and id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[prefix + name] = tensor.detach()
    for name, inner in layer._modules.items():
        if inner is not None:
            _gather(inner, f"{prefix}{name}.", tensors, seen)


def load(net: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into the net, in place. Names may be left out; nothing is copied if one name or shape is
    wrong."""
    own = state(net)
    for name, tensor in tensors.items():
        if name not in own:
            guess = nearest(name, own)
            hint = f"; did you mean '{guess}'?" if guess else ""
            raise WeightsError(f"the net has no tensor '{name}'{hint}")
        if tensor.shape != own[name].shape:
            wanted = [*own[name].shape]
            raise WeightsError(f"'{name}' has shape {[*tensor.shape]}, but the net needs {wanted}")
    if not tensors:
        return
    with torch.no_grad():
        torch._foreach_copy_([own[name] for name in tensors], list(tensors.values()))

"""Other local optimisers than Equipoise's three: a class of `torch.optim`, or one's own, named in
`train.optimizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.errors import ConfigError
from equipoise.locate import Parts
from equipoise.names import unknown
from equipoise.seeds import generator, isolated
from equipoise.signatures import check_options, parameters

TORCH = "torch.optim"
GROUP = "(group)"
"""where what the optimiser keeps for all parameters together is stored"""
NUMBERS: dict[str, tuple[type, torch.dtype]] = {
    "bool": (bool, torch.bool),
    "int": (int, torch.int64),
    "float": (float, torch.float64),
}
"""kinds of numbers an optimiser may keep; a stored one has its kind after its name"""

Moments = dict[str, dict[str, Tensor]]
Make = Callable[..., Any]
"""(parameters, lr=…, options) to a torch.optim.Optimizer"""


class OwnOptimizer:
    """A torch optimiser over named parameters, whose state can be kept by their names."""

    def __init__(self, make: Make, arguments: Mapping[str, Any], named: Mapping[str, nn.Parameter]) -> None:
        self.named = dict(named)
        self.torch = make(list(self.named.values()), **arguments)
        self._first = dict(self._group)

    @property
    def _group(self) -> dict[str, Any]:
        """What is kept for all parameters; the learning rate is the round's."""
        return {
            key: value for key, value in self.torch.param_groups[0].items() if key not in ("params", "lr")
        }

    def zero(self) -> None:
        """Forget the gradients."""
        for parameter in self.named.values():
            parameter.grad = None

    def step(self) -> None:
        """One step along the gradients there are."""
        self.torch.step()

    @property
    def moments(self) -> Moments:
        """All that the next step depends on, as tensors by parameter."""
        state = self.torch.state
        stored = {name: _stored(state[p]) for name, p in self.named.items() if p in state}
        changed = {key: value for key, value in self._group.items() if not _same(value, self._first.get(key))}
        return {name: tensors for name, tensors in {**stored, GROUP: _stored(changed)}.items() if tensors}

    def restore(self, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue with stored moments, each laid out in memory as its parameter is."""
        for name, stored in moments.items():
            if name == GROUP:
                self.torch.param_groups[0].update(_restored(stored, None))
            else:
                self.torch.state[self.named[name]] = dict(_restored(stored, self.named[name]))


def _stored(state: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = {}
    for key, value in state.items():
        kind = type(value).__name__
        if isinstance(value, Tensor):
            tensors[key] = value
        elif kind in NUMBERS:
            tensors[f"{key}:{kind}"] = torch.tensor(value, dtype=NUMBERS[kind][1])
        elif value is not None:
            raise ConfigError(
                f"train.persist_optimizer: the optimiser keeps '{key}', a {kind}, which cannot be stored: "
                "set persist_optimizer = false"
            )
    return tensors


def _restored(stored: Mapping[str, Tensor], p: nn.Parameter | None) -> Iterator[tuple[str, Any]]:
    for key, value in stored.items():
        name, _, kind = key.rpartition(":")
        if kind in NUMBERS and name:
            yield name, NUMBERS[kind][0](value.item())
        elif p is not None and value.ndim and value.shape == p.shape:
            yield key, torch.empty_like(p, dtype=value.dtype, requires_grad=False).copy_(value)
        else:
            yield key, value.clone() if p is None or not value.ndim else value.clone().to(p.device)


def _same(a: Any, b: Any) -> bool:
    return (
        torch.equal(a, b)
        if isinstance(a, Tensor) and isinstance(b, Tensor)
        else type(a) is type(b) and a == b
    )


# Before a run -----------------------------------------------------------------------------------------------


def find_optimizer(name: str, parts: Parts | None) -> Make:
    """What a name leads to: torch's own classes are at hand as torch itself is, anything else is code of the
    config's own."""
    source, _, attribute = name.rpartition(":")
    if source == TORCH:
        import torch.optim

        classes = {key for key, value in vars(torch.optim).items() if _is_optimizer(value)}
        if attribute not in classes:
            raise ConfigError("train.optimizer: " + unknown(f"class of {TORCH}", attribute, classes))
        make: Make = getattr(torch.optim, attribute)
    else:
        assert parts is not None
        make = parts.find(name, "train.optimizer")
    if not callable(make):
        raise ConfigError(f"train.optimizer: '{name}' is not a class of optimisers")
    return make


def _is_optimizer(value: Any) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
    )


def try_optimizer(name: str, make: Make, arguments: Mapping[str, Any], persist: bool) -> None:
    """Refuse an optimiser that takes no steps, or with `persist` one that does not go on from what is stored
    as it would have."""
    where = f"train.optimizer '{name}'"
    known = parameters(make)
    if known is not None and "lr" not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        raise ConfigError(f"{where} has no argument 'lr', and the learning rate must reach it")
    check_options(make, [key for key in arguments if key != "lr"], ("lr",), where, first=1)
    try:
        with isolated(0, torch.device("cpu")):
            straight = _trial(make, arguments, None)
            again = _trial(make, arguments, 2) if persist else straight
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{where} cannot take a step: {type(error).__name__}: {error}") from error
    if not all(torch.equal(a, b) for a, b in zip(straight, again, strict=True)):
        raise ConfigError(
            f"{where} keeps more than its state_dict tells, so it cannot be stored between rounds: set "
            "train.persist_optimizer = false"
        )


def _trial(make: Make, arguments: Mapping[str, Any], stop: int | None) -> list[Tensor]:
    """Three parameters after three steps, stored and restored before step `stop`."""
    draw = generator(0, "trial")
    shapes = {"kernel": (4, 3, 3, 3), "weight": (2, 4), "bias": (2,)}
    named = {name: nn.Parameter(torch.randn(shape, generator=draw)) for name, shape in shapes.items()}
    optimizer = OwnOptimizer(make, arguments, named)
    if not isinstance(optimizer.torch, torch.optim.Optimizer):
        raise TypeError(f"it is a {type(optimizer.torch).__name__} and not a torch.optim.Optimizer")
    for step in range(3):
        if step == stop:
            moments = {
                name: {key: value.clone() for key, value in tensors.items()}
                for name, tensors in optimizer.moments.items()
            }
            optimizer = OwnOptimizer(make, arguments, named)
            optimizer.restore(moments)
        for p in named.values():
            p.grad = torch.randn(p.shape, generator=draw)
        optimizer.step()
    return [p.detach() for p in named.values()]

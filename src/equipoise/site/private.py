"""Private steps (Abadi et al. 2016): images drawn one by one, each gradient clipped by itself, noise on their
sum.

Gradients are taken image by image. Opacus' hooks and torch.func would take those of a batch at once, but
neither carries all networks here: Opacus 1.6 miscounts convolutions on images laid out channels last, and
refuses activations in place and frozen BatchNorm; vmap refuses EfficientNet-Lite's skipped blocks and losses
that keep notes. A test holds these gradients against Opacus' where that is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from equipoise.errors import MethodError
from equipoise.site.batches import Batch
from equipoise.site.cached import Cached
from equipoise.site.noise import Draws
from equipoise.site.privacy import Mechanism, steps_of

if TYPE_CHECKING:
    from equipoise.site.loc import Loc, LossFunction

TRIED, CLOSE = 3, 1e-4
"""generated images a loss is tried on, and how far the mean of their losses may be from the loss of all"""


def private_steps(
    loc: Loc,
    net: nn.Module,
    loss: LossFunction,
    named: Mapping[str, nn.Parameter],
    epochs: Sequence[int],
    views: Sequence[str] | None,
) -> Iterator[tuple[Tensor, int]]:
    """One noisy gradient after the other, on the parameters. Nothing is reported of them: no image counts
    towards the mean loss."""
    mechanism, stretch, nothing = loc.mechanism, loc.trace.passes, torch.zeros((), device=loc.device)
    assert mechanism is not None
    check_per_image(loc, net, loss, views)
    plan = steps_of(loc.samples, loc.options.batch_size, len(epochs), mechanism.noise)
    mechanism.spend(plan)
    loc.trace.passes += len(epochs)
    for epoch in epochs:
        draws = mechanism.source(loc.generator("privacy", stretch, epoch))
        rows, seen = loc.data.splits["train"], loc.seen(epoch, views)
        for _ in range(plan.steps // len(epochs)):
            chosen = (draws.uniform(loc.samples) < plan.rate).nonzero().flatten()
            batches = (rows.take(place, *seen) for place in chosen.split(1) if len(place))
            noisy_gradient(loc, net, loss, named, batches, draws, plan.rate * loc.samples)
            yield nothing, 0


def noisy_gradient(
    loc: Loc,
    net: nn.Module,
    loss: LossFunction,
    named: Mapping[str, nn.Parameter],
    batches: Iterator[Batch],
    draws: Draws,
    expected: float,
) -> None:
    """The sum of clipped gradients with noise, over the number of images expected in a step."""
    mechanism = loc.mechanism
    assert mechanism is not None
    total = [torch.zeros_like(p) for p in named.values()]
    bf16 = loc.options.precision == "bf16"
    for batch in batches:
        with torch.autocast(loc.device.type, torch.bfloat16) if bf16 else nullcontext():
            value = loss(net, batch, loc)
        if not value.requires_grad:
            continue
        gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        gradient = [torch.zeros_like(p) if g is None else g for p, g in zip(total, gradients, strict=True)]
        factor = clipping(gradient, mechanism.clip)
        if factor:
            torch._foreach_add_(total, gradient, alpha=factor)
    for p, summed in zip(named.values(), total, strict=True):
        p.grad = torch.empty_like(p).copy_(_noisy(summed, mechanism, draws) / expected)


def clipping(gradient: Sequence[Tensor], most: float) -> float:
    """What a gradient is multiplied by, so that its norm is no larger; 0 where it has none."""
    norm = math.hypot(*(float(torch.linalg.vector_norm(g, dtype=torch.float64)) for g in gradient))
    return min(1.0, most / norm) if math.isfinite(norm) and norm > 0 else 0.0


def _noisy(summed: Tensor, mechanism: Mechanism, draws: Draws) -> Tensor:
    wide = summed.detach().cpu().double()
    if not mechanism.noise:
        return wide
    return wide + mechanism.noise * mechanism.clip * draws.normal(wide.numel()).view(wide.shape)


# Whether a loss can be taken image by image -----------------------------------------------------------------


def check_per_image(loc: Loc, net: nn.Module, loss: LossFunction, views: Sequence[str] | None) -> None:
    """Refuse a loss that is no mean over images, or that keeps what it saw; tried on generated images."""
    modes = {module: module.training for module in net.modules()}
    notes, batch = Notes(loc), generated(loc, views)
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    try:
        with torch.no_grad():
            loss(net, batch, loc)
        if any(not _same(before[name], buffer) for name, buffer in net.named_buffers()):
            raise MethodError(
                "[privacy]: the network measures its images while it trains, as BatchNorm does, and that "
                'would be told without noise: set net.batch_norm = "group", or "frozen"'
            )
        if notes.changed():
            raise MethodError(
                f"[privacy]: the loss of '{loc.question}' keeps notes of the images it sees, which no noise "
                "covers: choose another method, or leave [privacy] out"
            )
        net.eval()
        notes.restore()
        whole = _value(loss, net, batch, loc, notes)
        mean = sum(_value(loss, net, part, loc, notes) for part in _single(batch)) / len(batch)
    except (IndexError, ValueError, RuntimeError) as error:
        raise MethodError(
            f"[privacy]: the loss of '{loc.question}' cannot be taken of one image by itself "
            f"({type(error).__name__}): choose another method, or leave [privacy] out"
        ) from error
    finally:
        notes.restore()
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for name, buffer in net.named_buffers():
                buffer.copy_(before[name])
    if not (whole == mean or abs(whole - mean) <= CLOSE * (1 + abs(mean))):
        raise MethodError(
            f"[privacy]: the loss of '{loc.question}' is not the mean of its images' losses (it compares "
            "images of a batch, or weighs one by the others), so no image can be clipped by itself: choose "
            "another method or objective, or leave [privacy] out"
        )


def generated(loc: Loc, views: Sequence[str] | None) -> Batch:
    """A batch of noise, labelled with classes that the site has."""
    rows, (looks, draws) = loc.data.splits["train"], loc.seen(0, views)
    chosen = [look for look in looks if not isinstance(look, Cached)]  # nothing is kept in private training
    shape = (TRIED, *rows.images.shape[1:])
    pixels = torch.randint(0, 256, shape, generator=loc.generator("generated"), dtype=torch.uint8)
    pixels = pixels.to(loc.device).permute(0, 3, 1, 2)
    place, held = torch.arange(TRIED), loc.data.counts.nonzero().flatten()
    y = held[place % len(held)] if len(held) else torch.zeros_like(place)
    if loc.task == "multi":
        y = nn.functional.one_hot(y, len(loc.classes)).to(torch.float32)
    return Batch(
        views=tuple(view(pixels, draw) for view, draw in zip(chosen, draws, strict=True)),
        y=y.to(loc.device),
        index=place.clamp_max(max(0, loc.samples - 1)),
    )


def _value(loss: LossFunction, net: nn.Module, batch: Batch, loc: Loc, notes: Notes) -> float:
    with torch.no_grad():
        value = float(loss(net, batch, loc))
    notes.restore()
    return value


def _single(batch: Batch) -> Iterator[Batch]:
    for i in range(len(batch)):
        views = tuple(view[i : i + 1] for view in batch.views)
        yield Batch(views, batch.y[i : i + 1], batch.index[i : i + 1])


class Notes:
    """The tensors, numbers and generators that a method keeps at hand, as they were."""

    def __init__(self, loc: Loc) -> None:
        self._found = [*_notes(loc.scratch), *_notes(loc.mine)]

    def changed(self) -> bool:
        """Whether any but a generator is another now."""
        return any(
            not isinstance(old, Generator) and not _same(old, home.get(key)) for home, key, old in self._found
        )

    def restore(self) -> None:
        """Put all of them back."""
        for home, key, old in self._found:
            if isinstance(old, Generator):
                home[key].set_state(old.state)
            elif not _same(old, home.get(key)):
                home[key] = old.clone() if isinstance(old, Tensor) else old


class Generator:
    """The state of a torch generator."""

    def __init__(self, state: Tensor) -> None:
        self.state = state


def _notes(home: Mapping[str, Any]) -> Iterator[tuple[Any, str, Any]]:
    for key, value in home.items():
        if isinstance(value, Mapping):
            yield from _notes(value)
        elif isinstance(value, torch.Generator):
            yield home, key, Generator(value.get_state())
        elif isinstance(value, Tensor):
            yield home, key, value.clone()
        elif isinstance(value, int | float):
            yield home, key, value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    return bool(a == b)

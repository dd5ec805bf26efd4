"""`Loc`: all a method may touch while it answers one question at one site, and the local training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from equipoise.errors import MethodError
from equipoise.losses import Objective
from equipoise.nets import Net, load, state
from equipoise.seeds import generator
from equipoise.site.batches import Batch, Look, Rows, SiteData
from equipoise.site.measure import LEAST
from equipoise.site.optimizer import make_optimizer
from equipoise.site.options import TrainOptions
from equipoise.site.privacy import COUNTS, TRAIN, Mechanism, Trace
from equipoise.site.private import private_steps
from equipoise.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Mapping

LossFunction = Callable[[Any, Batch, "Loc"], Tensor]


class Loc:
    """One site, one question. Methods read it, train through it, and may hang scratch on `scratch`; all of it
    is thrown away after the answer, except `mine`, which the site keeps."""

    def __init__(
        self,
        *,
        data: SiteData,
        options: TrainOptions,
        objective: Objective,
        views: Mapping[str, Look],
        wanted: tuple[str, ...],
        round: int,
        question: str,
        down: Tree,
        private: tuple[str, ...],
        frozen: Mapping[str, nn.Module],
        cache: dict[str, Any],
        device: torch.device,
        least: int = LEAST,
        mechanism: Mechanism | None = None,
        by_counts: bool = False,
    ) -> None:
        self.data, self.options, self.device = data, options, device
        self.site, self.task, self.classes, self.labelled = data.name, data.task, data.classes, data.labelled
        self.samples = len(data.splits["train"])
        self.round, self.rounds, self.question, self.down = round, options.rounds, question, down
        self.mine: Tree = {}
        self.tuned: dict[str, Tensor] = {}
        self.private, self.frozen = private, frozen
        self.scratch: dict[str, Any] = {}
        self.notes: dict[str, float] = {}
        self.moments: Mapping[str, Mapping[str, Tensor]] = {}
        """optimiser state kept between rounds, by parameter"""
        self.least = least
        """images in a bin of what is told for this site alone, at least"""
        self.mechanism = mechanism
        """how this site trains with differential privacy; none: without"""
        self.trace = Trace()
        """what of the site's data the answer is computed from, as far as this object hands it out"""
        self._views, self._wanted, self._cache = views, wanted, cache
        self._objective, self._by_counts = objective, by_counts

    @property
    def objective(self) -> Objective:
        """The base loss, bound to this site; `by_counts` says whether its class counts are in it."""
        if self._by_counts:
            self.trace.reads.add(COUNTS)
        return self._objective

    @property
    def counts(self) -> Tensor:
        """float64 [C]: the training images of each class (for multi-label: positives)."""
        self.trace.reads.add(COUNTS)
        return self.data.counts

    @property
    def total(self) -> Tensor:
        """float64 [C]: the training images those are out of, which are labelled for the class."""
        self.trace.reads.add(COUNTS)
        return self.data.total

    @property
    def prior(self) -> Tensor:
        """Class shares of the local training labels (for multi-label: share of positives per class)."""
        return (self.counts / self.total.clamp_min(1)).to(torch.float32)

    @property
    def annotated(self) -> Tensor:
        """bool [C]: the classes this site labels, on some of its training images or on all."""
        return torch.ones(len(self.classes), dtype=torch.bool) if self.labelled is None else self.labelled

    @property
    def plain(self) -> bool:
        """Whether training sees the same images as `scan`: its first view is deterministic."""
        return self._views[self._wanted[0]].deterministic

    @property
    def last_rate(self) -> float:
        """The learning rate of the last round, for what is trained after it (a cosine has reached its end
        there)."""
        return self.options.rate(max(0, self.rounds - 1))

    @property
    def train(self) -> Rows:
        """The local training rows."""
        self.trace.reads.add(TRAIN)
        return self.data.splits["train"]

    def generator(self, *purpose: object) -> torch.Generator:
        """Draws for one purpose of this question at this site in this round."""
        return generator(self.options.seed, self.round, self.site, self.question, *purpose)

    def view(self, name: str) -> Look:
        """A named view."""
        return self._views[name]

    def cached(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value that follows from the site's data alone, computed once per process."""
        if name not in self._cache:
            before, self.trace.reads = self.trace.reads, set()
            self._cache[name] = compute(), self.trace.reads
            self.trace.reads = before
        value, reads = self._cache[name]
        self.trace.reads |= reads
        return value

    def note(self, name: str, value: float) -> None:
        """Log a number at the site only."""
        self.notes[name] = value

    def order(self, epoch: int) -> Tensor:
        """The shuffled training rows of one epoch."""
        return torch.randperm(self.samples, generator=self.generator("shuffle", epoch))

    def balanced(self, epoch: int) -> Tensor:
        """As many training rows, drawn with replacement so that every class the site has comes equally
        often."""
        share = 1 / self.counts[self.train.labels]
        draw = self.generator("balanced", epoch)
        return torch.multinomial(share, self.samples, replacement=True, generator=draw)

    def batches(
        self, epoch: int = 0, views: Sequence[str] | None = None, order: Tensor | None = None
    ) -> Iterator[Batch]:
        """Shuffled, augmented training batches of one epoch."""
        order = self.order(epoch) if order is None else order
        return self.train.batches(order, self.options.batch_size, *self.seen(epoch, views))

    def seen(self, epoch: int, views: Sequence[str] | None) -> tuple[list[Look], list[torch.Generator]]:
        """The views that training sees in an epoch, and what each draws from."""
        chosen = [self._views[name] for name in (views or self._wanted)]
        return chosen, [self.generator("view", epoch, i) for i in range(len(chosen))]

    def scan(self, split: str = "train") -> Iterator[Batch]:
        """Every row of a split once, in order, without augmentation: on a CPU few at a time, so that what
        layers compute takes little memory, elsewhere about a million pixels."""
        self.trace.reads.add(f"{split} images")
        rows = self.data.splits[split]
        _, height, width, _ = rows.images.shape
        most, pixels = (64, 2**17) if self.device.type == "cpu" else (256, 2**20)
        size = max(8, min(most, pixels // (height * width)))
        order = torch.arange(len(rows))
        return rows.batches(order, size, [self._views["eval"]], [self.generator("scan")], lone=True)

    def delta(self, net: Net) -> dict[str, Tensor]:
        """How far local training has moved the received tensors."""
        received = self.down["model"]
        live = state(net)
        return {name: live[name].detach().cpu() - tensor for name, tensor in received.items()}

    def receive(self, net: Net, model: Mapping[str, Tensor] | None = None) -> None:
        """Put the received shared tensors (or others) into the net."""
        load(net, self.down["model"] if model is None else model)

    def fit(
        self,
        net: nn.Module,
        loss: LossFunction,
        *,
        epochs: int | range | None = None,
        only: Callable[[str], bool] | None = None,
        views: Sequence[str] | None = None,
        order: Callable[[int], Tensor] | None = None,
        after: Callable[[Any], None] | None = None,
        rate: float | None = None,
        clip_norm: float | None = None,
    ) -> float:
        """Local training: `epochs` passes of `loss` over the training rows. Returns the mean loss.

        `epochs` may be a range, for a question that trains in several stretches with draws of their own.
        `only` picks the parameters (by name) that train; modules of which none trains stay in eval mode.
        `views` are others than the method's, `order` gives the rows of an epoch (a sampler of the method's
        own), `after` sees the net after each step, `rate` is another learning rate than the round's,
        `clip_norm` the largest gradient norm where the options have none. A site with a single image trains
        with its BatchNorm in eval mode: one value has no variance.
        """
        fixed = getattr(net, "fixed", ())
        free = {name: p for name, p in net.named_parameters() if name not in fixed}
        named = {name: p for name, p in free.items() if only is None or only(name)}
        rate = self.options.rate(self.round) if rate is None else rate
        optimizer = make_optimizer(self.options, rate, named)
        clip_norm = clip_norm if self.options.clip_norm is None else self.options.clip_norm
        keep = self.options.persist_optimizer and only is None
        if keep:
            optimizer.restore(self.moments)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name in named)
        net.train()
        for module in net.modules():
            lone = self.samples == 1 and isinstance(module, nn.modules.batchnorm._BatchNorm)
            still = only is not None and not any(p.requires_grad for p in module.parameters())
            if lone or (still and any(True for _ in module.parameters())):
                module.eval()
        total, seen = torch.zeros((), device=self.device), 0
        epochs = self.options.epochs if epochs is None else epochs
        passes = range(epochs) if isinstance(epochs, int) else epochs
        if self.mechanism is None:
            steps = self._steps(net, loss, named, passes, views, order)
        elif order is None:
            steps = private_steps(self, net, loss, named, passes, views)
        else:
            raise MethodError(
                f"[privacy]: '{self.question}' draws its images by a rule of its own, and differential "
                "privacy needs every image to have the same chance: choose another method, or leave "
                "[privacy] out"
            )
        for value, count in steps:
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(list(named.values()), clip_norm)
            optimizer.step()
            if after is not None:
                after(net)
            total += value * count
            seen += count
        optimizer.zero()
        if keep:
            self.moments = optimizer.moments
        net.requires_grad_(True)
        net.eval()
        return float(total) / max(1, seen)

    def _steps(
        self,
        net: nn.Module,
        loss: LossFunction,
        named: Mapping[str, nn.Parameter],
        epochs: Sequence[int],
        views: Sequence[str] | None,
        order: Callable[[int], Tensor] | None,
    ) -> Iterator[tuple[Tensor, int]]:
        """One gradient after the other, on the parameters: the loss of its batch, and how many images that
        has."""
        bf16 = self.options.precision == "bf16"
        for epoch in epochs:
            for batch in self.batches(epoch, views, None if order is None else order(epoch)):
                for parameter in named.values():
                    parameter.grad = None
                with torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext():
                    value = loss(net, batch, self)
                value.backward()
                yield value.detach(), len(batch)

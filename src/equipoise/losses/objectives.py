"""The base loss of a run, chosen in the config: parts that shape logits, then one criterion.

As TOML: `"balanced_softmax"`, `"fedrs+balanced_softmax"`, `{ name = "focal", gamma = 1.0 }`, or a list such
as `[{ name = "fedrs", alpha = 0.0 }, "balanced_softmax"]`. In whatever order: scales come first, shifts are
added.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from equipoise.errors import ConfigError
from equipoise.losses import multilabel, shaping, single
from equipoise.losses.shaping import Shaper
from equipoise.names import unknown
from equipoise.options import Options

Task = Literal["single", "multi"]
Criterion = Callable[..., Tensor]


@dataclass(frozen=True)
class Facts:
    """What an objective may know: the site's own labels, and how far the run is."""

    counts: Tensor
    """float64 [C]: samples per class; positives per label for a multi-label task"""
    total: Tensor
    """float64, scalar or [C]: samples a count is out of"""
    labelled: Tensor | None
    """bool [C]: the labels the site annotates; None means all"""
    task: Task
    round: int
    rounds: int

    @property
    def annotated(self) -> Tensor:
        """bool [C]: the labels the site annotates, spelt out."""
        return torch.ones_like(self.counts, dtype=torch.bool) if self.labelled is None else self.labelled

    @property
    def sides(self) -> Tensor:
        """float64 [C, 2]: negatives and positives of every label."""
        return torch.stack([self.total - self.counts, self.counts], 1)

    def known(self, shaper: Shaper) -> Shaper:
        """The shift without the labels the site knows nothing of."""
        if self.labelled is None or shaper.shift is None:
            return shaper
        return Shaper(shaper.scale, shaper.shift * self.labelled)


class Part(Options):
    """One element of an objective: it shapes logits, or it is the criterion, or both."""

    name: str
    tasks: ClassVar[tuple[Task, ...]] = ("single",)
    prior: ClassVar[bool] = False
    """shifts logits by the site's class shares"""

    @property
    def last(self) -> bool:
        """True when nothing may follow, because this part brings its own criterion."""
        return False

    def shaper(self, facts: Facts) -> Shaper | None:
        return None

    def criterion(self, facts: Facts) -> Criterion | None:
        return None


class CrossEntropy(Part):
    """Softmax cross-entropy."""

    name: Literal["cross_entropy"] = "cross_entropy"

    @property
    def last(self) -> bool:
        return True


class BalancedSoftmax(Part):
    """Cross-entropy of logits shifted by the log of the site's class prior."""

    name: Literal["balanced_softmax"] = "balanced_softmax"
    prior: ClassVar[bool] = True

    def shaper(self, facts: Facts) -> Shaper:
        return shaping.prior_shift(shaping.prior_of(facts.counts))


class LogitAdjustment(Part):
    """Balanced softmax with the log prior times tau; multi-label: with the log-odds of each label."""

    name: Literal["logit_adjustment"] = "logit_adjustment"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    prior: ClassVar[bool] = True
    tau: float = Field(default=1.0, ge=0)
    """strength; 0 is cross-entropy, 1 balanced softmax"""

    def shaper(self, facts: Facts) -> Shaper:
        if facts.task == "single":
            return shaping.prior_shift(shaping.prior_of(facts.counts), self.tau)
        return facts.known(shaping.odds_shift(shaping.positive_prior(facts.counts, facts.total), self.tau))


class FedRS(Part):
    """Logits of classes the site lacks, or of labels it does not annotate, are scaled down (FedRS)."""

    name: Literal["fedrs"] = "fedrs"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    alpha: float = Field(default=0.5, ge=0, le=1)
    """scale of absent classes; 1 is cross-entropy. Multi-label: of labels not annotated, where the criterion
    counts them at all"""
    mode: Literal["binary", "proportional"] = "binary"
    """binary: absent classes only (the paper); proportional (single-label): all classes, by count relative to
    the largest"""

    def shaper(self, facts: Facts) -> Shaper:
        if facts.task == "single":
            return shaping.restriction(facts.counts, self.alpha, self.mode)
        if self.mode == "proportional":
            raise ConfigError(
                "objective 'fedrs': mode = \"proportional\" weighs classes against each other, and several "
                "labels "
                'per image do not compete: use mode = "binary"'
            )
        # A label that is annotated and never found has negatives to learn from: it is not absent.
        return shaping.restriction(facts.annotated, self.alpha)


class ClassBalanced(Part):
    """Cross-entropy weighted by the effective number of samples per class."""

    name: Literal["class_balanced"] = "class_balanced"
    beta: float = Field(default=0.9999, ge=0, le=1)
    """0 weighs classes alike, 1 by inverse frequency"""

    @property
    def last(self) -> bool:
        return True

    def criterion(self, facts: Facts) -> Criterion:
        return partial(single.class_balanced, counts=facts.counts, beta=self.beta)


class LDAM(Part):
    """Margins by class frequency on a cosine head, re-weighted late; multi-label: by each label's sides."""

    name: Literal["ldam"] = "ldam"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    max_margin: float = Field(default=0.5, ge=0)
    """margin of the rarest class; multi-label: of the rarer side of each label"""
    scale: float = Field(default=30.0, gt=0)
    """factor on the cosines, in training and prediction alike"""
    defer: float = Field(default=0.8, ge=0, le=1)
    """share of the rounds after which classes are re-weighted; 1 never re-weights"""
    beta: float = Field(default=0.9999, ge=0, le=1)
    """of the effective number of samples"""

    @property
    def last(self) -> bool:
        return True

    def criterion(self, facts: Facts) -> Criterion:
        late = facts.round >= self.defer * facts.rounds
        if facts.task == "single":
            weight = single.effective_weight(facts.counts, self.beta) if late else None
            bound = partial(single.ldam, counts=facts.counts, max_margin=self.max_margin)
        else:
            known = facts.annotated[:, None]  # of a label the site does not annotate it knows no side
            weight = torch.where(known, multilabel.side_weight(facts.sides, self.beta), 1.0) if late else None
            margin = multilabel.side_margin(facts.sides, self.max_margin) * known
            bound = partial(multilabel.ldam_cells, margin=margin)
        return partial(bound, scale=self.scale, weight=weight)


class MultiPart(Part):
    """A part that multi-label tasks may use."""

    over: Literal["labelled", "all"] = "labelled"
    """multi-label: divide the sum by the cells that count, or by all cells as FedMLP does"""


class Focal(MultiPart):
    """Focal loss: well-classified samples count less; softmax or, for multi-label tasks, sigmoid."""

    name: Literal["focal"] = "focal"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    gamma: float = Field(default=2.0, ge=0)
    """0 is cross-entropy"""

    @property
    def last(self) -> bool:
        return True

    def criterion(self, facts: Facts) -> Criterion | None:
        if self.gamma == 0:
            return None
        if facts.task == "single":
            return partial(single.focal, gamma=self.gamma)
        return lambda logits, y: single.focus(multilabel.bce_cells(logits, y), self.gamma)


class FedLC(MultiPart):
    """A margin of tau * n^(-1/4) per class (FedLC); multi-label: between the two sides of each label."""

    name: Literal["fedlc"] = "fedlc"
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    tau: float = Field(default=1.0, ge=0)
    """strength; 0 is cross-entropy"""
    strict: bool = False
    """single-label: leave the true class out of the denominator as the paper prints it; tends to diverge"""

    @property
    def last(self) -> bool:
        return self.strict

    def shaper(self, facts: Facts) -> Shaper:
        if facts.task == "single":
            return shaping.margin_shift(facts.counts, self.tau)
        negatives, positives = facts.sides.unbind(1)
        return facts.known(shaping.binary_margin_shift(positives, negatives, self.tau))

    def criterion(self, facts: Facts) -> Criterion | None:
        if not self.strict:
            return None
        if facts.task == "multi":
            raise ConfigError("objective 'fedlc': strict = true has no multi-label form; remove it")
        return single.strict_cross_entropy


class BCE(MultiPart):
    """Binary cross-entropy of each label."""

    name: Literal["bce"] = "bce"
    tasks: ClassVar[tuple[Task, ...]] = ("multi",)
    pos_weight: bool = False
    """weigh positives by n/positives, from the labels the site has"""
    missing: Literal["ignore", "negative"] = "ignore"
    """labels the site does not annotate: left out, or trained on as absent findings"""

    @property
    def last(self) -> bool:
        return True

    def criterion(self, facts: Facts) -> Criterion:
        if not self.pos_weight:
            return multilabel.bce_cells
        weight = multilabel.positive_weight(facts.counts, facts.total, facts.labelled)
        return partial(multilabel.bce_cells, pos_weight=weight)


class AdjustedBCE(MultiPart):
    """Binary cross-entropy of logits shifted by the log-odds of each label at the site (FedMLP)."""

    name: Literal["adjusted_bce"] = "adjusted_bce"
    tasks: ClassVar[tuple[Task, ...]] = ("multi",)
    prior: ClassVar[bool] = True
    absent: Literal["clip", "none"] = "clip"
    """a label without positives: as if half a sample were positive, or no shift"""

    def shaper(self, facts: Facts) -> Shaper:
        shaper = facts.known(shaping.odds_shift(shaping.positive_prior(facts.counts, facts.total)))
        if self.absent == "clip" or shaper.shift is None:
            return shaper
        return Shaper(shift=shaper.shift * (facts.counts > 0))


AnyPart = Annotated[
    CrossEntropy
    | BalancedSoftmax
    | LogitAdjustment
    | FedRS
    | ClassBalanced
    | LDAM
    | Focal
    | FedLC
    | BCE
    | AdjustedBCE,
    Field(discriminator="name"),
]

OBJECTIVES: dict[str, type[Part]] = {
    "cross_entropy": CrossEntropy,
    "balanced_softmax": BalancedSoftmax,
    "logit_adjustment": LogitAdjustment,
    "fedrs": FedRS,
    "fedlc": FedLC,
    "focal": Focal,
    "class_balanced": ClassBalanced,
    "ldam": LDAM,
    "bce": BCE,
    "adjusted_bce": AdjustedBCE,
}
"""Every part by name; its docstring is its one-line description."""


class ObjectiveOptions(Options):
    """The base loss; written as a name, names joined by '+', a table with `name`, or a list of these."""

    parts: tuple[AnyPart, ...] = (CrossEntropy(),)
    """logit shaping, then at most one criterion"""

    @model_validator(mode="before")
    @classmethod
    def _any_spelling(cls, value: Any) -> Any:
        if isinstance(value, dict) and (not value or set(value) == {"parts"}):
            value = value.get("parts", "cross_entropy")
        return {"parts": _parts(value)}

    @model_validator(mode="after")
    def _fit_together(self) -> ObjectiveOptions:
        for part in self.parts[:-1]:
            if part.last:
                raise ConfigError(
                    f"objective: '{part.name}' brings its own criterion, so it must be the last part"
                )
        if not self.tasks:
            names = "+".join(part.name for part in self.parts)
            raise ConfigError(
                f"objective '{names}' mixes single-label and multi-label parts; use parts of one kind"
            )
        return self

    def after(self, *first: AnyPart) -> ObjectiveOptions:
        """These parts first, then this objective without parts of the same names: none counts twice."""
        names = {part.name for part in first}
        return ObjectiveOptions(parts=(*first, *(part for part in self.parts if part.name not in names)))

    def ending(self, last: AnyPart) -> ObjectiveOptions:
        """This objective's shaping of logits with another criterion at its end."""
        return ObjectiveOptions(parts=(*(part for part in self.parts if not part.last), last))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that all parts support."""
        return tuple(task for task in ("single", "multi") if all(task in part.tasks for part in self.parts))

    @property
    def toml(self) -> str:
        """The shortest spelling: keys that have their defaults are left out."""
        tables = [{"name": part.name, **part.model_dump(exclude_defaults=True)} for part in self.parts]
        if all(len(table) == 1 for table in tables):
            return json.dumps("+".join(part.name for part in self.parts))
        texts = []
        for table in tables:
            pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
            texts.append(f"{{ {pairs} }}" if len(table) > 1 else json.dumps(table["name"]))
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"

    @property
    def scale(self) -> float | None:
        """What the head must multiply its cosines by (LDAM); None where any head will do."""
        return next((part.scale for part in self.parts if isinstance(part, LDAM)), None)

    @property
    def prior(self) -> bool:
        """True when logits are shifted by the site's class shares."""
        return any(part.prior for part in self.parts)


def _parts(value: Any) -> tuple[Part, ...]:
    """Any spelling of an objective as its parts."""
    if isinstance(value, str):
        return tuple(_part({"name": name.strip()}) for name in value.split("+"))
    if isinstance(value, Part):
        return (value,)
    if isinstance(value, dict):
        return (_part(value),)
    if isinstance(value, list | tuple) and value:
        return tuple(part for item in value for part in _parts(item))
    raise ConfigError(
        f"objective must be a name, a table with 'name', or a non-empty list of these, not {value!r}"
    )


def _part(table: dict[str, Any]) -> Part:
    """One part, checked by its own class."""
    name = table.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"objective: give a 'name', one of {', '.join(sorted(OBJECTIVES))}")
    if name not in OBJECTIVES:
        raise ConfigError(unknown("objective", name, OBJECTIVES))
    kind = OBJECTIVES[name]
    for key in table:
        if key not in kind.model_fields:
            raise ConfigError(unknown(f"key of objective '{name}'", str(key), kind.model_fields))
    try:
        return kind(**table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"objective '{name}': {where} = {first['input']!r}: {first['msg']}") from None


def parse_objective(value: Any) -> ObjectiveOptions:
    """Options from any spelling the config allows; a wrong name or key is a ConfigError with the nearest
    valid one."""
    return value if isinstance(value, ObjectiveOptions) else ObjectiveOptions.model_validate(value)


class Objective:
    """A base loss bound to one site: `objective(logits, y)` is a scalar, the mean over the batch."""

    def __init__(self, shaper: Shaper | None, criterion: Criterion):
        self.shaper = shaper
        self.criterion = criterion

    def shape(self, logits: Tensor) -> Tensor:
        """The logits the criterion sees."""
        return logits if self.shaper is None else self.shaper(logits)

    def each(self, logits: Tensor, y: Tensor) -> Tensor:
        """One loss per image, [N]."""
        return self.criterion(self.shape(logits), y, reduction="none")

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of the batch; `mask` bool [N] leaves images out."""
        if mask is not None:
            if not mask.any():
                return 0.0 * logits.sum()
            logits, y = logits[mask], y[mask]
        return self.criterion(self.shape(logits), y)


class MultiObjective(Objective):
    """The same for several labels per image; the criterion gives one loss per cell."""

    def __init__(
        self,
        shaper: Shaper | None,
        criterion: Criterion,
        labelled: Tensor | None,
        over: multilabel.Over,
        negative: Tensor | None,
    ):
        super().__init__(shaper, criterion)
        self.labelled = labelled
        self.over = over
        self.negative = negative

    def known(self, y: Tensor) -> Tensor:
        """The targets where nobody decided about missing labels: negative, if the objective counts them at
        all."""
        return y if self.negative is None else y.masked_fill(self.negative.to(y.device), 0)

    def cells(self, logits: Tensor, y: Tensor) -> Tensor:
        """One loss per image and label, [N, C]."""
        return self.criterion(self.shape(logits), y)

    def each(self, logits: Tensor, y: Tensor) -> Tensor:
        cells = self.cells(logits, self.known(y))
        if self.labelled is None:
            return cells.mean(1)
        labelled = self.labelled.to(cells.device)
        total = cells.masked_fill(~labelled, 0.0).sum(1)
        return total / (cells.shape[1] if self.over == "all" else labelled.sum().clamp_min(1))

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of the batch; `mask` bool [N, C] says which cells count, in place of the site's labels.

        With a mask a method has decided about every cell, so `y` stands, also where labels are missing.
        """
        if mask is None:
            return multilabel.masked_mean(self.cells(logits, self.known(y)), self.labelled, self.over)
        return multilabel.masked_mean(self.cells(logits, y), mask, self.over)


def make_objective(
    options: ObjectiveOptions,
    *,
    counts: Tensor,
    total: int | Tensor,
    task: Task,
    labelled: Tensor | None = None,
    round: int = 0,
    rounds: int = 1,
) -> Objective:
    """Bind an objective to a site.

    `counts` [C] are samples per class (positives per label), `total` the samples they are out of (a tensor
    [C] where it differs by label), `labelled` the labels the site annotates (multi-label only; None means
    all); `round` starts at 0.
    """
    if task not in options.tasks:
        valid = sorted(name for name, part in OBJECTIVES.items() if task in part.tasks)
        names = "+".join(part.name for part in options.parts)
        raise ConfigError(
            f"objective '{names}' does not fit a {task}-label task; use one of {', '.join(valid)}"
        )
    counts = counts.to(torch.float64)
    full = torch.as_tensor(total, dtype=torch.float64, device=counts.device)
    facts = Facts(counts, full, labelled, task, round, rounds)
    shapers = [shaper for part in options.parts if (shaper := part.shaper(facts)) is not None]
    shaper = reduce(Shaper.beside, shapers) if shapers else None
    criterion = options.parts[-1].criterion(facts)
    if task == "single":
        return Objective(shaper, criterion or F.cross_entropy)
    parts = [part for part in options.parts if isinstance(part, MultiPart)]
    over: multilabel.Over = "all" if any(part.over == "all" for part in parts) else "labelled"
    negative = None
    if labelled is not None and any(isinstance(part, BCE) and part.missing == "negative" for part in parts):
        negative, labelled = ~labelled, None
    return MultiObjective(shaper, criterion or multilabel.bce_cells, labelled, over, negative)

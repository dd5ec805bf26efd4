"""The base loss of a run, chosen in the config: parts that shape logits, then one criterion.

As TOML: `"balanced_softmax"`, `"fedrs+balanced_softmax"`, `{ name = "focal", gamma = 1.0 }`, or a list such
as `[{ name = "fedrs", alpha = 0.0 }, "balanced_softmax"]`; a criterion of one's own is `FILE.py:name`. In
whatever order: scales come first, shifts are added.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import SerializeAsAny, ValidationError, ValidationInfo, model_validator
from torch import Tensor

from equipoise.errors import ConfigError
from equipoise.locate import Parts, context, named, parts_of
from equipoise.losses import multilabel
from equipoise.losses.own import OwnLoss
from equipoise.losses.parts import (
    BCE,
    LDAM,
    OBJECTIVES,
    Criterion,
    CrossEntropy,
    Facts,
    MultiPart,
    Part,
    Task,
)
from equipoise.losses.shaping import Shaper
from equipoise.names import unknown
from equipoise.options import Options


class ObjectiveOptions(Options):
    """The base loss; written as a name, names joined by '+', a table with `name`, or a list of these."""

    parts: tuple[SerializeAsAny[Part], ...] = (CrossEntropy(),)
    """logit shaping, then at most one criterion"""

    @model_validator(mode="before")
    @classmethod
    def _any_spelling(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, dict) and (not value or set(value) == {"parts"}):
            value = value.get("parts", "cross_entropy")
        return {"parts": _parts(value, info)}

    @model_validator(mode="after")
    def _fit_together(self) -> ObjectiveOptions:
        for part in self.parts[:-1]:
            if part.last:
                raise ConfigError(
                    f"objective: '{part.name}' brings its own criterion, so it must be the last part"
                )
        if not self.tasks:
            names = "+".join(part.name for part in self.parts)
            raise ConfigError(f"objective '{names}' mixes single-label and multi-label parts; use one kind")
        return self

    def after(self, *first: Part) -> ObjectiveOptions:
        """These parts first, then this objective without parts of the same names: none counts twice."""
        names = {part.name for part in first}
        return ObjectiveOptions(parts=(*first, *(part for part in self.parts if part.name not in names)))

    def ending(self, last: Part) -> ObjectiveOptions:
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


def _parts(value: Any, info: ValidationInfo) -> tuple[Part, ...]:
    """Any spelling of an objective as its parts."""
    if isinstance(value, str):
        return tuple(_part({"name": name.strip()}, info) for name in value.split("+"))
    if isinstance(value, Part):
        return (value,)
    if isinstance(value, dict):
        return (_part(value, info),)
    if isinstance(value, list | tuple) and value:
        return tuple(part for item in value for part in _parts(item, info))
    raise ConfigError(
        f"objective must be a name, a table with 'name', or a non-empty list of these, not {value!r}"
    )


def _part(table: dict[str, Any], info: ValidationInfo) -> Part:
    """One part, checked by its own class."""
    name = table.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"objective: give a 'name', one of {', '.join(sorted(OBJECTIVES))}")
    if named(name):
        return OwnLoss.of(table, parts_of(info, name).find(name, "train.objective"))
    if name not in OBJECTIVES:
        raise ConfigError(unknown("objective", name, OBJECTIVES) + ", or FILE.py:name")
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


def parse_objective(value: Any, parts: Parts | None = None) -> ObjectiveOptions:
    """Options from any spelling the config allows; a wrong name or key is a ConfigError with the nearest
    valid one. `parts` is where code of one's own is found."""
    if isinstance(value, ObjectiveOptions):
        return value
    return ObjectiveOptions.model_validate(value, context=context(parts) if parts else None)


class Objective:
    """A base loss bound to one site: `objective(logits, y)` is a scalar, the mean over the batch."""

    labelled: Tensor | None = None
    """bool [C]: the labels that count, the others being left out; None where all of them do"""

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

    def __init__(self, shaper: Shaper | None, criterion: Criterion, over: multilabel.Over, negative: bool):
        super().__init__(shaper, criterion)
        self.over = over
        self.negative = negative
        """whether a missing label counts as an absent finding"""

    def cells(self, logits: Tensor, y: Tensor) -> Tensor:
        """One loss per image and label, [N, C]; what stands where there is no label means nothing."""
        return self.criterion(self.shape(logits), multilabel.filled(y))

    def counted(self, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The targets, and bool [N, C] which of them count; None for all."""
        known = multilabel.known(y)
        if bool(known.all()):
            return y, None
        return (y.masked_fill(~known, 0.0), None) if self.negative else (y, known)

    def each(self, logits: Tensor, y: Tensor) -> Tensor:
        y, known = self.counted(y)
        cells = self.cells(logits, y)
        if known is None and cells.ndim == 1:
            return cells
        _check_cells(cells, logits)
        if known is None:
            return cells.mean(1)
        total = cells.masked_fill(~known, 0.0).sum(1)
        return total / (cells.shape[1] if self.over == "all" else known.sum(1).clamp_min(1))

    def __call__(self, logits: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of the batch over the cells that have a label; `mask` bool [N, C] says which of them
        count.

        With a mask a method has decided about every cell: one that it left without a label is no negative.
        """
        if mask is None:
            y, mask = self.counted(y)
        else:
            mask = mask.to(y.device) & multilabel.known(y)
        cells = self.cells(logits, y)
        if mask is not None:
            _check_cells(cells, logits)
        return multilabel.masked_mean(cells, mask, self.over)


def _check_cells(cells: Tensor, logits: Tensor) -> None:
    """Refuse a loss of one's own that has added up what cannot be left out any more."""
    if cells.shape != logits.shape:
        raise ConfigError(
            f"train.objective: some labels are left out here, so the loss must give one value per image and "
            f"label, {list(logits.shape)}, and it gave {list(cells.shape)}"
        )


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
    [C] where it differs by label), `labelled` the labels the site annotates at all (multi-label only; None
    means each); `round` starts at 0. Which cell of a batch has a label is seen from its targets.
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
    negative = any(isinstance(part, BCE) and part.missing == "negative" for part in parts)
    return MultiObjective(shaper, criterion or multilabel.bce_cells, over, negative)


def knows_counts(options: ObjectiveOptions, task: Task, classes: int) -> bool:
    """Whether a site's class counts are in its losses; tried with some, early and late in a run."""
    few = torch.full((classes,), 3.0, dtype=torch.float64)
    many, none = few.clone(), few.clone()
    many[0], none[-1] = 9.0, 0.0
    logits = torch.linspace(-1, 1, 2 * classes).view(2, classes)
    y = torch.tensor([0, 1])

    def losses(counts: Tensor, round: int) -> Tensor:
        made = make_objective(options, counts=counts, total=5 * classes, task=task, round=round, rounds=2)
        return made.each(logits, y if task == "single" else F.one_hot(y, classes).to(logits))

    return any(
        not torch.equal(losses(counts, round), losses(few, round))
        for counts in (many, none)
        for round in (0, 1)
    )

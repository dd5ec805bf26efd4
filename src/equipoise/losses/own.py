"""A loss of one's own as the criterion of an objective: `FILE.py:name`, with its options beside the name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, PrivateAttr
from torch import Tensor, nn

from equipoise.errors import ConfigError
from equipoise.losses.parts import Criterion, Facts, Part, Task
from equipoise.signatures import check_options, parameters

COUNTS = "counts"
"""the argument that is filled in with the site's images per class, float32 [C]"""


class OwnLoss(Part):
    """Somebody's loss of `(logits, labels)`, or a class or factory that makes one."""

    model_config = ConfigDict(extra="allow")
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")

    _code: Callable[..., Any] = PrivateAttr()

    @classmethod
    def of(cls, table: dict[str, Any], code: Any) -> OwnLoss:
        """The part that a table of the config means."""
        part = cls(**table)
        if not callable(code):
            raise ConfigError(f"objective '{part.name}' is neither a function nor a class")
        part._code = code
        first = 0 if part._makes else 2
        check_options(code, part.options, (COUNTS,), f"objective '{part.name}'", first)
        return part

    @property
    def last(self) -> bool:
        return True

    @property
    def options(self) -> dict[str, Any]:
        """What stands beside the name."""
        return dict(self.model_extra or {})

    @property
    def _makes(self) -> bool:
        """Whether the code makes a loss and is not one: a class, or a function whose first argument are the
        counts."""
        return inspect.isclass(self._code) or next(iter(parameters(self._code) or ()), "") == COUNTS

    def criterion(self, facts: Facts) -> Criterion:
        counts = facts.counts.to(torch.float32)
        wants_counts = COUNTS in (parameters(self._code) or ())
        options = self.options | ({COUNTS: counts} if wants_counts else {})
        if not self._makes:
            return partial(self._loss, partial(self._code, **self.options), counts if wants_counts else None)
        try:
            made = self._code(**options)
        except Exception as error:
            raise ConfigError(
                f"train.objective '{self.name}' cannot be made: {type(error).__name__}: {error}"
            ) from error
        if not callable(made):
            raise ConfigError(f"train.objective '{self.name}' makes no loss but a {type(made).__name__}")
        return partial(self._loss, made, None)

    def _loss(
        self,
        code: Callable[..., Any],
        counts: Tensor | None,
        logits: Tensor,
        y: Tensor,
        reduction: str = "mean",
    ) -> Tensor:
        """What the criterion of an objective gives: the mean, or with "none" one loss per image; for several
        labels whatever the code gives."""
        if isinstance(code, nn.Module):
            code.to(logits.device)
        value = code(logits, y) if counts is None else code(logits, y, counts=counts.to(logits.device))
        shapes = [(), (len(y),), *([tuple(logits.shape)] if y.ndim == 2 else [])]
        if not isinstance(value, Tensor) or tuple(value.shape) not in shapes:
            got = list(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise ConfigError(f"train.objective '{self.name}' must give a tensor {wanted}, and gave {got}")
        if y.ndim == 2:
            return value
        if reduction == "none" and value.ndim == 0:
            raise ConfigError(
                f"train.objective '{self.name}' gives one number for a batch, and this method needs one per "
                f"image: let it give {[len(y)]}"
            )
        return value if reduction == "none" else value.mean()

"""Packages that can be called: `equipoise.compare(…)` beside `from equipoise.compare import make_plan`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


class Verb(ModuleType):
    """The module of a package whose name is also that of a function in `equipoise.api`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """What the function of the same name in `equipoise.api` gives."""
        return self._function(*args, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        """For help and completion."""
        return inspect.signature(self._function)

    @property
    def _function(self) -> Callable[..., Any]:
        api = importlib.import_module("equipoise.api")
        function: Callable[..., Any] = getattr(api, self.__name__.rpartition(".")[2])
        return function

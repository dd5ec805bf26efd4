"""All checks by name, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from equipoise.data.samples import Task
from equipoise.errors import ConfigError
from equipoise.methods import Method
from equipoise.names import unknown
from equipoise.testing import repeats, rules
from equipoise.testing.bench import Bench

CHECKS: dict[str, Callable[[Bench], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        rules.check_documented,
        rules.check_frozen,
        repeats.check_same_seed,
        repeats.check_other_seed,
        repeats.check_site_order,
        repeats.check_resume,
        rules.check_private,
        rules.check_ledger,
        rules.check_odd_sites,
        rules.check_dropout,
        rules.check_ending,
        repeats.check_neutral,
        repeats.check_global_rng,
        rules.check_overfits,
        rules.check_refuses_task,
        repeats.check_pool,
    )
}
"""Every check by name, quick ones first."""


def method_checks(
    method: str | type[Method],
    options: Mapping[str, Any] | None = None,
    *,
    task: Task | None = None,
    only: Iterable[str] | None = None,
) -> list[tuple[str, Callable[[], None]]]:
    """The checks that apply to a method, by name, ready to be called; `options` are its hyper-parameters (or
    a preset)."""
    return bench_checks(Bench(method, options, task), only)


def bench_checks(bench: Bench, only: Iterable[str] | None = None) -> list[tuple[str, Callable[[], None]]]:
    """The same for a method on its bench: the checks look at the bench's runs, and so can others."""
    names = list(CHECKS if only is None else only)
    for name in names:
        if name not in CHECKS:
            raise ConfigError(unknown("check", name, CHECKS))
    idle = {
        "neutral": bench.cls.neutral is None,
        "refuses_task": {"single", "multi"} <= set(bench.cls.tasks),
        "dropout": bench.cls.standard == "pooled",  # all images are in one place: nobody can be missing
    }
    return [(name, _call(bench, name)) for name in names if not idle.get(name, False)]


def _call(bench: Bench, name: str) -> Callable[[], None]:
    def check() -> None:
        try:
            with bench.own_cache():
                CHECKS[name](bench)
        except Exception as error:
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(f"method '{bench.name}' fails the check '{name}': {text}") from error

    return check


def check_method(
    method: str | type[Method],
    options: Mapping[str, Any] | None = None,
    *,
    task: Task | None = None,
    only: Iterable[str] | None = None,
) -> None:
    """Run every check that applies (or `only` some); the first that fails raises an AssertionError.

    `method` is a name, `FILE.py:Class`, `package.module:Class`, or the class itself; `task` chooses between
    single- and multi-label images where the method takes both.
    """
    for _, check in method_checks(method, options, task=task, only=only):
        check()

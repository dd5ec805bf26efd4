"""Sites behind Flower: the same `ask` as the other engines, over Flower's Message API.

`fleet` is the coordinator's end, `wire` says what a message holds. Flower is an extra: nothing here imports
it before it is used.
"""

from __future__ import annotations

import importlib.util

from equipoise.errors import ConfigError


def need_flower() -> None:
    """Refuse, with the fix, where Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(
            'hospitals are reached through Flower, which is not installed: pip install "equipoise[flower]"'
        )


__all__ = ["need_flower"]

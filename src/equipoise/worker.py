"""A worker process of the pool, started anew: builds a host from the config, then answers until its input
ends.

Started as `python -m equipoise.worker`; see `engine.pool` for the other end, `engine.serve` for this one.
"""

from __future__ import annotations

import json
import sys

from equipoise.engine import Host
from equipoise.engine.serve import pipes, serve
from equipoise.errors import EquipoiseError
from equipoise.exchange import ExchangeOptions
from equipoise.setup import host_of


def main() -> None:
    """Serve one pool."""
    inbox, outbox = pipes()
    ordered = inbox.get()
    limits = ExchangeOptions.model_validate(json.loads(ordered)["config"]["exchange"])
    host: Host | EquipoiseError
    try:
        host = host_of(ordered)
    except EquipoiseError as error:
        host = error
    serve(host, limits, inbox, outbox)


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)

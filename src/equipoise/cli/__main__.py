"""`python -m equipoise.cli`: the command where it is not installed."""

from __future__ import annotations

from equipoise.cli.app import main

if __name__ == "__main__":
    main()

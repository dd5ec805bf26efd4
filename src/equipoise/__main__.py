"""`python -m equipoise` is the `equipoise` command."""

from equipoise.cli import main

if __name__ == "__main__":
    main()

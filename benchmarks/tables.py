"""Tables on real images: every row with several seeds and the same budget, tuned alike on validation images.

    python benchmarks/tables.py [TABLE …] [--seeds 3] [--jobs 2] [--rows NAME …] [--page]

Each run is an ordinary `equipoise run` of a file in recipes/ with overrides, into runs/tables/…, and leaves
one line in docs/results/records/TABLE.jsonl. Recorded runs are not repeated and broken ones are resumed, so
the command can be stopped at any time and continued on another machine. Writes docs/results/TABLE.md and
TABLE.svg. What the tables are: `evidence/lists.py`.
"""

from __future__ import annotations

import argparse
import os

from evidence import page
from evidence.lists import TABLES
from evidence.runs import Runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", default=list(TABLES), choices=[*TABLES, []])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side")
    parser.add_argument("--rows", nargs="*", default=(), help="only these rows; the page shows all there are")
    parser.add_argument("--page", action="store_true", help="write the page of what is recorded, run nothing")
    given = parser.parse_args()
    failures = []
    for name in given.tables:
        print(f"\n{name}", flush=True)
        runs = Runs(name, TABLES[name], given.jobs)
        if not given.page:
            runs.make(given.seeds, set(given.rows))
        print("\n".join(line for line in page.write(runs, given.seeds) if line.startswith("|")), flush=True)
        failures += [f"{name}: {text}" for text in runs.failures]
    if failures:
        raise SystemExit("failed:\n" + "\n".join(failures))


if __name__ == "__main__":
    main()

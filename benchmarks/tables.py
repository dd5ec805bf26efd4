"""Tables on real images: every row with several seeds and the same budget, tuned alike on validation images.

    python benchmarks/tables.py [TABLE …] [--seeds 3] [--jobs 2] [--rows NAME …] [--page | --plan]

Each run is an ordinary `equipoise run` of a file in recipes/ with overrides, into runs/tables/…, and leaves
one line in docs/results/records/TABLE.jsonl. Recorded runs are not repeated and broken ones are resumed, so
the command can be stopped at any time and continued on another machine. Writes docs/results/TABLE.md and
TABLE.svg. `--plan` runs nothing and lists what is recorded and what is missing, with the hours that is likely
to take. What the tables are: `evidence/lists.py`.
"""

from __future__ import annotations

import argparse
import os

from evidence import page, plan
from evidence.lists import TABLES
from evidence.runs import Runs

from equipoise.names import unknown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; none: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side")
    parser.add_argument("--rows", nargs="*", default=(), help="only these rows; the page shows all there are")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--page", action="store_true", help="write the page of what is recorded, run nothing")
    what.add_argument("--plan", action="store_true", help="list what is missing, run and write nothing")
    given = parser.parse_args()
    for name in given.tables:
        if name not in TABLES:
            parser.error(unknown("table", name, TABLES))
    wanted = [Runs(name, TABLES[name], given.jobs) for name in given.tables or TABLES]
    for row in given.rows:
        if not any(row in runs.table.rows for runs in wanted):
            parser.error(unknown("row", row, [row for runs in wanted for row in runs.table.rows]))
    if given.plan:
        print("\n".join(plan.lines(wanted, given.seeds, set(given.rows))))
        return
    failures = []
    for runs in wanted:
        name = runs.name
        print(f"\n{name}", flush=True)
        if not given.page:
            runs.make(given.seeds, set(given.rows))
        print("\n".join(line for line in page.write(runs, given.seeds) if line.startswith("|")), flush=True)
        failures += [f"{name}: {text}" for text in runs.failures]
    if failures:
        raise SystemExit("failed:\n" + "\n".join(failures))


if __name__ == "__main__":
    main()

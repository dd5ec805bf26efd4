"""Write docs/claims.md: every claim of the five papers, with the paper's margin, ours, and a verdict.

    python benchmarks/claims.py

It runs nothing: it reads `evidence/claims.toml` and docs/results/records, which `benchmarks/tables.py` fills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from evidence.claims import CONTRADICTED, NOT_SHOWN, SHOWN, UNTESTED, Finding, findings
from evidence.records import ROOT

HEAD = f"""\
# Claims

What the five papers say of their methods and of their parts, and what came of it here: on other images, with
smaller networks and smaller budgets than the papers'. So a margin of ours is not to be set beside theirs as a
number; its sign and its interval count. The paper's margin is the difference of two rows of its table; ours
is the mean difference over seeds with its 95 % interval (Student's t, paired by seed), in points.

**{SHOWN}**: the interval lies above 0. **{NOT_SHOWN}**: it holds 0. **{CONTRADICTED}**: it lies below 0.
**{UNTESTED}**: fewer than two seeds of both rows are recorded. A † marks rows that have not all converged.
Written by `python benchmarks/claims.py` from the runs in [results/records](results/README.md).

"""
VERDICTS = (SHOWN, NOT_SHOWN, CONTRADICTED, UNTESTED)


def main() -> None:
    found = list(findings())
    counts = Counter(one.verdict for one in found)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    text = HEAD + f"{len(found)} claims: {said}.\n\n" + "\n".join(lines(found)) + "\n"
    tried = [f"- *{one.text}*: {one.tried}" for one in found if one.tried]
    if tried:
        text += "\nWhere a claim is not shown, what was tried to find out why:\n\n" + "\n".join(tried) + "\n"
    (ROOT / "docs" / "claims.md").write_text(text)
    print(text)


def lines(found: Iterable[Finding]) -> Iterable[str]:
    yield "| paper | claim | paper's margin | ours (95 %) | seeds | table | verdict |"
    yield "|---|---|---|---|---|---|---|"
    for one in found:
        page = ROOT / "docs" / "results" / f"{one.table}.md"
        link = f"[{one.table}](results/{one.table}.md)" if page.exists() else "–"
        ours, seeds = "–", "–"
        if one.ours is not None:
            ours, seeds = f"{one.ours}{'' if one.converged else ' †'}", str(one.ours.seeds)
        cells = (one.paper, one.text, f"{one.margin:+.1f}", ours, seeds, link, one.verdict)
        yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()

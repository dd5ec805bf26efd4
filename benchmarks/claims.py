"""Write docs/claims.md: every claim of the five papers, with the paper's margin, ours, and a verdict.

    python benchmarks/claims.py

It runs nothing: it reads `evidence/claims.toml` and docs/results/records, which `benchmarks/tables.py` fills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from evidence.claims import CONTRADICTED, NOT_SHOWN, SHOWN, UNTESTABLE, UNTESTED, Finding, findings
from evidence.figures import Difference
from evidence.records import ROOT

HEAD = f"""\
# Claims

What the five papers say of their methods and of their parts, and what came of it here: on other images, with
smaller networks and smaller budgets than the papers'. So a margin of ours is not to be set beside theirs as a
number; its sign and its interval count. The paper's margin is the difference of two rows of its table; ours
is the mean difference over seeds with its 95 % interval (Student's t, paired by seed), in points.

**{SHOWN}**: the interval lies above 0. **{CONTRADICTED}**: it lies below 0. **{NOT_SHOWN}**: it holds 0, or
the same difference on validation images has the other sign: all seeds of a table have the same test images,
so the interval does not say what others would have given. (Of validation images balanced accuracy is kept.)
Where the claim is that two rows are level: within one point on both sides, partly outside, wholly outside.
**{UNTESTED}**: fewer than two seeds of both rows are recorded. **{UNTESTABLE}**: with the images at hand
nothing decides it; the reason stands below. Elsewhere: the same difference in other tables that have both
rows; it does not count for the verdict. A † marks rows that have not all converged. G, S and A are
explained in [results](results/README.md); balanced accuracy, unless another figure is named.
Written by `python benchmarks/claims.py` from the runs in [results/records](results/README.md).

"""
PAGE = ROOT / "docs" / "claims.md"
VERDICTS = (SHOWN, NOT_SHOWN, CONTRADICTED, UNTESTABLE, UNTESTED)


def main() -> None:
    text = page()
    PAGE.write_text(text)
    print(text)


def page() -> str:
    """The page of all claims."""
    found = list(findings())
    counts = Counter(one.verdict for one in found)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    text = HEAD + f"{len(found)} claims: {said}.\n\n" + "\n".join(lines(found)) + "\n"
    for head, wanted in (
        ("What it would take to test the rest:", UNTESTABLE),
        ("Where a claim is not shown, what was tried to find out why:", NOT_SHOWN),
        ("Where a claim is contradicted, what was tried to find out why:", CONTRADICTED),
    ):
        said = [f"- {one.paper}, *{one.text}*: {one.remark}." for one in found if one.verdict == wanted]
        if said := [line for line in said if not line.endswith(": .")]:
            text += f"\n{head}\n\n" + "\n".join(said) + "\n"
    return text


def lines(found: Iterable[Finding]) -> Iterable[str]:
    heads = ("paper", "claim", "paper's margin", "ours (95 %)", "on validation images", "seeds", "table")
    yield "| " + " | ".join((*heads, "rows that decide it", "elsewhere", "verdict")) + " |"
    yield "|---" * 10 + "|"
    for one in found:
        table = linked(one.decides.table) if one.decides else "–"
        ours, seeds = "–", "–"
        if one.ours is not None:
            ours, seeds = marked(one.ours, one.converged), str(one.ours.seeds)
        checked = "–" if one.validation is None else f"{100 * one.validation.mean:+.1f}"
        rows = str(one.decides or "–")
        others = [f"{linked(name)}: {marked(*found)}" for name, found in one.elsewhere.items()]
        cells = (one.paper, one.text, f"{one.margin:+.1f}", ours, checked, seeds, table, rows)
        yield "| " + " | ".join((*cells, "; ".join(others), one.verdict)) + " |"


def linked(table: str) -> str:
    """The name of a table, with a link where it has been made."""
    made = (ROOT / "docs" / "results" / f"{table}.md").exists()
    return f"[{table}](results/{table}.md)" if made else table


def marked(found: Difference, converged: bool) -> str:
    return f"{found}{'' if converged else ' †'}"


if __name__ == "__main__":
    main()

"""Write docs/claims.md: claims of the five papers, with the paper's margin, ours, and a verdict.

    python benchmarks/claims.py

It runs nothing: it reads `evidence/claims.toml` and docs/results/records, which `benchmarks/tables.py` fills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from evidence.claims import (
    CONTRADICTED,
    FEWEST,
    NOT_SHOWN,
    SHOWN,
    UNTESTABLE,
    UNTESTED,
    Finding,
    Measured,
    findings,
)
from evidence.lists import TABLES
from evidence.records import ROOT

HEAD = f"""\
# Claims

What the five papers say of their methods and of their parts, and what came of it here: on other images, with
smaller networks and smaller budgets than the papers'. So a margin of ours is not to be set beside theirs as a
number; its sign and its interval count. The paper's margin is the difference of two rows of its table; ours
is the mean difference over seeds with its 95 % interval, in points of balanced accuracy unless another figure
is named. Written by `python benchmarks/claims.py` from the runs in [results/records](results/README.md).

## What a verdict rests on

On one test: Student's t over three to six seeds, paired by seed. That is less than
[compare](compare.md#is-it-a-difference) asks for a paper's claim:

- **All seeds of a table share their test images.** The interval says what training again would give, not what
  other images would have given, and there is no test over images here. The same difference on the validation
  images of the same runs stands in for it: it must say the same, by a point or more. A point is what counts
  as a difference on this page: where classes are rare, one or two images move a figure by as much.
- **A few seeds.** Student's t assumes that differences are normal, which so few cannot show. A permutation
  over seeds assumes less, but cannot fall below 0.06 with five seeds, nor below 0.25 with three: with fewer
  than six no verdict here could pass it.
- **One comparison at a time.** No interval is corrected for the number of them.

| verdict | the interval | on validation images |
|---|---|---|
| **{SHOWN}** | lies above 0 | a point or more above 0 |
| **{CONTRADICTED}** | lies below 0 | a point or more below 0 |
| **{NOT_SHOWN}** | all else | all else |

Where the claim is that two rows are level: shown if the interval lies within one point on both sides, and the
difference on validation images too; contradicted if it lies wholly outside, and the difference on validation
images on the same side. Of validation images balanced accuracy alone is kept: where another figure decides,
there is a dash, and the verdict rests on test images alone. **{UNTESTED}**: runs with the images at hand
would decide it, and fewer than {FEWEST} seeds of both rows are recorded. **{UNTESTABLE}**: with the images at
hand nothing decides it.

Every row of a table chose its learning rate among the same three, by short runs on validation images:
by balanced accuracy, in FedMLP's tables by AUC. All rows of a table have the same rounds. Seeds above: in how
many seeds the row that should be better is. Elsewhere: the same difference in other tables where the claim
should hold too; it does not count for the verdict. A † marks differences of which a row has not converged.
"""
WORDS = """\
## Words

- **G**, **S**, **A**: the global predictor on the union of test sets; each site's own predictor on its own
  test set, mean over sites; the mean of both ([results](results/README.md)).
- **balanced softmax**: cross-entropy with scores shifted by a site's class shares; FedAvg with it is the
  papers' BSM-FL. **tail**: the mean recall of the rarest classes.
- FCA: **consistency** (CR in its paper) trains the federated head towards what the personal one says;
  **1 : 3** are the weights of the losses of the federated head and the personal one.
- FedIIC: **DALA**, difficulty-aware logit adjustment, shifts scores by class shares and by how hard a class
  is, and **q** is the power of that difficulty. **intra** and **inter** are contrast among a site's own
  images, and with prototypes of the classes that all sites share and that are spread apart
  (orthogonalisation in its paper); **t** is the power of class shares in the temperature of intra.
- Fed-MAS: **KD**, knowledge distillation, pulls features towards those of a frozen network, with the weight
  **λ**. **Rescue-weighted** aggregation (MAS in its paper) counts sites by how far their classes still are
  from the frozen network, not by their images. **cRT** trains the classifier alone again, on classes drawn
  equally often.
- FedSDC: **M1**, **M2**, **M3** have heads that are neither diverse nor shuffled, diverse only, shuffled
  only. **IID**, **NIID-1** and **NIID-2** are its three divisions: alike clients; imbalanced classes at
  Dirichlet clients; clients from three sets of blood cells.
- FedMLP: a label that a site lacks is left out of the loss (**FedAvg-PL**) or counted as absent
  (**missing = 0**); **weighted**: positives weigh more where they are rare. **MLD** detects missing labels by
  prototypes; **WPC** is a loss on the labels at hand that takes each finding's share of positives into
  account; **CR**, consistency, trains the site's model towards the received one on findings that have no
  label; **ST** are thresholds that adapt to each finding.
- **as released**: as the authors' published code has it, where that differs from the paper. **Head CT**,
  RSNA-ICH: slices of the head with kinds of bleeding.
"""
PAGE = ROOT / "docs" / "claims.md"
VERDICTS = (SHOWN, NOT_SHOWN, CONTRADICTED, UNTESTABLE, UNTESTED)
TESTED = (SHOWN, NOT_SHOWN, CONTRADICTED)


def main() -> None:
    text = page()
    PAGE.write_text(text)
    print(text)


def page() -> str:
    """The page of all claims."""
    found = list(findings())
    parts = [
        *(HEAD, "## The list\n", count(found), joined(lines(found)), WORDS),
        *("## Tables\n", joined(tables(found)), "## Remarks\n"),
        "What it would take to test the rest (a row: a short run for each rate, a run for each seed):\n",
        joined(wanting(found)),
    ]
    for verdict in (NOT_SHOWN, CONTRADICTED, SHOWN):
        if said := joined(remarks(found, verdict)):
            parts += [f"How to read claims that are {verdict}, and what was tried:\n", said]
    return "\n".join(parts)


def joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def count(found: Sequence[Finding]) -> str:
    """How many have which verdict, and how many of them chance alone would give."""
    counts = Counter(one.verdict for one in found)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    tests = [one.ours.test for one in found if one.ours and one.ours.test and one.verdict in TESTED]
    outside = sum(test.low > 0 or test.high < 0 for test in tests)
    return (
        f"{len(found)} claims: {said}. Of the {len(tests)} intervals that are looked at {outside} do not "
        f"hold 0; if no two rows differed, about {len(tests) / 20:.0f} would not.\n"
    )


def lines(found: Sequence[Finding]) -> Iterator[str]:
    """The table of claims."""
    heads = ("paper", "claim", "paper's margin", "ours (95 %)", "on validation images", "seeds above")
    yield "| " + " | ".join((*heads, "table", "rows that decide it", "elsewhere", "verdict")) + " |"
    yield "|---" * 10 + "|"
    for one in found:
        cells = [one.paper, one.text, f"{one.margin:+.1f}"]
        if one.ours is None:
            cells += ["–"] * 5
        else:
            rows = one.ours.rows
            cells += [*figures(one.ours), linked(rows.table), str(rows)]
        others = [f"{linked(other.rows.table)}: {marked(other)}" for other in one.elsewhere if other.enough]
        yield "| " + " | ".join((*cells, "; ".join(others), one.verdict)) + " |"


def figures(ours: Measured) -> tuple[str, str, str]:
    """The difference on test images and on validation images, and the seeds in which it is above 0."""
    if ours.test is None:
        return "–", "–", "–"
    return marked(ours), heard(ours) or "–", f"{ours.above} of {ours.test.seeds}"


def marked(ours: Measured) -> str:
    return f"{ours.test}{'' if ours.converged else ' †'}"


def heard(ours: Measured) -> str:
    """The difference on validation images; empty where none is kept."""
    return "" if ours.validation is None else f"{100 * ours.validation.mean:+.1f}"


def linked(table: str) -> str:
    """The name of a table, with a link where it has been made."""
    made = (ROOT / "docs" / "results" / f"{table}.md").exists()
    return f"[{table}](results/{table}.md)" if made else table


def tables(found: Sequence[Finding]) -> Iterator[str]:
    """What the tables are that are named on the page."""
    named = {one.rows.table for of in found for one in (of.ours, *of.elsewhere) if one is not None}
    yield "| table | what it is |"
    yield "|---|---|"
    for name, table in TABLES.items():
        if name in named:
            yield f"| {linked(name)} | {table.about} |"


def wanting(found: Sequence[Finding]) -> Iterator[str]:
    """What would decide the claims that are not tested, and which they are."""
    reasons = dict[str, list[str]]()
    for one in found:
        if one.verdict not in TESTED:
            reasons.setdefault(reason(one), []).append(f"{one.paper}, *{one.text}*")
    for text, claims in reasons.items():
        yield f"- {text}: {'; '.join(claims)}."


def reason(one: Finding) -> str:
    if one.ours is not None:
        return f"the rows are in {linked(one.ours.rows.table)}, with fewer than {FEWEST} seeds recorded"
    return one.remark


def remarks(found: Sequence[Finding], verdict: str) -> Iterator[str]:
    """What is to be known of the claims with a verdict."""
    for one in found:
        if one.verdict == verdict and (said := remark(one)):
            yield f"- {one.paper}, *{one.text}*. {said}."


def remark(one: Finding) -> str:
    """What was tried, the learning rates where they tell something, and other differences beside it."""
    assert one.ours is not None
    beside = [set_beside(other) for other in one.beside if other.enough]
    said = [one.remark, rates(one.ours), f"Beside it: {'; '.join(beside)}" if beside else ""]
    return ". ".join(part for part in said if part)


def rates(ours: Measured) -> str:
    """The learning rates of the two rows, where they differ or a larger one might have been better."""
    better, worse = ours.rates
    if better is None or worse is None:
        return ""
    if better == worse:
        return f"Both rows chose the largest learning rate, {better:g}" if better == ours.largest else ""
    last = ", of which the second was the largest tried" if worse == ours.largest else ""
    last = ", of which the first was the largest tried" if better == ours.largest else last
    return f"Learning rates {better:g} and {worse:g}{last}"


def set_beside(other: Measured) -> str:
    validation = heard(other)
    return f"{other.rows}: {marked(other)}" + (f", on validation images {validation}" if validation else "")


if __name__ == "__main__":
    main()

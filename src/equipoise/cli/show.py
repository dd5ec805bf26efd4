"""Tables for people; `--json` is for programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from equipoise.cli.console import terminal
from equipoise.report.folder import by_size, figures, percent, size, told_rounds

if TYPE_CHECKING:
    from equipoise.running import Result
    from equipoise.verify import Findings


COMPARED = {
    "generalisation": "general",
    "specialisation": "special",
    "average": "average",
    "tail": "tail recall",
    "macro_auc": "macro AUC",
}
"""columns of the comparison; the first three are balanced accuracy"""


def _table(*columns: str, title: str | None = None, right: int = 1) -> Table:
    """A table whose columns from number `right` on are numbers."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i >= right else "left", overflow="fold")
    return table


def result(found: Result, page: Path) -> None:
    """The metrics of a run: the two protocols, recall per class, and where the rest is."""
    console = terminal()
    test = found.metrics.get("test")
    if test is not None:
        views = ("generalisation", "specialisation", "average")
        table = _table("test set", *views)
        for key, title in figures(test["generalisation"]).items():
            table.add_row(escape(title), *(percent(test[view].get(key)) for view in views))
        console.print(table)
        table = _table("recall", "test images", "global predictor")
        everyone = test["generalisation"]
        for i in by_size(everyone["support"]):
            table.add_row(
                escape(found.classes[i]), f"{everyone['support'][i]:,.0f}", percent(everyone["recall"][i])
            )
        console.print(table)
        worst = test["worst_site"]
        console.print(
            f"worst site  {escape(str(worst['name'] or 'differs'))}, balanced accuracy "
            f"{percent(worst['balanced_accuracy'])}"
        )
    rounds = told_rounds(found.rounds, found.ending_of)
    console.print(f"rounds      {rounds}\nstate       {found.state_hash}")
    console.print(f"report      {page}", soft_wrap=True)


def comparison(rows: list[dict[str, Any]], page: Path) -> None:
    """One row per method, the best of each column bold."""
    best = {key: max((row[key] for row in rows if row[key] is not None), default=None) for key in COMPARED}
    table = _table("", *COMPARED.values())
    table.columns[0].no_wrap = True
    for row in rows:
        cells = (
            f"[bold]{percent(row[key])}[/]" if row[key] == best[key] else percent(row[key])
            for key in COMPARED
        )
        table.add_row(escape(row["method"]), *cells)
    console = terminal()
    console.print(table)
    console.print(
        "general: one model on the test images of all hospitals; special: each hospital's own on its own"
    )
    console.print(f"report  {page}", soft_wrap=True)


def compared(facts: dict[str, Any], folder: Path) -> None:
    """The table of a comparison, the best of each column bold and the second underlined, and the tests
    beneath."""
    from equipoise.compare.summary import table_of

    console, found = terminal(), table_of(facts)
    marks = {"best": "[bold]{}[/]", "second": "[underline]{}[/]", "": "{}"}

    def figures(short: bool) -> Table:
        table = _table("", *found.columns)
        for row, cells, ranks in zip(found.rows, found.cells(), found.ranks(), strict=True):
            texts = (cell.partition(" ")[0] if short else cell for cell in cells)
            table.add_row(
                escape(row.label),
                *(marks[rank].format(text) for rank, text in zip(ranks, texts, strict=False)),
            )
        for column in table.columns:
            column.no_wrap = True
        return table

    roomy = console.options.update(width=1000)
    short = console.measure(figures(short=False), options=roomy).maximum > console.width
    console.print(figures(short))
    tests = _table(f"against {escape(facts['reference'])}", *found.remarks)
    for row in found.rows:
        tests.add_row(escape(row.label), *row.remarks)
    console.print(tests)
    spread = "" if short else " ± standard deviation"
    console.print(
        f"per cent, mean{spread}; G: one model on all sites' test images; S: each site's own on its own; "
        f"A: the mean of both"
    )
    console.print("Δ: difference in G bACC; p: two-sided, corrected for the number of arms")
    for reason in facts["left_out"]:
        console.print(f"left out  {escape(reason)}", soft_wrap=True)
    for remark in facts["remarks"]:
        console.print(f"note      {escape(remark)}", soft_wrap=True)
    for twin in facts["twins"]:
        console.print(f"the same  {escape(twin)}", soft_wrap=True)
    for failure in facts["failures"]:
        console.print(f"failed    {escape(failure['run'])}: {escape(failure['error'])}", soft_wrap=True)
    console.print(
        f"tables    {folder / 'table.md'}, table.csv, table.tex; every figure: comparison.json",
        soft_wrap=True,
    )
    console.print(f"report    {folder / 'report.html'}", soft_wrap=True)


def checked(facts: dict[str, str], doubts: list[str]) -> None:
    """A line per thing that was tried, and what may be wrong with the data."""
    table = _table("", "", right=2)
    for name, text in facts.items():
        table.add_row(f"[green]✓[/] {name}", escape(text))
    table.show_header = False
    console = terminal()
    console.print(table)
    warnings(doubts)
    beside = f", but see the warnings ({len(doubts)})" if doubts else ""
    console.print(f"nothing was trained; the run can start{beside}")


def warnings(doubts: list[str]) -> None:
    """What may be wrong, a mark before each."""
    for text in doubts:
        terminal().print(f"[yellow]![/] {escape(text)}", soft_wrap=True)


def reproduced(facts: dict[str, Any], folder: Path) -> None:
    """Ours, the paper's in brackets, the difference; then what is not as in the paper."""
    from equipoise.reproduce import texts

    console = terminal()
    table = _table("", *facts["columns"], "runs")
    table.columns[0].no_wrap = True
    for label, row in facts["rows"].items():
        cells = []
        for name in facts["columns"]:
            ours, paper, difference = (text.partition(" ")[0] for text in texts(row["cells"][name]))
            cells.append(f"{ours} ({paper}) {difference}")
        table.add_row(escape(label), *cells, str(row["runs"]))
    console.print(f"[bold]{escape(facts['table'])}[/]  {escape(facts['title'])} ({escape(facts['source'])})")
    console.print(table)
    for remark in facts["remarks"]:
        console.print(f"- {escape(remark)}")
    console.print(
        f"per cent: ours (paper's) difference; with standard deviations: "
        f"{escape(str(folder / 'reproduction.md'))}"
    )
    console.print(f"report  {escape(str(folder / 'report.html'))}", soft_wrap=True)


def papers(found: list[dict[str, Any]]) -> None:
    """One row per table of the papers."""
    console = terminal()
    table = _table("table", "what", "rows", "data", "full", "small", right=4)
    table.columns[0].no_wrap = True
    for one in found:
        cost = one["estimated_seconds"]
        words = (one["table"], one["title"], ", ".join(one["rows"]), ", ".join(one["data"]))
        table.add_row(*map(escape, words), _rough(cost["full"]), _rough(cost["small"]))
    console.print(table)
    console.print(
        "full, small: an estimate for one core (or the GPU) of this machine with nothing else to do, for "
        "all rows, seeds and "
        "folds, at small scale one seed; from the small network timed for a moment and what others cost "
        "beside it, without "
        "evaluation, augmentation and methods' own computing"
    )


def _rough(seconds: float) -> str:
    """About how long, with two digits, which is more than an estimate can promise."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return (
                f"{float(f'{seconds / length:.2g}'):,.0f} {unit}"
                if seconds >= 10 * length
                else f"{seconds / length:.1f} {unit}"
            )
    return f"{seconds:.0f} s"


def methods(facts: list[dict[str, Any]]) -> None:
    """All methods."""
    table = _table("method", "paper", "labels", "what leaves a site", "defaults", right=5)
    for one in facts:
        defaults = ", ".join(f"{field['name']}={field['default']}" for field in one["fields"])
        table.add_row(
            *map(escape, (one["name"], one["paper"], ", ".join(one["tasks"]), one["leaves"], defaults))
        )
    terminal().print(table)


def method(one: dict[str, Any]) -> None:
    """One method in full."""
    console = terminal()
    console.print(escape(one["text"]), end="\n\n", soft_wrap=True)
    console.print(
        f"labels: {', '.join(one['tasks'])}   stays at the site: "
        f"{escape(', '.join(one['private']) or 'nothing')}"
    )
    if one["recommends"]:
        console.print(
            escape(
                "recommends: "
                + ", ".join(f"train.{key} = {value}" for key, value in one["recommends"].items())
            )
        )
    if one["fields"]:
        table = _table("method.…", "default", "type", "meaning", right=4)
        for field in one["fields"]:
            table.add_row(*map(escape, (field["name"], str(field["default"]), field["type"], field["about"])))
        console.print(table)
    if one["presets"]:
        table = _table("method.preset", "sets", right=2)
        for name, values in one["presets"].items():
            table.add_row(
                escape(name), escape(", ".join(f"{k}={v}" for k, v in values.items()) or "the defaults")
            )
        console.print(table)


def ledger(facts: dict[str, Any]) -> None:
    """What leaves, and how much of it."""
    console = terminal()
    table = _table("question", "from round", "leaf", "kind", "shape", "who can read it", "bytes up", right=6)
    for row in facts["leaves"]:
        amount = f"{row['bytes']:,}" + (" × n" if row["varies"] else "")
        values = (
            row["question"],
            str(row["from_round"] + 1),
            row["leaf"],
            row["kind"],
            row["shape"],
            row["read_by"],
            amount,
        )
        table.add_row(*map(escape, values))
    console.print(table)
    table = _table("per site and round", "from round", "up", "down")
    for row in facts["questions"]:
        up = size(row["up_bytes"]) + (" × n" if row["varies"] else "")
        table.add_row(row["question"], str(row["from_round"] + 1), up, size(row["down_bytes"]))
    console.print(table)
    if any(row["varies"] for row in facts["leaves"]):
        console.print("n: a length that differs from site to site, usually one row per image")


def census(facts: dict[str, Any]) -> None:
    """Class × site, split by split."""
    console = terminal()
    classes = facts["classes"]
    order = by_size(facts["train"])
    for split in facts["splits"]:
        table = _table(split, *(escape(classes[i]) for i in order), "images")
        for name, site in facts["sites"].items():
            table.add_row(
                escape(name), *(f"{site[split]['counts'][i]:,}" for i in order), f"{site[split]['images']:,}"
            )
        sums = [sum(site[split]["counts"][i] for site in facts["sites"].values()) for i in order]
        images = sum(site[split]["images"] for site in facts["sites"].values())
        table.add_section()
        table.add_row("all", *(f"{n:,}" for n in sums), f"{images:,}")
        console.print(table)
    ratio, groups = facts["imbalance"], facts["groups"]
    skew = (
        "a class has no training image"
        if ratio is None
        else f"{ratio:.1f} times more of the largest class than of the smallest"
    )
    console.print(
        f"{facts['images']:,} images, {facts['task']}-label, "
        f"{facts['height']}×{facts['width']}×{facts['channels']}"
    )
    pixels = facts["pixels"]
    console.print(
        f"pixels     {pixels['lowest']} to {pixels['highest']} of 0 to 255, mean {pixels['mean']:.0f}; "
        f"{pixels['dark']:,} dark images, {pixels['flat']:,} without contrast"
    )
    console.print(f"imbalance  {skew}")
    console.print(
        f"groups     {'none given: any two images may be split' if groups is None else f'{groups:,}'}"
    )
    console.print(f"cache      {facts['cache']}", soft_wrap=True)
    console.print(f"skipped    {len(facts['skipped'])} bad rows")
    for reason in facts["skipped"][:20]:
        console.print(f"  {escape(reason)}")
    if facts["contact_sheet"]:
        console.print(f"pictures   {escape(facts['contact_sheet'])}", soft_wrap=True)
    warnings(facts["warnings"])


def verified(found: Findings) -> None:
    """What is as it was written, and what is not."""
    console = terminal()
    for problem in found.problems:
        console.print(f"✗ {escape(problem)}", soft_wrap=True)
    console.print(
        f"✓ {len(found.checked):,} files are as they were written; {len(found.without_digest):,} have no "
        f"digest"
    )


def evaluated(facts: dict[str, Any]) -> None:
    """The metrics of a model on new data, in all and for every site of it."""
    console, found = terminal(), facts["metrics"]
    table = _table("", f"{facts['images']:,} images")
    for key, title in figures(found).items():
        table.add_row(escape(title), percent(found[key]))
    console.print(table)
    table = _table("recall", "images", "")
    for i in by_size(found["support"]):
        table.add_row(escape(facts["classes"][i]), f"{found['support'][i]:,}", percent(found["recall"][i]))
    console.print(table)
    if len(facts["sites"]) > 1:
        table = _table("site", "balanced accuracy", "macro AUC", "recall, tail classes")
        for name, one in facts["sites"].items():
            table.add_row(
                escape(name), *(percent(one[key]) for key in ("balanced_accuracy", "macro_auc", "tail"))
            )
        console.print(table)
    console.print(f"model  {escape(facts['model'])}", soft_wrap=True)
    which = (
        "its test images"
        if facts["rows"] == "test"
        else "all its images, as it does not say which are for testing"
    )
    console.print(f"data   {escape(facts['data'])}, {which}", soft_wrap=True)


def sets(facts: list[dict[str, Any]]) -> None:
    """One row per data set."""
    table = _table("data.kind", "set", "licence", "classes", "images", "sites", right=3)
    table.columns[0].no_wrap = True
    for one in facts:
        words = (one["name"], one["title"], one["licence"])
        table.add_row(
            *map(escape, words), str(len(one["classes"])), f"{one['images']:,}", str(len(one["sites"]) or 1)
        )
    console = terminal()
    console.print(table)
    console.print(
        "`equipoise data check NAME ROOT` compares a download with what was published; --json shows "
        "layouts and sources"
    )


def checked_set(facts: dict[str, Any]) -> None:
    """Found beside published, then what is wrong."""
    console = terminal()
    table = _table(escape(facts["title"]), "found", "published")
    for part in ("classes", "sites"):
        for name, one in facts[part].items():
            table.add_row(escape(name), f"{one['found']:,}", _number(one["published"]))
        table.add_section()
    table.add_row("images", f"{facts['images']['found']:,}", _number(facts["images"]["published"]))
    console.print(table)
    if facts["splits"]:
        console.print("splits  " + ", ".join(f"{name} {count:,}" for name, count in facts["splits"].items()))
    if facts["groups"]:
        console.print(f"groups  {facts['groups']:,}")
    for text in facts["problems"][:20]:
        console.print(f"[red]✗[/] {escape(text)}", soft_wrap=True)
    if len(facts["problems"]) > 20:
        console.print(f"  and {len(facts['problems']) - 20:,} more")
    warnings(facts["warnings"])
    if facts["ok"]:
        console.print(f"[green]✓[/] {escape(facts['root'])} is as published", soft_wrap=True)


def _number(count: int | None) -> str:
    return "" if count is None else f"{count:,}"

"""A comparison that was made: its table, every figure as rows, its pictures."""

from __future__ import annotations

from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from equipoise.compare.summary import FACTS, LETTERS, LONG, NAMES, note, read_facts, runs_of, table_of
from equipoise.errors import ConfigError, StorageError
from equipoise.keeping import write_atomic
from equipoise.listing import Raw, aligned, html_table, to_frame
from equipoise.names import unknown
from equipoise.report import read_run, standalone
from equipoise.report.figures import Figure, comparison_figures
from equipoise.report.table import Table, markdown
from equipoise.reproduce import beside

FIRST = "convergence-generalisation"
"""the picture that is shown where none is asked for"""
MARKS = {"best": "<b>{}</b>", "second": "<u>{}</u>", "": "{}"}
MOST = 8
"""rows that a short text shows"""


class Picture:
    """A figure as SVG, without requests to any network; a notebook shows it by itself."""

    def __init__(self, figure: Figure) -> None:
        self.key, self.title, self.caption = figure.key, figure.title, figure.caption
        self.svg = standalone(figure.svg)
        self._figure = figure

    def rows(self) -> list[dict[str, Any]]:
        """The same numbers as a table; none where it would be long."""
        return [dict(zip(self._figure.columns, row, strict=True)) for row in self._figure.rows]

    def save(self, path: str | Path) -> Path:
        """Write the picture to an .svg file."""
        path = Path(path)
        if path.suffix != ".svg":
            raise ConfigError(f"a picture is saved as SVG: call it {path.with_suffix('.svg')}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, self.svg.encode())
        return path

    def __repr__(self) -> str:
        return f"Picture({self.title!r}: .save('figure.svg'), or show it in a notebook)"

    def _repr_html_(self) -> str:
        title, caption = escape(self.title), escape(self.caption)
        return f"<figure><figcaption>{title}</figcaption>{self.svg}<p>{caption}</p></figure>"


class Comparison:
    """Methods by seeds (and folds) on the same data, as a folder holds them: that of `equipoise.compare`, of
    `equipoise.reproduce`, or of the commands of these names."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / FACTS).is_file():
            raise StorageError(
                f"{self.folder} has no {FACTS}: name the folder of a comparison that has ended, or start it "
                f"with `equipoise.compare(…, out={str(self.folder)!r})`"
            )
        self.facts = read_facts(self.folder / FACTS)
        """what comparison.json holds"""
        paper = self.folder / beside.FACTS
        self.paper: dict[str, Any] | None = read_facts(paper) if paper.is_file() else None
        """of a paper's table: what reproduction.json holds, our numbers beside the published ones"""

    @property
    def methods(self) -> list[str]:
        """The labels of the rows."""
        return list(self.facts["arms"])

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Runs that did not reach their end: `run`, `error`, `exit_code`; the same call tries them again."""
        return list(self.facts["failures"])

    @property
    def table(self) -> str:
        """The table as Markdown: of a paper's table our numbers beside the published ones."""
        return markdown(self._sheet)

    @property
    def note(self) -> str:
        """What the columns of a comparison's table mean."""
        return note(self.facts)

    @property
    def _sheet(self) -> Table:
        return table_of(self.facts) if self.paper is None else beside.sheet(self.paper)

    def rows(self) -> list[dict[str, Any]]:
        """One row per run and metric, values from 0 to 1, and per class its recall: what `runs.csv` holds."""
        return [dict(zip(LONG, row, strict=True)) for row in runs_of(self.facts)]

    def frame(self) -> Any:
        """`rows` as a pandas DataFrame."""
        return to_frame(self.rows())

    @cached_property
    def pictures(self) -> dict[str, Picture]:
        """Every figure of the comparison's page, by name."""
        arms = []
        for label, arm in self.facts["arms"].items():
            arms.append((label, [read_run(self.folder / run["folder"]) for run in arm["runs"]]))
        return {figure.key: Picture(figure) for figure in comparison_figures(arms)}

    def plot(self, name: str = FIRST) -> Picture:
        """One of `pictures`: balanced accuracy over rounds, unless another is named."""
        if name not in self.pictures:
            raise ConfigError(unknown("picture", name, self.pictures))
        return self.pictures[name]

    def __repr__(self) -> str:
        facts = self.facts
        folds = f" × {facts['folds']} folds" if facts["folds"] else ""
        done = sum(len(arm["runs"]) for arm in facts["arms"].values())
        lines = [f"Comparison({str(self.folder)!r})"]
        shape = f"{len(facts['arms'])} methods × {len(facts['seeds'])} seeds{folds}"
        lines.append(f"{shape}, {done} runs, in per cent")
        heads = ["", *(f"{letter} {NAMES['balanced_accuracy']}" for letter in LETTERS.values())]
        shown = table_of(facts)
        cells = [[row.label, *cells[:3]] for row, cells in zip(shown.rows, shown.cells(), strict=True)]
        lines.append(aligned([heads, *cells[:MOST]]))
        if len(cells) > MOST:
            lines.append(f"and {len(cells) - MOST} more: .table has all")
        if self.failures:
            first = self.failures[0]
            lines.append(f"{len(self.failures)} runs failed, the first is {first['run']}: {first['error']}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        sheet = self._sheet
        rows = []
        for row, cells, ranks in zip(sheet.rows, sheet.cells(), sheet.ranks(), strict=True):
            figures = zip(ranks, cells, strict=False)
            marked = [Raw(MARKS[rank].format(escape(cell))) for rank, cell in figures]
            rows.append([row.label, *marked, *cells[len(ranks) :]])
        failed = "".join(
            f"<p>Failed: {escape(one['run'])}: {escape(one['error'])}</p>" for one in self.failures
        )
        about = note(self.facts).replace("*", "") if self.paper is None else str(self.paper["source"])
        return html_table(sheet.heads, rows) + f"<p><small>{escape(about)}</small></p>" + failed

"""The table: ranks by what is shown, and text that survives hostile names in three formats."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from equipoise.report.table import Figure, Row, Table, comma_separated, latex, markdown


def table(*means: tuple[float | None, float | None], labels: tuple[str, ...] | None = None) -> Table:
    rows = [
        Row(
            labels[i] if labels else f"m{i}",
            tuple(None if value is None else Figure(value, 0.01) for value in pair),
            (f"+{i}",),
        )
        for i, pair in enumerate(means)
    ]
    return Table(("G bACC", "G AUC"), tuple(rows), ("Δ",))


def test_a_figure_over_runs() -> None:
    figure = Figure.of([0.5, 0.6, None, 0.7])
    assert figure is not None
    assert (figure.mean, figure.std) == (pytest.approx(0.6), pytest.approx(0.1))
    assert str(figure) == "60.0 ± 10.0"
    assert Figure.of([0.25]) == Figure(0.25, None) and str(Figure(0.25, None)) == "25.0"
    assert Figure.of([None]) is None


def test_best_and_second_by_the_digits_shown() -> None:
    found = table((0.70001, 0.1), (0.7, 0.3), (0.6, 0.2), (0.5, None)).ranks()
    assert found == [("best", ""), ("best", "best"), ("second", "second"), ("", "")]
    assert table((0.7, 0.1)).ranks() == [("", "")]  # nobody to be better than


def test_a_column_in_which_less_may_be_better_has_no_best() -> None:
    found = replace(table((0.7, 0.1), (0.6, 0.3)), unranked=1)
    assert found.ranks() == [("best", ""), ("second", "")]
    assert " | **70.0 ± 1.0** | 10.0 ± 1.0 | " in markdown(found)


def test_markdown() -> None:
    text = markdown(table((0.7, None), (0.6, 0.5), labels=("a|b_*", "<u>x</u>")))
    assert text == (
        "| method | G bACC | G AUC | Δ |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| a\\|b\\_\\* | **70.0 ± 1.0** | – | +0 |\n"
        "| \\<u\\>x\\</u\\> | <u>60.0 ± 1.0</u> | **50.0 ± 1.0** | +1 |\n"
    )


def test_latex() -> None:
    text = latex(table((0.7, None), (0.6, 0.5), labels=(r"50% & \x_1", "b")))
    assert text.splitlines() == [
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r"method & G bACC & G AUC & $\Delta$ \\",
        r"\midrule",
        r"50\% \& \textbackslash{}x\_1 & \textbf{70.0 $\pm$ 1.0} & -- & +0 \\",
        r"b & \underline{60.0 $\pm$ 1.0} & \textbf{50.0 $\pm$ 1.0} & +1 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_latex_has_a_real_minus_and_a_real_less_than() -> None:
    row = Row("fed-avg -2 x=-1", (), ("-3.1", "< 0.001", "2 of 3"))
    assert latex(Table((), (row,), ("Δ", "p", "runs"))).splitlines()[4] == (
        r"fed-avg $-$2 x=$-$1 & $-$3.1 & $<$ 0.001 & 2 of 3 \\"
    )


def test_comma_separated() -> None:
    text = comma_separated(["method", "mean", "p", "runs"], [('a,"b"', 0.7, None, 3), ("c", -0.25, 1e-9, 0)])
    assert list(csv.reader(io.StringIO(text))) == [
        ["method", "mean", "p", "runs"],
        ['a,"b"', "0.7", "", "3"],
        ["c", "-0.25", "1e-09", "0"],
    ]

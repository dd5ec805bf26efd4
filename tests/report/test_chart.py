"""Charts against coordinates worked out by hand."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from equipoise.report.chart import Series, lines, rounds, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (0, 0.37, [0, 0.1, 0.2, 0.3, 0.4]),
        (3.5, 5.4, [3.5, 4, 4.5, 5, 5.5]),
        (0, 0, [0, 0.25]),
        (2, 2, [2, 2.5]),
    ],
)
def test_ticks_are_round_and_cover(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 1, [1]),
        (1, 2, [1, 2]),
        (1, 20, [1, 5, 10, 15, 20]),
        (4, 20, [4, 10, 15, 20]),
        (0, 300, [0, 50, 100, 150, 200, 250, 300]),
    ],
)
def test_round_numbers_under_the_axis(low: int, high: int, expected: list[int]) -> None:
    assert rounds(low, high) == expected


def test_points_are_where_they_belong() -> None:
    svg = lines("accuracy", [Series("a", [(1, 0.0), (2, None), (3, 0.4)]), Series("b", [(1, 0.2), (3, 0.4)])], percent=True)
    ElementTree.fromstring(svg)
    first, second = re.findall(r'<polyline class="s\d" stroke-dasharray="[^"]*" points="([^"]+)"', svg)[:2]
    # the plot spans x 46…388 for rounds 1…3 and y 190…12 for 0…0.4
    assert first == "46.0,190.0 388.0,12.0"
    assert second == "46.0,101.0 388.0,12.0"
    assert "<title>accuracy</title>" in svg
    assert "a: 0.0 % in round 1, 40.0 % in round 3; b: 20.0 % in round 1, 40.0 % in round 3" in svg


def test_one_point_stands_in_the_middle() -> None:
    assert 'cx="217.0"' in lines("loss", [Series("a", [(4, 1.5)])])


def test_nothing_to_draw() -> None:
    assert lines("loss", []) == lines("loss", [Series("a", [(1, None)])]) == ""


def test_hostile_names_are_text() -> None:
    svg = lines("<b>", [Series("<script>alert(1)</script>", [(1, 1.0)])])
    assert "<script" not in svg and "<b>" not in svg
    assert "&lt;script&gt;" in svg

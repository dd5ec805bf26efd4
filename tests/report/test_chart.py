"""Charts against coordinates worked out by hand."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from equipoise.report.chart import Series, label, lines, rounds, shorten, ticks, width


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
    svg = lines(
        "accuracy",
        [Series("a", [(1, 0.0), (2, None), (3, 0.4)]), Series("b", [(1, 0.2), (3, 0.4)])],
        percent=True,
    )
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


@pytest.mark.parametrize(
    ("text", "room", "expected"),
    [
        ("melanoma", 8 * 6.8, "melanoma"),
        ("melanoma", 7 * 6.8, "mela…ma"),
        ("site of a long name 12", 10 * 6.8, "site of…12"),
        ("病院病院病院", 4 * 12.4, "病院…院"),
        ("melanoma", 3.0, "…"),
    ],
)
def test_names_keep_their_beginning_and_their_end(text: str, room: float, expected: str) -> None:
    assert shorten(text, room) == expected
    assert width(shorten(text, room)) <= max(room, 6.8)


def test_a_shortened_label_tells_the_whole_name() -> None:
    assert label(1, 2, "a name that is <long>", room=50) == (
        '<text x="1.0" y="2.0"><title>a name that is &lt;long&gt;</title>a na…g&gt;</text>'
    )


def test_the_band_is_the_mean_and_the_spread() -> None:
    svg = lines("accuracy", [Series("a", [(1, 0.2), (2, None), (3, 0.3)], [0.1, None, 0.1])], percent=True)
    # the plot spans x 46…388 for rounds 1…3 and y 190…12 for 0…0.4
    assert re.findall(r'<polygon points="([^"]+)"', svg) == ["46.0,56.5 388.0,12.0 388.0,101.0 46.0,145.5"]
    assert (
        "<title>a, round 1: 20.0 % ± 10.0 %</title>" in svg
        and "<title>a, round 3: 30.0 % ± 10.0 %</title>" in svg
    )


def test_a_band_does_not_leave_the_chart() -> None:
    svg = lines("accuracy", [Series("a", [(1, 0.1), (2, 0.1)], [0.3, 0.3])], percent=True)
    assert re.findall(r'<polygon points="([^"]+)"', svg) == ["46.0,12.0 388.0,12.0 388.0,190.0 46.0,190.0"]


def test_every_point_of_a_short_line_and_a_hundred_of_a_long_one_answer_the_pointer() -> None:
    for rounds_done, marks in ((3, 3), (20, 20), (90, 90), (250, 84), (1000, 100)):
        svg = lines("loss", [Series("a", [(x, 1.0 * x) for x in range(1, rounds_done + 1)])])
        assert svg.count("<circle") == svg.count("<title>a, round ") == marks


def test_eight_lines_differ_in_more_than_colour() -> None:
    svg = lines("loss", [Series(f"method {i}", [(1, i), (2, i)]) for i in range(8)])
    styles = re.findall(r'<polyline class="(s\d)" stroke-dasharray="([^"]*)"', svg)[:8]
    assert len(set(styles)) == 8
    assert len({dash for _, dash in styles[:6]}) == 6


def test_units_have_the_room_they_need_and_start_at_zero() -> None:
    svg = lines("bytes", [Series("up", [(1, 5.0), (2, 7.0)])], show=lambda y: f"{y:.1f} long units")
    left = float(re.search(r'class="grid" x1="([\d.]+)"', svg)[1])  # type: ignore[index]
    assert left == pytest.approx(10 + 14 * 6.8, abs=0.06)
    assert ">0.0 long units</text>" in svg


def test_the_last_round_is_not_cut_off() -> None:
    svg = lines("loss", [Series("a", [(1, 1.0), (100_000, 2.0)])])
    x = float(re.search(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">100000<', svg)[1])  # type: ignore[index]
    assert x + 3 * 6.8 <= 400

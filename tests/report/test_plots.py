"""Bars, dots, bubbles, the matrix, the reliability diagram and the map, against places and sizes worked out
by hand."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from equipoise.report.plots import Bar, Look, Part, Spot, bars, bubbles, dots, maps, matrix, reliability

SVG = str
LONG = "a name of very many letters that no column has room for"


def whole(value: float) -> str:
    return f"{value:g}"


def elements(svg: SVG, tag: str) -> list[dict[str, str]]:
    """Attributes of every element, and its title."""
    root = ElementTree.fromstring(svg)
    return [{**one.attrib, "hover": one.findtext("title", "")} for one in root.iter(tag)]


def hovered(svg: SVG, tag: str) -> list[dict[str, str]]:
    return [one for one in elements(svg, tag) if one["hover"]]


def inside(svg: SVG) -> None:
    """Nothing leaves the picture; a letter is at most 7 units wide."""
    root = ElementTree.fromstring(svg)
    wide, tall = map(float, root.attrib["viewBox"].split()[2:])
    for one in root.iter():
        at = {
            key: float(value)
            for key, value in one.attrib.items()
            if key in ("x", "y", "cx", "cy", "r", "width", "height")
        }
        if one.tag == "circle":
            r = at["r"]
            assert r <= at["cx"] <= wide - r and r <= at["cy"] <= tall - r
        elif one.tag == "rect":
            assert (
                at["x"] >= 0
                and at["x"] + at["width"] <= wide
                and at["y"] >= 0
                and at["y"] + at["height"] <= tall
            )
        elif one.tag == "text":
            long = 7 * len("".join(one.itertext()).removeprefix(one.findtext("title", "")))
            start = at["x"] - {"middle": long / 2, "end": long}.get(one.attrib.get("text-anchor", ""), 0.0)
            if "transform" in one.attrib:
                start = at["x"] - long * math.sqrt(0.5) - 8
                assert at["y"] + long * math.sqrt(0.5) <= tall + 4
            assert start >= -1 and at["y"] <= tall
            if "transform" not in one.attrib:
                assert start + long <= wide + 8
        elif one.tag == "polygon":
            for x, y in (pair.split(",") for pair in one.attrib["points"].split()):
                assert 0 <= float(x) <= wide and 0 <= float(y) <= tall


def test_bars_start_at_zero_and_stack() -> None:
    row = Bar("a", (Part(0.25, "first"), Part(0.5, "second", Look(1))), "75")
    svg = bars("shares", [row], whole, high=1.0)
    inside(svg)
    one, two = hovered(svg, "rect")
    grid = [float(line["x1"]) for line in elements(svg, "line")]
    zero, end = grid[0], grid[-1]  # ticks from 0 to 1
    assert float(one["x"]) == zero == pytest.approx(6.8 + 12, abs=0.06)
    assert float(one["width"]) == pytest.approx((end - zero) / 4, abs=0.1)
    assert float(two["x"]) == pytest.approx(zero + (end - zero) / 4, abs=0.1)
    assert float(two["width"]) == pytest.approx((end - zero) / 2, abs=0.1)
    assert (one["hover"], two["hover"]) == ("first", "second")
    assert one["style"] != two["style"]


def test_bars_below_zero_go_to_the_left() -> None:
    svg = bars(
        "gains", [Bar("up", (Part(0.2, "gain"),), "+20"), Bar("down", (Part(-0.1, "loss"),), "-10")], whole
    )
    inside(svg)
    gain, loss = hovered(svg, "rect")
    zero = float(next(line for line in elements(svg, "line") if line["class"] == "axis")["x1"])
    assert float(gain["x"]) == pytest.approx(zero, abs=0.1)
    assert float(loss["x"]) + float(loss["width"]) == pytest.approx(zero, abs=0.1)
    assert float(gain["width"]) == pytest.approx(2 * float(loss["width"]), abs=0.2)


def test_what_is_little_is_still_seen_and_nothing_is_not() -> None:
    svg = bars("bytes", [Bar("a", (Part(1e6, "much"), Part(8, "little"), Part(0, "nothing")), "1")], whole)
    assert [float(one["width"]) for one in hovered(svg, "rect")][1:] == [1.0, 0.0]
    assert "<title>much; little; nothing</title>1</text>" in svg  # what has no bar answers at the number


def test_bars_of_nothing() -> None:
    inside(bars("shares", [Bar("a", (Part(0.0, "none"),), "0")], whole))
    inside(bars("shares", [Bar("a", (), "–")], whole))


def test_dots_stand_at_their_value_and_differ_in_shape() -> None:
    found = [(i / 10, f"{i}") for i in range(8)]
    svg = dots("recall", [(Bar("a", note="12"), [*found[:3], None, *found[4:]])], [LONG] * 8, whole)
    inside(svg)
    grid = [float(line["x1"]) for line in elements(svg, "line") if line["x1"] == line["x2"]]
    assert len(grid) == 5
    circles = {one["hover"]: one for one in hovered(svg, "circle")}
    assert list(circles) == ["0", "4"]  # the fifth mark is a hollow first
    assert float(circles["4"]["cx"]) == pytest.approx(grid[0] + 0.4 * (grid[4] - grid[0]), abs=0.1)
    shapes = {one["hover"]: one for one in hovered(svg, "polygon")}
    assert list(shapes) == ["1", "2", "5", "6", "7"]
    corners = {len(one["points"].split()) for one in shapes.values()}
    assert corners == {3, 4}
    for name, one in shapes.items():
        xs = [float(pair.split(",")[0]) for pair in one["points"].split()]
        assert (min(xs) + max(xs)) / 2 == pytest.approx(
            grid[0] + int(name) / 10 * (grid[4] - grid[0]), abs=0.2
        )
    assert (
        len({(one["style"], len(one["points"].split()), one["hover"] in "26") for one in shapes.values()})
        == 5
    )


def test_the_area_of_a_bubble_is_the_count() -> None:
    counts = [[400, 100], [25, 0], [None, 4]]
    svg = bubbles(
        "held",
        [Bar(f"c{i}", note="9") for i in range(3)],
        ["x", "y"],
        counts,
        lambda i, j: f"{i}{j}",
        "not labelled",
    )
    inside(svg)
    radius = {
        one["hover"]: float(one["r"]) for one in hovered(svg, "circle") if "transparent" not in one["style"]
    }
    assert list(radius) == ["00", "01", "10", "21"]
    assert radius["00"] == pytest.approx(17.5)
    assert radius["01"] / radius["00"] == pytest.approx(math.sqrt(100 / 400), rel=0.01)
    assert radius["10"] / radius["00"] == pytest.approx(math.sqrt(25 / 400), rel=0.02)
    assert [one["hover"] for one in hovered(svg, "path")] == ["20"]
    assert "not labelled" in svg
    assert [one["hover"] for one in hovered(svg, "circle") if "transparent" in one["style"]] == ["11"]
    # the samples below have the same scale: 10, 40 and 100 of 400
    samples = [float(one["r"]) for one in elements(svg, "circle") if not one["hover"]]
    assert samples == pytest.approx([17.5 * math.sqrt(n / 400) for n in (10, 40, 100)], abs=0.06)
    assert re.findall(r">([\d,]+)</text>", svg)[-3:] == ["10", "40", "100"]


def test_bubbles_without_a_cross_name_none() -> None:
    assert "not labelled" not in bubbles("held", [Bar("a")], ["x"], [[0]], lambda i, j: "", "not labelled")


@pytest.mark.parametrize(("classes", "sites"), [(1, 1), (3, 2), (8, 6), (23, 30), (30, 45)])
def test_grids_of_any_size_with_long_names_stay_inside(classes: int, sites: int) -> None:
    rows = [Bar(f"{LONG} {i}", note=f"{10**i % 1_000_003:,}") for i in range(classes)]
    columns = [f"{LONG} {j}" for j in range(sites)]
    counts = [[(i * j) % 7 for j in range(sites)] for i in range(classes)]
    inside(bubbles("held", rows, columns, counts, lambda i, j: f"{rows[i].name} {columns[j]}", "x"))
    square = [[float(i == j) for j in range(classes)] for i in range(classes)]
    inside(matrix("confusion", [Bar(row.name) for row in rows], [row.name for row in rows], square, whole))


def test_the_matrix_is_shaded_by_the_share_of_the_row() -> None:
    svg = matrix(
        "confusion",
        [Bar("a"), Bar("b"), Bar("c")],
        ["a", "b", "c"],
        [[30, 10, 0], [0, 5, 5], [0, 0, 0]],
        whole,
    )
    inside(svg)
    cells = {
        one["hover"]: float(re.search(r"fill-opacity:([\d.]+)", one["style"])[1])
        for one in hovered(svg, "rect")
    }  # type: ignore[index]
    assert cells == {
        "a called a: 30 (75.0 %)": 0.375,
        "a called b: 10 (25.0 %)": 0.125,
        "a called c: 0 (0.0 %)": 0.0,
        "b called a: 0 (0.0 %)": 0.0,
        "b called b: 5 (50.0 %)": 0.25,
        "b called c: 5 (50.0 %)": 0.25,
        "c called a: 0 (0.0 %)": 0.0,
        "c called b: 0 (0.0 %)": 0.0,
        "c called c: 0 (0.0 %)": 0.0,
    }
    assert [text for text in re.findall(r"pointer-events:none\">([^<]+)<", svg)] == ["30", "10", "5", "5"]
    framed = [one["hover"][:10] for one in hovered(svg, "rect") if "stroke:var(--ink)" in one["style"]]
    assert framed == ["a called a", "b called b", "c called c"]


def test_counts_without_room_are_told_by_the_pointer_only() -> None:
    names = [f"c{i}" for i in range(30)]
    svg = matrix("confusion", [Bar(name) for name in names], names, [[1000.0] * 30] * 30, whole)
    assert "pointer-events:none" not in svg
    assert svg.count("called c29: 1000 (3.3 %)</title>") == 30


def test_reliability_bars_are_as_high_as_decisions_are_right() -> None:
    bins = [(0.0, 0.5, 0.0, 0.0, 0.0), (0.5, 0.75, 10.0, 0.6, 0.5), (0.75, 1.0, 40.0, 0.9, 0.8)]
    svg = reliability("calibration", bins)
    inside(svg)
    rects = hovered(svg, "rect")
    assert [one["hover"] for one in rects[::2]] == [
        "sure by 60.0 %, right in 50.0 % of 10",
        "sure by 90.0 %, right in 80.0 % of 40",
    ]
    # the plot is 46…380 across and 210…10 up; the counts below are 40 high at most
    assert [float(one["height"]) for one in rects[::2]] == [100.0, 160.0]
    assert [float(one["height"]) for one in rects[1::2]] == [10.0, 40.0]
    assert [float(one["x"]) for one in rects[::2]] == [46 + 167 + 1, 46 + 250.5 + 1]
    centres = [
        [sum(map(float, xs)) / 4 for xs in zip(*(p.split(",") for p in one["points"].split()), strict=True)]
        for one in hovered(svg, "polygon")
    ]
    assert centres[0] == pytest.approx([46 + 0.6 * 334, 110], abs=0.1)
    assert centres[1] == pytest.approx([46 + 0.9 * 334, 50], abs=0.1)


def test_a_map_keeps_distances_and_hides_no_point() -> None:
    spots = [Spot(0, 0, 1.0, "a", "a: 100"), Spot(4, 0, 0.25, "b", "b: 25"), Spot(4, 1, 0.0, LONG, "c: 0")]
    svg = maps("features", [("body", spots), ("projector", spots)])
    inside(svg)
    found = hovered(svg, "circle")
    assert [one["hover"] for one in found] == ["a: 100", "b: 25", "c: 0"] * 2
    places = [(float(one["cx"]), float(one["cy"])) for one in found[:3]]
    across, up = places[1][0] - places[0][0], places[1][1] - places[2][1]
    assert across == pytest.approx(4 * up, rel=0.01) and across == pytest.approx(368, abs=0.2)
    assert [float(one["r"]) for one in found[:3]] == [13.5, 8.0, 2.5]


def test_names_of_a_map_do_not_cover_each_other() -> None:
    spots = [Spot(0.01 * i, 0.02 * i * (-1) ** i, 0.2, f"class number {i}", f"{i}") for i in range(30)]
    svg = maps("features", [("body", spots)])
    inside(svg)
    names = [one for one in elements(svg, "text") if one["hover"]]
    assert len(elements(svg, "circle")) == 30 and 5 < len(names) < 30
    lines = sorted((float(one["y"]), float(one["x"])) for one in names)
    assert all(abs(a[1] - b[1]) > 60 for a, b in pairwise(lines) if a[0] == b[0])


def test_one_point_is_a_map_too() -> None:
    inside(maps("features", [("body", [Spot(1.0, 1.0, 1.0, "a", "a")])]))


def test_hostile_names_are_text() -> None:
    evil = "</title><script>alert(1)</script>"
    rows = [Bar(evil, (Part(1.0, evil),), evil, evil), Bar(evil, heading=True)]
    for svg in (
        bars(evil, rows, lambda x: evil, kinds=[(evil, Look(0))]),
        dots(evil, [(rows[0], [(0.5, evil)])], [evil], lambda x: evil),
        bubbles(evil, rows[:1], [evil], [[None]], lambda i, j: evil, evil),
        matrix(evil, [Bar(evil)], [evil], [[1.0]], lambda x: evil),
        maps(evil, [(evil, [Spot(0, 0, 1, evil, evil)])]),
    ):
        ElementTree.fromstring(svg)
        assert "<script" not in svg

"""docs/privacy.md names tests that are there, and its figures are of the attacks that are tried."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from statistics import mean

from tests.attacks import figures, hostile_sites

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "privacy.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
FILES = re.compile(r"`(tests/[\w/]+\.py)(?:::\w+)?`")


@cache
def functions(path: str) -> set[str]:
    """The tests in a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def threats() -> list[list[str]]:
    """The rows of the threat model, cell by cell."""
    part = PAGE.split("## Who could do what\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_threat_names_a_test_that_exists() -> None:
    assert len(threats()) > 10
    for row in threats():
        assert len(row) == 5 and row[2] and row[3], row
        named = NAMED.findall(row[4])
        assert named, f"no test shows: {row[2]}"
        for path, name in named:
            assert name.startswith("test_") and name in functions(path), f"{path}::{name}"


def test_every_test_file_that_is_named_exists() -> None:
    for path in FILES.findall(PAGE):
        assert (ROOT / path).is_file(), path


def test_the_figures_are_of_all_attacks_that_are_tried() -> None:
    results = ROOT / "docs" / "results"
    curious = json.loads((results / "attacks.json").read_text())
    assert {name: list(facts["figures"]) for name, facts in curious.items()} == {
        name: list(protections) for name, protections in figures.TRIED.items()
    }
    hostile = json.loads((results / "hostile-sites.json").read_text())
    assert hostile["rate"] in hostile_sites.RATES and len(hostile["validation"]) == len(hostile_sites.RATES)
    assert list(hostile["test"]) == list(hostile_sites.ATTACKS)
    for cells in hostile["test"].values():
        assert list(cells) == list(hostile_sites.RULES)
        assert {len(seeds) for seeds in cells.values()} == {len(hostile_sites.SEEDS)}


def test_the_page_says_which_robust_sums_are_not_within_three_points() -> None:
    cells = json.loads((ROOT / "docs" / "results" / "hostile-sites.json").read_text())["test"]
    clean = mean(cells[hostile_sites.NOBODY]["mean"])
    below = {
        (attack, rule)
        for attack, rules in cells.items()
        for rule, seeds in rules.items()
        if None in seeds or mean(seeds) < clean - 3
    }
    strong = {"sign flip, ×10", "honest update, ×10", "one class mislabelled, ×10"}
    assert below == {(attack, "mean") for attack in strong} | {("sign flip, ×10", "trimmed")}

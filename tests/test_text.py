"""Names out of somebody else's files reach neither a terminal nor a spreadsheet as commands."""

from __future__ import annotations

import csv
import io
import tomllib
from pathlib import Path

import pytest

from equipoise.cli.console import terminal
from equipoise.errors import ConfigError
from equipoise.report.table import comma_separated
from equipoise.text import cell, parse_toml, printable, strange

ESCAPE, OVERRIDE, NULL, JOINER = "\x1b[2J", "\u202egnp.exe", "\x00", "zero\u200dwidth"
DEEP = 5000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ESCAPE, "\\x1b[2J"),
        (OVERRIDE, "\\u202egnp.exe"),
        (NULL, "\\x00"),
        (JOINER, "zero\\u200dwidth"),
        ("\x9b31m", "\\x9b31m"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\udc80", "\\udc80"),
        ("Übersicht – 北京\nnext\tcolumn", "Übersicht – 北京\nnext\tcolumn"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("name", [ESCAPE, OVERRIDE, JOINER, "two\nlines", "a\ttab"])
def test_such_a_name_is_refused_as_class_or_site(name: str) -> None:
    assert "control or invisible" in str(strange(name))


def test_an_ordinary_name_is_not_strange() -> None:
    assert strange("Größe ≥ 5 mm (北京)") is None


def test_a_console_shows_escapes_and_keeps_its_own_colours() -> None:
    file = io.StringIO()
    console = terminal(file=file, force_terminal=True, color_system="standard", width=80)
    console.print(f"[red]{ESCAPE}[/red] {OVERRIDE}")
    text = file.getvalue()
    assert "\\x1b[2J" in text
    assert ESCAPE not in text
    assert "\u202e" not in text
    assert "\x1b[31m" in text  # the red is ours


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "  =1", "\t=1"])
def test_a_formula_becomes_text(text: str) -> None:
    assert cell(text).startswith("'")


def test_the_table_of_a_comparison_holds_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(comma_separated(["method", "value"], [['=HYPERLINK("x")', -0.5]]))))
    assert rows[1] == ['\'=HYPERLINK("x")', "-0.5"]


@pytest.mark.parametrize(
    "text", ["x = " + "[" * DEEP + "]" * DEEP, "x = " + "{a = " * DEEP + "1" + "}" * DEEP]
)
def test_brackets_nested_beyond_reason_are_a_mistake_like_any_other(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError, match="too deep"):
        parse_toml(text)


def test_a_config_nested_beyond_reason_gets_one_sentence(tmp_path: Path) -> None:
    from equipoise.config import read

    path = tmp_path / "deep.toml"
    path.write_text("x = " + "[" * DEEP + "]" * DEEP)
    with pytest.raises(ConfigError, match="not valid TOML"):
        read(path)


def test_a_deep_override_is_taken_as_plain_text() -> None:
    from equipoise.config import setting

    assert setting("data.path=" + "[" * DEEP)[1] == "[" * DEEP

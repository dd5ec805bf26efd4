"""What the command says of itself: help, version, completion, and files of one topic each."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import equipoise

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # typer imports names that the newest click wants to drop
    import equipoise.cli
    from equipoise.cli.app import command

LONGEST = 250
"""lines of a file of the command line"""


@pytest.mark.parametrize(
    "path", sorted(Path(equipoise.cli.__file__).parent.rglob("*.py")), ids=lambda path: path.name
)
def test_a_file_of_the_command_line_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST


Words = tuple[str, ...]


def commands(command: click.Command, path: Words = ()) -> Iterator[tuple[Words, click.Command]]:
    """Every verb with its words."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield path, command


VERBS = dict(commands(command()))


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_help_shows_every_word_of_an_option(cli, path: Words) -> None:
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", cli(*path, "--help").out).split())
    for option in VERBS[path].params:
        for word in (getattr(option, "help", None) or "").replace("`", "").split():
            assert word in shown


def test_placeholders_are_there(cli) -> None:
    assert "runs/<file>-<method>-<seed>" in cli("run", "--help").out
    assert "model.<kind>" in cli("export", "--help").out


@pytest.mark.parametrize(
    ("words", "meant"), [(["runn"], "run"), (["data", "lst"], "list"), (["site", "chek"], "check")]
)
def test_a_mistyped_verb_is_told_the_nearest_once(cli, words: list[str], meant: str) -> None:
    done = cli(*words)
    assert done.code == 2
    assert done.err == f"No such command '{words[-1]}'. Did you mean '{meant}'?\n"


def test_version_as_an_option(cli) -> None:
    assert cli("--version") == cli("version")
    assert cli("--version").out.startswith(f"equipoise {equipoise.__version__} · python ")


@pytest.mark.parametrize(("shell", "part"), [
    ("bash", "complete -o default -F _equipoise_completion equipoise"),
    ("zsh", "#compdef equipoise"),
    ("fish", "complete --command equipoise"),
])  # fmt: skip
def test_completion_script_is_printed(cli, monkeypatch: pytest.MonkeyPatch, shell: str, part: str) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    done = cli("--show-completion")
    assert done.code == 0 and part in done.out and "_EQUIPOISE_COMPLETE" in done.out


def test_completion_completes_verbs_and_options(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_EQUIPOISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "equipoise repr")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert cli().out.split() == ["reproduce"]
    monkeypatch.setenv("COMP_WORDS", "equipoise run --qu")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert cli().out.split() == ["--quiet"]


@pytest.mark.parametrize("width", [80, 120, 160])
def test_the_methods_break_no_word(cli, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = cli("methods").out
    assert all(len(line) <= width for line in shown.splitlines())
    words = set(shown.split())
    for method in json.loads(cli("methods", "--json").out):
        assert set(f"{method['name']} {method['paper']} {method['leaves']}".split()) <= words

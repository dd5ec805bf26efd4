"""`equipoise new-method`: what it writes works as it stands, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.config import read
from equipoise.methods import find
from equipoise.testing import check_method

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("documented", "ledger", "odd_sites", "neutral")


def test_three_files_and_what_to_do_next(cli) -> None:
    done = cli("new-method", "fed_tail")
    assert done.code == 0 and done.err == ""
    assert sorted(path.name for path in Path().iterdir()) == [
        "fed_tail.py",
        "fed_tail.toml",
        "test_fed_tail.py",
    ]
    assert "`equipoise run fed_tail.toml`" in done.out and "`python -m pytest test_fed_tail.py`" in done.out
    assert find("fed_tail.py:FedTail", Path.cwd()).tasks == ("single", "multi")


@pytest.mark.parametrize("task", ["single", "multi"])
def test_the_method_keeps_the_rules(cli, task: str) -> None:
    assert cli("new-method", "fed_tail", "--task", task).code == 0
    assert find("fed_tail.py:FedTail", Path.cwd()).tasks == (task,)
    check_method("fed_tail.py:FedTail", only=QUICK)


@pytest.mark.parametrize("task", ["single", "multi"])
def test_the_config_runs_from_where_it_was_made(cli, task: str) -> None:
    told = json.loads(cli("new-method", "idea", "--task", task, "--folder", "ideas/new", "--json").out)
    assert told["made"] == ["ideas/new/idea.py", "ideas/new/test_idea.py", "ideas/new/idea.toml"]
    assert told["next"][0] == "equipoise run ideas/new/idea.toml"
    config = read(Path("ideas/new/idea.toml"))
    assert type(config.method).__name__ == "Idea" and config.data.multi is (task == "multi")
    done = cli(
        "run",
        "ideas/new/idea.toml",
        "data.scale=0.005",
        "data.image_size=16",
        "train.rounds=2",
        "--out",
        "run",
    )
    assert done.code == 0, done.err
    leaves = json.loads(Path("run/ledger.json").read_text())
    assert "centre" in json.dumps(leaves)


def test_a_folder_with_odd_letters(cli) -> None:
    assert cli("new-method", "idea", "--folder", 'a "b" é').code == 0
    assert (
        tomllib.loads(Path('a "b" é/idea.toml').read_text(encoding="utf-8"))["method"]["name"]
        == 'a "b" é/idea.py:Idea'
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("some", "outcome"),
    [
        ("formula or documented", "3 passed, 14 deselected"),
        pytest.param("test", "17 passed", marks=pytest.mark.sweep),
    ],
)
def test_the_test_it_writes_passes(
    cli, tmp_path: Path, forked: Callable[..., list[str]], some: str, outcome: str
) -> None:
    """Fifteen rules apply, and the formula is seen in two rounds. All of them in a new process, some in one
    that has imported the package already."""
    assert cli("new-method", "fed_tail").code == 0
    words = ["-q", "-W", "error", "-p", "no:cacheprovider", "-k", some, "test_fed_tail.py"]
    new = [sys.executable, "-m", "pytest", *words]
    imported = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
    code = f"import pytest\nsys.exit(pytest.main([*sys.argv[1:], '-W', {imported!r}]))"
    command = new if some == "test" else forked(code, *words)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert outcome in done.stdout


@pytest.mark.sweep
def test_the_test_it_writes_sees_another_loss(cli, tmp_path: Path) -> None:
    assert cli("new-method", "fed_tail").code == 0
    source = Path("fed_tail.py").read_text()
    Path("fed_tail.py").write_text(source.replace(".square().mean()", ".square().sum()"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "test_fed_tail.py",
        "-k",
        "formula",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout


@pytest.mark.parametrize("words", [(), ("--task", "single"), ("--task", "multi")])
def test_what_it_writes_is_in_house_style(cli, words: tuple[str, ...]) -> None:
    assert cli("new-method", "fed_tail", *words).code == 0
    ours = [
        "--config",
        str(ROOT / "pyproject.toml"),
        "--config",
        "lint.isort.known-first-party=['equipoise']",
    ]
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *check, *ours, "--no-cache", "."], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["Fed-Tail"], "'Fed-Tail' cannot name a method: take lower-case letters"),
        (["../tail"], "'../tail' cannot name a method"),
        (["class"], "'class' cannot name a method"),
        (["1st"], "'1st' cannot name a method"),
        (["fedavg"], "there is a method 'fedavg' already"),
        (["random"], "'random' is a Python package that a file random.py would hide"),
        (["idea", "--task", "mutli"], "--task: unknown task 'mutli': did you mean 'multi'?"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_is_written(cli, words: list[str], sentence: str) -> None:
    done = cli("new-method", *words)
    assert done.code == 2 and done.err.startswith(sentence) and done.err.count("\n") == 1
    assert not list(Path().iterdir())


@pytest.mark.parametrize("there", ["idea.py", "test_idea.py", "idea.toml"])
def test_nothing_is_written_over(cli, there: str) -> None:
    Path(there).write_text("mine")
    done = cli("new-method", "idea")
    assert (
        done.code == 2
        and done.err == f"{there} exists and stays as it is: take another name or another --folder\n"
    )
    assert [path.name for path in Path().iterdir()] == [there] and Path(there).read_text() == "mine"


def test_a_folder_that_cannot_be_is_one_sentence(cli) -> None:
    Path("file").write_text("")
    done = cli("new-method", "idea", "--folder", "file/inside")
    assert (
        done.code == 8
        and done.err.startswith("file/inside/idea.py cannot be written")
        and done.err.count("\n") == 1
    )

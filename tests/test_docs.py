"""The documentation says what the code does: generated parts are fresh, examples work, links lead
somewhere."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import pytest
from PIL import Image

import equipoise
from equipoise import data, partition
from equipoise.config import SECTIONS, read, resolve
from equipoise.engine import EngineOptions
from equipoise.errors import EXIT_CODES, ConfigError, EquipoiseError
from equipoise.evaluate import EvaluateOptions
from equipoise.exchange import ExchangeOptions
from equipoise.losses import OBJECTIVES
from equipoise.methods import METHODS
from equipoise.nets import NETS, NetOptions
from equipoise.options import Options
from equipoise.site import PrivacyOptions, TrainOptions
from equipoise.site.views import VIEWS

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # typer imports names that the newest click wants to drop
    from equipoise.cli.app import command, main

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r'^(?:<!-- not run: (.+?) -->\n)?```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL
)


def load(path: Path) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_of(value: object) -> str | None:
    """Pages by their path, long values by number."""
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else None


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: Path
    language: str
    title: str
    """the file it is, where it is one"""
    text: str
    reason: str
    """why it is not run"""

    def lines(self) -> list[str]:
        """The commands of a shell block; in a `console` block those after `$`."""
        if self.language == "console":
            return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]
        return [line for line in self.text.splitlines() if line.strip() and not line.startswith("#")]


@cache
def blocks() -> tuple[Block, ...]:
    """The code blocks of all pages, in order."""
    found = ((page, FENCE.findall(page.read_text())) for page in PAGES)
    return tuple(
        Block(page, language, title, text, reason)
        for page, all_ in found
        for reason, language, title, text in all_
    )


# Generated parts --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    """The script; what it says of the code, which does not change meanwhile, is made once."""
    module = load(DOCS / "generate.py")
    pages, pictures = module.PAGES, module.PICTURES
    module.PAGES = {page: {name: cache(part) for name, part in pages[page].items()} for page in pages}
    module.PICTURES = {name: cache(draw) for name, draw in pictures.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evidence.runs.mark", cache(sys.modules["evidence.records"].mark))
        yield module


def test_generated_parts_are_fresh(generate: ModuleType) -> None:
    stale = [path.name for path in generate.stale()]
    assert not stale, f"run `python docs/generate.py`: {', '.join(stale)} no longer say what the code says"


@pytest.fixture
def copies(generate: ModuleType, tmp_path: Path) -> Path:
    """The generated pages in a folder of their own, fresh."""
    for name, parts in generate.PAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(generate.fill((DOCS / name).read_text(), parts))
    for name, draw in generate.PICTURES.items():
        (tmp_path / name).write_text(draw())
    return tmp_path


def test_a_stale_page_is_noticed(
    generate: ModuleType, copies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*arguments: str) -> object:
        monkeypatch.setattr(sys, "argv", ["generate.py", *arguments])
        with pytest.raises(SystemExit) as end:
            generate.main(copies)
        return end.value.code

    page = copies / "config.md"
    fresh = page.read_text()
    assert ended("--check") == 0
    page.write_text(fresh.replace("communication rounds", "rounds of talk"))
    stale = page.read_text()
    assert generate.stale(copies) == {page: fresh}
    assert ended("--check") == 1
    assert "docs/config.md is stale" in capsys.readouterr().out
    assert page.read_text() == stale
    assert ended() == 0
    assert page.read_text() == fresh


def test_every_method_of_the_overview_is_listed_the_best_first(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    assert generate.every_method() == "Not measured yet."
    heads = ["method", "G bACC", "S bACC", "A bACC", "G AUC", "G ACC", "G tail recall", "Δ A", "moved"]
    rows = [(name, *["1.0"] * 2, best, *["1.0"] * 5) for name, best in (("A", "9.5"), ("B", "80.1 ± 2"))]
    page = tmp_path / "results" / f"{generate.OVERVIEW}.md"
    page.parent.mkdir()
    page.write_text(generate.table(heads, [*rows, ("B: no part", *rows[0][1:])]))
    listed = generate.every_method().splitlines()
    assert [line.split(" | ")[0] for line in listed[2:]] == ["| B", "| A"]
    assert listed[2].startswith("| B | 80.1 ± 2 |")


def test_a_table_has_the_images_of_its_rows_not_those_of_its_recipe(generate: ModuleType) -> None:
    told = {name: generate.images_of(generate.TABLES[name]) for name in ("pbc-tail", "fedmlp-1", "sites-48")}
    assert told == {
        "pbc-tail": "Acevedo-20; 16 pixels; 8 alike sites; long tail 50 : 1",
        "fedmlp-1": "ChestXray14; 128 pixels; 8 alike sites; findings unlabelled at each: 1",
        "sites-48": "HAM10000; 48 pixels; its own sites",
    }


def test_a_page_without_the_place_is_refused(generate: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no place for 'net'"):
        generate.fill("# A page\n", {"net": lambda: ""})


SECTION_CLASSES: dict[str, tuple[type[Options], ...]] = {
    "data": tuple(data.KINDS.values()),
    "partition": tuple(partition.KINDS.values()),
    "net": (NetOptions,),
    "train": (TrainOptions,),
    "engine": (EngineOptions,),
    "evaluate": (EvaluateOptions,),
    "exchange": (ExchangeOptions,),
    "privacy": (PrivacyOptions,),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_in_its_section(section: str) -> None:
    text = (DOCS / "config.md").read_text()
    found = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/config.md has no section {section}"
    if section == "method":
        assert "methods.md" in found[1]
        return
    for cls in SECTION_CLASSES[section]:
        for key, field in cls.model_fields.items():
            row = re.search(rf"^\| `{key}` \| .* \| (.+) \|$", found[1], re.MULTILINE)
            assert row, f"docs/config.md does not explain {section}.{key}"
            assert row[1].strip()
            if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
                for inner in field.annotation.model_fields:
                    assert f"| `{key}.{inner}` |" in found[1]


def test_defaults_are_as_the_code_has_them() -> None:
    text = (DOCS / "config.md").read_text()
    assert f"| `lr` | number ≥ 0 | `{TrainOptions().lr}` |" in text
    assert f"| `max_norm` | number > 0 | `{ExchangeOptions().max_norm:.0f}` |" in text
    assert "| `path` | text | required |" in text


def test_every_name_is_on_the_page_of_methods() -> None:
    text = (DOCS / "methods.md").read_text()
    for names in (METHODS, OBJECTIVES, VIEWS, NETS):
        for name in names:
            assert re.search(rf"^\| \[?`{re.escape(name)}`", text, re.MULTILINE), (
                f"docs/methods.md does not name {name}"
            )
    for name, cls in METHODS.items():
        part = re.search(rf"^### {re.escape(name)}$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        assert part and cls.paper in part[1] and "| leaves the site | " in part[1]
        for key in (*cls.model_fields, *cls.presets):
            assert f"| `{key}` |" in part[1], f"docs/methods.md does not explain {key} of {name}"


def test_every_exit_code_is_explained() -> None:
    text = (DOCS / "exit-codes.md").read_text()
    errors: list[type[EquipoiseError]] = [EquipoiseError, *EquipoiseError.__subclasses__()]
    for code in {*EXIT_CODES, *(error.exit_code for error in errors)}:
        assert f"| {code} | {EXIT_CODES[code]} |" in text


def test_the_changelog_has_this_version() -> None:
    version = equipoise.__version__.removesuffix(".dev0")
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


# Code blocks ------------------------------------------------------------------------------------------------

SHELL = ("sh", "console")
COMMAND = re.compile(r"^(?:\$ )?(equipoise|make|pip|python)\b", re.MULTILINE)


def shell_lines() -> Iterator[tuple[Path, str]]:
    for block in blocks():
        if block.language in SHELL:
            yield from ((block.page, line) for line in block.lines())


def test_every_block_says_what_it_is() -> None:
    for block in blocks():
        assert block.language in (*SHELL, "toml", "python", "text", ""), (
            f"{name_of(block.page)}: ```{block.language}"
        )
        if block.language in ("text", ""):
            assert not COMMAND.search(block.text), (
                f"{name_of(block.page)} hides commands in a block that is not run"
            )


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    left_out = [block for block in blocks() if block.reason]
    assert all(len(block.reason.split()) >= 3 for block in left_out)
    assert all(block.language in (*SHELL, "python") for block in left_out)
    assert len(left_out) <= 16, "let the tests run it, or take a smaller example"
    assert sum(block.language in (*SHELL, "python") and not block.reason for block in blocks()) > 3 * len(
        left_out
    )


@pytest.mark.parametrize(
    "block", [block for block in blocks() if block.language == "toml"], ids=lambda b: name_of(b.page)
)
def test_a_config_on_a_page_is_valid(block: Block, tmp_path: Path) -> None:
    for other in (one for one in blocks() if one.page == block.page and one.title.endswith(".py")):
        (tmp_path / other.title).write_text(other.text)
    assert resolve(tomllib.loads(block.text), tmp_path).train.rounds > 0


def parse(words: list[str]) -> None:
    """Let the command line read its words, and do nothing: an unknown verb, option or value raises click's
    error."""
    verb, context = command(), None
    while isinstance(verb, click.Group):
        context = verb.make_context("equipoise", words[:1], parent=context, resilient_parsing=True)
        inner = verb.get_command(context, words[0]) if words else None
        if inner is None:
            raise click.UsageError(f"no verb {' '.join(words[:1])}")
        verb, words = inner, words[1:]
    verb.make_context(verb.name, words, parent=context)


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_line(line: str) -> None:
    """Refuse a line of a shell block that could not work."""
    program, *words = shlex.split(line, comments=True)
    if program == "equipoise":
        parse(words)
        for file in (word for word in words if word.endswith(".toml") and (ROOT / word).is_file()):
            read(ROOT / file, [word for word in words if "=" in word and not word.startswith("-")])
    elif program == "make":
        wanted = {word for word in words if "=" not in word}  # others are variables
        assert wanted <= targets(), f"the Makefile has no {line}"
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = {name for group in re.findall(r"\[(.+?)\]", line) for name in group.split(",")}
        assert words[0] in ("install", "wheel", "download") and named <= set(extras), line
        wheels = {word for word in words if word.startswith("dist/")}
        assert all(f"equipoise-{equipoise.__version__}-" in word for word in wheels), line
        assert "--no-index" in words or not any(word.startswith("equipoise") for word in words), line
    elif program == "python" and (ROOT / words[0]).is_file():
        source = (ROOT / words[0]).read_text()
        assert all(f'"{word}"' in source for word in words if word.startswith("--")), (
            f"{words[0]} knows no such option: {line}"
        )
    else:
        assert program == "python", f"what is {program}?"  # a file of the page's own, or pytest: run below


@pytest.mark.parametrize(("page", "line"), [*shell_lines()], ids=name_of)
def test_a_command_on_a_page_is_valid(page: Path, line: str) -> None:
    check_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "equipoise ran first.toml",
        "equipoise data inspekt first.toml",
        "equipoise run",
        "equipoise run first.toml --workers 3",
        "equipoise run recipes/ham10000-sites.toml train.ruonds=3",
        "equipoise compare first.toml --folds one",
        "equipoise export runs/fca",
        "make everything",
        "pip install '.[teapot]'",
        "pip install 'equipoise[flower]'",
        "pip install 'dist/equipoise-0.0.1-py3-none-any.whl[flower]'",
        "python benchmarks/engine.py --teapot",
        "teapot",
    ],
)
def test_the_scan_would_see_a_wrong_line(line: str) -> None:
    with pytest.raises((click.UsageError, ConfigError, AssertionError)):
        check_line(line)


def test_the_scan_would_see_a_wrong_config() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        resolve(tomllib.loads("[train]\nruonds = 3"))


@pytest.mark.parametrize("file", sorted((ROOT / "deploy").glob("*.service")), ids=name_of)
def test_a_service_starts_a_command_that_exists(file: Path) -> None:
    (command,) = re.findall(r"^ExecStart=\S+/equipoise (.+)$", file.read_text(), re.MULTILINE)
    parse(command.replace("%h", "/srv").split())
    assert "RestartPreventExitStatus=2\n" in file.read_text()


@pytest.mark.parametrize("file", sorted((ROOT / "deploy").glob("*.yaml")), ids=name_of)
def test_a_container_starts_a_command_that_exists(file: Path) -> None:
    (command,) = re.findall(r"^    command: \[(.+)\]$", file.read_text(), re.MULTILINE)
    words = [word.strip(' "') for word in command.split(",")]
    parse(words)
    assert f"127.0.0.1:{words[words.index('--health-port') + 1]}/health" in file.read_text()


def test_nobody_is_sent_to_a_registry_that_has_no_equipoise() -> None:
    """`pip install "equipoise[extra]"` fails everywhere but beside a folder of wheels."""
    files = [
        *PAGES,
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "deploy").iterdir(),
        *(ROOT / "examples").iterdir(),
    ]
    wrong = re.compile(r"pip install (?!.*--no-index)[^`\n]*['\"]?equipoise(\[|$)")
    assert [name_of(path) for path in files if path.is_file() and wrong.search(path.read_text())] == []
    assert wrong.search('run pip install "equipoise[flower]"')


# Running them -----------------------------------------------------------------------------------------------
#
# A page is read from top to bottom in a folder of its own: a block with a title becomes that file, commands
# are run and Python is executed, as the cells of a notebook are: later blocks have the names of earlier ones.
# What a page takes for granted (recipes on real images, a trained model, photographs) is there on a tiny
# scale.

TINY = """
[data]
scale = 0.004
image_size = 16
[train]
rounds = 1
batch_size = 16
"""
FEW = '[partition]\nkind = "iid"\nsites = 3\n'
"""fewer sites, where no page calls one by its name"""
SMALLER = {
    r"\b0\.\.\d+": "0",
    r"\bseeds=range\(\d\)": "seeds=range(1)",
    r"^equipoise compare (?!.*--seeds)": "equipoise compare --seeds 0 ",
    r"--methods all\b": "--methods local,fedavg",
    r"--folds 5\b": "--folds 2",
    r"\brounds ?= ?\d+": "rounds=1",
    r'"rounds": \d+': '"rounds": 1',
    r"^scale = [\d.]+": "scale = 0.004\\nimage_size = 16",
    r'"scale": [\d.]+': '"scale": 0.004',
    r'"image_size": \d+': '"image_size": 16',
    r'^config = \{"data"': 'config = {"partition": {"kind": "iid", "sites": 3}, "data"',
}
"""What is cut down before a block is run, so that it takes seconds."""


def smaller(text: str) -> str:
    for pattern, value in SMALLER.items():
        text = re.sub(pattern, value, text, flags=re.MULTILINE)
    return text


def photograph(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.effect_noise((40, 40), 60).convert("RGB").save(path, "PNG")


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted."""
    folder = tmp_path_factory.mktemp("things")
    for path in ("recipes/ham10000-sites.toml", "config.toml"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(TINY + FEW)
    equipoise.run(tomllib.loads(TINY) | {"method": {"name": "fca"}}, out=folder / "runs" / "ham")
    photograph(folder / "photos" / "1.png")
    photograph(folder / "slice.dcm")  # a file is taken for what it holds
    with zipfile.ZipFile(folder / "study.zip", "w") as archive:
        archive.write(folder / "photos" / "1.png", "2.png")
    with open(folder / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([("file", "diagnosis"), ("photos/1.png", "MEL"), ("slice.dcm", "NV")])
    return folder


def run_line(line: str) -> None:
    """Run a line of a shell block; what is the project's own (make, pip, benchmarks) has been checked and is
    not run."""
    program, *words = shlex.split(line, comments=True)
    if program == "equipoise":
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0, line
        if words[0] == "new-method":
            for config in Path().glob(f"{words[1]}.toml"):
                config.write_text(smaller(config.read_text()))
    elif words[:2] == ["-m", "pytest"]:
        assert Path(words[2]).is_file(), line  # run in tests/cli/test_new.py
    elif program == "python" and not (ROOT / words[0]).is_file():
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


def runs(block: Block) -> bool:
    return not block.reason and (block.language in (*SHELL, "python") or bool(block.title))


REPEATING = (
    *("CONTRIBUTING.md", "docs/choosing.md", "docs/compare.md", "docs/long-runs.md"),
    *("docs/results/privacy.md", "docs/results/privacy.notes.md"),
)
"""Their commands are read in `make test` as those of all pages; README.md, docs/python.md, docs/own-parts.md
(a pool) and docs/own-method.md run the same verbs, and tests/cli resumes."""


def pages_that_run() -> Iterator[object]:
    """The pages with something to run; those that repeat others only in the sweep."""
    for page in sorted({block.page for block in blocks() if runs(block)}):
        again = name_of(page) in REPEATING
        yield pytest.param(page, id=name_of(page), marks=[pytest.mark.sweep] if again else [])


@pytest.mark.slow
@pytest.mark.parametrize("page", list(pages_that_run()))
def test_the_blocks_of_a_page_run(
    page: Path, things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(things, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one process for a comparison is enough
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    names: dict[str, object] = {}
    for block in (block for block in blocks() if block.page == page and runs(block)):
        if block.title:
            Path(block.title).write_text(smaller(block.text))
        elif block.language == "python":
            Path("block.py").write_text(smaller(block.text))
            names = runpy.run_path("block.py", init_globals=names, run_name="__main__")
        else:
            for line in block.lines():
                run_line(smaller(line))


# Links and paths --------------------------------------------------------------------------------------------


@cache
def anchors(page: Path) -> set[str]:
    """Addresses of a page's headings, as Markdown renderers make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        one = re.compile(rf"{re.escape(slug)}(-\d+)?")
        again = sum(one.fullmatch(other) is not None for other in found)
        found.add(f"{slug}-{again}" if again else slug)
    return found | set(re.findall(r'^<a id="([\w-]+)"></a>$', page.read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name}: there is no {target}"
        assert path.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(path), f"{page.name}: {path.name} has no heading #{anchor}"


def test_the_first_screen_has_the_two_commands() -> None:
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:15])
    assert "make demo" in first and "make test" in first


MACHINE = re.compile(r"(?<![\w./~-])/(?:" + "|".join(("work", "home", "root", "Users", "mnt")) + r")/\w")
TEXT = {".py", ".md", ".toml", ".txt", ".svg", ".j2", ".json", ""}


def ours() -> Iterator[Path]:
    """The files of the project itself: not runs, caches or environments."""
    for place in ("src", "tests", "docs", "benchmarks", "recipes", ".ci"):
        yield from (path for path in (ROOT / place).rglob("*") if "__pycache__" not in path.parts)
    yield from ROOT.iterdir()


def test_no_path_of_a_machine_is_written_down() -> None:
    files = [path for path in ours() if path.is_file() and path.suffix in TEXT]
    assert len(files) > 100
    found = [name_of(path) for path in files if MACHINE.search(path.read_text())]
    assert not found, f"absolute paths of some machine in {', '.join(map(str, found))}"


def test_the_scan_would_see_a_path() -> None:
    assert MACHINE.search("data = '" + "/ho" + "me/someone/x.csv'")
    assert not MACHINE.search("../work/x.csv and benchmarks/work/x")

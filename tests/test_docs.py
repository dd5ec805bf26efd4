"""The documentation says what the code does: generated parts are fresh, examples work, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import equipoise
from equipoise import data, partition
from equipoise.config import SECTIONS, read, resolve
from equipoise.engine import EngineOptions
from equipoise.errors import EXIT_CODES, ConfigError, EquipoiseError
from equipoise.evaluate import EvaluateOptions
from equipoise.exchange import ExchangeOptions
from equipoise.losses.objectives import OBJECTIVES
from equipoise.methods import METHODS
from equipoise.nets import NETS, NetOptions
from equipoise.options import Options
from equipoise.site import Batch, TrainOptions
from equipoise.site.views import VIEWS
from equipoise.testing import method_checks

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer imports names that the newest click wants to drop
    from equipoise.cli.app import app, data_app

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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


def blocks(*languages: str) -> Iterator[tuple[Path, str]]:
    """The code blocks of all pages in these languages."""
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text()):
            if language in languages:
                yield page, text


# Generated parts --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return load(DOCS / "generate.py")


def test_generated_parts_are_fresh(generate: ModuleType) -> None:
    stale = [path.name for path in generate.stale()]
    assert not stale, f"run `python docs/generate.py`: {', '.join(stale)} no longer say what the code says"


@pytest.fixture
def copies(generate: ModuleType, tmp_path: Path) -> Path:
    """The generated pages in a folder of their own, fresh."""
    for name, parts in generate.PAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(generate.fill((DOCS / name).read_text(), parts))
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
            assert re.search(rf"^\| \[?`{re.escape(name)}`", text, re.MULTILINE), f"docs/methods.md does not name {name}"
    for name, cls in METHODS.items():
        part = re.search(rf"^### {re.escape(name)}$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        assert part and cls.paper in part[1] and "| leaves the site | " in part[1]
        for key in (*cls.model_fields, *cls.presets):
            assert f"| `{key}` |" in part[1], f"docs/methods.md does not explain {key} of {name}"


def test_every_exit_code_is_explained() -> None:
    text = (DOCS / "config.md").read_text()
    errors: list[type[EquipoiseError]] = [EquipoiseError, *EquipoiseError.__subclasses__()]
    for code in {*EXIT_CODES, *(error.exit_code for error in errors)}:
        assert f"| {code} | {EXIT_CODES[code]} |" in text


def test_the_changelog_has_this_version() -> None:
    assert f"\n## {equipoise.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


# Examples ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The method of CONTRIBUTING.md as a file."""
    (text,) = (text for page, text in blocks("python") if page.name == "CONTRIBUTING.md")
    path = tmp_path_factory.mktemp("example") / "feddecorr.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("page", "text"), [*blocks("toml")], ids=name_of)
def test_a_config_on_a_page_is_valid(page: Path, text: str) -> None:
    assert resolve(tomllib.loads(text)).train.rounds > 0


def commands() -> Iterator[tuple[Path, list[str]]]:
    """The `equipoise …` lines of all pages, without comments."""
    for page, text in blocks("", "sh"):
        for line in text.splitlines():
            if line.startswith("equipoise "):
                yield page, shlex.split(line, comments=True)[1:]


@pytest.mark.parametrize(("page", "words"), [*commands()], ids=name_of)
def test_a_command_on_a_page_is_valid(page: Path, words: list[str], example: Path) -> None:
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    inner = {command.name or command.callback.__name__ for command in data_app.registered_commands if command.callback}
    assert words[0] in verbs or (words[0] == "data" and words[1] in inner)
    rest = words[2:] if words[0] == "data" else words[1:]
    if rest and rest[0].endswith(".toml"):
        overrides = [word for word in rest[1:] if "=" in word and not word.startswith("-")]
        assert read(ROOT / rest[0], overrides, base=example.parent).method is not None


def test_the_scan_would_see_a_wrong_config(tmp_path: Path) -> None:
    assert len(list(blocks("toml"))) >= 3 and len(list(commands())) >= 6
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        resolve(tomllib.loads("[train]\nruonds = 3"))


CHECKED = ("documented", "same_seed", "ledger", "one_sample", "neutral")


def test_the_example_method_keeps_the_rules(example: Path) -> None:
    checks: list[tuple[str, Callable[[], None]]] = method_checks(f"{example}:FedDecorr", only=CHECKED)
    assert [name for name, _ in checks] == list(CHECKED)
    for _, check in checks:
        check()


@pytest.mark.parametrize(
    ("second", "squares"),
    [
        ([2.0, -2.0, 2.0, -2.0], 1.0),  # follows the first column: every correlation is 1
        ([3.0, 3.0, -3.0, -3.0], 0.5),  # has nothing to do with it: K = I, and the mean of its squares is 1/2
        ([2.0, 0.0, 0.0, -2.0], 0.75),  # correlation 1/√2 with it: (1 + 1 + 1/2 + 1/2) / 4
    ],
)
def test_the_example_method_is_the_formula(example: Path, second: list[float], squares: float) -> None:
    z = torch.tensor([[1.0, -1.0, 1.0, -1.0], second]).T
    net = SimpleNamespace(features=lambda x: z, head={"fed": lambda z: z})
    loc = SimpleNamespace(objective=lambda logits, y: torch.tensor(7.0))
    loss = load(example).FedDecorr(beta=0.2).loss(net, Batch((z,), torch.zeros(4), torch.arange(4), None), loc)
    assert loss.item() == pytest.approx(7.0 + 0.2 * squares)


# Links and paths --------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Addresses of a page's headings, as Markdown renderers make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = sum(other == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", other) is not None for other in found)
        found.add(f"{slug}-{again}" if again else slug)
    return found


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

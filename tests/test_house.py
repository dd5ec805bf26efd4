"""House rules that a reader cannot check by eye: nothing pickled, and rooms around the methods that know
neither a method nor a leaf by name."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import equipoise
from equipoise.methods import METHODS, Method

SOURCE = Path(equipoise.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
ORDINARY = {"local", "equipoise"}
"""methods whose names are everyday words of the engine too, or the project's"""

PICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


Nodes = list[ast.AST]
"""of a module, which is the first of them"""


def nodes_of(text: str) -> Nodes:
    return list(ast.walk(ast.parse(text)))


@pytest.fixture(scope="module")
def parsed() -> dict[Path, Nodes]:
    """Every module of the package, read once."""
    return {path: nodes_of(path.read_text()) for path in MODULES}


def imported(nodes: Nodes) -> set[str]:
    """The top-level packages a module imports, anywhere in it."""
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in found} | found


def text_of(node: ast.expr) -> str:
    """What `ast.unparse` says, which takes long for a name with dots."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{text_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def calls(nodes: Nodes) -> list[tuple[str, dict[str, ast.expr]]]:
    """Every call as (its text, keyword arguments)."""
    found = (node for node in nodes if isinstance(node, ast.Call))
    return [(text_of(node.func), {k.arg or "": k.value for k in node.keywords}) for node in found]


def test_nothing_is_pickled_or_evaluated(parsed: dict[Path, Nodes]) -> None:
    assert len(parsed) > 200
    for path, nodes in parsed.items():
        packages = imported(nodes)
        assert not packages & PICKLERS, path
        assert "multiprocessing" not in packages, path  # its pipes pickle
        for name, given in calls(nodes):
            assert name not in {"eval", "exec"}, path
            if name == "torch.load":
                assert ast.unparse(given.get("weights_only", ast.Constant(None))) == "True", path
            if name.endswith("np.load") or name == "numpy.load":
                assert ast.unparse(given.get("allow_pickle", ast.Constant(False))) == "False", path
            saves = name in {"torch.save", "np.save", "numpy.save"}
            assert not saves or path.parent.name == "data", path


def test_the_scan_would_see_a_pickle() -> None:
    nodes = nodes_of(
        "import os\ndef f():\n    from pickle import loads\n    return torch.load(p, weights_only=False)"
    )
    assert imported(nodes) & PICKLERS
    assert [ast.unparse(given["weights_only"]) for name, given in calls(nodes) if name == "torch.load"] == [
        "False"
    ]


GUARDED = ["engine", "server", "exchange", "report", "deploy"]
KNOWN = {
    ("report/folder.py", "fedrs"),
    ("deploy/setting.py", "fca"),
}
"""method names that a guarded room has, by file: none may be added"""
EVERYDAY = {"confusion", "count", "counts", "head", "loss", "model", "own", "samples"}
"""leaves whose names are words that other things have too"""
OF_METHODS = {"METHODS", "OWN", "POOLED", "Method", "Standard", "fingerprint", "look_up"}
"""what a guarded room may import from the methods: the base, how they are found, and evaluation's leaves"""


@pytest.mark.parametrize("room", GUARDED)
def test_a_room_knows_no_method(room: str, parsed: dict[Path, Nodes]) -> None:
    names = set(METHODS) - ORDINARY
    classes = {cls.__name__ for cls in METHODS.values()} - {Method.__name__}
    word = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names)))})\b", re.IGNORECASE)
    found = set()
    for path in (SOURCE / room).rglob("*.py"):
        found |= {(str(path.relative_to(SOURCE)), match[0]) for match in word.finditer(path.read_text())}
        for node in parsed[path]:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "issubclass"}:
                assert not classes & {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equipoise.methods"):
                assert {alias.name for alias in node.names} <= OF_METHODS
    assert found == {(file, name) for file, name in KNOWN if file.startswith(f"{room}/")}


def test_the_scan_would_see_a_method() -> None:
    assert set(METHODS) - ORDINARY
    assert any("FedAvg" in path.read_text() for path in (SOURCE / "methods").rglob("*.py"))


def leaves(nodes: Nodes) -> set[str]:
    """The names of leaves in the answers that a method's code writes out."""
    found = set()
    for node in nodes:
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            made = (ast.unparse(part.func) for part in ast.walk(value) if isinstance(part, ast.Call))
            if isinstance(key, ast.Constant) and {"Sum", "Mean", "Each"} & set(made):
                found.add(key.value)
    return found


@pytest.mark.parametrize("room", GUARDED)
def test_a_room_knows_no_leaf(room: str, parsed: dict[Path, Nodes]) -> None:
    """Which leaf is what follows from its kind, and from the names and shapes of its tensors."""
    names = {name for path in (SOURCE / "methods").rglob("*.py") for name in leaves(parsed[path])}
    assert {"delta", "deputy", "gradient", "prototypes"} <= names
    for path in (SOURCE / room).rglob("*.py"):
        texts = {node.value for node in parsed[path] if isinstance(node, ast.Constant)}
        assert not texts & (names - EVERYDAY), path


def test_a_method_has_few_hooks() -> None:
    """Whoever writes a method must be able to hold them all in mind."""
    questions = {"retrain", "evaluate"}
    hooks = {name for name, thing in vars(Method).items() if inspect.isfunction(thing) and name[0] != "_"}
    assert len(hooks - questions) <= 18


# Names that come from elsewhere -----------------------------------------------------------------------------

IMPORTERS = {
    "importlib.import_module",
    "importlib.util.spec_from_file_location",
    "__import__",
    "import_module",
}


def dynamic_imports(nodes: Nodes) -> list[str]:
    """Imports of a name that is not written out where it is imported."""
    found = (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) in IMPORTERS)
    return [ast.unparse(node) for node in found if not (node.args and isinstance(node.args[0], ast.Constant))]


def test_a_name_reaches_an_import_in_one_place_only(parsed: dict[Path, Nodes]) -> None:
    """There whoever must permit it is asked first."""
    assert [path.name for path, nodes in parsed.items() if dynamic_imports(nodes)] == ["locate.py"]
    assert dynamic_imports(nodes_of("importlib.import_module(name)")) == ["importlib.import_module(name)"]


def patterns(nodes: Nodes) -> list[str]:
    """The regular expressions that options are held against; pydantic looks for them anywhere in a text."""
    tree = nodes[0]
    assert isinstance(tree, ast.Module)
    fixed = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def text(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return text(fixed[node.id])
        if isinstance(node, ast.JoinedStr):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        return str(node.value) if isinstance(node, ast.Constant) else ""

    return [
        text(given["pattern"])
        for name, given in calls(nodes)
        if name.endswith("Field") and "pattern" in given
    ]


def test_every_pattern_is_of_the_whole_text(parsed: dict[Path, Nodes]) -> None:
    found = [one for nodes in parsed.values() for one in patterns(nodes)]
    assert len(found) >= 6
    for one in found:
        assert one.startswith("^") and one.endswith("$"), one
    assert patterns(nodes_of("R = 'a+'\nx: str = Field(pattern=R)")) == ["a+"]

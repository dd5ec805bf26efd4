"""What a Python user meets: names, completion, types, short texts, comparisons, progress."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import types
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import tomli_w

import equipoise
from equipoise.api.progress import Line, in_notebook, showing
from equipoise.config import Config, resolve
from equipoise.errors import ConfigError, RunsFailed, StorageError
from equipoise.keeping import read_json
from equipoise.listing import Listing
from equipoise.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = {
    "Comparison", "Method", "Result", "compare", "frame", "inspect", "ledger", "load", "methods",
    "reproduce", "resume", "run", "store",
}  # fmt: skip
MakeConfig = Callable[..., Config]
TINY: dict[str, dict[str, Any]] = {
    "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
    "partition": {"kind": "iid", "sites": 3},
    "train": {"rounds": 2, "batch_size": 8},
    "engine": {"device": "cpu"},
}
TINIEST = TINY | {
    "data": {"kind": "phantom", "scale": 0.001, "image_size": 8},
    "partition": {"kind": "iid", "sites": 1},
}
"""where nobody looks at the figures"""
RACE = TINY | {"partition": {"kind": "iid", "sites": 2}, "train": {"rounds": 1, "batch_size": 32}}


# Names ------------------------------------------------------------------------------------------------------


def test_completion_offers_the_public_names_and_no_others() -> None:
    assert {name for name in dir(equipoise) if not name.startswith("__")} == PUBLIC
    assert set(equipoise.__all__) == PUBLIC | {"__version__"}
    assert all(callable(getattr(equipoise, name)) for name in PUBLIC)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = equipoise.trian


def test_importing_is_quick() -> None:
    """In a process of its own, where nothing has been imported before."""
    code = f"""
import sys, equipoise
assert "torch" not in sys.modules and "equipoise.api" not in sys.modules
assert dir(equipoise) == sorted({sorted(PUBLIC)} + ["__version__"])
print("good")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "good\n", done.stderr


@pytest.mark.parametrize("new", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_every_name_is_found_afresh(forked: Callable[..., list[str]], new: bool) -> None:
    """In a new process, or one that has forgotten all of the package; a name may be a package too."""
    code = f"""
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "equipoise"]:
    del sys.modules[name]
import equipoise
assert "equipoise.api" not in sys.modules
import inspect
for name in {sorted(PUBLIC)}:
    thing = getattr(equipoise, name)
    assert callable(thing) and inspect.signature(thing) is not None, name
from equipoise.compare import make_plan
from equipoise import compare, methods, reproduce
assert "seeds" in inspect.signature(compare).parameters and len(methods()) > 30
assert equipoise.compare.make_plan is make_plan and equipoise.methods.METHODS["fca"]
print("good")
"""
    command = [sys.executable, "-c", code] if new else forked(code)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "good\n", done.stderr


# Types ------------------------------------------------------------------------------------------------------

USE = Path(__file__).with_name("typed_use.py")
"""what a user writes, and mistakes that a type checker must see; `make lint` checks it with the package"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the package among its installed ones, as a wheel puts it there; types of an installed
    package count only where it has py.typed."""
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "equipoise").symlink_to(ROOT / "src" / "equipoise")
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "python"


def mypy(script: str, python: Path, folder: Path) -> tuple[int, str]:
    (folder / "script.py").write_text(script)
    (folder / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n")
    words = ["-m", "mypy", "--config-file", "mypy.ini", "--python-executable", str(python), "script.py"]
    away = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=away, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.sweep
def test_a_type_checker_knows_what_a_user_calls(installed: Path, tmp_path: Path) -> None:
    """With the package installed; beside its source `make lint` sees the same."""
    code, told = mypy(USE.read_text(), installed, tmp_path)
    assert code == 0, told
    code, told = mypy(re.sub(r"  # type: ignore.*", "", USE.read_text()), installed, tmp_path)
    assert code == 1
    assert 'Argument 1 to "run" has incompatible type "int"' in told
    assert 'Unexpected keyword argument "rounds" for "compare"' in told
    assert 'expression has type "Path", variable has type "int"' in told


def test_a_wheel_has_py_typed() -> None:
    """The wheel is the package's folder, whole, and the recipes beside it."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/equipoise"], "force-include": {"recipes": "equipoise/recipes"}}
    assert (ROOT / "src" / "equipoise" / "py.typed").is_file()
    ignored = subprocess.run(["git", "check-ignore", "src/equipoise/py.typed"], cwd=ROOT, capture_output=True)
    assert ignored.stdout == b""


# Runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> equipoise.Result:
    return equipoise.run(TINY, tmp_path_factory.mktemp("run") / "first")


def test_a_config_is_a_path_a_table_or_a_config(
    tmp_path: Path, result: equipoise.Result, tiny: MakeConfig
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(tomli_w.dumps(TINY))
    assert equipoise.run(path).state_hash == result.state_hash
    for config in (path, str(path), resolve(TINY)):
        # a folder that is finished is read, and refused where the config is another
        assert equipoise.run(config, result.folder).state_hash == result.state_hash
        assert equipoise.inspect(config).facts["images"] == 124
    assert equipoise.resume(result.folder).state_hash == result.state_hash


def test_early_stopping_is_train_stop(tmp_path: Path) -> None:
    table = TINIEST | {"train": {"rounds": 8, "lr": 0.0, "batch_size": 8}}
    found = equipoise.run(table, early_stopping=2)
    assert found.stopped_early is not None and found.stopped_early["round"] == 3
    same = equipoise.run(resolve(table), early_stopping={"patience": 2, "least": 0.01})
    assert same.stopped_early is not None and same.state_hash == found.state_hash
    assert "stopped early" in repr(found)


def test_a_result_shows_itself_in_a_few_lines(result: equipoise.Result) -> None:
    text = repr(result)
    both = (
        result.metrics["test"][view]["balanced_accuracy"] for view in ("generalisation", "specialisation")
    )
    assert text.splitlines()[0] == f"Result({str(result.folder)!r})"
    assert "balanced accuracy {:.1f} % / {:.1f} %".format(*(100 * value for value in both)) in text
    assert "2 rounds, reported: 2" in text
    assert len(text.splitlines()) <= 4 and len(text) < 600
    page = result._repr_html_()
    assert "<td>macro AUC</td>" in page
    ElementTree.fromstring(f"<div>{page}</div>")


def test_methods_ledgers_and_blueprints_are_short(result: equipoise.Result) -> None:
    assert repr(METHODS["fedprox"]()) == "FedProx()"
    assert repr(METHODS["fedprox"](mu=0.5)) == str(METHODS["fedprox"](mu=0.5)) == "FedProx(mu=0.5)"
    for cls in METHODS.values():
        assert len(repr(cls())) < 60
    blueprint = equipoise.load(result.folder).blueprint
    assert repr(blueprint) == str(blueprint)
    assert "fedavg with small-cnn on images of 3×16×16, single-label, 8 classes" in repr(blueprint)
    assert len(repr(blueprint)) < 200
    found = equipoise.ledger(TINY)
    assert found.rows() == read_json(result.folder / "ledger.json", "")["leaves"]
    assert len(repr(found).splitlines()) == 1 + len(found.lines)
    assert "train: delta (mean), loss (mean)" in repr(found)
    ElementTree.fromstring(found._repr_html_())


def test_methods_are_listed() -> None:
    found = equipoise.methods()
    assert [row["method"] for row in found] == list(METHODS)
    assert {"method": "fedmlp", "labels per image": "several"}.items() <= found.rows()[
        list(METHODS).index("fedmlp")
    ].items()
    assert max(map(len, repr(found).splitlines())) < 200
    ElementTree.fromstring(found._repr_html_())


def test_an_inspection_counts_images(tmp_path: Path) -> None:
    found = equipoise.inspect(TINY)
    rows, sites = found.rows(), found.facts["sites"]
    assert sum(row["images"] for row in rows) == found.facts["images"] == 124
    train = sum(row["images"] for row in rows if (row["site"], row["split"]) == ("site-01", "train"))
    assert train == sites["site-01"]["train"]["images"]
    assert repr(found).splitlines()[-1].split()[-3:] == [
        str(sum(held[split]["images"] for held in sites.values())) for split in found.facts["splits"]
    ]
    ElementTree.fromstring(f"<div>{found._repr_html_()}</div>")


def test_a_name_from_elsewhere_is_shown_and_not_obeyed() -> None:
    found = Listing(("site",), (("<b>\x1b[31mred",),))
    assert "\x1b" not in repr(found)
    assert "&lt;b&gt;" in found._repr_html_()


# Comparisons ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> equipoise.Comparison:
    folder = tmp_path_factory.mktemp("compared")
    return equipoise.compare(
        RACE,
        methods=["fedavg", "fedprox"],
        seeds=range(2),
        grid={"method.mu": [0.1, 1.0]},
        arms={"alone": {"method.name": "local"}},
        out=folder / "mine",
        jobs=1,
    )


def test_a_comparison_is_that_of_the_command(compared: equipoise.Comparison) -> None:
    assert compared.methods == ["fedavg", "fedprox mu=0.1", "fedprox mu=1.0", "alone"]
    assert compared.facts == read_json(compared.folder / "comparison.json", "")
    names = {path.name for path in compared.folder.iterdir()}
    assert {"table.md", "table.csv", "table.tex", "report.html", "fedavg", "alone"} <= names
    assert compared.table == (compared.folder / "table.md").read_text()[: len(compared.table)]
    again = equipoise.Comparison(str(compared.folder))
    assert again.facts == compared.facts and repr(again) == repr(compared)


def test_a_comparison_that_was_made_is_not_made_again(compared: equipoise.Comparison) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    more = equipoise.compare(
        RACE,
        ["fedavg"],
        seeds=range(2),
        out=compared.folder,
        watch=lambda event, facts: told.append((event, facts)),
    )
    begun = dict(told)["begin"]
    assert (begun["runs"], begun["finished"]) == (2, 2)
    assert not [event for event, _ in told if event == "round"]
    assert more.methods == ["fedavg"]
    first = compared.facts["arms"]["fedavg"]["runs"]
    assert more.facts["arms"]["fedavg"]["runs"] == first


def test_every_figure_is_a_row(compared: equipoise.Comparison) -> None:
    rows = compared.rows()
    runs = {(row["method"], row["seed"]) for row in rows}
    assert runs == {(label, seed) for label in compared.methods for seed in (0, 1)}
    keys = [(row["method"], row["seed"], row["view"], row["metric"], row["class"]) for row in rows]
    assert len(set(keys)) == len(keys)
    kept = read_json(compared.folder / rows[0]["run"] / "result.json", "")["metrics"]["test"]
    assert rows[0]["value"] == kept[rows[0]["view"]][rows[0]["metric"]]


def test_a_frame_is_pandas_or_a_sentence(
    compared: equipoise.Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in takes the rows as pandas would."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    for shown in (compared, equipoise.methods(), equipoise.inspect(TINY)):
        with pytest.raises(ConfigError, match=r"needs pandas, .*pip install pandas, or use \.rows\(\)"):
            shown.frame()
    pandas = types.ModuleType("pandas")
    pandas.DataFrame = lambda rows: ("frame", rows)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert compared.frame() == ("frame", compared.rows())


def test_pictures_stand_by_themselves(compared: equipoise.Comparison, tmp_path: Path) -> None:
    picture = compared.plot()
    path = picture.save(tmp_path / "figures" / "a.svg")
    tree = ElementTree.parse(path).getroot()
    assert tree.tag == "{http://www.w3.org/2000/svg}svg"
    text = path.read_text()
    used = {part.split(")")[0] for part in text.split("var(")[1:]}
    assert used and all(f"{name}:" in text for name in used)  # every colour is defined in the file itself
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert {row["round"] for row in picture.rows()} == {1}
    assert picture.svg in picture._repr_html_()
    assert {"recall", "convergence-specialisation"} <= set(compared.pictures)
    with pytest.raises(ConfigError, match="did you mean 'recall'"):
        compared.plot("recal")
    with pytest.raises(ConfigError, match=r"call it .*a\.svg"):
        picture.save(tmp_path / "a.png")


def test_a_comparison_shows_itself(compared: equipoise.Comparison) -> None:
    text = repr(compared)
    assert "4 methods × 2 seeds, 8 runs" in text and "fedprox mu=1.0" in text
    assert len(text.splitlines()) <= 12
    page = compared._repr_html_()
    ElementTree.fromstring(f"<div>{page}</div>")
    assert page.count("<tr>") == 5 and "<b>" in page


def test_a_failed_run_is_shown_and_nothing_but_failures_is_an_error(tmp_path: Path) -> None:
    failing = {"too few": {"exchange.min_sites": 7}}
    table = TINIEST | {"train": {"rounds": 1, "batch_size": 8}}
    some = equipoise.compare(table, ["fedavg"], seeds=[0], arms=failing, out=tmp_path / "some", jobs=1)
    assert [one["run"] for one in some.failures] == ["too-few/0"]
    assert "1 runs failed, the first is too-few/0" in repr(some) and "too-few/0" in some._repr_html_()
    with pytest.raises(RunsFailed, match=r"all 1 runs in .* failed"):
        equipoise.compare(table, seeds=[0], arms=failing, out=tmp_path / "all", jobs=1)


def test_a_folder_without_a_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"has no comparison\.json"):
        equipoise.Comparison(tmp_path)


def test_a_papers_table_stands_beside_ours(tmp_path: Path) -> None:
    data = tmp_path / "data.toml"
    data.write_text(tomli_w.dumps({"data": {"kind": "phantom", "scale": 0.004, "image_size": 16}}))
    found = equipoise.reproduce(
        "fca-table4",
        data,
        scale="small",
        rows=["FedAvg CE"],
        seeds=[0],
        changes=["train.rounds=1"],
        out=tmp_path / "out",
        jobs=1,
    )
    assert found.paper is not None and list(found.paper["rows"]) == ["FedAvg CE"]
    assert "paper" in found.table.splitlines()[0] and "FedAvg" in found.table
    assert equipoise.Comparison(tmp_path / "out").table == found.table
    with pytest.raises(ConfigError, match="did you mean 'small'"):
        equipoise.reproduce("fca-table4", data, scale="smal")


# Progress ---------------------------------------------------------------------------------------------------


class Screen(io.StringIO):
    """A terminal, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def lines(self) -> list[str]:
        """What is to be seen at the end, each line after its last return."""
        return [line.rpartition("\r")[2].rstrip() for line in self.getvalue().rstrip("\n").split("\n")]


def test_progress_is_one_line_on_a_terminal_and_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for terminal, progress in ((False, None), (True, False)):
        monkeypatch.setattr(sys, "stderr", screen := Screen(terminal))
        equipoise.run(TINIEST, progress=progress)
        assert screen.getvalue() == ""
    for terminal, progress in ((True, None), (False, True)):
        monkeypatch.setattr(sys, "stderr", screen := Screen(terminal))
        equipoise.run(TINIEST, progress=progress)
        assert len(screen.lines()) == 1
        assert screen.lines()[0].startswith("round 2/2 · balanced accuracy ")
        assert "round 1/2 · " in screen.getvalue()


def test_progress_in_a_notebook_is_found_without_ipython(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)  # another test may have asked
    assert not in_notebook()
    shell = type("ZMQInteractiveShell", (), {})()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert in_notebook()
    with showing(None, None) as watch:
        watch("begin", {"rounds": 4, "sites": {}})
    out, err = capsys.readouterr()
    assert (out, err) == ("\rround 0/4\n", "")
    ipython.get_ipython = lambda: type("TerminalInteractiveShell", (), {})()  # type: ignore[attr-defined]
    assert not in_notebook()


def test_a_watch_of_ones_own_hears_everything_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Screen(True))
    heard: list[str] = []
    equipoise.run(TINIEST, watch=lambda event, facts: heard.append(event), progress=True)
    assert heard.count("round") == 2 and "begin" in heard and "answer" in heard


def test_the_line_of_a_comparison() -> None:
    screen = Screen(True)
    line = Line(screen)
    line.tell("begin", {"rounds": 12, "done": 4, "runs": 3, "finished": 1})
    assert screen.lines()[-1] == "4/12 rounds of 3 runs, 1 finished"
    line.tell("round", {"run": "a/0", "round": 3, "rounds": 4})
    line.tell("failed", {"run": "a/0", "error": "no space", "rounds": 4})
    line.tell("done", {"run": "b/0", "rounds": 4})
    line.end()
    assert screen.lines() == ["a/0 failed: no space", "12/12 rounds of 3 runs, 2 finished"]

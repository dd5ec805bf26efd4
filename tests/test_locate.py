"""Code that a config names: nothing of it is run before it is permitted, and what is run are the bytes that
were looked at."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.own_code import forgotten

from equipoise import locate as locate_module
from equipoise.errors import ConfigError
from equipoise.locate import Code, Parts

THING = "from pathlib import Path\nPath({mark!r}).touch()\n{more}\nclass Thing:\n    value = {value}\n"


class Refused(Exception):
    pass


def refuse(code: Code) -> None:
    raise Refused(code.fingerprint)


def permit(code: Code) -> None:
    pass


def write(folder: Path, name: str, more: str = "", value: object = 1) -> Path:
    """A file that leaves a mark when it is run."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(THING.format(mark=str(folder / f"ran-{path.stem}"), more=more, value=value))
    return path


def ran(folder: Path) -> set[str]:
    return {path.name.removeprefix("ran-") for path in folder.glob("ran-*")}


def found(folder: Path, name: str, allow: Any = permit) -> Any:
    return Parts(folder, allow).find(name, "method.name")


def print_of(folder: Path, name: str) -> str:
    return Code(name, folder, "method.name").fingerprint


class Theirs:
    """The finder of an installed package: it finds nothing."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None: ...


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python looks for modules in; what is loaded from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    with forgotten(tmp_path):
        yield tmp_path


def test_the_fixture_leaves_what_packages_have_set_up(tmp_path: Path) -> None:
    """importlib_metadata takes the place of Python's own finder when it is first imported."""
    theirs, before, modules = Theirs(), set(sys.meta_path), set(sys.modules)
    with forgotten(tmp_path):
        sys.meta_path.append(theirs)
        write(tmp_path, "mine.py")
        assert found(tmp_path, "mine.py:Thing").value == 1
        assert set(sys.modules) > modules
    assert set(sys.meta_path) - before == {theirs}
    assert set(sys.modules) == modules
    sys.meta_path.remove(theirs)


def test_nothing_is_run_before_it_is_permitted(on_path: Path) -> None:
    write(on_path, "mine.py", "import lq_beside")
    write(on_path, "lq_beside.py")
    write(on_path, "lq_pack/__init__.py")
    write(on_path, "lq_pack/inner.py", "from . import third")
    write(on_path, "lq_pack/third.py")
    for name in ("mine.py:Thing", "lq_beside:Thing", "lq_pack.inner:Thing"):
        with pytest.raises(Refused):
            found(on_path, name, refuse)
    assert not ran(on_path)
    assert found(on_path, "lq_pack.inner:Thing").value == 1


def test_an_installed_module_is_not_imported_either(tmp_path: Path) -> None:
    """Not even one that does something when it is: `antigravity` opens a browser."""
    with pytest.raises(Refused):
        found(tmp_path, "antigravity:Thing", refuse)
    assert "antigravity" not in sys.modules


def test_the_bytes_that_were_looked_at_are_run(on_path: Path) -> None:
    """A file that is replaced after it was permitted is not what is run, neither the named one nor one that
    it imports."""
    write(on_path, "mine.py", "import lq_beside\nvalue = lq_beside.Thing.value", value=10)
    write(on_path, "lq_beside.py", value=20)

    def replaced(code: Code) -> None:
        assert code.fingerprint
        write(on_path, "mine.py", value=-1)
        write(on_path, "lq_beside.py", value=-2)

    thing = found(on_path, "mine.py:Thing", replaced)
    assert thing.value == 10 and sys.modules[thing.__module__].value == 20


def test_files_beside_it_are_found_and_belong_to_it(tmp_path: Path) -> None:
    """Also those imported by what it imports, in a function, in a package, or one name of it."""
    write(tmp_path, "mine.py", "def later():\n    import lq_first\n    return lq_first.Thing.value")
    write(tmp_path, "lq_first.py", "from lq_pack.inner import Thing as Other", value=5)
    write(tmp_path, "lq_pack/__init__.py")
    write(tmp_path, "lq_pack/inner.py", "from .third import Thing as Third")
    write(tmp_path, "lq_pack/third.py")
    write(tmp_path, "lq_unused.py")
    assert sys.modules[found(tmp_path, "mine.py:Thing").__module__].later() == 5
    before = print_of(tmp_path, "mine.py:Thing")
    for name in ("mine.py", "lq_first.py", "lq_pack/__init__.py", "lq_pack/inner.py", "lq_pack/third.py"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text + "# changed\n")
        assert print_of(tmp_path, "mine.py:Thing") != before, name
        (tmp_path / name).write_text(text)
    (tmp_path / "lq_unused.py").write_text("# changed\n")
    assert print_of(tmp_path, "mine.py:Thing") == before


def test_a_package_has_its_own_files_in_its_fingerprint_and_no_others(on_path: Path) -> None:
    write(on_path, "lq_pack/__init__.py")
    write(on_path, "lq_pack/inner.py", "import torch\nfrom lq_pack import third")
    write(on_path, "lq_pack/third.py")
    code = Code("lq_pack.inner:Thing", on_path, "x")
    assert [file.module for file in code.files] == ["lq_pack.inner", "lq_pack", "lq_pack.third"]


def test_the_methods_of_equipoise_it_builds_on_belong_to_it(tmp_path: Path) -> None:
    text = "from equipoise.methods import {name}\nclass Mine({name}):\n    pass\n"
    (tmp_path / "mine.py").write_text(text.format(name="MOON"))
    found = {file.module for file in Code("mine.py:Mine", tmp_path, "x").files}
    assert {"equipoise.methods.moon", "equipoise.methods.base"} <= found
    assert "equipoise.methods.fedsdc" not in found and "equipoise.config" not in found
    (tmp_path / "mine.py").write_text("from equipoise import Method\n")
    found = {file.module for file in Code("mine.py:Mine", tmp_path, "x").files}
    assert "equipoise.methods.base" in found and "equipoise.methods.moon" not in found


def test_another_version_of_equipoise_changes_what_a_site_approves_and_not_what_a_user_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("from equipoise.methods import MOON\nclass Mine(MOON):\n    pass\n")
    before = Code("mine.py:Mine", tmp_path, "x")
    assert before.approval != before.fingerprint
    monkeypatch.setattr(
        locate_module, "read_regular", lambda path: path.read_bytes() + b"#" * (path.name == "moon.py")
    )
    after = Code("mine.py:Mine", tmp_path, "x")
    assert after.approval != before.approval and after.fingerprint == before.fingerprint


def test_changed_code_is_run_anew_and_the_same_is_not(tmp_path: Path) -> None:
    write(tmp_path, "mine.py", "import lq_beside\nseen = lq_beside.Thing.value")
    write(tmp_path, "lq_beside.py", value=1)
    first = found(tmp_path, "mine.py:Thing")
    assert found(tmp_path, "mine.py:Thing") is first
    write(tmp_path, "lq_beside.py", value=2)
    second = found(tmp_path, "mine.py:Thing")
    assert (sys.modules[first.__module__].seen, sys.modules[second.__module__].seen) == (1, 2)


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    things = [
        found(write(tmp_path / side, "mine.py", value=i).parent, "mine.py:Thing")
        for i, side in enumerate("ab")
    ]
    assert [thing.value for thing in things] == [0, 1] and things[0].__module__ != things[1].__module__


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "mine.py", "import lq_native")
    (tmp_path / "lq_native.so").write_bytes(b"\x7fELF")
    os.rename(tmp_path / "lq_native.so", tmp_path / f"lq_native{_suffix()}")
    with pytest.raises(ConfigError, match=r"method\.name: .*not Python source"):
        found(tmp_path, "mine.py:Thing")
    assert not ran(tmp_path)


def _suffix() -> str:
    from importlib.machinery import EXTENSION_SUFFIXES

    return EXTENSION_SUFFIXES[0]


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_only_a_regular_file_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="cannot be read: "):
        found(tmp_path, "mine.py:Thing")


def test_code_that_ends_the_process_does_not(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(ConfigError, match="SystemExit"):
        found(tmp_path, "mine.py:Thing")


def test_another_module_of_that_name_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "mine.py", "import lq_beside")
    write(tmp_path, "lq_beside.py")
    monkeypatch.setitem(sys.modules, "lq_beside", sys.modules[__name__])
    with pytest.raises(ConfigError, match="another module 'lq_beside' is in use: rename it"):
        found(tmp_path, "mine.py:Thing")

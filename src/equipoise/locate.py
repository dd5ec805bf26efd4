"""Python code that a config names: found without running it, permitted, then run from the very bytes that
were looked at.

A name is `path/to/file.py:Thing` or `package.module:Thing`; this is the only place where such a name reaches
an import. To the code belong its own file, every file it imports that is not installed, and of an installed
package its own files; the fingerprint covers them all. What a site approves covers the files of Equipoise's
methods that it builds on as well. Import statements are followed, wherever they stand; imports that code
works out while it runs (`importlib`, a changed `sys.path`) are not: who permits code reads it first.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pydantic import ValidationInfo

from equipoise.errors import ConfigError, EquipoiseError
from equipoise.opening import read_regular

PACKAGE = "equipoise"
COUNTED = "equipoise.methods."
"""modules of Equipoise that belong to the code that builds on them"""
OF_FILE = "equipoise_code_"
"""how the name begins that a file's module has while it runs"""
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""what parsing raises for text that is no Python"""


@dataclass(frozen=True)
class File:
    """One file of some code, as it was read."""

    module: str
    path: Path
    data: bytes
    package: bool = False

    @property
    def ours(self) -> bool:
        """Whether it is Equipoise's."""
        return self.module.partition(".")[0] == PACKAGE

    @property
    def served(self) -> bool:
        """Whether its module is run from these bytes; Equipoise's own and compiled ones are left to
        Python."""
        return self.path.suffix == ".py" and not self.ours


class Code:
    """The code behind a name. It is read when something of it is first asked for, and only once."""

    def __init__(self, name: str, base: Path, where: str) -> None:
        self.name, self.where = name, where
        self.source, _, self.attribute = name.rpartition(":")
        self.path = (base / self.source).resolve() if self.source.endswith(".py") else None

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        return f"the module '{self.source}'" if self.path is None else f"the file {self.path}"

    @cached_property
    def files(self) -> tuple[File, ...]:
        """Every file that belongs to the code, the named one first."""
        first = self._named() if self.path is None else [File("", self.path, self._bytes(self.path))]
        by_module = {file.module: file for file in first}
        waiting, followed = list(first), set[str]()
        while waiting:
            names = set(_imported(waiting.pop())) - followed
            followed |= names
            for name in sorted(names):
                new = [one for one in self._chain(name) if one.module not in by_module]
                by_module |= {one.module: one for one in new}
                waiting += new
        named = by_module.pop(first[-1].module)
        return (named, *(by_module[module] for module in sorted(by_module)))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over all files but those of Equipoise: the same whatever version of it is installed."""
        return digest(file.data for i, file in enumerate(self.files) if i == 0 or not file.ours)

    @cached_property
    def approval(self) -> str:
        """sha256 over all files, those of Equipoise's methods that it builds on among them."""
        return digest(file.data for file in self.files)

    def load(self) -> Any:
        """Run the code, unless the same bytes were run before; what its name leads to."""
        try:
            module = self._module()
        except EquipoiseError:
            raise
        except (Exception, SystemExit) as error:
            kind = "cannot be read as Python" if self.path else "cannot be imported"
            place = self.path or self.title
            raise self._wrong(f"{place} {kind} ({type(error).__name__}: {error})") from error
        return getattr(module, self.attribute, None)

    # Finding, without running -------------------------------------------------------------------------------

    def _wrong(self, text: str) -> ConfigError:
        return ConfigError(f"{self.where}: {text}")

    def _bytes(self, path: Path) -> bytes:
        try:
            return read_regular(path)
        except FileNotFoundError:
            raise self._wrong(f"there is no file {path}") from None
        except OSError as error:
            raise self._wrong(f"{path} cannot be read: {error.strerror}") from error

    def _named(self) -> list[File]:
        """The named module, after the packages it is in."""
        chain = list(self._chain(self.source)) if re.fullmatch(r"\w+(\.\w+)*", self.source) else []
        if not chain or chain[-1].module != self.source:
            raise self._wrong(f"the module '{self.source}' cannot be imported: there is none of that name")
        return chain

    def _chain(self, name: str) -> Iterator[File]:
        """The files of a module and of the packages it is in, as far as they belong to this code."""
        path: Sequence[str] | None = None
        parts = name.split(".")
        if self.path is not None and parts[0] == PACKAGE and not name.startswith(COUNTED):
            return
        for i in range(1, len(parts) + 1):
            spec = _spec(".".join(parts[:i]), path)
            if spec is None and i == 1 and self.path is not None:
                spec = PathFinder.find_spec(parts[0], [str(self.path.parent)])
            if spec is None:
                return
            if self._counts(spec):
                assert spec.origin is not None
                place, package = Path(spec.origin).resolve(), spec.submodule_search_locations is not None
                if place.suffix != ".py" and not _installed(spec):
                    raise self._wrong(
                        f"{self.title} imports {place}, which is not Python source: install it as a package"
                    )
                yield File(spec.name, place, self._bytes(place), package)
            if spec.submodule_search_locations is None:
                return
            try:
                path = list(spec.submodule_search_locations)
            except (
                KeyError
            ):  # a folder without __init__.py inside another: Python wants the outer one imported first
                raise self._wrong(
                    f"{self.title} imports '{spec.name}': put an __init__.py into its folder"
                ) from None

    def _counts(self, spec: ModuleSpec) -> bool:
        top = spec.name.partition(".")[0]
        own = self.path is None and top == self.source.partition(".")[0]
        if top == PACKAGE and not own:
            return spec.name.startswith(COUNTED)
        return spec.has_location and (own or not _installed(spec))

    # Running ------------------------------------------------------------------------------------------------

    def _module(self) -> ModuleType:
        named, *others = self.files
        if self.path is not None:  # a name of its own, so that two files that are called the same do not meet
            stem = re.sub(r"\W", "_", self.path.stem)
            mark = hashlib.sha256(f"{self.path}\0{self.fingerprint}".encode())
            named = File(f"{OF_FILE}{stem}_{mark.hexdigest()[:12]}", named.path, named.data)
        served = {file.module: file for file in (named, *others) if file.served}
        for file in served.values():
            self._make_room(file)
        sys.meta_path[:] = [
            one for one in sys.meta_path if not (isinstance(one, Finder) and one.files.keys() & served.keys())
        ]
        sys.meta_path.insert(0, Finder(served, self.fingerprint))
        return importlib.import_module(named.module)

    def _make_room(self, file: File) -> None:
        """Forget a module that was run from other bytes; refuse one of the same name that is not ours to
        forget."""
        module = sys.modules.get(file.module)
        if module is None:
            return
        loader = getattr(module, "__loader__", None)
        if isinstance(loader, Loader):
            if loader.fingerprint != self.fingerprint:
                del sys.modules[file.module]
        elif Path(getattr(module, "__file__", None) or "").resolve() != file.path:
            raise self._wrong(
                f"{self.title} imports {file.path}, but another module '{file.module}' is in use: rename it"
            )


class Package(Code):
    """An installed package that a name leads to, such as `timm:resnet18`: known by its version, not by its
    files."""

    @property
    def title(self) -> str:
        return f"the installed package '{self.source}'"

    @cached_property
    def files(self) -> tuple[File, ...]:
        return ()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of its name and version."""
        try:
            release = version(self.source)
        except PackageNotFoundError:
            release = "unknown"
        return digest([f"{self.source} {release}".encode()])

    @cached_property
    def approval(self) -> str:
        return self.fingerprint


Allow = Callable[[Code], None]
"""asked before code is run: raises what refuses it"""


class Parts:
    """The code of one's own that a config names: its method, network, views, losses and so on.

    Options of a config are validated with `context(parts)`, so that a name with a colon leads here from
    wherever it stands. Code is run only after `allow` has let it pass; relative paths start from `base`.
    """

    def __init__(self, base: Path, allow: Allow) -> None:
        self.base, self.allow = base, allow
        self.codes: dict[str, Code] = {}
        """by name: all code that was found so far"""

    def find(self, name: str, where: str) -> Any:
        """What a name leads to; `where` is the key of the config that holds it."""
        code = Code(name, self.base, where)
        self.ask(code)
        value = code.load()
        if value is None:
            raise ConfigError(f"{where}: '{code.source}' has no '{code.attribute}'")
        return value

    def ask(self, code: Code) -> None:
        """Ask whether code may be run, and take note of it."""
        self.allow(code)
        self.codes[code.name] = code


def named(name: Any) -> bool:
    """Whether a name of a config leads to code: FILE.py:Name, or package.module:Name."""
    return isinstance(name, str) and bool(name.rpartition(":")[0])


def context(parts: Parts) -> dict[str, Any]:
    """What pydantic hands on to the validators of options."""
    return {"parts": parts}


def parts_of(info: ValidationInfo, name: str) -> Parts:
    """Where a validator looks up a name that leads to code."""
    parts = (info.context or {}).get("parts")
    if not isinstance(parts, Parts):
        raise ConfigError(f"'{name}' leads to code, which only a config may name")
    return parts


def digest(files: Iterable[bytes]) -> str:
    """sha256 over the sha256 of every file, in their order."""
    whole = hashlib.sha256()
    for data in files:
        whole.update(hashlib.sha256(data).digest())
    return whole.hexdigest()


class Loader(SourceFileLoader):
    """Runs a module from bytes that were read before."""

    def __init__(self, file: File, fingerprint: str) -> None:
        super().__init__(file.module, str(file.path))
        self.file, self.fingerprint = file, fingerprint

    def get_data(self, path: str) -> bytes:
        return self.file.data if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.file.data, self.path)


class Finder:
    """Gives Python the modules of some code as they were read. A module that is reloaded is found as
    usual."""

    def __init__(self, files: dict[str, File], fingerprint: str) -> None:
        self.files, self.fingerprint = files, fingerprint

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        file = self.files.get(name)
        if file is None or target is not None:
            return None
        inside = [str(file.path.parent)] if file.package else None
        loader = Loader(file, self.fingerprint)
        return importlib.util.spec_from_file_location(
            name, file.path, loader=loader, submodule_search_locations=inside
        )


def _imported(file: File) -> Iterator[str]:
    """The names in a file's import statements, each as far as it may be a module."""
    package = file.module if file.package else file.module.rpartition(".")[0]
    for node in _statements(file.data):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif package or not node.level:
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            module = ".".join(part for part in (above if node.level else "", node.module) if part)
            for alias in node.names:
                yield _definer(module, alias.name) or f"{module}.{alias.name}"


@lru_cache(1000)
def _statements(source: bytes) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The import statements of some source, wherever they stand; the same text is parsed once."""
    try:
        tree = ast.parse(source)
    except UNREADABLE:
        return ()  # says so itself when it is run
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def _definer(module: str, name: str) -> str | None:
    """The module of Equipoise that defines a name of another: `equipoise.methods.fedprox` for `FedProx`."""
    if module.partition(".")[0] != PACKAGE or module not in sys.modules:
        return None
    definer = getattr(getattr(sys.modules[module], name, None), "__module__", None)
    return definer if isinstance(definer, str) and definer.startswith(COUNTED) else None


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Where Python would find a module; neither it nor the packages it is in are run."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def _installed(spec: ModuleSpec) -> bool:
    """Whether a module came with Python or was installed, rather than lying about."""
    if spec.origin is None or not spec.has_location:
        return True
    path = Path(spec.origin).resolve()
    return any(path.is_relative_to(place) for place in _places())


@cache
def _places() -> tuple[Path, ...]:
    """Where Python's own modules and installed packages are."""
    own = [sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    places = {*own, *site.getsitepackages(), site.getusersitepackages()}
    return tuple(Path(place).resolve() for place in places)

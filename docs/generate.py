"""Fill the generated parts of the documentation from the code itself.

    python docs/generate.py            # rewrite what is stale
    python docs/generate.py --check    # change nothing; exit 1 and name the stale pages

A page is written by hand except between `<!-- generated: NAME -->` and `<!-- end -->`. What stands there
comes from the options classes, the methods' declared facts and docstrings, and the tables of names, so it
cannot say other than what the code does.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from equipoise import api as verbs_of_python
from equipoise import data, partition, run_folder
from equipoise.cli.app import command
from equipoise.cli.catalogue import describe, describe_sets
from equipoise.config import DEFAULTS, load, override
from equipoise.data.sets import SetData
from equipoise.engine import EngineOptions
from equipoise.errors import EXIT_CODES
from equipoise.evaluate import EvaluateOptions
from equipoise.exchange import ExchangeOptions
from equipoise.losses import OBJECTIVES
from equipoise.methods import METHODS, Method
from equipoise.nets import NETS, NetOptions
from equipoise.nets.weights import KNOWN
from equipoise.options import NONE, described
from equipoise.site import Loc, PrivacyOptions, TrainOptions
from equipoise.site.views import VIEWS

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from evidence.advice import picture  # noqa: E402
from evidence.lists import TABLES, Table  # noqa: E402

OVERVIEW = "pbc-overview"
"""the table that has every method for one label per image"""
DIVISIONS = {"iid": "alike sites", "dirichlet": "Dirichlet sites", "column": "its own sites"}
PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


# Tables -----------------------------------------------------------------------------------------------------


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} = {plain(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(plain, value)) + "]"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) >= 1e4 else repr(value)
    return json.dumps(NONE if value is None else value, ensure_ascii=False)


def kind_of(annotation: Any) -> str:
    """The type of a key, in a reader's words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{plain(value)}`" for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(kind_of(part) for part in inside if part is not type(None))
    if origin is tuple:
        if inside[-1] is Ellipsis:
            return f"list of {kind_of(inside[0])}"
        return f"list of {len(inside)}: {', '.join(dict.fromkeys(map(kind_of, inside)))}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "table"
    if origin is dict:
        return "table of options"
    words = {int: "int", float: "number", bool: "true or false", str: "text", Any: "text, table or list"}
    return words[annotation]


def bounds(field: FieldInfo) -> str:
    """The limits of a number, such as ` > 0, ≤ 1`."""
    signs = ((Gt, "gt", ">"), (Ge, "ge", "≥"), (Lt, "lt", "<"), (Le, "le", "≤"))
    found = [
        f"{sign} {plain(getattr(item, name))}"
        for item in field.metadata
        for cls, name, sign in signs
        if isinstance(item, cls)
    ]
    return " " + ", ".join(found) if found else ""


def options(
    cls: type[BaseModel],
    *,
    but: type[BaseModel] | None = None,
    first: Mapping[str, Any] | None = None,
    prefix: str = "",
) -> list[tuple[str, str, str, str]]:
    """A row (key, type, default, meaning) for every key, nested ones after their table.

    `but` leaves out what a base class says in the same way; `first` are defaults that the config fills in.
    """
    rows, texts = [], described(cls)
    same = {name for name, text in described(but).items() if text == texts[name]} if but else set()
    for name, field in cls.model_fields.items():
        value = field.get_default()
        if but and (name == "kind" or (name in same and value == but.model_fields[name].get_default())):
            continue
        value = (first or {}).get(name, value)
        nested = model_of(field.annotation)
        needed = field.is_required() and name not in (first or {})
        default = "required" if needed else "" if nested or value is None else f"`{plain(value)}`"
        rows.append(
            (
                f"`{prefix}{name}`",
                kind_of(field.annotation) + bounds(field),
                default,
                sentence(texts[name]),
            )
        )
        if nested:
            rows += options(nested, prefix=f"{prefix}{name}.")
    return rows


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The options class of a key that is a table, also of one that may be left out."""
    inside = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((one for one in inside if isinstance(one, type) and issubclass(one, BaseModel)), None)


def sentence(text: str | None) -> str:
    """A description without its line breaks and final dot."""
    return " ".join((text or "").split()).removesuffix(".")


def first_line(thing: Any) -> str:
    return sentence((thing.__doc__ or "").strip().split("\n\n")[0])


KEYS = ("key", "type", "default", "meaning")


def section(cls: type[BaseModel], name: str) -> str:
    return table(KEYS, options(cls, first=DEFAULTS.get(name)))


def kinds(base: type[BaseModel], found: Mapping[str, type[BaseModel]], name: str) -> str:
    """The keys all kinds share, then each kind's own."""
    shared = options(base, first=DEFAULTS[name])
    choices = ", ".join(f'`"{kind}"`' for kind in found)
    shared = [
        (key, choices if key == "`kind`" else form, default, about) for key, form, default, about in shared
    ]
    parts = [table(KEYS, shared)]
    for kind, cls in found.items():
        parts.append(f'**`kind = "{kind}"`**: {first_line(cls)}.')
        if own := options(cls, but=base):
            parts.append(table(KEYS, own))
    return "\n\n".join(parts)


def data_kinds() -> str:
    """The general readers, then the data sets by name: the key they share, and what some have beside it."""
    general = {kind: cls for kind, cls in data.KINDS.items() if kind not in data.SETS}
    parts = [
        kinds(data.DataOptions, general, "data"),
        "**A data set by name** ([data.md](data.md)): "
        + code(f'kind = "{kind}"' for kind in data.SETS)
        + ".",
        table(KEYS, options(SetData, but=data.DataOptions)),
    ]
    for kind, cls in data.SETS.items():
        if own := options(cls, but=SetData):
            parts += [f'**`kind = "{kind}"`**: {first_line(cls)}.', table(KEYS, own)]
    return "\n\n".join(parts)


def exit_codes() -> str:
    return table(("code", "meaning"), ((str(code), text) for code, text in EXIT_CODES.items()))


# Methods ----------------------------------------------------------------------------------------------------


def overview() -> str:
    rows = []
    for name in METHODS:
        facts = describe(name)
        rows.append(
            (f"[`{name}`](#{address(name)})", sentence(facts["about"]), facts["paper"], words(facts["tasks"]))
        )
    return table(("name", "in a sentence", "from", "labels per image"), rows)


EVALUATED = (
    "The last column is a ratio of bytes too: what an evaluation (`evaluate.every`) sends beyond FedAvg's, "
    "which sends the model once more, half of a round. It is the method's own questions, and what else is "
    "sent to be tested: a larger model, a classifier, several predictors. The answers to the test are left "
    "out for all: counts and histograms of scores for each prediction, of a size that depends on classes and "
    "not on the network. What `equipoise` asks for grows with the classes and the square of the features."
)
"""what the column of an evaluation counts"""


def costs() -> str:
    """What each method needs, sends and costs, from the figures that `benchmarks/methods.py --write` left."""
    found = json.loads((DOCS / "results" / "costs.json").read_text())
    rows = []
    for name in METHODS:
        if name not in found:
            rows.append((f"[`{name}`](#{address(name)})", "not measured yet", *[""] * 7))
            continue
        cost = found[name]
        time = f"{cost['time']:.2f}" + (
            f" ({cost['passes']:.2f} its passes alone)" if "passes" in cost else ""
        )
        rows.append(
            (
                f"[`{name}`](#{address(name)})",
                code(cost["statistics"]),
                "yes" if cost["private"] else "",
                str(cost["views"]),
                "yes" if cost["frozen"] else "",
                ", ".join(f"{leaf} ({kind})" for leaf, kind in cost["leaves"].items()),
                time,
                f"{cost['bytes']:.2f}",
                f"{cost['evaluation']:.2f}",
            )
        )
    heads = (
        "method",
        "further questions",
        "private state",
        "views",
        "frozen net",
        "leaves the site",
        "time ÷ FedAvg",
        "bytes ÷ FedAvg",
        "evaluation ÷ FedAvg",
    )
    settings = sorted({cost["setting"] for cost in found.values()})
    return table(heads, rows) + f"\n\nMeasured with {'; '.join(settings)}. {EVALUATED}"


def private() -> str:
    """Which methods can be trained with differential privacy, from what `benchmarks/private.py --write`
    found."""
    found = json.loads((DOCS / "results" / "private.json").read_text())
    rows = []
    for name in METHODS:
        link, facts = f"[`{name}`](methods.md#{address(name)})", dict(found.get(name, {}))
        if refused := facts.pop("refused", None):
            rows.append((link, "refused", refused.removeprefix("[privacy]: ").split(": choose")[0]))
            continue
        told = facts.get("train", "not tried yet")
        others = [
            f"`{question}` ({covered.removeprefix('no: ')})"
            for question, covered in facts.items()
            if covered.startswith("no")
        ]
        rows.append((link, "not covered" if told.startswith("no:") else told, ", ".join(others)))
    return table(("method", "training covered", "not covered by ε; or why it is refused"), rows)


def masked() -> str:
    """Which methods run with every answer masked, from the leaves that `benchmarks/methods.py` has seen."""
    found = json.loads((DOCS / "results" / "costs.json").read_text())
    rows = []
    for name in METHODS:
        link = f"[`{name}`](methods.md#{address(name)})"
        if METHODS[name].standard == "pooled":
            rows.append((link, "refused", "all images are in one place: there are no sites to mask"))
            continue
        read = [leaf for leaf, kind in found[name]["leaves"].items() if kind == "each"]
        rows.append((link, "" if read else "yes", code(read)))
    return table(("method", "fully masked", "read for every site all the same"), rows)


def masks_cost() -> str:
    """What masks cost, from what `benchmarks/secure.py --write` measured."""
    path = DOCS / "results" / "secure.json"
    if not path.exists():
        return "Not measured on this version yet."
    lines = json.loads(path.read_text()).values()
    rows = [
        (
            code([line["net"]]),
            str(line["sites"]),
            f"{line['plain_seconds']:.1f}",
            f"{line['ratio']:.2f}",
            f"{line['megabytes']:g}",
            "yes" if line["same"] else "no",
        )
        for line in lines
    ]
    heads = ("network", "sites", "plain round, s", "masked ÷ plain", "a site sends, MB", "same model")
    return table(heads, rows)


def attacks() -> str:
    """How far a curious coordinator gets, from what `python -m tests.attacks --write` found."""
    tried = json.loads((DOCS / "results" / "attacks.json").read_text())
    rows = []
    for facts in tried.values():
        for i, (protection, figure) in enumerate(facts["figures"].items()):
            rows.append(("" if i else facts["about"], protection, f"{figure:.2f}"))
    return table(("what is measured", "protection", "figure"), rows)


def hostile_sites() -> str:
    """What hostile sites do, from what `python -m tests.attacks sites IMAGES --write` found."""
    cells = json.loads((DOCS / "results" / "hostile-sites.json").read_text())["test"]
    rules = list(next(iter(cells.values())))
    rows = [(attack, *(_spread(found[rule]) for rule in rules)) for attack, found in cells.items()]
    return table(("two of ten sites", *rules), rows)


def _spread(seeds: list[float | None]) -> str:
    """Mean, smallest and largest over seeds; runs that ended are counted instead."""
    done = [value for value in seeds if value is not None]
    if len(done) < len(seeds):
        return f"{len(seeds) - len(done)} of {len(seeds)} runs ended"
    return f"{sum(done) / len(done):.1f} ({min(done):.1f}–{max(done):.1f})"


def words(tasks: Iterable[str]) -> str:
    return " or ".join({"single": "one", "multi": "several"}[task] for task in tasks)


def address(heading: str) -> str:
    """Where a heading is found within its page."""
    return re.sub(r"[^\w\- ]", "", heading.lower().replace("+", "-plus")).replace(" ", "-")


def methods() -> str:
    """Every method; a file that holds two says its part once."""
    told: dict[str, str] = {}
    parts = []
    for name, cls in METHODS.items():
        parts.append(method(name, cls, told.get(cls.__module__)))
        told.setdefault(cls.__module__, name)
    return "\n\n".join(parts)


def method(name: str, cls: type[Method], told_at: str | None) -> str:
    """All there is to know of one method; `told_at` has the text of its file already."""
    facts = describe(name)
    told = [
        ("from", facts["paper"]),
        ("labels per image", words(facts["tasks"])),
        ("views", code(cls.views)),
        ("recommends", code(facts["advice"])),
        ("leaves the site", facts["leaves"]),
        ("private tensors", code(facts["private"])),
        ("questions to a site", code(cls.questions())),
        ("is FedAvg with", _neutral(cls.neutral)),
    ]
    mark = (
        [f'<a id="{address(name)}"></a>'] if "+" in name else []
    )  # renderers differ in what they make of a plus
    parts = [
        *mark,
        f"### {name}",
        sentence(facts["about"]) + ".",
        table(("", ""), (row for row in told if row[1])),
    ]
    if cls.model_fields:
        parts.append(table(KEYS, options(cls)))
    if facts["presets"]:
        parts.append(
            table(
                ("preset", "sets"), ((f"`{key}`", settings(value)) for key, value in facts["presets"].items())
            )
        )
    if told_at:
        parts.append(f"Source, equations and choices: under `{told_at}`.")
    else:
        parts.append(
            f"<details markdown='1'><summary>Source, equations and "
            f"choices</summary>\n\n```text\n{facts['text']}\n```\n\n</details>"
        )
    return "\n\n".join(parts)


def code(items: Iterable[str]) -> str:
    return ", ".join(f"`{item}`" for item in items)


def settings(values: Mapping[str, Any]) -> str:
    return code(f"{key} = {plain(value)}" for key, value in values.items()) or "nothing: the defaults"


def _neutral(neutral: Mapping[str, Any] | None) -> str:
    return "" if not neutral else settings(neutral)


def objectives() -> str:
    rows = []
    for name, cls in OBJECTIVES.items():
        found = [row for row in options(cls) if row[0] != "`name`"]
        keys = [f"{key} ({form}; default {default}): {about}" for key, form, default, about in found]
        rows.append((f"`{name}`", words(cls.tasks), first_line(cls), "<br>".join(keys)))
    return table(("objective", "labels per image", "what it is", "keys"), rows)


def views() -> str:
    return table(("view", "what it does"), ((f"`{name}`", first_line(cls)) for name, cls in VIEWS.items()))


def nets() -> str:
    rows = (
        (f"`{name}`", arch.description, str(arch.smallest), plain(arch.dropout))
        for name, arch in NETS.items()
    )
    files = (
        (f"`{known.file}`", f"`{known.net}`", known.source, known.licence, f"`{sha}`")
        for sha, known in KNOWN.items()
    )
    return "\n\n".join([
        table(("net", "what it is", "smallest image", "dropout"), rows),
        "Weights files that need no `net.sha256`, because their hash is known:",
        table(("file", "net", "from", "licence", "sha256"), files),
    ])  # fmt: skip


def kind_names() -> str:
    rows = [(f'`data.kind = "{name}"`', first_line(cls)) for name, cls in data.KINDS.items()]
    rows += [(f'`partition.kind = "{name}"`', first_line(cls)) for name, cls in partition.KINDS.items()]
    return table(("kind", "what it is"), rows)


# Data sets --------------------------------------------------------------------------------------------------


def sets() -> str:
    rows = [
        (
            f"[`{one['name']}`](#{one['name']})",
            one["title"],
            f"{len(one['classes'])}",
            f"{one['images']:,}",
            ", ".join(one["sites"]) or "one",
            one["licence"],
            code(one["layout"]),
        )
        for one in describe_sets()
    ]
    return table(("`data.kind`", "set", "classes", "images", "sites", "licence", "the folder holds"), rows)


def layouts() -> str:
    """One part per set: what it is, its classes with their counts, where it comes from."""
    parts = []
    for one in describe_sets():
        classes = ", ".join(
            f"{name} {one['counts'][name]:,}" if name in one["counts"] else name for name in one["classes"]
        )
        sites = ", ".join(f"{name} {count:,}" for name, count in one["sites"].items())
        told = [("classes", classes), ("sites", sites), ("used by", one["papers"]), ("from", one["home"])]
        told += [("licence", one["licence"]), ("cite", one["citation"])]
        parts += [
            f"### {one['name']}",
            f"```text\n{one['text']}\n```",
            table(("", ""), (row for row in told if row[1])),
        ]
    return "\n\n".join(parts)


# Results ----------------------------------------------------------------------------------------------------


def results() -> str:
    """The tables that `benchmarks/tables.py` knows: what each is, its data and recipe, and a link once it has
    been made."""
    rows = []
    for name, one in TABLES.items():
        recipe = one.recipe
        page = DOCS / "results" / f"{name}.md"
        link = f"[{name}]({name}.md)" if page.exists() else f"{name}, not made yet"
        count = f"{len(first_table(page.read_text()))}" if page.exists() else ""
        made_of = f"[{recipe}.toml](../../recipes/{recipe}.toml)"
        rows.append((link, one.about, count, budget(one), images_of(one), made_of))
    return table(("table", "what it is", "rows", "rounds × epochs", "data", "recipe"), rows)


def recipe_of(one: Table) -> dict[str, Any]:
    """The recipe of a table with the overrides of all its rows."""
    return override(load(ROOT / "recipes" / f"{one.recipe}.toml"), one.common)


def images_of(one: Table) -> str:
    """The images of a table, their size, and how they are divided and labelled."""
    found = recipe_of(one)
    data, partition = found["data"], found.get("partition", {"kind": "column"})
    division = f"{partition.get('sites', '')} {DIVISIONS[partition['kind']]}".strip()
    facts = [data["name"].partition(",")[0], f"{data['image_size']} pixels", division]
    facts += [f"long tail {partition['long_tail']} : 1"] if "long_tail" in partition else []
    facts += [f"findings unlabelled at each: {partition['missing']}"] if "missing" in partition else []
    return "; ".join(facts)


def budget(one: Table) -> str:
    """How long every row of a table is trained, and whether its rate was chosen."""
    train = recipe_of(one)["train"]
    return f"{train['rounds']} × {train['epochs']}{'' if one.rates else ', rates not tuned'}"


def run_files() -> str:
    """The files of a run folder, as its module lists them."""
    lines = [line for line in (run_folder.__doc__ or "").splitlines() if line.startswith("|")]
    return "\n".join(lines)


def measured(*wanted: str, multi: bool = False, tuned: bool = True) -> str:
    """Columns of every table that has been made to choose a method by, side by side; `multi`: of those with
    several labels per image; `tuned`: of those whose rows chose their learning rates, without the parts of
    methods, or of the others. The first column of a table marks rows that have not converged. The table of
    every method has a place of its own."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    named = [name for name, one in TABLES.items() if one.chooses and bool(one.rates) == tuned]
    for name in [name for name in named if name != OVERVIEW]:
        path = DOCS / "results" / f"{name}.md"
        cells = first_table(path.read_text()) if path.exists() else {}
        if cells and ("S bACC" not in next(iter(cells.values()))) == multi:
            found[name] = cells
    # a table whose every figure stands in another says nothing more
    found = {
        n: t
        for n, t in found.items()
        if not any(m != n and t.items() <= other.items() for m, other in found.items())
    }
    if not found:
        return "Not measured yet."
    labels = dict.fromkeys(
        label for cells in found.values() for label in cells if not tuned or ":" not in label
    )
    columns = [(name, key) for name in found for key in wanted]
    heads = [f"{f'{key}, ' if len(wanted) > 1 else ''}[{name}](results/{name}.md)" for name, key in columns]

    def cell(label: str, name: str, key: str) -> str:
        row = found[name].get(label, {})
        unsure = key == wanted[0] and "†" in row.get("moved", "")
        return f"{row.get(key, '')} †" if unsure else row.get(key, "")

    rows = ((label, *(cell(label, name, key) for name, key in columns)) for label in labels)
    return table(("method", *heads), rows)


def every_method() -> str:
    """Every method that the overview has made, the best first."""
    path = DOCS / "results" / f"{OVERVIEW}.md"
    if not path.exists():
        return "Not measured yet."
    heads = ("A bACC", "Δ A", "G bACC", "S bACC", "G AUC", "G ACC", "G tail recall", "moved")
    methods = {label: row for label, row in first_table(path.read_text()).items() if ":" not in label}
    order = sorted(methods, key=lambda label: -float(methods[label]["A bACC"].split()[0]))
    return table(("method", *heads), ((label, *(methods[label][head] for head in heads)) for label in order))


def first_table(text: str) -> dict[str, dict[str, str]]:
    """The first table of a page: label → column → cell."""
    lines = [line for line in text.partition("\n\nRecall per class")[0].splitlines() if line.startswith("|")]
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in rows}


# Command line -----------------------------------------------------------------------------------------------


def verbs() -> str:
    """Every verb with its help, arguments and options, as the command itself knows them."""
    found = list(walk(command(), ()))
    listed = ", ".join(f"[`{' '.join(path)}`](#{address(' '.join(path))})" for path, _ in found)
    return "\n\n".join([listed + ".", *(verb(path, command) for path, command in found)])


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The verbs of a group and of the groups in it."""
    for name, inner in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
        if isinstance(inner, click.Group):
            yield from walk(inner, (*path, name))
        elif not inner.hidden:
            yield (*path, name), inner


def verb(path: tuple[str, ...], command: click.Command) -> str:
    """One verb: usage, help, and a row for every argument and option."""
    about = [sentence(part) + "." for part in (command.help or "").split("\n\n")]
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    flags = [p for p in command.params if isinstance(p, click.Option)]
    usage = " ".join(["equipoise", *path, *(p.make_metavar(click.Context(command)) for p in arguments)])
    rows = [(f"`{p.make_metavar(click.Context(command))}`", argument_help(command, p)) for p in arguments]
    rows += [(flag(p, click.Context(command)), told(p)) for p in flags if p.name != "help"]
    return "\n\n".join([f"## {' '.join(path)}", f"`{usage}`", *about, table(("", ""), rows)])


def argument_help(command: click.Command, argument: click.Argument) -> str:
    """The help of an argument, read where it is written: this typer loses it with this click."""
    assert command.callback is not None
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    return sentence(hints[str(argument.name)].__metadata__[0].help)


def flag(option: click.Option, context: click.Context) -> str:
    """`--out PATH`, with its short form."""
    value = "" if option.is_flag else f" {option.make_metavar(context).removesuffix(' RANGE')}"
    return ", ".join(f"`{name}{value}`" for name in option.opts)


def told(option: click.Option) -> str:
    """The help of an option, with its default where the help does not say it."""
    text = sentence(option.help)
    if option.required:
        text += " (required)"
    elif option.default not in (None, False, "", ()) and "[default" not in text and not option.is_flag:
        text += f" [default: {option.default}]"
    return text.strip()


# Python -----------------------------------------------------------------------------------------------------

PUBLIC: dict[str, tuple[str, ...]] = {
    "equipoise": (
        *("run", "resume", "compare", "reproduce", "inspect", "ledger", "methods"),
        *("load", "store", "frame", "Comparison", "Method", "Result"),
    ),
    "equipoise.config": ("read", "resolve"),
    "equipoise.compare": ("make_plan", "compare"),
    "equipoise.reproduce": ("find", "prepare", "reproduce"),
    "equipoise.use": ("Predictor", "evaluate", "export"),
    "equipoise.report": ("write_report",),
    "equipoise.testing": ("check_method", "method_checks"),
    "equipoise.leaves": ("Sum", "Mean", "Each"),
    "equipoise.trackers": ("Tracker", "Run", "Summary"),
}


def api() -> str:
    """The public names, by module."""
    parts = []
    for module, names in PUBLIC.items():
        things = ((name, public(module, name)) for name in names)
        parts += [
            f"**`{module}`**",
            table(("", ""), ((f"`{name}{signature(thing)}`", first_line(thing)) for name, thing in things)),
        ]
    return "\n\n".join(parts)


def public(module: str, name: str) -> Any:
    """A public name; of a verb that is a package too, the function."""
    thing = getattr(importlib.import_module(module), name)
    return getattr(verbs_of_python, name) if isinstance(thing, types.ModuleType) else thing


def signature(thing: Any) -> str:
    """The names of a function's parameters; nothing for a class."""
    if isinstance(thing, type):
        return ""
    given, star = [], False
    for name, parameter in inspect.signature(thing).parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            given.append("*")
            star = True
        usual = getattr(parameter.default, "__name__", repr(parameter.default))
        given.append(name if parameter.default is parameter.empty else f"{name}={usual}")
    return f"({', '.join(given)})"


def members(cls: type) -> str:
    """The public methods and properties that a class itself defines, in the order of its file."""
    rows = []
    for name, thing in vars(cls).items():
        if (
            name.startswith("_")
            or not (inspect.isfunction(thing) or isinstance(thing, property))
            or not thing.__doc__
        ):
            continue
        rows.append(
            (f"`{name}`" if isinstance(thing, property) else f"`{name}{signature(thing)}`", first_line(thing))
        )
    return table(("", ""), rows)


def hooks() -> str:
    """The hooks of a method: where each runs (the section of the file it stands in), and what it does where
    it is left out."""
    source, lines = inspect.getsource(Method), list[tuple[str, str, str, str]]()
    sections = [
        (source[: found.start()].count("\n") + 1, found[1])
        for found in re.finditer(r"^    # (\S.*?) -{9,}$", source, re.MULTILINE)
    ]
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not inspect.isfunction(vars(Method)[node.name]):
            continue
        where = [name for line, name in sections if line < node.lineno][-1]
        rest = node.body[1:]
        default = "as FedAvg" if rest else "nothing"
        if len(rest) == 1 and isinstance(rest[0], ast.Return) and rest[0].value is not None:
            text = ast.unparse(rest[0].value)
            default = f"`{text}`" if len(text) < 40 and "self, " not in text else default
        thing = vars(Method)[node.name]
        lines.append((f"`{node.name}{signature(thing)}`", where.lower(), first_line(thing), default))
    return table(("hook", "where", "what it gives", "left out"), lines)


# Pages ------------------------------------------------------------------------------------------------------

PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "config.md": {
        "data": data_kinds,
        "partition": lambda: kinds(partition.PartitionOptions, partition.KINDS, "partition"),
        "net": lambda: section(NetOptions, "net"),
        "train": lambda: section(TrainOptions, "train"),
        "engine": lambda: section(EngineOptions, "engine"),
        "evaluate": lambda: section(EvaluateOptions, "evaluate"),
        "exchange": lambda: section(ExchangeOptions, "exchange"),
        "privacy": lambda: section(PrivacyOptions, "privacy"),
    },
    "choosing.md": {
        "measured-single": lambda: measured("A bACC", "Δ A"),
        "measured-every": every_method,
        "measured-multi": lambda: measured("G bACC", multi=True),
        "earlier-global": lambda: measured("G bACC", tuned=False),
        "earlier-own": lambda: measured("S bACC", tuned=False),
        "earlier-multi": lambda: measured("G bACC", "G AUC", multi=True, tuned=False),
    },
    "cli.md": {"verbs": verbs},
    "exit-codes.md": {"exit-codes": exit_codes},
    "own-method.md": {"hooks": hooks},
    "privacy.md": {
        "private": private,
        "masked": masked,
        "masks-cost": masks_cost,
        "attacks": attacks,
        "hostile-sites": hostile_sites,
    },
    "python.md": {
        "api": api,
        "comparison": lambda: members(verbs_of_python.Comparison),
        "loc": lambda: members(Loc),
    },
    "data.md": {"sets": sets, "layouts": layouts},
    "methods.md": {
        "overview": overview,
        "costs": costs,
        "methods": methods,
        "objectives": objectives,
        "views": views,
        "nets": nets,
        "kinds": kind_names,
    },
    "run-folder.md": {"files": run_files},
    "results/README.md": {"results": results},
}


PICTURES: dict[str, Callable[[], str]] = {"choosing.svg": picture}
"""files that are generated as a whole"""


def fill(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """The page with every generated part made anew."""
    missing = set(parts) - {name for _, name, _ in PART.findall(text)}
    if missing:
        raise SystemExit(
            f"no place for '{min(missing)}': the page needs <!-- generated: {min(missing)} --> and <!-- "
            f"end -->"
        )
    return PART.sub(lambda found: f"{found[1]}{parts[found[2]]()}\n{found[3]}", text)


def stale(folder: Path = DOCS) -> dict[Path, str]:
    """The pages that are not as the code would have them, with the text they should have."""
    pages = {folder / name: (folder / name).read_text() for name in PAGES}
    wanted = {
        path: fill(text, PAGES[str(path.relative_to(folder).as_posix())]) for path, text in pages.items()
    }
    for name, draw in PICTURES.items():
        path = folder / name
        pages[path], wanted[path] = path.read_text() if path.exists() else "", draw()
    return {path: text for path, text in wanted.items() if text != pages[path]}


def main(folder: Path = DOCS) -> None:
    """Rewrite or check the pages in a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is stale")
    check = parser.parse_args().check
    found = stale(folder)
    for path, text in found.items():
        if not check:
            path.write_text(text)
        print(
            f"docs/{path.relative_to(folder).as_posix()} "
            f"{'is stale: run python docs/generate.py' if check else 'rewritten'}"
        )
    sys.exit(1 if check and found else 0)


if __name__ == "__main__":
    main()

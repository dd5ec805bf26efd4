"""What there is to know of a method or a data set without running or reading it."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from equipoise.config import recommended, spelt
from equipoise.data.sets import SETS
from equipoise.methods import METHODS, Method, find
from equipoise.options import described

LABELS = {"single": "one label per image", "multi": "several labels per image"}


def describe_all() -> list[dict[str, Any]]:
    """All methods that come with Equipoise."""
    return [describe(name) for name in METHODS]


def advice(method: type[Method]) -> list[str]:
    """What a method recommends for [train], as the config has it; and for which labels, where not for all."""
    lines = []
    for key, value in method.recommends.items():
        fits = [task for task in method.tasks if key in recommended(method, multi=task == "multi")]
        remarks = [] if len(fits) == len(method.tasks) else [LABELS[task] for task in fits]
        if fits:
            lines.append("  # ".join([f"train.{key} = {spelt(key, value)}", *remarks]))
    return lines


def describe(name: str) -> dict[str, Any]:
    """One method, by name or as FILE.py:Class."""
    method = find(name, Path.cwd())
    texts = described(method)
    return {
        "name": name,
        "about": inspect.cleandoc(method.__doc__ or "").split("\n\n")[0],
        "paper": method.paper,
        "tasks": list(method.tasks),
        "leaves": _leaves(method),
        "private": list(method.private),
        "recommends": method.recommends,
        "advice": advice(method),
        "fields": [
            {
                "name": key,
                "default": field.get_default(),
                "type": _type_name(field.annotation),
                "about": texts[key],
            }
            for key, field in method.model_fields.items()
        ],
        "presets": method.presets,
        "text": inspect.cleandoc(sys.modules[method.__module__].__doc__ or ""),
    }


def describe_sets() -> list[dict[str, Any]]:
    """All published data sets that can be read by name."""
    return [
        {
            "name": name,
            "title": options.facts.title,
            "about": inspect.cleandoc(options.__doc__ or "").split("\n\n")[0],
            "classes": list(options.facts.classes),
            "images": options.facts.counts.images,
            "counts": dict(options.facts.counts.classes),
            "sites": dict(options.facts.counts.sites),
            "licence": options.facts.licence,
            "citation": options.facts.citation,
            "papers": options.facts.papers,
            "home": options.facts.home,
            "layout": list(options.facts.layout),
            "text": inspect.cleandoc(sys.modules[options.__module__].__doc__ or ""),
        }
        for name, options in SETS.items()
    ]


def _leaves(method: type[Method]) -> str:
    """The words after 'Leaves the site:' in the method's file."""
    text = " ".join((sys.modules[method.__module__].__doc__ or "").split())
    match = re.search(r"Leaves the site: (.*?)\.?(?: Stays:|$)", text)
    return match.group(1) if match else ""


def _type_name(annotation: Any) -> str:
    """int, float | None, 'a' | 'b': as a reader would write it."""
    if getattr(annotation, "__origin__", None) is not None:
        arguments = annotation.__args__
        if all(isinstance(value, str) for value in arguments):
            return " | ".join(repr(value) for value in arguments)
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")

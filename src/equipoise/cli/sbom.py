"""A software bill of materials: every package this installation runs on, as CycloneDX 1.5 JSON.

Made from what is installed, not from what was required, so it holds for this machine and no other.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

ROOT = "equipoise"


def bill() -> dict[str, Any]:
    """Equipoise, and below it every installed package it needs, directly or through another."""
    packages = _needed(ROOT)
    root = packages.pop(ROOT)
    content = sorted(f"{name} {one.version}" for name, one in packages.items())
    serial = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join([root.version, *content]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": _component(ROOT, root) | {"type": "application"}},
        "components": [_component(name, one) for name, one in sorted(packages.items())],
        "dependencies": [
            {
                "ref": _ref(name, one),
                "dependsOn": [_ref(need, packages[need]) for need in _needs(one) if need in packages],
            }
            for name, one in sorted({ROOT: root, **packages}.items())
        ],
    }


def _needed(root: str) -> dict[str, Distribution]:
    """By normalised name: the package and all it needs that is installed; an extra that is not installed is
    not in use."""
    packages: dict[str, Distribution] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in packages:
            continue
        try:
            packages[name] = distribution(name)
        except PackageNotFoundError:
            continue
        waiting += _needs(packages[name])
    return packages


def _needs(one: Distribution) -> list[str]:
    """Normalised names of all packages this one may need, each once."""
    names = (re.split(r"[^A-Za-z0-9._-]", text.strip(), maxsplit=1)[0] for text in one.requires or ())
    return sorted({re.sub(r"[-_.]+", "-", name).lower() for name in names})


def _ref(name: str, one: Distribution) -> str:
    return f"pkg:pypi/{name}@{one.version}"


def _component(name: str, one: Distribution) -> dict[str, Any]:
    licence = _field(one, "License-Expression") or _classified(one) or _field(one, "License")
    ref = _ref(name, one)
    component: dict[str, Any] = {"type": "library", "bom-ref": ref, "name": one.metadata["Name"]}
    component |= {"version": one.version, "purl": ref}
    if licence:
        component["licenses"] = [{"license": {"name": licence.splitlines()[0][:80]}}]
    record = one.read_text("RECORD")
    if record:  # the list of the package's files, each with its own hash
        digest = hashlib.sha256(record.encode()).hexdigest()
        component["properties"] = [{"name": "record:sha256", "value": digest}]
    return component


def _field(one: Distribution, name: str) -> str:
    result: str = (one.metadata.get_all(name) or [""])[0]
    return result


def _classified(one: Distribution) -> str:
    classifiers = one.metadata.get_all("Classifier") or ()
    names = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License ::")]
    return ", ".join(names)

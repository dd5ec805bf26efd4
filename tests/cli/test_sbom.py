"""`equipoise version --sbom` names what is installed here, and the container's lock file agrees with the
tested set."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from equipoise.cli import main

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"(?P<name>[a-z0-9.-]+)==(?P<version>\S+) --hash=sha256:[0-9a-f]{64}")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_bill_names_every_package_with_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["version", "--sbom"])
    assert not end.value.code
    bill = json.loads(capsys.readouterr().out)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    found = {normal(one["name"]): one["version"] for one in bill["components"]}
    for name in ("torch", "numpy", "pydantic", "pydantic-core", "safetensors", "markupsafe"):
        assert found[name] == version(name), name  # the last two only because others need them
    assert bill["metadata"]["component"]["name"] == "equipoise"
    known = {one["bom-ref"] for one in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {ref for row in bill["dependencies"] for ref in (row["ref"], *row["dependsOn"])} <= known


def test_the_lock_file_has_a_hash_per_package_and_the_tested_versions() -> None:
    lines = [
        line
        for line in (ROOT / "deploy/requirements.lock").read_text().splitlines()
        if not line.startswith("#")
    ]
    found = {match["name"]: match["version"] for line in lines if (match := LINE.fullmatch(line))}
    assert len(found) == len(lines), "a line without a version or a hash"
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    tested = {normal(name): number.partition(";")[0].strip() for name, number in pinned.items()}
    differ = {
        name for name, number in found.items() if name in tested and number.partition("+")[0] != tested[name]
    }
    assert not differ, "run `python deploy/lock.py`"
    assert {"torch", "flwr", "cryptography", "hatchling"} <= set(found)


def test_nothing_enters_the_build_context_by_default() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "**"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert allowed == {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/equipoise",
        "recipes",
        "deploy/requirements.lock",
        "deploy/wheels",
    }
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "deploy/Dockerfile").read_text(), re.M)
    assert {word.rstrip("*") for line in copied for word in line.split()} <= allowed | {"src"}

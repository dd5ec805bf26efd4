"""kill -9 at random moments, then resume: is the result the undisturbed one, bit for bit?

    python benchmarks/kill.py [--times 50] [--method fca] [--engine serial]

Each time a fresh run in a fresh folder (and a fresh image cache) is killed at a moment drawn uniformly over
the undisturbed run's duration, start-up included, and then gone on with to the end. Prints a row per kill;
ends with 1 if any result differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import tomli_w

from equipoise.keeping import CHAIN
from equipoise.running import resume, run
from equipoise.seeds import numpy_generator

CHILD = "import sys; from equipoise.running import run; run(sys.argv[1], sys.argv[2])"


def table(method: str, engine: str, rounds: int) -> dict[str, Any]:
    """A run of a few seconds."""
    return {
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
        "method": {"name": method},
        "train": {"rounds": rounds, "batch_size": 8},
        "engine": {"kind": engine, "device": "cpu"},
    }


def start(config: Path, folder: Path) -> subprocess.Popen[bytes]:
    """The run in a process of its own."""
    environment = os.environ | {"EQUIPOISE_CACHE": str(folder.with_suffix(".cache")), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", CHILD, str(config), str(folder)], env=environment)


def finish(config: Path, folder: Path) -> None:
    """Go on with the run here, as `equipoise resume` does; one killed before it had a folder is begun."""
    os.environ["EQUIPOISE_CACHE"] = str(folder.with_suffix(".cache"))
    if (folder / "config.toml").exists():
        resume(folder)
    else:
        run(config, folder)


def outcome(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """What must be the same: the state's hash and every metrics row (bytes are counted per attempt, so they
    are left out)."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "result.json").read_text())["state_hash"], [
        {key: value for key, value in row.items() if not key.startswith("bytes_") and key not in CHAIN}
        for row in rows
    ]


def committed(folder: Path) -> str:
    """How far the killed run had come."""
    head = folder / "checkpoints" / "HEAD.json"
    if (folder / "result.json").exists():
        return "done"
    return f"round {json.loads(head.read_text())['round']}" if head.exists() else "start-up"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--method", default="fca")
    parser.add_argument("--engine", choices=("serial", "pool"), default="serial")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = numpy_generator(given.seed, "kill")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        config = root / "config.toml"
        config.write_text(tomli_w.dumps(table(given.method, given.engine, given.rounds)))
        begin = time.perf_counter()
        if start(config, root / "straight").wait():
            print("the undisturbed run failed")
            return 1
        duration = time.perf_counter() - begin
        expected = outcome(root / "straight")
        print(f"{given.method}, {given.engine}: undisturbed {duration:.1f} s, state {expected[0][:12]}")
        print(f"{'kill':>4}  {'after':>7}  {'died in':<9}  {'resumed':>8}  same")
        wrong, stages = 0, Counter[str]()
        while stages.total() < given.times:
            folder = root / f"run-{stages.total()}"
            moment = float(draw.uniform(0, duration))
            child = start(config, folder)
            try:
                child.wait(timeout=moment)
                shutil.rmtree(folder)
                continue  # over before the kill came: draw another moment
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            reached, begin = committed(folder), time.perf_counter()
            finish(config, folder)
            same = outcome(folder) == expected
            wrong += not same
            stages["in a round" if reached.startswith("round") else reached] += 1
            took = time.perf_counter() - begin
            print(
                f"{stages.total():4}  {moment:5.2f} s  {reached:<9}  {took:6.2f} s  "
                f"{'yes' if same else 'NO'}",
                flush=True,
            )
    where = ", ".join(f"{count} {stage}" for stage, count in sorted(stages.items()))
    print(f"{given.times - wrong} of {given.times} the same after a kill and a resume ({where})")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

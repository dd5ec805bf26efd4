"""Every verb, for people and with --json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import doctored

import equipoise
from equipoise.cli import demo
from equipoise.methods import METHODS

SITES = {"bcn", "vidir_molemax", "vidir_modern", "rosendahl", "msk4", "vienna_dias"}


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    source = str(Path(equipoise.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from equipoise.cli import main
try:
    main(["--help"])
except SystemExit as ended:
    heavy = [name for name in ("torch", "numpy", "pydantic", "monai", "jinja2") if name in sys.modules]
    print("ended", ended.code, heavy)
"""
    text = python(code)
    assert "ended 0 []" in text
    for verb in (
        "demo",
        "run",
        "resume",
        "check",
        "methods",
        "ledger",
        "compare",
        "report",
        "data",
        "version",
    ):
        assert f" {verb} " in text


def test_help_tells_what_arguments_are(cli) -> None:
    assert "The config of the run." in cli("check", "--help").out


def test_version(cli) -> None:
    done = cli("version")
    assert done.code == 0
    assert f"equipoise {equipoise.__version__}" in done.out
    assert json.loads(cli("version", "--json").out)["equipoise"] == equipoise.__version__


def test_run_writes_a_report_and_prints_the_same_result_again(cli, tiny) -> None:
    done = cli("run", tiny)
    assert done.code == 0
    folder = Path("runs/tiny-fedavg-0")
    assert f"{folder}/report.html" in done.out
    assert (folder / "report.html").is_file()
    assert "VASC" in done.out and "balanced accuracy" in done.out
    assert "round 1/2" in done.err and "round 2/2" in done.err
    told = cli("resume", folder, "--json")
    assert told.err == ""
    facts = json.loads(told.out)
    assert facts["state_hash"] in done.out
    kept = doctored.table(folder / "result.json")
    assert facts == {key: kept[key] for key in facts if key != "report"} | {"report": f"{folder}/report.html"}
    assert kept.keys() - facts.keys() == {"metrics_hash", "journal_hash"}


def test_run_takes_overrides_and_is_quiet_when_asked(cli, tiny) -> None:
    done = cli(
        "run", tiny, "method.name=fedprox", "method.mu=0.5", "train.seed=3", "train.rounds=1", "--quiet"
    )
    assert (done.code, done.err) == (0, "")
    config = Path("runs/tiny-fedprox-3/config.toml").read_text()
    assert "mu = 0.5" in config and "rounds = 1" in config


def test_a_run_says_what_its_method_would_have_otherwise(cli, tiny) -> None:
    said = cli("run", tiny, "method.name=fca", "train.objective=focal", "train.rounds=0", "--out", "said")
    line = 'fca: objective = "focal" as the config says; the method recommends "balanced_softmax"'
    assert said.code == 0 and said.err.splitlines().count(line) == 1
    checked = cli("check", tiny, "method.name=fca", "train.objective=focal")
    assert line in checked.out
    assert "recommends" not in cli("run", tiny, "method.name=fca", "train.rounds=0", "--out", "silent").err


def test_a_run_of_no_rounds_has_a_page(cli, tiny) -> None:
    done = cli("run", tiny, "train.rounds=0", "--out", "none")
    assert done.code == 0
    assert "No round was evaluated" in Path("none/report.html").read_text()


def test_check_trains_nothing(cli, tiny) -> None:
    done = cli("check", tiny)
    assert done.code == 0
    for thing in ("config", "data", "sites", "net", "method", "exchange"):
        assert f"✓ {thing}" in done.out
    facts = json.loads(cli("check", tiny, "--json").out)
    assert facts["ok"] is True
    assert facts["checked"]["sites"].startswith("6 sites")
    assert sorted(path.name for path in Path().iterdir()) == ["tiny.toml"]


MINE = """
from typing import Any, ClassVar
from equipoise.methods.fedavg import FedAvg

class Mine(FedAvg):
    "Recommends two things."
    recommends: ClassVar[dict[str, Any]] = {
        "objective": {"name": "balanced_softmax"}, "persist_optimizer": True
    }

class Single(FedAvg):
    "Recommends an objective for labels that it does not take."
    tasks: ClassVar[tuple[str, ...]] = ("single",)
    recommends: ClassVar[dict[str, Any]] = {"objective": {"name": "bce"}}
"""


def test_methods_lists_all_and_one(cli) -> None:
    done = cli("methods")
    assert done.code == 0
    assert "Wicaksana et al. 2023" in done.out
    rows = {row["name"]: row for row in json.loads(cli("methods", "--json").out)}
    assert set(rows) == set(METHODS)
    assert all(row["leaves"] and row["paper"] and row["about"] for row in rows.values())
    assert rows["fca"]["private"] == ["head.own.*"]
    assert rows["fedavg"]["leaves"] == "delta (mean), loss (mean)"
    assert rows["fednoro"]["advice"] == ['train.objective = "bce"  # several labels per image']
    assert rows["fca"]["advice"] == ['train.objective = "balanced_softmax"', "train.persist_optimizer = true"]


def test_each_recommendation_is_a_line_that_can_be_pasted(cli) -> None:
    """A remark ends its line; an objective for labels that the method does not take is no advice."""
    Path("mine.py").write_text(MINE)
    shown = [line for line in cli("methods", "mine.py:Mine").out.splitlines() if "recommends" in line]
    assert shown == [
        'recommends: train.objective = "balanced_softmax"  # one label per image',
        "recommends: train.persist_optimizer = true",
    ]
    assert json.loads(cli("methods", "mine.py:Single", "--json").out)["advice"] == []


def test_one_method_shows_fields_and_presets(cli) -> None:
    done = cli("methods", "fca")
    assert "weight of the personal head's loss" in done.out
    assert "'personal' | 'federated' | 'mutual'" in done.out
    assert "federated-guides-personal" in done.out
    one = json.loads(cli("methods", "fca", "--json").out)
    fields = {field["name"]: field for field in one["fields"]}
    assert fields["lambda_own"] == {
        "name": "lambda_own",
        "default": 3.0,
        "type": "float",
        "about": "weight of the personal head's loss",
    }
    assert cli("methods", "fcaa").code == 2


def test_ledger_shows_what_leaves_and_its_size(cli, tiny) -> None:
    done = cli("ledger", tiny)
    assert done.code == 0
    assert "coordinator: keeps the weighted mean" in done.out
    facts = json.loads(cli("ledger", tiny, "--json").out)
    leaves = {(row["question"], row["leaf"]): row for row in facts["leaves"]}
    assert set(leaves) == {("train", "delta"), ("train", "loss"), ("evaluate", "scores")}
    up = {row["question"]: row["up_bytes"] for row in facts["questions"]}
    assert up["train"] == leaves["train", "delta"]["bytes"] + leaves["train", "loss"]["bytes"]
    assert leaves["train", "loss"]["bytes"] == 16  # a float64 and its weight
    assert leaves["evaluate", "scores"]["varies"] is True


def test_data_inspect_counts_every_image(cli, tiny) -> None:
    done = cli("data", "inspect", tiny)
    assert done.code == 0
    assert "vienna_dias" in done.out and os.environ["EQUIPOISE_CACHE"] in done.out
    facts = json.loads(cli("data", "inspect", tiny, "--json").out)
    assert set(facts["sites"]) == SITES
    images = sum(site[split]["images"] for site in facts["sites"].values() for split in facts["splits"])
    assert images == facts["images"]
    assert all(
        sum(part["counts"]) == part["images"] for site in facts["sites"].values() for part in site.values()
    )
    assert facts["imbalance"] == max(facts["train"]) / min(facts["train"])
    assert facts["skipped"] == []


def test_data_inspect_lists_skipped_rows(cli, tmp_path) -> None:
    from PIL import Image

    rows = ["file,label"]
    for i in range(12):
        Image.new("RGB", (16, 16), (20 * i, 0, 0)).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{'ab'[i % 2]}")
    (tmp_path / "table.csv").write_text("\n".join([*rows, "gone.png,a"]) + "\n")
    (tmp_path / "mine.toml").write_text(
        '[data]\nkind = "csv"\npath = "table.csv"\nlabel = "label"\nbad_rows = "skip"\nimage_size = 16\n'
        '[partition]\nkind = "iid"\nsites = 2\n'
    )
    done = cli("data", "inspect", "mine.toml")
    assert done.code == 0
    assert "skipped    1 bad rows" in done.out and "gone.png" in done.out


MESSY = """\
file,label,centre,patient
0.png,mel,north,p0
1.png,MEL,NORTH,p0
2.png,NaN,north,p2
3.png,mel,south,p3
4.png,nv,south,p4
5.png,nv,north,p5
6.png,nv,north,p6
7.png,mel,north,p7
"""


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    """A hospital's table that can be read and should not be trained on as it is; image 7 is a copy of 6."""
    from PIL import Image

    for i in range(7):
        Image.effect_noise((16, 16), 60 + i).save(tmp_path / f"{i}.png")
    (tmp_path / "7.png").write_bytes((tmp_path / "6.png").read_bytes())
    (tmp_path / "table.csv").write_text(MESSY)
    path = tmp_path / "mine.toml"
    path.write_text(
        '[data]\nkind = "csv"\npath = "table.csv"\nlabel = "label"\nsite = "centre"\ngroup = "patient"\n'
        'image_size = 16\n[partition]\nkind = "iid"\nsites = 1\n[train]\nbatch_size = 2\n'
    )
    return path


def test_doubts_about_data_are_not_ticked(cli, messy) -> None:
    words = (
        "class 'NaN' (1 row: '2.png') is a word for a missing value",
        "class 'MEL' (1 row: '1.png') and class 'mel' (3 rows: '0.png', '3.png', '7.png') differ only",
        "site 'NORTH' (1 row: '1.png') and site 'north' (5 rows: ",
        "1 patient or group is at several sites ('p0' at north, NORTH)",
        "no image for test is of class",
        "'6.png' (nv) and '7.png' (mel)",
    )
    done = cli("check", messy)
    assert done.code == 0 and "the run can start, but see the warnings (" in done.out
    told = json.loads(cli("check", messy, "--json").out)
    inspected = json.loads(cli("data", "inspect", messy, "--json").out)
    assert told["ok"] is True and told["warnings"] == inspected["warnings"]
    shown = cli("data", "inspect", messy).out
    for text in words:
        assert any(text in one for one in told["warnings"])
        for out in (done.out, shown):
            (line,) = [line for line in out.splitlines() if text in line]
            assert line.startswith("! ") and "✓" not in line


def test_check_refuses_data_that_cannot_be_judged(cli, tiny, messy) -> None:
    done = cli("check", messy, "data.split.test=0")
    assert done.code == 3 and "no image is for testing" in done.err and "data.split.test" in done.err
    done = cli("check", messy, "data.split.validation=0", "evaluate.select=best_validation")
    assert done.code == 3 and "no image is for validation" in done.err
    assert cli("ledger", messy, "data.split.test=0").code == 0


def test_training_images_alone_get_a_test_set(cli, tmp_path) -> None:
    import numpy as np

    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (40, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", train_images=images, train_labels=np.arange(40)[:, None] % 2)
    (tmp_path / "x.toml").write_text(
        '[data]\nkind = "npz"\npath = "x.npz"\nimage_size = 16\nsplit = { test = 0.25, validation = 0.1 }\n'
        '[partition]\nkind = "iid"\nsites = 1\n[train]\nrounds = 1\nbatch_size = 8\n'
    )
    assert cli("check", "x.toml").code == 0
    facts = json.loads(cli("data", "inspect", "x.toml", "--json").out)
    assert [facts["sites"]["site-00"][split]["images"] for split in facts["splits"]] == [26, 4, 10]
    assert cli("run", "x.toml", "--quiet").code == 0


def test_inspect_shows_the_range_and_a_contact_sheet(cli, messy) -> None:
    from PIL import Image

    done = cli("data", "inspect", messy, "--contact-sheet", "sheet.png")
    assert done.code == 0 and "pictures   sheet.png" in done.out
    with Image.open("sheet.png") as sheet:
        assert sheet.size == (820, 376)  # five of 160 pixels and a gap, two rows with captions
    facts = json.loads(cli("data", "inspect", messy, "--json").out)
    pixels = facts["pixels"]
    assert pixels.keys() == {"lowest", "highest", "mean", "dark", "flat"} and facts["contact_sheet"] is None
    assert f"pixels     {pixels['lowest']} to {pixels['highest']} of 0 to 255, mean " in done.out
    assert cli("data", "inspect", messy, "--contact-sheet", "sheet.gif").code == 2


def test_data_check_sends_a_config_to_check(cli, messy) -> None:
    done = cli("data", "check", messy, ".")
    assert done.code == 2 and f"equipoise check {messy}" in done.err


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    budget: dict[str, Any] = {
        "data": {"scale": 0.004, "image_size": 16},
        "partition": {"kind": "iid", "sites": 2},
        "train": {"rounds": 1},
    }
    monkeypatch.setattr(demo, "BUDGET", budget)


@pytest.mark.slow
@pytest.mark.usefixtures("small_demo")
def test_demo_compares_five_methods_and_says_how_sure_it_is(cli) -> None:
    done = cli("demo", "--workers", 1)
    assert done.code == 0
    for title in ("Local", "FedAvg", "FedAvg + balanced softmax", "FCA", "Equipoise"):
        assert f" {title} " in done.out
    assert "runs/demo/report.html" in done.out
    page = Path("runs/demo/report.html").read_text()
    assert 'href="FCA/0/report.html"' in page and "5 methods" in page
    assert Path("runs/demo/FCA/0/report.html").is_file() and Path("runs/demo/comparison.json").is_file()
    again = json.loads(cli("demo", "--workers", 1, "--json").out)  # finished runs are read, not repeated
    assert again["report"] == "runs/demo/report.html"
    figures = {"generalisation", "specialisation", "average", "tail", "macro_auc"}
    assert all(set(row) == {"method"} | figures for row in again["rows"])
    lead, rows = again["lead"], {row["method"]: row["generalisation"] for row in again["rows"]}
    assert lead["difference"] == pytest.approx(rows["Equipoise"] - rows["FedAvg"])
    assert lead["interval"][0] <= lead["difference"] <= lead["interval"][1] and lead["images"] == 39
    assert "when the 39 test images are drawn anew" in " ".join(done.out.split())


@pytest.mark.usefixtures("small_demo")
def test_demo_leaves_another_demo_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert demo.choose_folder(None) == Path("runs/demo")
    other = Path("runs/demo/Local/0")
    other.mkdir(parents=True)
    (other / "config.toml").write_text('[method]\nname = "local"\n')
    assert demo.choose_folder(None) == Path("runs/demo-2")
    (other / "config.toml").write_text("not toml")
    assert demo.choose_folder(None) == Path("runs/demo-2")
    assert demo.choose_folder(Path("mine")) == Path("mine")

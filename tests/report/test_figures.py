"""The figures of real runs: their numbers against the run's own files, scikit-learn, and loops."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix
from tests import doctored

from equipoise import run
from equipoise.evaluate.scores import Scores, write_scores
from equipoise.keeping import append_line
from equipoise.report.card import model_card
from equipoise.report.decisions import decisions
from equipoise.report.figures import ARMS, Figure, comparison_figures, run_figures, site_gains
from equipoise.report.folder import Run, read_run
from equipoise.report.sites import notes

DATA = {"kind": "phantom", "scale": 0.004, "image_size": 16}
SITES = {"kind": "iid", "sites": 3}
ENGINE = {"kind": "serial", "device": "cpu"}
TRAIN = {"rounds": 2, "batch_size": 16, "lr": 0.003}
TABLES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": {"name": "fedavg"}},
    "fedavg 1": {"method": {"name": "fedavg"}, "train": {"seed": 1}},
    "counted": {"method": {"name": "fedavg"}, "evaluate": {"exact": False}},
    "local": {"method": {"name": "local"}},
    "local 1": {"method": {"name": "local"}, "train": {"seed": 1}},
    "fedmas": {"method": {"name": "fedmas", "target": "small-cnn"}},
    "fedmlp": {
        "method": {"name": "fedmlp", "warmup": 1},
        "data": {"task": "multi"},
        "partition": {"kind": "iid", "sites": 4, "missing": 6},
    },
}
EVIL = "</title><script>alert(1)</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    for name, table in TABLES.items():
        given = {"data": {**DATA, **table.get("data", {})}, "train": {**TRAIN, **table.get("train", {})}}
        run({"partition": SITES, **table, **given, "engine": ENGINE}, folder / name)
    return {name: read_run(folder / name) for name in TABLES}


@pytest.fixture(scope="module")
def drawn(runs: dict[str, Run]) -> dict[str, dict[str, Figure]]:
    return {name: {figure.key: figure for figure in run_figures(one)} for name, one in runs.items()}


@pytest.fixture(scope="module")
def compared(runs: dict[str, Run]) -> dict[str, Figure]:
    arms = [("FedAvg", [runs["fedavg"], runs["fedavg 1"]]), ("Local", [runs["local"], runs["local 1"]])]
    return {figure.key: figure for figure in comparison_figures(arms)}


def columns(figure: Figure) -> dict[str, list[Any]]:
    return {head: [row[i] for row in figure.rows] for i, head in enumerate(figure.columns)}


# All of them ------------------------------------------------------------------------------------------------


def test_every_run_has_the_figures_it_has_data_for(drawn) -> None:
    common = {
        "distribution",
        "convergence",
        "loss",
        "recall",
        "confusion",
        "reliability",
        "ledger",
        "time",
        "bytes",
    }
    assert set(drawn["fedavg"]) == set(drawn["counted"]) == common | {"contribution", "features"}
    assert set(drawn["local"]) == common  # no global model, nothing is aggregated
    assert set(drawn["fedmas"]) == common | {"contribution", "rescue", "features"}
    assert set(drawn["fedmlp"]) == common | {"contribution", "features"}


def test_a_comparison_has_its_figures(compared) -> None:
    assert list(compared) == [
        "distribution",
        "convergence-generalisation",
        "convergence-specialisation",
        "recall",
        "gain-local",
        "gain-fedavg",
        "time",
        "bytes",
    ]


def test_every_figure_is_whole_accessible_and_has_its_numbers_as_a_table(drawn, compared) -> None:
    for figure in [*compared.values(), *(figure for one in drawn.values() for figure in one.values())]:
        root = ElementTree.fromstring(figure.svg)
        assert root.attrib["role"] == "img" and root.attrib["viewBox"].startswith("0 0 400 ")
        assert root[0].tag == "title" and root[0].text and root[1].tag == "desc" and root[1].text
        assert any(one.find("title") is not None for one in root)  # marks that answer the pointer
        assert figure.caption.endswith(".") and figure.title[0].isupper()
        assert figure.rows and {len(row) for row in figure.rows} == {len(figure.columns)}


def test_a_run_that_was_never_tested_shows_what_there_is(runs) -> None:
    bare = [
        {key: row[key] for key in ("round", "sites", "bytes_up", "bytes_down")}
        for row in runs["fedavg"].history
    ]
    untested = replace(
        runs["local"], result={"selected_rounds": [], "metrics": {}, "state_hash": None}, history=bare
    )
    assert {figure.key for figure in run_figures(untested)} == {"distribution", "ledger", "time", "bytes"}
    begun = replace(untested, history=[], ledger=[])
    assert [figure.key for figure in run_figures(begun)] == ["distribution"]
    assert "recall" not in {figure.key for figure in comparison_figures([("a", [untested])])}
    assert comparison_figures([]) == comparison_figures([("a", [])]) == []


def test_hostile_names_are_text(runs) -> None:
    one = runs["fedavg"]
    text = json.dumps({"data": one.data, "result": one.result, "history": one.history})
    evil = json.loads(text.replace('"site-00"', json.dumps(EVIL)).replace('"NV"', json.dumps(EVIL)))
    hostile = replace(one, **evil)
    for figure in [
        *run_figures(hostile),
        *comparison_figures([(EVIL, [hostile]), ("Local", [runs["local"]])]),
    ]:
        ElementTree.fromstring(figure.svg)
        assert "<script" not in figure.svg
        assert figure.key not in ("distribution", "recall", "confusion") or EVIL in str(figure.rows)


def test_a_long_run_has_a_picture_and_no_table(runs) -> None:
    row = runs["fedavg"].history[-1]
    long = replace(runs["fedavg"], history=[{**row, "round": i} for i in range(1, 102)])
    found = {figure.key: figure for figure in run_figures(long)}
    assert found["convergence"].svg and found["convergence"].columns == found["convergence"].rows == ()


# Who holds what ---------------------------------------------------------------------------------------------


def test_the_distribution_is_the_census(runs, drawn) -> None:
    data, figure = runs["fedavg"].data, drawn["fedavg"]["distribution"]
    assert figure.columns == ("class", *data["sites"])
    assert [row[0] for row in figure.rows] == sorted(
        data["classes"], key=lambda c: -data["train"][data["classes"].index(c)]
    )
    for name, *counts in figure.rows:
        i = data["classes"].index(name)
        assert counts == [site["train"]["counts"][i] for site in data["sites"].values()]
        assert f"<title>site-00: {counts[0]:,} {name}</title>" in figure.svg


def test_a_class_a_site_does_not_label_is_a_cross(runs, drawn) -> None:
    data, figure = runs["fedmlp"].data, drawn["fedmlp"]["distribution"]
    assert all(sum(site["labelled"]) == 2 for site in data["sites"].values())
    crosses = sum(cell is None for row in figure.rows for cell in row)
    assert crosses == 4 * 6 and figure.svg.count(" does not label ") == 2 * 4 * 6  # marks, and the words
    for name, *counts in figure.rows:
        i = data["classes"].index(name)
        assert [n is not None for n in counts] == [site["labelled"][i] for site in data["sites"].values()]


# Over rounds ------------------------------------------------------------------------------------------------


def test_one_run_over_rounds(runs, drawn) -> None:
    for key, split, view in (
        ("test, global", "test", "generalisation"),
        ("test, own", "test", "specialisation"),
    ):
        wanted = [100 * row[split][view]["balanced_accuracy"] for row in runs["fedavg"].history]
        assert columns(drawn["fedavg"]["convergence"])[f"{key}, %"] == pytest.approx(wanted, rel=1e-3)
    wanted = [row["train.loss"] for row in runs["fedavg"].history]
    assert columns(drawn["fedavg"]["loss"])["train: loss"] == pytest.approx(wanted, rel=1e-3)


def test_a_methods_ending_is_not_drawn_as_a_round(runs, tmp_path: Path) -> None:
    method = {"name": "fedbabu", "tune_epochs": 1}
    table = {"data": DATA, "partition": SITES, "train": TRAIN, "engine": ENGINE, "method": method}
    result = run({**table, "evaluate": {"select": "best_validation"}}, tmp_path)
    one, (ended,) = read_run(tmp_path), [row for row in result.history if "ending_of" in row]
    assert [row["round"] for row in one.rounds] == [1, 2] and one.endings == [ended] and one.done == 2
    found = {figure.key: figure for figure in run_figures(one)}
    convergence = columns(found["convergence"])
    rows = [*one.rounds, ended]
    for view, key in (("generalisation", "test, global"), ("specialisation", "test, own")):
        told = [float(f"{100 * row['test'][view]['balanced_accuracy']:.4g}") for row in rows]
        assert convergence[f"{key}, %"] == [*told[:2], None]
        assert convergence[f"{key}, after the ending, %"] == [None, None, told[2]]
    loss = columns(found["loss"])
    assert loss["train: loss"][2] is None and loss["tune: loss, after the ending"][:2] == [None, None]
    for key in ("convergence", "loss", "time", "bytes"):
        assert "what the method trains once the rounds are over" in found[key].caption
    both = {
        figure.key: figure
        for figure in comparison_figures([("FedBABU", [one]), ("FedAvg", [runs["fedavg"]])])
    }
    heads = both["convergence-specialisation"].columns
    assert heads == ("round", "FedBABU, %", "FedAvg, %", "FedBABU, after the ending, %")
    assert "once the rounds are over" in both["convergence-specialisation"].caption
    (spent,) = (row[1] for row in both["time"].rows if row[0] == "FedBABU")
    seconds = [json.loads(line) for line in (tmp_path / "timing.jsonl").read_text().splitlines()]
    assert spent == pytest.approx(
        np.mean([line["train"] for line in seconds if line["round"] <= 2]), rel=1e-3
    )
    assert f"| reported round | {ended['ending_of']}, with the method's ending (rule: " in model_card(one)


def test_a_comparison_shows_mean_and_standard_deviation_over_seeds(runs, compared) -> None:
    figure = compared["convergence-generalisation"]
    assert figure.columns == ("round", "FedAvg, %", "±", "Local, %", "±")
    for x, *cells in figure.rows:
        wanted: list[float] = []
        for name in ("fedavg", "local"):
            two = [
                runs[name + seed].history[int(x) - 1]["test"]["generalisation"]["balanced_accuracy"]
                for seed in ("", " 1")
            ]
            wanted += [100 * np.mean(two), 100 * np.std(two, ddof=1)]
        assert cells == pytest.approx(wanted, rel=1e-3)
    assert figure.svg.count("<polygon") == 2


def test_one_seed_has_no_band(runs) -> None:
    found = {figure.key: figure for figure in comparison_figures([("a", [runs["fedavg"]])])}
    assert (
        "<polygon" not in found["convergence-generalisation"].svg
        and "±" not in found["convergence-generalisation"].columns
    )


# How good it is ---------------------------------------------------------------------------------------------


def test_recall_is_the_metric(runs, drawn, compared) -> None:
    data = runs["fedavg"].data
    recalls = [runs[name].test["generalisation"]["recall"] for name in ("fedavg", "fedavg 1")]
    for name, train, _, recall in drawn["fedavg"]["recall"].rows:
        i = data["classes"].index(name)
        assert train == data["train"][i] and recall == pytest.approx(100 * recalls[0][i], abs=0.051)
    for name, _, fedavg, _ in compared["recall"].rows:
        i = data["classes"].index(name)
        assert fedavg == pytest.approx(100 * np.mean([r[i] for r in recalls]), abs=0.051)


def fake(folder: Path, data: dict[str, Any], pages: int, seed: int = 0) -> tuple[Run, np.ndarray, np.ndarray]:
    """A run whose reported rounds scored 200 images at random; the labels and all logits."""
    draw = np.random.default_rng(seed)
    width = len(data["classes"])
    single = data["task"] == "single"
    labels = draw.integers(0, width, 200) if single else (draw.random((200, width)) < 0.3).astype(np.float32)
    logits = draw.normal(scale=2.0, size=(pages, 200, width)).astype(np.float32)
    ids = np.array([f"{i}" for i in range(200)])
    for i in range(pages):
        scores = Scores(data["task"], ids, torch.from_numpy(labels), torch.from_numpy(logits[i : i + 1]))
        write_scores(folder / "scores", i + 1, scores)
    result = {"selected_rounds": list(range(1, pages + 1)), "metrics": {}, "state_hash": None}
    return Run(folder, {"method": {"name": "x"}}, "", result, [], [], [], data), labels, logits


def test_the_confusion_matrix_is_scikit_learns(tmp_path: Path) -> None:
    data = {"task": "single", "classes": list("abcde"), "train": [5, 50, 20, 7, 7], "sites": {}}
    one, labels, logits = fake(tmp_path, data, pages=3)
    found = decisions(one)
    assert found is not None
    wanted = np.mean([confusion_matrix(labels, page.argmax(1)) for page in logits], axis=0)
    np.testing.assert_allclose(found.decided, wanted)
    figure = next(figure for figure in run_figures(one) if figure.key == "confusion")
    assert figure.columns == ("true class", "b", "c", "d", "e", "a")  # from the most frequent to the rarest
    order = [1, 2, 3, 4, 0]
    np.testing.assert_allclose([row[1:] for row in figure.rows], wanted[np.ix_(order, order)])


def test_several_labels_are_scikit_learns_too(tmp_path: Path) -> None:
    data = {"task": "multi", "classes": list("abc"), "train": [5, 50, 20], "sites": {}}
    one, labels, logits = fake(tmp_path, data, pages=2)
    wanted = np.mean([multilabel_confusion_matrix(labels, page > 0) for page in logits], axis=0)
    figure = next(figure for figure in run_figures(one) if figure.key == "confusion")
    for name, tp, fn, fp, tn in figure.rows:
        np.testing.assert_allclose([[tn, fp], [fn, tp]], wanted["abc".index(name)])
    share = wanted[1, 1, 1] / wanted[1, 1].sum()
    assert f"b, has it: {wanted[1, 1, 1]:g} found ({100 * share:.1f} %)" in figure.svg


@pytest.mark.parametrize("task", ["single", "multi"])
def test_calibration_by_loops(tmp_path: Path, task: str) -> None:
    data = {"task": task, "classes": list("abcd"), "train": [5, 50, 20, 7], "sites": {}}
    one, labels, logits = fake(tmp_path, data, pages=1)
    said: list[tuple[float, bool]] = []
    for z, y in zip(logits[0].astype(np.float64), labels, strict=True):
        if task == "single":
            p = np.exp(z) / np.exp(z).sum()
            said.append((float(p.max()), bool(p.argmax() == y)))
        else:
            chances = 1 / (1 + np.exp(-z))
            said += [(max(p, 1 - p), bool((p > 0.5) == (t > 0.5))) for p, t in zip(chances, y, strict=True)]
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(15)]
    for confidence, correct in said:
        bins[next(i for i in range(15) if confidence <= (i + 1) / 15)].append((confidence, correct))
    found = decisions(one)
    assert found is not None
    error = 0.0
    for (low, high, count, sure, right), members in zip(found.bins(), bins, strict=True):
        assert high - low == pytest.approx(1 / 15) and count == len(members)
        if members:
            assert sure == pytest.approx(np.mean([c for c, _ in members]), abs=1e-6)
            assert right == pytest.approx(np.mean([r for _, r in members]))
            error += len(members) * abs(sure - right) / len(said)
    assert found.ece == pytest.approx(error)
    figure = next(figure for figure in run_figures(one) if figure.key == "reliability")
    assert f"{100 * error:.1f} %" in figure.title
    assert len(figure.rows) == sum(map(bool, bins))


def test_a_federation_that_only_counts_has_the_same_matrix_and_bins(runs, drawn) -> None:
    assert not (runs["counted"].folder / "scores").exists()
    one, other = decisions(runs["fedavg"]), decisions(runs["counted"])
    assert one is not None and other is not None
    np.testing.assert_array_equal(one.decided, other.decided)
    np.testing.assert_array_equal(one.calibration, other.calibration)
    assert other.ece == pytest.approx(runs["counted"].test["generalisation"]["ece"])  # type: ignore[index]
    assert drawn["counted"]["confusion"].rows == drawn["fedavg"]["confusion"].rows


def test_the_map_has_a_point_per_class_and_layer(runs, drawn) -> None:
    kept = json.loads((runs["fedmas"].folder / "features.json").read_bytes())
    figure = drawn["fedmas"]["features"]
    for layer, name in (("body", "body"), ("projector", "after the projector")):
        rows = {row[1]: row[2:] for row in figure.rows if row[0] == name}
        assert rows == {
            c: tuple(place)
            for c, place in zip(runs["fedmas"].data["classes"], kept["maps"][layer]["points"], strict=True)
            if place is not None
        }


# Sites ------------------------------------------------------------------------------------------------------


def test_rescue_factors_and_shares_are_what_the_sites_noted(runs, drawn) -> None:
    one = runs["fedmas"]
    noted = {}
    for site in one.data["sites"]:
        noted[site] = [
            line["rescue_factor"] for line in doctored.rows(one.folder / "sites" / site / "notes.jsonl")
        ]
    total = np.sum(list(noted.values()), axis=0)
    assert columns(drawn["fedmas"]["rescue"])["round"] == [1, 2]
    for site, values in noted.items():
        assert columns(drawn["fedmas"]["rescue"])[site] == pytest.approx(values, rel=1e-3)
        assert columns(drawn["fedmas"]["contribution"])[f"{site}, %"] == pytest.approx(
            100 * np.array(values) / total, rel=1e-3
        )


def test_a_repeated_round_counts_by_its_last_note(runs, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs["fedmas"].folder, tmp_path / "copy"))
    site = next(iter(runs["fedmas"].data["sites"]))
    path = copy / "sites" / site / "notes.jsonl"
    with open(path, "a") as file:
        file.write('{"round": 0, "question": "train", "rescue_factor": 4.5, "pre')  # cut short by a crash
    append_line(path, {"round": 1, "question": "train", "rescue_factor": 9.5})
    append_line(path, {"round": 7, "rescue_factor": 1.0})
    found = notes(replace(runs["fedmas"], folder=copy), "rescue_factor")
    assert list(found) == [1, 2] and found[2][site] == 9.5 and found[1][site] != 4.5


def test_many_sites_are_taken_together(runs, tmp_path: Path) -> None:
    one = runs["fedmas"]
    sites = {f"s{i}": {"train": {"images": 100 - i, "counts": [0] * 8}} for i in range(9)}
    for i, site in enumerate(sites):
        (tmp_path / "sites" / site).mkdir(parents=True)
        append_line(
            tmp_path / "sites" / site / "notes.jsonl", {"round": 0, "weight": i + 1, "rescue_factor": i + 1}
        )
    many = replace(
        one, folder=tmp_path, data={**one.data, "sites": sites}, result={**one.result, "selected_rounds": []}
    )
    found = {figure.key: figure for figure in run_figures(many)}
    assert found["rescue"].rows == ((1, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5),)
    assert found["rescue"].columns[-1] == "the other 4, mean"
    assert found["contribution"].rows[0][1:] == pytest.approx(
        [100 * n / 45 for n in (1, 2, 3, 4, 5, 30)], rel=1e-3
    )


@pytest.mark.parametrize("name", ["fedavg", "counted"])
def test_fedavg_weighs_sites_by_their_images(runs, drawn, name: str) -> None:
    images = {site: held["train"]["images"] for site, held in runs[name].data["sites"].items()}
    found = columns(drawn[name]["contribution"])
    assert len(found["round"]) == len(runs[name].history)
    for site, n in images.items():
        assert found[f"{site}, %"] == pytest.approx(
            [100 * n / sum(images.values())] * len(found["round"]), rel=1e-3
        )


def test_a_site_that_sat_out_has_no_share_of_that_round(runs, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs["fedavg"].folder, tmp_path / "copy"))
    away, *others = runs["fedavg"].data["sites"]
    path = copy / "sites" / away / "notes.jsonl"
    doctored.fill(path, [line for line in doctored.rows(path) if line["round"] != 1])
    figure = next(f for f in run_figures(replace(runs["fedavg"], folder=copy)) if f.key == "contribution")
    found = columns(figure)
    assert found[f"{away}, %"][0] > 0 and found[f"{away}, %"][1] in (None, 0.0)
    assert sum(found[f"{site}, %"][1] for site in others) == pytest.approx(100, rel=1e-2)


def test_gains_are_paired_differences_of_the_sites_own_predictors(runs, compared) -> None:
    def own(name: str, site: str) -> float | None:
        return runs[name].test["sites"][site]["balanced_accuracy"]  # type: ignore[index]

    found = {row[1]: row[2:] for row in compared["gain-local"].rows}
    sizes = [row[2] for row in compared["gain-local"].rows]
    assert sizes == sorted(sizes, reverse=True) and {row[0] for row in compared["gain-local"].rows} == {
        "FedAvg"
    }
    for site, (images, gain, spread) in found.items():
        pairs = [(own("fedavg" + seed, site), own("local" + seed, site)) for seed in ("", " 1")]
        known = [a - b for a, b in pairs if a is not None and b is not None]
        assert gain == pytest.approx(100 * np.mean(known), abs=0.051)
        assert spread == (pytest.approx(100 * np.std(known, ddof=1), abs=0.051) if len(known) > 1 else None)
        assert images == pytest.approx(
            np.mean([runs["fedavg" + seed].data["sites"][site]["train"]["images"] for seed in ("", " 1")]),
            abs=0.5,
        )
    reverse = {row[1]: row[3] for row in compared["gain-fedavg"].rows}
    assert reverse == pytest.approx({site: -gain for site, (_, gain, _) in found.items()})


def test_no_gain_between_runs_of_different_seeds_or_folds(runs) -> None:
    assert site_gains([runs["fedavg"]], [runs["local 1"]]) == {}
    assert site_gains([runs["fedavg"]], [runs["local"]])
    folded = {
        **runs["local"].config,
        "data": {**runs["local"].config["data"], "split": {"folds": 2, "fold": 1}},
    }
    assert site_gains([runs["fedavg"]], [replace(runs["local"], config=folded)]) == {}


def test_no_gain_between_sites_that_were_drawn_otherwise(runs) -> None:
    """With a grid over the partition, each run has a standard on its own sites."""

    def drawn_with(run: Run, alpha: float) -> Run:
        return replace(run, config={**run.config, "partition": {**run.config["partition"], "alpha": alpha}})

    few, many = (drawn_with(runs["local"], alpha) for alpha in (0.3, 3.0))
    one = drawn_with(runs["fedavg"], 3.0)
    assert site_gains([one], [few]) == {}
    assert site_gains([one], [few, many]) == site_gains([one], [many]) != {}
    assert site_gains([few], [few, many]) == {}  # no run is its own standard


def test_without_a_standard_there_is_no_gain(runs) -> None:
    keys = {figure.key for figure in comparison_figures([("a", [runs["fedmas"]]), ("b", [runs["fedmas"]])])}
    assert not {"gain-local", "gain-fedavg"} & keys


def test_of_many_arms_the_best_are_shown_and_the_caption_says_so(runs) -> None:
    def with_accuracy(value: float) -> Run:
        result = json.loads(json.dumps(runs["fedavg"].result))
        result["metrics"]["test"]["generalisation"]["balanced_accuracy"] = value
        return replace(runs["fedavg"], result=result)

    arms = [(f"arm {i}", [with_accuracy(i / 10)]) for i in range(ARMS + 2)]
    found = {figure.key: figure for figure in comparison_figures([*arms[3:], *arms[:3]])}
    shown = found["recall"].columns[2:]
    assert shown == tuple(f"arm {i}, %" for i in (3, 4, 5, 6, 7, 8, 9, 2))  # in the order they were given
    assert f"The {ARMS} best of {ARMS + 2}." in found["recall"].caption
    assert len(found["bytes"].rows) == ARMS + 2  # bars have room for all


# What it costs ----------------------------------------------------------------------------------------------


def test_the_ledger_figure_adds_up(runs, drawn) -> None:
    one, figure = runs["fedmas"], drawn["fedmas"]["ledger"]
    up = [(row[1], row[2], row[3]) for row in figure.rows if row[0] == "up"]
    assert up == [(f"{row['question']}: {row['leaf']}", row["kind"], row["bytes"]) for row in one.ledger]
    down = [row[3] for row in figure.rows if row[0] == "down"]
    assert down == [round(sum(row["bytes_down"] for row in one.history) / (2 * 3))]
    for row in one.ledger:
        assert f"{row['question']}: {row['leaf']}, {row['kind']}, " in figure.svg


def test_a_question_that_changes_says_from_when(runs) -> None:
    rows = runs["fedavg"].ledger
    changed = replace(runs["fedavg"], ledger=[*rows, {**rows[0], "from_round": 7}])
    figure = next(figure for figure in run_figures(changed) if figure.key == "ledger")
    assert figure.svg.count("from round") == 1 and "from round 8" in figure.svg


def test_seconds_and_bytes_of_every_round(runs, drawn, compared) -> None:
    lines = [json.loads(line) for line in (runs["fedavg"].folder / "timing.jsonl").read_text().splitlines()]
    table = columns(drawn["fedavg"]["time"])
    assert table["round"] == [1, 2]
    assert table["training, s"] == pytest.approx([line["train"] for line in lines], rel=1e-3)
    assert table["testing, s"] == pytest.approx([line["evaluate"] for line in lines], rel=1e-3)
    table = columns(drawn["fedavg"]["bytes"])
    assert table["up, from the sites, bytes"] == pytest.approx(
        [row["bytes_up"] for row in runs["fedavg"].history], rel=1e-3
    )
    both = [runs["fedavg"], runs["fedavg 1"]]
    mean = np.mean([(row["bytes_up"] + row["bytes_down"]) / 3 for one in both for row in one.history])
    assert dict(compared["bytes"].rows)["FedAvg"] == pytest.approx(mean, rel=1e-3)


def test_without_a_clock_there_is_no_time(runs, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs["fedavg"].folder, tmp_path / "copy"))
    (copy / "timing.jsonl").unlink()
    assert "time" not in {figure.key for figure in run_figures(read_run(copy))}

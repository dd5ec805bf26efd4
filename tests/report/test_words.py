"""Sentences of runs whose figures are written down by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.report import words
from equipoise.report.folder import Run
from equipoise.report.words import compared, in_short, listed
from equipoise.run_folder import PLAN, RunFolder

CLASSES = ["common", "rare", "odd"]


def make(
    method: str = "fca",
    sites: tuple[float, float, float] = (0.5, 0.75, 1.0),
    *,
    seed: int = 0,
    task: str = "single",
    partition: str = "column",
    finished: bool = True,
) -> Run:
    """Three sites with 100, 20 and 4 test images; `sites` is what their own predictors reach."""
    counts = {"north": (300, 100), "south": (60, 20), "tiny": (12, 4)}
    held = {
        site: {
            "train": {"images": train, "counts": [train - 4, 3, 1]},
            "validation": {"images": 0, "counts": [0, 0, 0]},
            "test": {"images": test, "counts": [test, 0, 0]},
        }
        for site, (train, test) in counts.items()
    }
    test: dict[str, Any] = {
        "generalisation": {"balanced_accuracy": 0.625, "recall": [0.9, 0.25, None], "support": [100, 20, 0]},
        "sites": {site: {"balanced_accuracy": value} for site, value in zip(counts, sites, strict=True)},
    }
    data = {
        "task": task,
        "classes": CLASSES,
        "splits": ["train", "validation", "test"],
        "images": 496,
        "train": [360, 9, 3],
        "sites": held,
    }
    config = {
        "data": {"kind": "csv", "name": "moles"},
        "net": {"name": "small-cnn"},
        "method": {"name": method},
        "partition": {"kind": partition},
        "train": {"rounds": 20, "seed": seed},
    }
    result = {"selected_rounds": [7], "metrics": {"test": test}, "state_hash": "abc" if finished else None}
    return Run(Path("nowhere"), config, "", result, [{"round": 7}], [], [], data)


def test_a_run_in_short() -> None:
    answers = dict(in_short(make()))
    assert list(answers) == [
        "What was trained", "On whose data", "How good", "For which classes", "At which sites",
        "Who gains by joining",
    ]  # fmt: skip
    assert answers["What was trained"] == (
        "One small-cnn network was trained with fca at 3 sites, simulated on one machine, to "
        "name the one class of an "
        "image out of 3: common, rare and odd. From a random start, 20 rounds."
    )
    assert answers["On whose data"] == (
        "moles, 496 images: 372 for training and 124 for test. north trains on the most (300), tiny on the "
        "fewest (12). "
        "For one training image of odd (3 in all) there are 120.0 of common (360)."
    )
    assert answers["How good"] == (
        "On the 124 test images of all sites together the global model reaches a balanced accuracy of 62.5 "
        "%: the share of images it "
        "names rightly, every class counting the same. Guessing would reach 33.3 %."
    )
    assert answers["For which classes"] == (
        "Best recognised is common, 90.0 % of 100 test images; least rare, 25.0 % of 20. "
        "With fewer than 10 test images nothing can be said of odd (0)."
    )
    assert answers["At which sites"] == (
        "Judged by its own test images, each site's own predictor reaches from 50.0 % at north (100 "
        "images) to 75.0 % at south (20). "
        "With fewer than 10 test images nothing can be said of tiny (4)."
    )
    assert "equipoise compare FILE.toml --methods local,fca" in answers["Who gains by joining"]


def test_what_rests_on_little_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    going = make(finished=False)
    assert "7 of 20 rounds" in dict(in_short(going))["What was trained"]
    assert dict(in_short(going))["How good"].endswith("The run goes on, so this is not its result.")
    monkeypatch.setattr(words, "FEW", 200)
    assert "124 test images are few" in dict(in_short(make()))["How good"]
    wide = make()
    wide.__dict__["reach"] = (0.3, 0.9)  # where the property keeps what it found
    told = dict(in_short(wide))["How good"]
    assert "(95 % interval 30.0 to 90.0)" in told and "no better than guessing cannot be ruled out" in told
    untested = replace(make(), result={"selected_rounds": [], "metrics": {}, "state_hash": "abc"})
    assert dict(in_short(untested))["How good"].startswith("Not known. No round was evaluated")


def test_several_labels_and_training_alone_have_words_of_their_own() -> None:
    multi = dict(in_short(make(task="multi")))
    assert "Guessing would reach 50.0 %" in multi["How good"] and "false alarms" in multi["For which classes"]
    alone = dict(in_short(make("local")))
    assert alone["What was trained"].startswith(
        "Each of 3 sites, simulated on one machine, trained a small-cnn network of its own, with nothing "
        "exchanged"
    )
    assert alone["Who gains by joining"].startswith("Nobody joined")


def test_a_mean_over_sites_alone_does_not_make_them_missing() -> None:
    """With `evaluate.per_site = false` only the journal knows who gave no answer."""
    run = make()
    run.config["evaluate"] = {"per_site": False}
    assert run.test is not None
    run.test.update(sites={}, specialisation={"balanced_accuracy": 0.75})
    answers = dict(in_short(run))
    assert "Who was missing" not in answers
    assert answers["How good"].startswith("On the 124 test images of all sites together")
    assert answers["At which sites"] == (
        "Not reported for each site. Judged by their own test images, the sites' own predictors reach 75.0 % "
        "on average."
    )
    lines = [
        {"event": "missing", "round": round, "question": "evaluate", "sites": [site]}
        for round, site in ((6, "north"), (7, "south"))
    ]
    lost = dict(in_short(replace(run, journal=lines)))
    assert lost["Who was missing"].startswith("south gave no usable answer")
    assert "On the 104 test images of the sites that answered (north and tiny; not south)" in lost["How good"]


def test_only_hospitals_have_images_that_stay_where_they_are(tmp_path: Path) -> None:
    here = dict(in_short(make()))["What was trained"]
    assert "simulated on one machine" in here and "stay" not in here
    RunFolder(tmp_path).write(PLAN, {})
    there = dict(in_short(replace(make(), folder=tmp_path)))["What was trained"]
    assert "whose images stayed where they are" in there and "simulated" not in there


def facts(**changes: Any) -> dict[str, Any]:
    def figures(mean: float, tail: float) -> dict[str, Any]:
        one = {"balanced_accuracy": {"mean": mean, "std": 0.01}, "tail": {"mean": tail, "std": 0.02}}
        return {"figures": {"generalisation": one}, "reference": "FedAvg"}

    versus = {
        "reference": "FedAvg",
        "difference": 0.05,
        "differences": [0.04, 0.06],
        "holm": {"images": 0.0004, "t": 0.21, "sign_flip": 0.5},
    }
    return {
        "seeds": [0, 1],
        "folds": None,
        "runs": 2,
        "reference": "FedAvg",
        "arms": {"FedAvg": figures(0.5, 0.1), "FCA": figures(0.55, 0.3), "alone": figures(0.4, 0.0)},
        "versus": {"FCA": versus, "alone": {**versus, "difference": -0.1}},
        "collapsed": [],
        **changes,
    }


def arms(partition: str = "column") -> list[tuple[str, list[Run]]]:
    def runs(method: str, *each: tuple[float, float, float]) -> list[Run]:
        return [make(method, sites, seed=seed, partition=partition) for seed, sites in enumerate(each)]

    return [
        ("FedAvg", runs("fedavg", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))),
        ("FCA", runs("fca", (0.7, 0.6, 0.5), (0.8, 0.7, 0.5))),
        ("alone", runs("local", (0.6, 0.6, 0.5), (0.6, 0.8, 0.9))),
    ]


def test_a_comparison_in_short() -> None:
    answers = dict(compared(facts(), arms()))
    assert (
        answers["What was compared"]
        == "FedAvg, FCA and alone on the same images, each trained twice (seeds 0 and 1), with sites "
        "simulated on one machine."
    )
    assert answers["How good"] == (
        "FCA is best on the test images of all sites together: balanced accuracy 55.0 ± 1.0 %, before "
        "FedAvg with 50.0 ± 1.0 %."
    )
    assert answers["More than chance?"] == (
        "FCA is 5.0 points above FedAvg. For these models on other such patients, that is more than chance "
        "explains (p < 0.001). "
        "For the methods trained again, that is not more than chance may explain (p = 0.210), over 2 runs "
        "of each."
    )
    assert answers["For the rare classes"].startswith(
        "Of the rarest third of the classes FCA recognises the most: 30.0 ± 2.0 %, every class counting "
        "the same; FedAvg 10.0 ± 2.0 %."
    )
    # over the two runs, north gains (10 + 20) / 2 points, south (0 - 10) / 2
    assert answers["Who gains by joining"] == (
        "With FCA, 1 of 2 sites recognise their own patients better than after training alone, north most "
        "of all (+15.0 points). "
        "No gain for south (-5.0 points). With fewer than 10 test images nothing can be said of tiny."
    )


def test_a_comparison_says_what_it_cannot_know() -> None:
    answers = dict(compared(facts(), [one for one in arms() if one[0] != "alone"]))
    assert answers["Who gains by joining"].startswith("Not known: nobody trained alone")
    one = {
        "reference": "FedAvg",
        "difference": 0.05,
        "differences": [0.05],
        "holm": {"images": None, "t": None, "sign_flip": None},
    }
    told = dict(compared(facts(versus={"FCA": one}), arms()))["More than chance?"]
    assert (
        told
        == "FCA is 5.0 points above FedAvg. One run each says nothing about how training again would turn "
        "out."
    )
    assert "nothing to set against" in dict(compared(facts(versus={}), arms()))["More than chance?"]
    assert dict(compared(facts(), []))["What was compared"] == "Nothing: every run failed."
    assert "drawn anew" in dict(compared(facts(), arms("dirichlet")))["Who gains by joining"]
    assert "drawn anew" not in dict(compared(facts(), arms()))["Who gains by joining"]


def test_a_comparison_at_several_points_names_the_reference_of_each() -> None:
    made = facts()
    made["versus"]["FCA"]["reference"] = made["arms"]["FCA"]["reference"] = "alone"
    answers = dict(compared(made, arms()))
    assert answers["More than chance?"].startswith("FCA is 5.0 points above alone.")
    assert "every class counting the same; alone 0.0 ± 2.0 %." in answers["For the rare classes"]


def test_a_comparison_in_which_nothing_was_learnt_says_so() -> None:
    told = dict(compared(facts(collapsed=["every row collapsed"]), arms()))["How good"]
    assert told == "Not at all: every row collapsed."


def test_names_in_a_row() -> None:
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]

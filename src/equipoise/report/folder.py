"""A run folder, read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from equipoise.data.sites import SitesData
from equipoise.errors import ConfigError, StorageError
from equipoise.evaluate.own import own_names
from equipoise.evaluate.protocol import ENDING, FIGURE, select
from equipoise.keeping import read_lines
from equipoise.methods import METHODS, Standard
from equipoise.partition import Census, Facts
from equipoise.run_folder import (
    BLUEPRINT,
    CENSUS,
    CONFIG,
    FEATURES,
    JOURNAL,
    LEDGER,
    METRICS,
    PLAN,
    RESULT,
    SCORES,
    RunFolder,
)
from equipoise.server.spending import UNIT, largest, uncovered
from equipoise.site import PrivacyOptions
from equipoise.text import listed, parse_toml
from equipoise.text import percent as percent

if TYPE_CHECKING:
    from equipoise.evaluate.scores import Scores

NAMED = 6
"""sites that a title names; of more it says how many"""
SMALL = 10
"""fewer images than this are too few to judge by, and on a card too few to tell"""
FIGURES = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "macro_auc": "macro AUC",
    "macro_f1": "macro F1",
    "head": "recall, head classes",
    "medium": "recall, medium classes",
    "tail": "recall, tail classes",
    "ece": "calibration error",
}
"""the figures tables show, by their names in the metrics"""


def figures(metrics: Mapping[str, Any]) -> dict[str, str]:
    """The figures that tables show of these metrics: those, and any of one's own."""
    return FIGURES | {name: name for name in own_names(metrics)}


@dataclass(frozen=True)
class Run:
    """All a page needs to know of one run, finished or going on."""

    folder: Path
    config: dict[str, Any]
    config_text: str
    result: dict[str, Any]
    """as in result.json; of a run that goes on, what it would be if this were the end, without a state"""
    history: list[dict[str, Any]]
    ledger: list[dict[str, Any]]
    journal: list[dict[str, Any]]
    data: dict[str, Any]
    features: dict[str, Any] | None = None
    """where the classes lie in the network's features: `images`, `round` and `maps` by layer"""

    @property
    def data_kind(self) -> str:
        """The kind of data, also where a rehearsal divided it among its sites."""
        result: str = (self.rehearsal or self.config["data"])["kind"]
        return result

    @property
    def data_name(self) -> str:
        """What the data are called; of a federation whose they are."""
        named: str | None = (self.rehearsal or {}).get("name") or self.config["data"].get("name")
        sites = list(self.data["sites"])
        if named or self.data_kind != SitesData.model_fields["kind"].default:
            return named or self.data_kind
        return f"the images of {listed(sites) if len(sites) <= NAMED else f'{len(sites)} sites'}"

    @property
    def method(self) -> str:
        result: str = self.config["method"]["name"]
        return result

    @property
    def standard(self) -> Standard | None:
        """What the method is to others, if it is what they are measured against."""
        return METHODS[self.method].standard if self.method in METHODS else None

    @property
    def test(self) -> dict[str, Any] | None:
        """Metrics on the test sets of the selected round, if any round was evaluated."""
        result: dict[str, Any] | None = self.result["metrics"].get("test")
        return result

    @property
    def privacy(self) -> dict[str, Any] | None:
        """What differential privacy cost so far and does not cover, where training had it."""
        spent = self.history[-1].get("epsilon") if self.history else None
        if spent is None:
            return None
        options = PrivacyOptions.model_validate(self.config["privacy"])
        answers = ((row["question"], row["covered"]) for row in self.ledger if "covered" in row)
        seeded = "the run's seed (seeded: hospitals draw noise that nobody can repeat)"
        return {
            "promise": f"ε ≤ {largest(spent)} at δ = {options.delta:g} for {UNIT} of any site",
            "spent": {site: "∞" if value is None else f"{value:g}" for site, value in spent.items()},
            "clip": f"{options.clip:g}",
            "not_covered": uncovered(answers),
            "draws": "each site's operating system (cryptographic)" if self.federated else seeded,
        }

    @property
    def federated(self) -> bool:
        """Whether sites trained it, each by itself, and not one process for all of them."""
        return RunFolder(self.folder).has(PLAN)

    @cached_property
    def rehearsal(self) -> dict[str, Any] | None:
        """Kind and name of the data, where the federation was a rehearsal on one machine."""
        return RunFolder(self.folder).read(PLAN).get("rehearsal") if self.federated else None

    @property
    def finished(self) -> bool:
        return self.result["state_hash"] is not None

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The rows of the rounds of training."""
        return [row for row in self.history if ENDING not in row]

    @property
    def endings(self) -> list[dict[str, Any]]:
        """The rows of the method's ending; each says of which round."""
        return [row for row in self.history if ENDING in row]

    @property
    def done(self) -> int:
        """Rounds done."""
        return self.rounds[-1]["round"] if self.rounds else 0

    @cached_property
    def scores(self) -> Scores | None:
        """How the global predictor scores every test image, where that was kept."""
        from equipoise.evaluate.scores import read_scores

        return read_scores(self.folder / SCORES, self.result["selected_rounds"])

    @cached_property
    def reach(self) -> tuple[float, float] | None:
        """The 95 % interval of the global predictor's balanced accuracy over test images, where there are
        scores."""
        from equipoise.evaluate.significance import interval, judge
        from equipoise.seeds import numpy_generator

        return None if self.scores is None else interval(judge(self.scores), numpy_generator(0, "card"))


def standard(kind: Standard) -> str:
    """The name of the method that others are measured against."""
    return next(name for name, cls in METHODS.items() if cls.standard == kind)


def read_run(folder: Path) -> Run:
    """The run in a folder, as far as it got; `StorageError` when the folder holds none, or a damaged one."""
    run = RunFolder(folder)
    text = run.text(CONFIG)
    config = parse_toml(text)
    result = run.read(RESULT) if run.has(RESULT) else None
    history = run.rows(METRICS, result["metrics_hash"] if result else None)
    journal, _ = read_lines(run / JOURNAL)
    if result and result["journal_hash"] not in {line["hash"] for line in journal}:
        raise StorageError(
            f"{run / JOURNAL} has lost lines or was written anew: restore it, or start the run anew"
        )
    data = data_of(run)
    return Run(
        folder=run.path,
        config=config,
        config_text=text,
        result=result or _so_far(config, history, data),
        history=history,
        ledger=run.read(LEDGER)["leaves"] if result or run.has(LEDGER) else [],
        journal=journal,
        data=data,
        features=run.read(FEATURES) if run.has(FEATURES) else None,
    )


def _so_far(
    config: dict[str, Any], history: Sequence[dict[str, Any]], data: dict[str, Any]
) -> dict[str, Any]:
    """The result if this were the end."""
    tested = [row for row in history if "test" in row]
    try:
        rounds, metrics = select(tested, config["evaluate"]["select"], key=FIGURE)
    except ConfigError:  # nothing to select from yet
        rounds, metrics = [], {}
    endings = [row[ENDING] for row in tested if ENDING in row and row["round"] in rounds]
    facts = {"selected_rounds": rounds, "ending_of": endings, "metrics": metrics}
    return {**facts, "classes": data["classes"], "state_hash": None}


def data_of(run: RunFolder) -> dict[str, Any]:
    """What the run's data are and who holds them, see `Facts.table`."""
    if not run.has(BLUEPRINT) or not run.has(CENSUS):
        raise StorageError(f"{run}: nothing is known of its data yet; try again when the first round is done")
    plan, census = run.read(BLUEPRINT), Census.model_validate(run.read(CENSUS))
    side, channels = plan["input"]["image_size"], plan["input"]["channels"]
    shape, classes = (side, side, channels), tuple(plan["classes"])
    facts = Facts(plan["task"], classes, shape, plan["data"], census, plan["partial"])
    return facts.table()


def standing(run: Run) -> dict[str, Any]:
    """The five figures methods are compared by."""
    test = run.test or {}
    views = ("generalisation", "specialisation", "average")
    figures = {view: test.get(view, {}).get("balanced_accuracy") for view in views}
    return figures | {key: test.get("generalisation", {}).get(key) for key in ("tail", "macro_auc")}


def objective_name(run: Run) -> str:
    """The base loss in words: balanced_softmax, or fedrs + balanced_softmax."""
    parts = run.config["train"]["objective"]
    return " + ".join(part["name"] for part in (parts if isinstance(parts, list) else [parts]))


def start_of(run: Run) -> str:
    """What the first model was."""
    train = run.config["train"]
    if name := train.get("init"):
        part = "the body of " if train.get("init_parts") == "body" else ""
        return f"{part}the model of another run ({PurePath(name).name})"
    return "pretrained weights" if run.config["net"].get("weights") else "a random start"


def reported_rounds(rounds: Sequence[int], endings: Sequence[int]) -> str:
    """The reported rounds in words: those that were chosen, and whether the method's ending is reported with
    them."""
    text = ", ".join(map(str, endings or rounds)) or "none"
    if not endings:
        return text
    return f"{text}, {'each ' if len(endings) > 1 else ''}with the method's ending"


def by_size(counts: Sequence[float]) -> list[int]:
    """Class numbers from the most frequent to the rarest."""
    return sorted(range(len(counts)), key=lambda i: (-counts[i], i))


def size(count: float) -> str:
    """Bytes in a unit one can read."""
    if count < 1000:
        return f"{count:,.0f} B"
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:,.1f} {unit}"
    return f"{count / 1000:,.1f} GB"

"""A run folder, read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.errors import ConfigError, StorageError
from equipoise.evaluate.own import own_names
from equipoise.evaluate.protocol import ENDING, select
from equipoise.text import parse_toml

if TYPE_CHECKING:
    from equipoise.evaluate.scores import Scores
    from equipoise.setup import Material

SPLITS = ("train", "validation", "test")
LARGEST = 2**30
"""bytes of the largest file of a run folder that a page is made from"""
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

    @property
    def data_name(self) -> str:
        return self.config["data"].get("name") or self.config["data"]["kind"]

    @property
    def method(self) -> str:
        return self.config["method"]["name"]

    @property
    def test(self) -> dict[str, Any] | None:
        """Metrics on the test sets of the selected round, if any round was evaluated."""
        return self.result["metrics"].get("test")

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
        from equipoise.evaluate.observer import SCORES
        from equipoise.evaluate.scores import read_scores

        return read_scores(self.folder / SCORES, self.result["selected_rounds"])

    @cached_property
    def reach(self) -> tuple[float, float] | None:
        """The 95 % interval of the global predictor's balanced accuracy over test images, where there are
        scores."""
        from equipoise.evaluate.significance import interval, judge
        from equipoise.seeds import numpy_generator

        return None if self.scores is None else interval(judge(self.scores), numpy_generator(0, "card"))


def read_run(folder: Path) -> Run:
    """The run in a folder, as far as it got; `StorageError` when the folder holds none, or a damaged one."""
    from equipoise.config import text_of_run
    from equipoise.evaluate.observer import read_history
    from equipoise.running import LEDGER, RESULT, read_result
    from equipoise.server.journal import read as read_journal

    finished = (folder / RESULT).is_file()
    text = text_of_run(folder)
    config = parse_toml(text)
    result = read_result(folder) if finished else None
    history = read_history(folder, result["metrics_hash"] if result else None)
    journal, _ = read_journal(folder / "journal.jsonl")
    if result and result["journal_hash"] not in {line["hash"] for line in journal}:
        raise StorageError(
            f"{folder / 'journal.jsonl'} has lost lines or was written anew: restore it, or start the run "
            f"anew"
        )
    data = _data(folder)
    return Run(
        folder,
        config,
        text,
        result or _so_far(config, history, data),
        history,
        _ledger(folder / LEDGER, finished),
        journal,
        data,
    )


def _ledger(path: Path, needed: bool) -> list[dict[str, Any]]:
    """The rows of the ledger; none where a run that goes on has not written them yet."""
    from equipoise.keeping import read_json

    try:
        return read_json(path, f"`equipoise resume {path.parent}` writes it again")["leaves"]
    except FileNotFoundError:
        if needed:
            raise StorageError(
                f"{path.parent} has no {path.name}: `equipoise resume {path.parent}` writes it again"
            ) from None
        return []


def _so_far(
    config: dict[str, Any], history: Sequence[dict[str, Any]], data: dict[str, Any]
) -> dict[str, Any]:
    """The result if this were the end."""
    tested = [row for row in history if "test" in row]
    try:
        rounds, metrics = select(tested, config["evaluate"]["select"], key="generalisation.balanced_accuracy")
    except ConfigError:  # nothing to select from yet
        rounds, metrics = [], {}
    endings = [row[ENDING] for row in tested if ENDING in row and row["round"] in rounds]
    facts = {"selected_rounds": rounds, "ending_of": endings, "metrics": metrics}
    return {**facts, "classes": data["classes"], "state_hash": None}


def _data(folder: Path) -> dict[str, Any]:
    """The census of the run's data, counted once and kept, so that the page can be made again where the data
    is not."""
    from equipoise.config import read_folder
    from equipoise.keeping import read_json, write_json
    from equipoise.setup import material

    path = folder / "data.json"
    if path.is_file():
        return read_json(path, f"delete it, then `equipoise resume {folder}`")
    if (folder / "federation.json").is_file():
        raise StorageError(
            f"{folder}: the sites have not said what they hold yet; try again when the first round is done"
        )
    facts = census(material(read_folder(folder)))
    write_json(path, facts)
    return facts


def census(stuff: Material) -> dict[str, Any]:
    """Who holds what: images and class counts (positives, for multi-label) per site and split.

    A site that labels only some of the classes has `labelled`, true or false for each.
    """
    samples = stuff.samples
    width = len(samples.classes)

    def counts(rows: np.ndarray) -> list[int]:
        labels = samples.labels[rows]
        return (
            np.bincount(labels, minlength=width) if samples.task == "single" else labels.sum(0).astype(int)
        ).tolist()

    parts = {holding.name: {split: getattr(holding, split) for split in SPLITS} for holding in stuff.holdings}
    sites: dict[str, dict[str, Any]] = {
        name: {split: {"images": len(rows), "counts": counts(rows)} for split, rows in splits.items()}
        for name, splits in parts.items()
    }
    for holding in stuff.holdings:
        if holding.labelled is not None:
            sites[holding.name]["labelled"] = holding.labelled.tolist()
    train = [sum(site["train"]["counts"][i] for site in sites.values()) for i in range(width)]
    _, height, across, channels = samples.images.shape
    return {
        "task": samples.task,
        "classes": list(samples.classes),
        "splits": list(SPLITS),
        "images": len(samples),
        "height": height,
        "width": across,
        "channels": channels,
        "train": train,
        "imbalance": max(train) / min(train) if min(train) else None,
        "groups": None if samples.group is None else len(np.unique(samples.group)),
        "sites": sites,
    }


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


def told_rounds(rounds: Sequence[int], endings: Sequence[int]) -> str:
    """The reported rounds in words: those that were chosen, and whether the method's ending is reported with
    them."""
    with_ending = (
        ""
        if not endings
        else ", with the method's ending"
        if len(endings) == 1
        else ", each with the method's ending"
    )
    return (", ".join(map(str, endings or rounds)) or "none") + with_ending


def by_size(counts: Sequence[float]) -> list[int]:
    """Class numbers from the most frequent to the rarest."""
    return sorted(range(len(counts)), key=lambda i: (-counts[i], i))


def percent(value: float | None) -> str:
    """0.1234 → 12.3 %; a dash for what does not exist."""
    return "–" if value is None else f"{100 * value:.1f} %"


def size(count: float) -> str:
    """Bytes in a unit one can read."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError

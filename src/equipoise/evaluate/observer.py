"""Evaluation as the training loop's observer: asks every site for scores or counts, writes one metrics row
per round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.blueprint import Blueprint
from equipoise.data.samples import Samples
from equipoise.errors import SiteError
from equipoise.evaluate.metrics import by_attribute, from_scores, from_statistics
from equipoise.evaluate.options import EvaluateOptions
from equipoise.evaluate.plausible import boasts, doubt
from equipoise.evaluate.protocol import FIGURE, blend, candidates, select, stopped, summarise
from equipoise.evaluate.scores import Scores, keep_scores, write_scores
from equipoise.exchange import Answers
from equipoise.keeping import FIRST
from equipoise.leaves import Upload
from equipoise.methods.base import SPLITS
from equipoise.partition import ByName, Held, Holding, Holdings, together
from equipoise.run_folder import METRICS, SCORES, TIMING, RunFolder
from equipoise.server import Exchange
from equipoise.site.figures import GROUPS, mean_of
from equipoise.tree import Tree

COUNTS = ("confusion", "binary", "calibration")
"""the statistics that are kept as they are, where no scores are"""


class Evaluation:
    """Metrics of every evaluated round, kept in memory and in the run folder; beside them the scores of
    rounds that may count.

    `held` is what each site has of each split; a site that is not named is believed. `samples` and `holdings`
    are the images themselves, where scores are made of them (`evaluate.exact`).
    """

    def __init__(
        self,
        blueprint: Blueprint,
        options: EvaluateOptions,
        folder: RunFolder,
        held: Mapping[str, Mapping[str, Held]],
        samples: Samples | None = None,
        holdings: Sequence[Holding] = (),
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.blueprint, self.options, self.folder, self.held = blueprint, options, folder, held
        self.method, self.rounds, self.task = blueprint.method, blueprint.train.rounds, blueprint.task
        self._samples = samples
        self.holdings = ByName(Holdings.of(holdings).places, lambda place: holdings[place])
        self.tell = tell or (lambda row: None)
        self.shots = torch.tensor(blueprint.shots)
        self.history: list[dict[str, Any]] = []
        self._mark = FIRST
        self._since = time.perf_counter()

    # The loop's view of us ----------------------------------------------------------------------------------

    def wants_tuned(self, round: int) -> bool:
        return self.method.keeps_tuned and self.options.own == "tuned" and self._due(round + 1)

    def observe(self, done: int, server: Tree, ask: Exchange, facts: Mapping[str, Any]) -> None:
        row: dict[str, Any] = {"round": done, **facts}
        begun, before = time.perf_counter(), self._since
        if self._due(done):
            row |= self._evaluate(done, server, ask)
        self._since = time.perf_counter()
        self.history.append(row)
        self._mark = self.folder.append(METRICS, row, sync=True)
        times = {"train": round(begun - before, 3), "evaluate": round(self._since - begun, 3)}
        # Apart from the metrics: those are the same whenever a run is repeated.
        self.folder.append(TIMING, {"round": done, **times})
        keep_scores(self.folder / SCORES, self._candidates())
        self.tell(row)

    def mark(self) -> str:
        return self._mark

    def pinned(self) -> frozenset[int]:
        return frozenset() if self.options.select == "last" else self._candidates()

    def _candidates(self) -> frozenset[int]:
        """The rounds that would be reported if this were the end; any other is never reported, whatever
        comes."""
        needed = "validation" if self.options.select == "best_validation" else "test"
        known = any(needed in row for row in candidates(self.history))
        return frozenset(self.selected()[0]) if known else frozenset()

    def _due(self, done: int) -> bool:
        return done % self.options.every == 0 or done >= self.rounds

    def objection(self, question: str, site: str, upload: Upload) -> str | None:
        """What cannot be true of a site's answer to the evaluation, in words."""
        if question != self.method.evaluate.__name__ or site not in self.held:
            return None
        for leaf in upload.values():
            assert isinstance(leaf.value, Mapping)
            for split, predictors in leaf.value.items():
                held = self.held[site][split]
                for name, statistics in predictors.items():
                    if problem := _miscounted(statistics, held):
                        return f"'{name}' on its {split} images: {problem}"
        return None

    # Before and after ---------------------------------------------------------------------------------------

    def resume(self, done: int, mark: str = FIRST) -> None:
        """Go on from the rows up to a round; `mark` is the hash of the last of them."""
        self.history = self.folder.keep_rows(METRICS, done, mark)
        self._mark = mark

    def selected(self) -> tuple[list[int], dict[str, Any]]:
        """The reported rounds and their metrics."""
        rows = [row for row in self.history if "test" in row]
        return select(rows, self.options.select, key=FIGURE)

    def stopped(self) -> tuple[int, str] | None:
        """The round after which training ends early, and why, where `train.stop` says so."""
        stop = self.blueprint.train.stop
        return None if stop is None else stopped(self.history, stop.patience, stop.least, stop.after)

    @property
    def samples(self) -> Samples:
        """The images, which exact scores are made of."""
        assert self._samples is not None, "exact scores need the images"
        return self._samples

    # The work -----------------------------------------------------------------------------------------------

    def _evaluate(self, done: int, server: Tree, ask: Exchange) -> dict[str, Any]:
        flags: Tree = {"own": torch.tensor(True)}
        if self.options.scored:
            flags["exact"] = torch.tensor(True)
        if not self.options.per_site:
            flags[GROUPS] = self.shots
        predictors = self.method.predictors(server, ask).values()
        answers = [ask(self.method.evaluate, server=tree, **flags) for tree in predictors]
        if self.options.scored:
            per_predictor = [self._exact(answer["scores"]) for answer in answers]
            self._keep(done, [answer["scores"] for answer in answers])
        else:
            per_predictor = [self._counted(answer) for answer in answers]
        # Several global predictors (training alone has one per site) count by their mean; a site's own
        # predictor is the same in all.
        return blend(per_predictor) if len(per_predictor) > 1 else per_predictor[0]

    def _keep(self, done: int, predictors: list[dict[str, Tree]]) -> None:
        """Write down how each global predictor scores the union of test sets."""
        sites = [site for site in predictors[-1] if len(self.holdings[site].test)]
        if not sites:
            return
        rows = np.concatenate([self.holdings[site].test for site in sites])
        counts = next(name for name in predictors[-1][sites[0]]["test"] if name.startswith("global."))
        pages = [torch.cat([scores[site]["test"][counts] for site in sites]) for scores in predictors]
        labels = torch.from_numpy(np.ascontiguousarray(self.samples.labels[rows]))
        scores = Scores(self.task, self.samples.ids[rows], labels, torch.stack(pages))
        write_scores(self.folder / SCORES, done, scores)

    def _exact(self, scores: dict[str, Tree]) -> dict[str, Any]:
        result = {}
        for split in SPLITS:
            index = {site: getattr(self.holdings[site], split) for site in scores}
            labels = {
                site: torch.from_numpy(np.ascontiguousarray(self.samples.labels[rows]))
                for site, rows in index.items()
            }
            filled = [site for site in scores if len(index[site])]
            if not filled:
                continue

            def metrics(logits: Tensor, y: Tensor) -> dict[str, Any]:
                own = self.options.own_metrics
                return from_scores(logits, y, task=self.task, shots=self.shots, own=own)

            names = list(scores[filled[0]][split])
            pooled_labels = torch.cat([labels[site] for site in filled])
            pooled = {
                name: torch.cat([scores[site][split][name] for site in filled])
                for name in names
                if name.startswith("global.")
            }
            roles = {name: metrics(logits, pooled_labels) for name, logits in pooled.items()}
            sites = {
                name: {site: metrics(scores[site][split][name], labels[site]) for site in filled}
                for name in names
                if name.startswith("own.")
            }
            result[split] = self._summary(roles, sites)
            if self.options.attributes and self.samples.attributes and split == "test":
                rows = np.concatenate([index[site] for site in filled])
                first = next(iter(pooled.values()))
                options: Any = {"task": self.task, "shots": self.shots, "own": self.options.own_metrics}
                result[split]["attributes"] = {}
                for name, values in self.samples.attributes.items():
                    reached = by_attribute(first, pooled_labels, values[rows], **options)
                    result[split]["attributes"][name] = {key: scalars(one) for key, one in reached.items()}
        return result

    def _counted(self, answers: Answers) -> dict[str, Any]:
        pooled: Tree = answers["pooled"]
        own: dict[str, Tree] = answers["own"]
        result = {}
        for split in SPLITS:
            if split not in pooled:
                continue
            if all(site in self.held for site in answers.sites):
                held = together(self.held[site][split] for site in answers.sites)
                for stats in pooled[split].values():
                    if problem := doubt(stats, held):
                        raise SiteError(
                            f"the sites' statistics of their {split} images do not add up: {problem}"
                        )
            roles = {name: from_statistics(stats, shots=self.shots) for name, stats in pooled[split].items()}
            if self.options.per_site:
                names = next(iter(own.values()))[split]
                sites = {
                    name: {
                        site: from_statistics(tree[split][name], shots=self.shots)
                        for site, tree in own.items()
                        if split in tree
                    }
                    for name in names
                }
                result[split] = self._summary(roles, sites)
            else:
                result[split] = self._mean(roles, own[split])
            if withheld := self._withheld(split, answers.sites):
                result[split]["withheld"] = withheld
            if split == "test":
                first = next(iter(pooled[split].values()))
                result[split]["counts"] = {name: first[name].tolist() for name in COUNTS if name in first}
        return result

    def _withheld(self, split: str, sites: Iterable[str]) -> dict[str, list[str]]:
        """By class: the sites among these that left its images out of their answers, as they have too few:
        figures of that class are over the others."""
        withheld: dict[str, list[str]] = {}
        for site in sites:
            for number in self.held[site][split].withheld if site in self.held else ():
                withheld.setdefault(self.blueprint.classes[number], []).append(site)
        return withheld

    @staticmethod
    def _mean(roles: dict[str, dict[str, Any]], own: Mapping[str, Tree]) -> dict[str, Any]:
        """The summary where of the sites' own predictors only the mean over sites is known."""
        means = {name: mean_of(added) for name, added in own.items()}
        summary = summarise(next(iter(roles.values())), {}, next(iter(means.values())))
        summary["sites"] = {}
        summary["roles"] = {name: scalars(metrics) for name, metrics in roles.items()} | means
        return summary

    @staticmethod
    def _summary(
        roles: dict[str, dict[str, Any]], sites: dict[str, dict[str, dict[str, Any]]]
    ) -> dict[str, Any]:
        """The summary of the predictors that count (the first of each kind), and in `roles` what every one of
        them reached."""
        first, own = next(iter(roles)), next(iter(sites))
        summary = summarise(roles[first], sites[own])
        summary["sites"] = sites[own]
        summary["roles"] = {name: scalars(metrics) for name, metrics in roles.items()} | {
            name: scalars(blend(list(metrics.values()))) for name, metrics in sites.items()
        }
        return summary


def _miscounted(statistics: Any, held: Held) -> str | None:
    """What is wrong with one predictor's scores or statistics."""
    if isinstance(statistics, Mapping):
        return boasts(statistics) if "sum" in statistics else doubt(statistics, held)
    if len(statistics) == held.images:
        return None
    return f"it scores {len(statistics):,} images, and there are {held.images:,}"


def scalars(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that are one number."""
    return {key: value for key, value in metrics.items() if value is None or isinstance(value, int | float)}

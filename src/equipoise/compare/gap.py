"""How much of the gap between training alone and training on pooled images each arm closes, by view, site and
class.

The share is (joined − alone) / (pooled − alone), each the mean over the seeds and folds that all three have
finished: 0 % is no better than training alone, 100 % as good as all images in one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from equipoise.compare.plan import Arm, Job, Plan
from equipoise.methods import Standard
from equipoise.report import Sheet
from equipoise.report.table import Figure, Row, Table

VIEWS = {"generalisation": "G", "specialisation": "S", "average": "A"}
PARTS = ("views", "sites", "classes")
LEAST = 0.01
"""a gap below this is none: a share of it would say nothing"""
NOTE = """\
(joined − {alone}) / ({pooled} − {alone}) in per cent, of {what}; means over runs that all three have. 0: no
better than training alone; 100: as good as with all images in one place. In brackets the gap in points; –:
it is below one point.
"""
Values = Mapping[str, float | None]
"""a figure by view, site or class"""


def standard_of(plan: Plan, arm: Arm) -> Standard | None:
    """What an arm is to the others, if they are measured against it."""
    return next(job.config.method.standard for job in plan.jobs if job.arm == arm)


def gaps(plan: Plan, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """By arm: which arms are its two ends, and what it closes of the gap between them; only where both ends
    are there."""
    closed = {}
    for arm in plan.arms:
        alone, pooled = _end(plan, arm, "alone"), _end(plan, arm, "pooled")
        if alone is None or pooled is None or standard_of(plan, arm) in ("alone", "pooled"):
            continue
        tests = [_tests(plan, one, results) for one in (alone, pooled, arm)]
        keys = [key for key in tests[0] if all(key in some for some in tests)]
        if not keys:
            continue
        closed[arm.label] = {"alone": alone.label, "pooled": pooled.label} | {
            part: _closed([[pick(some[key]) for key in keys] for some in tests])
            for part, pick in (("views", _by_view), ("sites", _by_site), ("classes", _by_class))
        }
    return closed


def _end(plan: Plan, arm: Arm, kind: Standard) -> Arm | None:
    """The arm of this kind at the same point of a grid; of several, the one with the same objective."""
    jobs = (job for job in plan.jobs if job.arm.point == arm.point)
    candidates = [job for job in jobs if job.config.method.standard == kind]
    own = next(job.config for job in plan.jobs if job.arm == arm)
    alike = [job for job in candidates if job.config.objective == own.objective]
    return next((job.arm for job in [*alike, *candidates]), None)


def _tests(plan: Plan, arm: Arm, results: Mapping[str, Mapping[str, Any]]) -> dict[Any, dict[str, Any]]:
    """The test metrics of an arm's finished runs, by seed and fold."""
    jobs: Iterator[Job] = (job for job in plan.jobs if job.arm == arm and job.name in results)
    tests = {(job.seed, job.fold): results[job.name]["metrics"].get("test") for job in jobs}
    return {key: test for key, test in tests.items() if test}


def _by_view(test: Mapping[str, Any]) -> Values:
    return {view: test[view].get("balanced_accuracy") for view in VIEWS}


def _by_site(test: Mapping[str, Any]) -> Values:
    return {site: (reached or {}).get("balanced_accuracy") for site, reached in test["sites"].items()}


def _by_class(test: Mapping[str, Any]) -> Values:
    return {str(i): value for i, value in enumerate(test["generalisation"].get("recall") or ())}


def _closed(values: Sequence[Sequence[Values]]) -> dict[str, dict[str, float | None] | None]:
    """By name the gap, how far the arm is above its lower end, and the share; `values` are those of alone,
    pooled and arm, run by run."""
    closed = dict[str, dict[str, float | None] | None]()
    for name in dict.fromkeys(name for one in values[2] for name in one):
        runs = [tuple(one.get(name) for one in run) for run in zip(*values, strict=True)]
        known = [(a, p, j) for a, p, j in runs if a is not None and p is not None and j is not None]
        if not known:
            closed[name] = None
            continue
        gap, joined = mean(p - a for a, p, _ in known), mean(j - a for a, _, j in known)
        closed[name] = {"gap": gap, "joined": joined, "closed": joined / gap if gap >= LEAST else None}
    return closed


def sheets(facts: Mapping[str, Any]) -> list[Sheet]:
    """The gaps as two tables: by view and site, and by class; none where no arm has both ends."""
    gaps = facts.get("gaps") or {}
    if not gaps:
        return []
    first = next(iter(gaps.values()))
    names = {part: dict.fromkeys(name for one in gaps.values() for name in one[part]) for part in PARTS}
    classes = {str(i): name for i, name in enumerate(facts["classes"])}
    ends = {end: " or ".join(dict.fromkeys(one[end] for one in gaps.values())) for end in ("alone", "pooled")}
    single = all(one["alone"] == first["alone"] and one["pooled"] == first["pooled"] for one in gaps.values())

    def table(parts: Sequence[str], shown: Mapping[str, str]) -> Table:
        columns = [(part, name) for part in parts for name in names[part]]
        heads = tuple(
            shown.get(name, name) + (_points(first[part].get(name)) if single else "")
            for part, name in columns
        )
        rows = (
            Row(label, tuple(_figure(one[part].get(name)) for part, name in columns))
            for label, one in gaps.items()
        )
        return Table(heads, tuple(rows))

    sites = "balanced accuracy (of the views, then of each site's own predictor on its own test set)"
    recall = "the global predictor's recall of each class on the union of test sets"
    by_view, by_class = table(("views", "sites"), VIEWS), table(("classes",), classes)
    return [
        Sheet("Gap closed, by view and site", by_view, NOTE.format(**ends, what=sites)),
        Sheet("Gap closed, by class", by_class, NOTE.format(**ends, what=recall)),
    ]


def _figure(one: Mapping[str, float | None] | None) -> Figure | None:
    share = one["closed"] if one else None
    return None if share is None else Figure(share, None)


def _points(one: Mapping[str, float | None] | None) -> str:
    gap = one["gap"] if one else None
    return "" if gap is None else f" ({100 * gap:+.1f})"

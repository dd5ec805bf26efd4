"""What the figures of a run lack: sites that gave no answer to the test, and classes that sites say nothing
of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.report.folder import Run
from equipoise.text import listed


def tested(run: Run) -> list[str]:
    """The sites whose answer to the test counted."""
    absent = untested(run)
    there = run.data["sites"] if mean_only(run) else (run.test or {}).get("sites", {})
    return [site for site in run.data["sites"] if site in there and site not in absent]


def untested(run: Run) -> list[str]:
    """The sites that have test images, and whose answer is in no figure."""
    if run.test is None:
        return []
    sites, there = run.data["sites"], run.test["sites"]
    absent = [site for site, held in sites.items() if held["test"]["images"] and site not in there]
    if mean_only(run) or run.config.get("evaluate", {}).get("sites"):
        # The figures name none of the sites, or only some were asked: the journal names who is missing.
        lines = [line for line in run.journal if line["event"] == "missing"]
        reported = run.result["selected_rounds"]
        lost = {site for line in lines if line["round"] in reported for site in line["sites"]}
        absent = [site for site in absent if site in lost]
    return absent


def mean_only(run: Run) -> bool:
    """Whether of the sites' own predictors only the mean over sites is known (`evaluate.per_site`)."""
    return run.config.get("evaluate", {}).get("per_site") is False


def missing(run: Run) -> str:
    """Who did not answer when the reported model was tested, and why as far as the journal knows; nothing
    where all did."""
    absent = untested(run)
    if not absent:
        return ""
    count = sum(run.data["sites"][site]["test"]["images"] for site in absent)
    why = {site: reason for site in absent if (reason := _reason(run.journal, site))}
    text = f"{listed(absent)} gave no usable answer when the reported model was tested"
    text += f" ({'; '.join(f'{site}: {reason}' for site, reason in why.items())})" if why else ""
    return f"{text}. No figure counts the {count:,} test images there."


def _reason(journal: Sequence[Mapping[str, Any]], site: str) -> str:
    """The last thing that went wrong with a site's answers."""
    events = ("silent", "refused", "failed", "rejected")
    lines = [line for line in journal if line["event"] in events and line.get("site") == site]
    return str(lines[-1]["reason"]) if lines else ""


def withheld(run: Run, split: str) -> dict[str, list[str]]:
    """By class: the sites that tell nothing of it, as they have too few images of it."""
    sites: dict[str, list[str]] = {}
    for site, held in run.data["sites"].items():
        for number in held[split].get("withheld", ()):
            sites.setdefault(run.data["classes"][number], []).append(site)
    return sites


def withheld_note(run: Run) -> str:
    """What sites with few images of a class leave out, in words; nothing where there is no such class."""
    rules = {n for n in run.data.get("small_cell", {}).values() if n}
    if not rules:
        return ""
    few = f"fewer than {min(rules)}" if len(rules) == 1 else "too few"
    parts = []
    if lost := withheld(run, "test"):
        parts.append(
            f"Sites that have {few} test images of a class leave them out of the test, so its figures lack "
            f"them: {_each(lost)}."
        )
    if lost := withheld(run, "train"):
        parts.append(f"They trained on all images, and do not tell how many of these: {_each(lost)}.")
    return " ".join(parts)


def _each(lost: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name} at {listed(sites)}" for name, sites in lost.items())


def gaps(run: Run) -> list[str]:
    """All that the figures lack, a text each."""
    return [text for text in (missing(run), withheld_note(run)) if text]


def most_trained(data: Mapping[str, Any], number: int) -> int | None:
    """The most training images a class can have, as far as the sites tell; None where that is not known."""
    total: int = data["train"][number]
    for site, held in data["sites"].items():
        if number in held["train"].get("withheld", ()):
            total += data["small_cell"][site] - 1
        elif number in held["train"].get("untold", ()):
            return None
    return total

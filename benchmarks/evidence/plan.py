"""What is recorded of each table, what is missing, and how long that is likely to take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from evidence.records import RUN, Record
from evidence.runs import Job, Runs


def lines(wanted: Sequence[Runs], seeds: int, rows: set[str]) -> Iterable[str]:
    """Every row of the wanted tables (`rows`: of those only), with the seeds that are missing and the hours
    they need."""
    total = 0.0
    for runs in wanted:
        left = {row: missing(runs, row, seeds) for row in runs.table.rows if not rows or row in rows}
        if not left:
            continue
        hours = {row: sum(seconds(runs, job) or 0.0 for job in jobs) / 3600 for row, jobs in left.items()}
        total += sum(hours.values()) / runs.jobs
        short = {row: [job for job in jobs if job.kind != RUN] for row, jobs in left.items()}
        runs_left = sum(len(jobs) - len(short[row]) for row, jobs in left.items())
        yield ""
        yield (
            f"{runs.name}: {seeds * len(left) - runs_left} of {seeds * len(left)} runs recorded; "
            f"{told(runs, sum(hours.values()))}"
        )
        for row, jobs in left.items():
            gaps = [str(job.seed) for job in jobs if job.kind == RUN]
            trials = f", {len(short[row])} short runs for its learning rate" if short[row] else ""
            state = (
                f"seeds {', '.join(gaps)} missing{trials}; {told(runs, hours[row])}" if gaps else "recorded"
            )
            yield f"  {row}: {state}"
    yield ""
    yield f"together about {total:.1f} hours with {wanted[0].jobs} runs side by side, where a time is known"


def missing(runs: Runs, row: str, seeds: int) -> list[Job]:
    """What is not recorded of a row: the short runs for its learning rate, and seeds."""
    rate = runs.rate(row)
    jobs = [*runs.trials(row), *(runs.job(row, seed, rate) for seed in range(seeds))]
    return runs.missing(jobs)


def seconds(runs: Runs, job: Job) -> float | None:
    """How long a run is likely to take where nothing else runs: by the quickest recorded round of its row,
    else by what rows of the table mostly take, else by the round that the table names; None where nothing is
    known."""
    quickest = dict[str, float]()
    for one in runs.records.values():
        if one["seconds"] > 0 and one["row"] not in runs.table.trained_by:
            each = one["seconds"] / rounds_of(runs, one)
            quickest[one["row"]] = min(each, quickest.get(one["row"], each))
    if not quickest and not runs.table.round_seconds:
        return None
    usual = median(quickest.values()) if quickest else runs.table.round_seconds
    return job.rounds * quickest.get(job.row, usual)


def rounds_of(runs: Runs, record: Record) -> int:
    """How many rounds a recorded run had: trials record none, but all have the same."""
    return int(record.get("round", runs.table.trial_rounds))


def told(runs: Runs, hours: float) -> str:
    known = runs.table.round_seconds or runs.records
    return f"about {hours:.1f} hours of one core" if known else "time not known"

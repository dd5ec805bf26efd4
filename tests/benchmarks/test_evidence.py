"""The tables of docs/results: what is kept of a run, how a learning rate is chosen, what a page says."""

from __future__ import annotations

import json
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import equipoise
from equipoise import config
from equipoise.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from evidence import advice, claims, goal, page, plan, records  # noqa: E402
from evidence import runs as jobs  # noqa: E402
from evidence.curves import curves  # noqa: E402
from evidence.figures import (  # noqa: E402
    Difference,
    closed,
    converged,
    difference,
    on_validation,
    settled,
)
from evidence.figures import value as taken  # noqa: E402
from evidence.lists import TABLES, Table  # noqa: E402
from evidence.runs import Runs  # noqa: E402

from equipoise.evaluate.protocol import moved  # noqa: E402

TABLE = Table(
    "two rows", "phantom", {"one": ("method.name=fedavg",), "two": ("method.name=fca",)}, rates=(0.1, 0.2)
)


def run(row: str, seed: int, value: float, **facts: Any) -> records.Record:
    metrics = {view: {"balanced_accuracy": value} for view in records.VIEWS}
    usual = {"curve": [[1, value, value, value, 0.1]], "recall": [value, None], "support": [5, 3]}
    return {
        **{"kind": "run", "row": row, "seed": seed, "rate": 0.1, "metrics": metrics, "moved": 0.0},
        **{"classes": ["a", "b"], "seconds": 60.0, **usual, **facts},
    }


@pytest.fixture(autouse=True, scope="module")
def _recipes_stay() -> Iterator[None]:
    """Recipes do not change meanwhile: each is read once, and each run has its fingerprint taken once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "mark", cache(records.mark))
        patch.setattr(claims, "number", cache(claims.number))
        yield


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(records, "FOLDER", tmp_path / "records")
    return Runs("two", TABLE, 1)


def test_every_row_tries_the_same_rates_and_takes_the_best_on_validation(runs: Runs) -> None:
    for row, scores in {"one": (0.3, 0.4), "two": (0.5, 0.2)}.items():
        assert runs.rate(row) is None
        for job, score in zip(runs.trials(row), scores, strict=True):
            runs.records[job.mark] = {"kind": "trial", "row": row, "rate": job.rate, "score": score}
    assert (runs.rate("one"), runs.rate("two")) == (0.2, 0.1)
    assert len({job.mark for row in TABLE.rows for job in runs.trials(row)}) == 4


def test_rows_that_only_predict_start_from_the_models_of_another(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ROOT", tmp_path)
    rows = {**TABLE.rows, "three": ("method.name=fca", "method.preset=no-consistency")}
    table = Table("", "phantom", rows, ("train.rounds=9",), rates=(0.1,), trained_by={"three": "two"})
    runs = Runs("three", table, 1)
    made = list[jobs.Job]()

    def make(job: jobs.Job) -> None:
        made.append(job)
        runs.records[job.mark] = run(job.row, job.seed, 0.5, kind=job.kind, score=0.5)

    monkeypatch.setattr(runs, "_one", make)
    runs.make(2, {"two", "three"})
    assert [job.row for job in made] == ["two", "two", "two", "three", "three"]
    assert [job.kind for job in made] == ["trial", "run", "run", "run", "run"]
    last = made[-1]
    assert last.source == made[2] and f"train.init={made[2].folder}" in last.command
    assert "train.rounds=0" in last.command and "train.rounds=9" not in last.command
    assert (runs.rate("three"), runs.trials("three")) == (0.1, [])

    # a record without its folder is made again before what starts from it; one with its folder is not
    runs.records = {mark: one for mark, one in runs.records.items() if one["row"] != "three"}
    made[1].folder.mkdir(parents=True)
    (made[1].folder / "result.json").touch()
    repeated = made[2]
    made.clear()
    runs.make(2, {"three"})
    assert made[0] == repeated and [job.row for job in made] == ["two", "three", "three"]


def test_the_mark_of_a_run_does_not_hold_where_its_source_lies(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"one": ("method.name=fca",), "two": ("method.name=fca", "method.preset=no-consistency")}
    here = Runs("there", Table("", "phantom", rows, trained_by={"two": "one"}), 1).job("two", 0, None)
    before = here.mark, here.folder
    monkeypatch.setattr(jobs, "ROOT", tmp_path)
    assert here.mark == before[0] and here.folder != before[1]


def test_what_was_recorded_is_read_back_in_an_order_of_its_own(runs: Runs) -> None:
    kept = {f"{i}": run("one", i, 0.5, mark=f"{i}") for i in (2, 0, 1)}
    records.write("two", kept)
    assert records.read("two") == kept
    lines = (records.FOLDER / "two.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1, 2]


def test_differences_are_paired_by_seed_with_students_interval() -> None:
    mine, theirs = [0.50, 0.58, 0.61], [0.45, 0.50, 0.60]
    one = [run("one", seed, value) for seed, value in enumerate(mine)]
    other = [run("two", 9, 0.9), *(run("two", seed, value) for seed, value in enumerate(theirs))]
    found = difference(one, other, "average")
    expected = stats.ttest_rel(mine, theirs).confidence_interval(0.95)
    assert found is not None and found.seeds == 3
    assert np.allclose([found.mean, found.low, found.high], [0.14 / 3, expected.low, expected.high])
    assert difference(one, [], "average") is None


def test_no_two_curves_of_a_picture_look_alike() -> None:
    most = max(len(table.rows) - len(table.trained_by) for table in TABLES.values())
    drawn = curves({f"row {i}": [[[0, 0, 0, 0.2], [5, 0, 0, 0.5 + i / 100]]] for i in range(most)})
    looks = re.findall(r'<polyline [^>]*stroke="(#\w+)" stroke-width="2"( stroke-dasharray="[\d ]+")?', drawn)
    assert len(set(looks)) == len(looks) == most
    assert re.findall(r'middle">(\d+)<', drawn) == [str(n) for n in range(6)]


def test_a_gap_is_closed_by_its_share() -> None:
    def share(*rows: list[records.Record]) -> str:
        return closed(*rows, lambda one: taken(one, "average", "balanced_accuracy"))

    alone, joined, pooled = ([run("x", 0, number)] for number in (0.4, 0.55, 0.6))
    assert share(joined, alone, pooled) == "75"
    # a seed that one of the three lacks says nothing of the gap
    assert share([*joined, run("x", 1, 0.9)], [*alone, run("x", 1, 0.1)], pooled) == "75"
    assert share(joined, alone, alone) == "–"
    assert share(joined, alone, [run("x", 0, 0.409)]) == "–"
    assert share(joined, alone, [run("x", 1, 0.6)]) == "–"


def test_rows_that_have_not_converged_are_marked() -> None:
    """By the mean over their runs; a point is not yet too much."""

    def row(*moves: float | None) -> list[records.Record]:
        return [run("x", seed, 0.5, moved=moved) for seed, moved in enumerate(moves)]

    assert settled(row(0.03, -0.01)) == "+1.0" and converged(row(0.03, -0.01), row(0.0))
    assert settled(row(-0.03, 0.0)) == "-1.5 †" and not converged(row(0.0), row(-0.03, 0.0))
    assert settled(row(0.0, None)) == settled([]) == "–" and not converged(row(0.0, None))


def test_how_far_a_run_moved_follows_from_its_rounds_of_training(runs: Runs) -> None:
    """The last quarter less the one before; the ending, which counts as a round after the last, is left
    out."""
    table = Table("", "phantom", {"one": ("method.name=fedavg", "train.rounds=8")})
    runs = Runs("one", table, 1)
    values = (0.1, 0.1, 0.1, 0.1, 0.2, 0.3, 0.4, 0.6, 0.9)
    curve = [[round + 1, value, None, 0.5, 0.5] for round, value in enumerate(values)]
    for seed, points in enumerate((curve, curve[:3])):
        job = runs.job("one", seed, None)
        runs.records[job.mark] = run("one", seed, 0.5, curve=points)
    found = [record["moved"] for record in runs.finished("one", 2)]
    assert found == [pytest.approx(0.25), None]


def test_the_page_names_rows_that_are_missing_and_how_rates_were_chosen(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    monkeypatch.setattr(page, "ROOT", tmp_path)
    for row in TABLE.rows:
        for job in runs.trials(row):
            runs.records[job.mark] = {"kind": "trial", "row": row, "rate": job.rate, "score": job.rate}
    for seed, value in enumerate((0.5, 0.6)):
        runs.records[runs.job("one", seed, 0.2).mark] = run("one", seed, value)
    lines = page.write(runs, 2)
    assert any(line.startswith("| one | 55.0 ± 7.1 |") for line in lines)
    text = "\n".join(lines)
    assert "Not all runs are made yet: two." in text and "Chosen" in text and "one 0.2" in text
    assert (tmp_path / "docs" / "results" / "two.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if Runs(name, table, 1).begun])
def test_the_page_of_a_table_is_that_of_its_records(name: str) -> None:
    kept = records.ROOT / "docs" / "results" / name
    text = kept.with_suffix(".md").read_text()
    seeds = re.search(rf"tables\.py {name} --seeds (\d+)`", text)
    assert seeds is not None
    lines, picture = page.drawn(Runs(name, TABLES[name], 1), int(seeds[1]))
    again = f"python benchmarks/tables.py {name} --page"
    assert text == "\n".join(lines), again
    assert kept.with_suffix(".svg").read_text() == picture, again


def test_the_page_of_claims_is_that_of_the_records() -> None:
    made = runpy.run_path(str(records.ROOT / "benchmarks" / "claims.py"))
    assert made["PAGE"].read_text() == made["page"](), "python benchmarks/claims.py"


def test_what_is_kept_of_a_run_is_what_the_run_says(tmp_path: Path) -> None:
    data = {"kind": "phantom", "scale": 0.004, "image_size": 16, "split": {"seed": 1}}
    result = equipoise.run({"data": data, "train": {"rounds": 2}}, out=tmp_path)
    kept = records.record_of(tmp_path)
    assert kept["metrics"]["generalisation"]["balanced_accuracy"] == pytest.approx(
        result.metrics["test"]["generalisation"]["balanced_accuracy"], abs=1e-5
    )
    assert [point[0] for point in kept["curve"]] == [1, 2] and kept["state"] == result.state_hash[:16]
    last = [row["validation"]["average"]["balanced_accuracy"] for row in result.history]
    assert records.validated(tmp_path, "balanced_accuracy") == pytest.approx(sum(last) / 2, abs=1e-5)


def test_every_table_names_a_recipe_and_compares_with_a_row_it_has() -> None:
    for name, table in TABLES.items():
        assert (ROOT / "recipes" / f"{table.recipe}.toml").exists(), name
        assert table.compared in table.rows, name


NEW = ("fedsdc-niid1", "sites-48", "sites-lite0", "pbc-skew", "pbc-overview", "pbc-tail", "fedsdc-iid")
SEVERAL = ("fedmlp-1", "fedmlp-3", "fedmlp-5", "fedmlp-7", "fedmlp-phantom")


def resolved(table: Table, row: str) -> config.Config:
    text = config.load(ROOT / "recipes" / f"{table.recipe}.toml")
    return config.resolve(config.override(text, (*table.rows[row], *table.common)), ROOT)


@pytest.mark.parametrize("name", TABLES)
def test_the_config_of_every_row_resolves(name: str) -> None:
    table = TABLES[name]
    found = {row: resolved(table, row) for row in table.rows}
    budgets = {(one.train.rounds, one.train.epochs, one.train.batch_size) for one in found.values()}
    assert len(budgets) == 1
    assert len({one.digest for one in found.values()}) == len(found)


@pytest.mark.parametrize("name", [*NEW, *SEVERAL])
def test_tables_that_judge_have_bounds_both_losses_our_method_and_tell_convergence(name: str) -> None:
    table = TABLES[name]
    found = {row: resolved(table, row) for row in table.rows}
    assert {"local", "centralised", "fedavg", "equipoise"} <= {one.method_name for one in found.values()}
    plain = [one for one in found.values() if one.method_name in ("fedavg", "bsm-fl", "fedavg-pl")]
    losses = {json.dumps(one.method.base_loss(one.objective).model_dump(), default=str) for one in plain}
    assert len(losses) >= 2
    assert table.rates
    for row, one in found.items():
        history = [
            {"round": r, "validation": {"generalisation": {"balanced_accuracy": 0.5}}}
            for r in range(one.evaluate.every, one.train.rounds + 1, one.evaluate.every)
        ]
        assert moved(history) == 0.0, row
        assert one.data.split.seed == 0 and one.data.split.validation == 0.2
        # a learning rate must be chosen by rounds in which the method does what it is made for
        assert (getattr(one.method, "warmup", None) or 0) < table.trial_rounds, row


def test_one_name_is_one_row_in_all_tables_that_judge() -> None:
    """A reader sets rows of two tables side by side by their names."""
    for names in (NEW, [name for name in SEVERAL if name != "fedmlp-phantom"]):  # its own views are flips
        found = dict[str, set[str]]()
        for table in (TABLES[name] for name in names):
            for row in table.rows:
                one = resolved(table, row)
                if one.method_name == "bsm-fl":
                    continue  # FedAvg with balanced softmax by another name
                method = one.method.model_dump(exclude={"warmup"})
                facts = (method, one.method.base_loss(one.objective).model_dump(), one.train.views)
                found.setdefault(row, set()).add(json.dumps(facts, sort_keys=True, default=str))
        assert [row for row, kinds in found.items() if len(kinds) > 1] == []


@pytest.mark.parametrize("name", [name for name in NEW if Runs(name, TABLES[name], 1).begun])
def test_pages_with_one_label_per_image_say_how_much_of_the_gap_is_closed_for_whom(name: str) -> None:
    text = (records.ROOT / "docs" / "results" / f"{name}.md").read_text()
    by_class, by_site = re.findall(r"Gap closed in per cent, by [^\n]+\n\n\| method \|([^\n]+)", text)
    assert by_class.count("|") >= 7 and by_site.count("|") >= 4
    assert "| seeds |" in text


def test_one_table_has_every_single_label_method() -> None:
    table = TABLES["pbc-overview"]
    found = {row: resolved(table, row) for row in table.rows}
    wanted = {name for name, cls in METHODS.items() if "single" in cls.tasks} - {"fedavg-pl"}
    assert {one.method_name for one in found.values()} >= wanted
    presets = {row: dict(one.method) for row, one in found.items() if one.method_name == "equipoise"}
    assert len(presets) == 1 + len(METHODS["equipoise"].presets)
    assert found["FedIIC"].train.views != found["FedIIC, its own views"].train.views


def test_fedmlps_components_add_up_to_the_whole() -> None:
    table = TABLES["fedmlp-7"]
    parts = [resolved(table, row).method.model_dump() for row in table.rows if row.startswith("FedMLP")]
    on = [{part for part in ("mld", "wpc", "cr", "st") if one[part]} for one in parts]
    assert on == [{"mld", "wpc", "cr", "st"}, {"mld"}, {"mld", "wpc"}, {"mld", "wpc", "cr"}]


def test_the_plan_counts_what_is_missing_and_how_long_it_takes(runs: Runs) -> None:
    assert "time not known" in "\n".join(plan.lines([runs], 2, set()))
    for row in TABLE.rows:
        for job in runs.trials(row):
            done = {"row": row, "rate": job.rate, "score": job.rate, "seconds": 80.0}
            runs.records[job.mark] = {"kind": "trial", **done}
    # a run beside other work, which took twice as long, is no measure
    runs.records[runs.job("one", 0, 0.2).mark] = run("one", 0, 0.5, seconds=200.0, round=10)
    # ten seconds a round in the short runs of the first row, so 100 seconds for the ten rounds of the recipe
    assert [job.seed for job in plan.missing(runs, "one", 3)] == [1, 2]
    assert plan.seconds(runs, runs.job("one", 1, 0.2)) == pytest.approx(100.0)
    text = list(plan.lines([runs], 2, set()))
    assert text[1].startswith("two: 1 of 4 runs recorded")
    assert "  one: seeds 1 missing; about 0.0 hours of one core" in text
    assert not any(line.startswith("  one") for line in plan.lines([runs], 2, {"two"}))


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["--plan"], 0, "fedsdc-niid1: "),
        (["--plan", "sites-48"], 0, "sites-48: "),
        (["sites-84", "--plan"], 2, "unknown table 'sites-84': did you mean 'sites-48'?"),
        (["sites-48", "--plan", "--rows", "FCC"], 2, "unknown row 'FCC': did you mean 'FCA'?"),
    ],
)
def test_the_command_takes_any_tables_or_none(
    given: list[str],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tables.py", *given])
    ended: object = 0
    try:
        runpy.run_path(str(ROOT / "benchmarks" / "tables.py"), run_name="__main__")
    except SystemExit as end:
        ended = end.code
    out, err = capsys.readouterr()
    assert ended == code and said in out + err


def test_every_claim_has_the_papers_margin_and_a_row_of_ours() -> None:
    found = list(claims.findings())
    assert len(found) >= 20 and len({one.text for one in found}) == len(found)
    margins = {one.text: one.margin for one in found}
    assert margins["FedSDC is above FedAvgM"] == pytest.approx(68.76 - 66.29)
    assert margins["the second head alone, without consistency, is above one head"] == pytest.approx(5.2)
    assert margins["Fed-MAS is above balanced softmax"] == pytest.approx(61.61 - 59.15)
    for one in found:
        assert one.margin > 0 or one.level, one.text
        if one.ours is None:
            assert one.remark, one.text
            assert one.verdict == ("not run yet" if one.runnable else "not testable here")
        else:
            for rows in (one.ours.rows, *(other.rows for other in (*one.elsewhere, *one.beside))):
                assert {rows.better, rows.worse} <= set(TABLES[rows.table].rows), one.text


def test_fed_mas_is_judged_by_the_global_model_as_in_its_paper() -> None:
    views = {one.ours.rows.view for one in claims.findings() if one.paper == "Fed-MAS" and one.ours}
    assert views == {"G"}


CLAIMS = tomllib.loads(claims.CLAIMS.read_text())["claim"]
DECIDED = {claim["text"]: (claim["ours"], claim.get("elsewhere", [])) for claim in CLAIMS if "ours" in claim}


@pytest.mark.parametrize("text", DECIDED)
def test_elsewhere_is_a_table_that_judges_with_as_many_missing_labels(text: str) -> None:
    """In those one name is one row."""
    ours, elsewhere = DECIDED[text]
    assert ours["table"] not in elsewhere
    for name in (ours["table"], *elsewhere):
        assert name in (*NEW, *SEVERAL)
        if named := re.search(r"(\d) of 8 labels missing", text):
            assert resolved(TABLES[name], ours["better"]).partition.missing == int(named[1]), name


def test_elsewhere_has_what_a_claim_is_about() -> None:
    """FCA's are about sites that differ; FedSDC's about imbalance, but for the one that is about none."""
    for claim in CLAIMS:
        for name in claim.get("elsewhere", []):
            partition = resolved(TABLES[name], claim["ours"]["better"]).partition
            assert claim["paper"] != "FCA" or partition.kind != "iid", (claim["text"], name)
            assert not claim.get("level") and name != "fedsdc-iid", (claim["text"], name)


def test_remarks_are_special_to_their_claim_and_end_where_the_page_ends_them() -> None:
    for claim in CLAIMS:
        (remark,) = [claim[key] for key in ("remark", "needs", "lacking") if key in claim] or ["nothing"]
        assert not remark.endswith(".") and "three learning rates" not in remark, claim["text"]


def test_the_page_of_claims_explains_its_words_and_what_its_verdicts_rest_on() -> None:
    made = runpy.run_path(str(records.ROOT / "benchmarks" / "claims.py"))
    text = made["PAGE"].read_text()
    single = ("DALA", "intra", "inter", "t", "q", "KD", "λ", "cRT", "MLD", "WPC", "CR", "ST")
    for word in (*single, "M1", "M2", "M3", "NIID-1", "FedAvg-PL", "missing = 0", "tail", "as released"):
        assert f"**{word}**" in made["WORDS"], word
    for said in ("Student's t", "share their test images", "permutation", "corrected for the number"):
        assert said in made["HEAD"]
    assert not re.search(r"\.\.(?!/)", text)


def test_what_stands_beside_a_claim_is_printed_of_shown_claims_too() -> None:
    made = runpy.run_path(str(records.ROOT / "benchmarks" / "claims.py"))
    rows = claims.Decides("sites-48", "a", "b", "G")
    gap = Difference(0.05, 0.02, 0.08, 3)
    other = claims.Measured(
        claims.Decides("sites-48", "a", "c", "G"),
        Difference(-0.02, -0.03, -0.01, 3),
        Difference(-0.01, 0, 0, 3),
    )
    few = claims.Measured(claims.Decides("sites-48", "a", "d", "G"), Difference(0.1, 0.1, 0.1, 2))
    ours = claims.Measured(rows, gap, gap, 3, True, (0.002, 0.008), 0.008)
    one = claims.Finding("P", "a is above b", 1.0, ours, "Tried much", beside=[other, few])
    assert one.verdict == "shown"
    assert list(made["remarks"]([one], "shown")) == [
        "- P, *a is above b*. Tried much. Learning rates 0.002 and 0.008, of which the second was the "
        "largest tried. Beside it: a − c, G: -2.0 (-3.0 … -1.0), on validation images -1.0."
    ]


def told(low: float, high: float, seeds: int = 3, validation: float | None = None, **facts: Any) -> str:
    heard = None if validation is None else Difference(validation, -1.0, 1.0, seeds)
    gap = Difference((low + high) / 2, low, high, seeds)
    ours = claims.Measured(claims.Decides("t", "a", "b", "G"), gap, heard)
    return claims.Finding("", "", 1.0, ours, **facts).verdict


@pytest.mark.parametrize(
    ("low", "high", "seeds", "verdict"),
    [
        (0.01, 0.03, 3, "shown"),
        (-0.01, 0.03, 3, "not shown"),
        (-0.05, -0.03, 3, "contradicted"),
        (-0.05, 0.03, 1, "not run yet"),
        (0.01, 0.03, 2, "not run yet"),
    ],
)
def test_a_verdict_follows_from_the_interval(low: float, high: float, seeds: int, verdict: str) -> None:
    assert told(low, high, seeds) == verdict


@pytest.mark.parametrize(
    ("low", "high", "validation", "verdict"),
    [
        (0.01, 0.03, 0.01, "shown"),
        (0.01, 0.03, 0.009, "not shown"),
        (0.01, 0.03, -0.01, "not shown"),
        (-0.05, -0.03, -0.01, "contradicted"),
        (-0.05, -0.03, -0.002, "not shown"),
        (-0.05, -0.03, 0.01, "not shown"),
        (-0.01, 0.03, 0.05, "not shown"),
    ],
)
def test_other_images_must_agree_by_a_point(low: float, high: float, validation: float, verdict: str) -> None:
    """All seeds have the same test images: what these alone say is not shown."""
    assert told(low, high, validation=validation) == verdict


@pytest.mark.parametrize(
    ("view", "expected"), [("generalisation", 0.10), ("specialisation", 0.20), ("average", 0.15)]
)
def test_the_figure_on_validation_images_is_that_of_the_last_evaluation(view: str, expected: float) -> None:
    record = {"curve": [[2, 0.5, 0.5, 0.9, 0.9], [4, 0.10, 0.20, 0.9, 0.9]]}
    assert on_validation(record, view, "balanced_accuracy") == pytest.approx(expected)
    assert on_validation(record, view, "tail") is None
    none = {"curve": [[4, 0.10, None, 0.9, 0.9]]}
    assert (on_validation(none, view, "balanced_accuracy") is None) == (view != "generalisation")


def test_a_table_whose_seeds_have_the_same_test_images_hears_validation_images() -> None:
    rows = {row: [run(row, seed, 0.5) for seed in range(2)] for row in ("a", "b")}
    for record in rows["b"]:
        record["curve"] = [[1, 0.6, 0.5, 0.5, 0.1]]
    heads, _, reference, other = page.main_table(rows, "a", page.SINGLE, same=True)
    assert "| Δ A | Δ A on validation | seeds | moved |" in heads
    assert reference.split("|")[-5:-3] == ["  ", "  "]
    assert other.split("|")[-4] == " +5.0 "
    assert "validation" not in next(iter(page.main_table(rows, "a", page.SINGLE)))


@pytest.mark.parametrize(
    ("low", "high", "validation", "verdict"),
    [
        (-0.005, 0.01, None, "shown"),
        (0.002, 0.008, 0.01, "shown"),
        (0.002, 0.008, 0.02, "not shown"),
        (-0.02, 0.005, 0.0, "not shown"),
        (0.012, 0.03, 0.01, "contradicted"),
        (0.012, 0.03, 0.0, "not shown"),
        (-0.03, -0.012, None, "contradicted"),
        (-0.03, -0.012, 0.01, "not shown"),
    ],
)
def test_rows_are_level_when_their_interval_is_within_a_point(
    low: float, high: float, validation: float | None, verdict: str
) -> None:
    assert told(low, high, validation=validation, level=True) == verdict


@pytest.mark.parametrize(
    ("fca", "verdict"),
    [
        ((0.60, 0.65, 0.62), "shown"),
        ((0.50, 0.56, 0.52), "not shown"),
        ((0.40, 0.44, 0.41), "contradicted"),
        ((0.60, 0.66), "not run yet"),
        ((0.60,), "not run yet"),
        ((), "not run yet"),
    ],
)
def test_verdicts_are_computed_from_records(
    fca: tuple[float, ...], verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    make_up("sites-48", fca)
    found = {one.text: one for one in claims.findings()}
    one = found["FCA is above balanced softmax on average"]
    assert one.verdict == verdict and not any(other.enough for other in one.elsewhere)
    if len(fca) > 1:
        theirs = stats.ttest_rel(fca, (0.50, 0.55, 0.53)[: len(fca)]).confidence_interval(0.95)
        assert one.ours is not None and one.ours.test is not None and one.ours.test.seeds == len(fca)
        assert np.allclose([one.ours.test.low, one.ours.test.high], theirs)
        assert one.ours.above == sum(a > b for a, b in zip(fca, (0.50, 0.55, 0.53), strict=False))
        assert not one.ours.converged and one.ours.rates == (2e-3, 2e-3) and one.ours.largest == 8e-3
    assert found["FedSDC is above FedAvgM"].verdict == "not run yet"


def test_another_table_with_both_rows_is_named_and_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    for table in ("pbc-skew", "pbc-tail"):
        make_up(table, (0.60, 0.65, 0.62))
    found = {one.text: one for one in claims.findings()}
    one = found["FCA is above balanced softmax on average"]
    others = {other.rows.table: other for other in one.elsewhere if other.enough}
    assert one.verdict == "not run yet" and set(others) == {"pbc-skew"}
    gap = others["pbc-skew"].test
    assert gap is not None and gap.mean == pytest.approx(0.29 / 3) and not others["pbc-skew"].converged
    assert not found["the second head alone, without consistency, is above one head"].elsewhere


def make_up(table: str, fca: tuple[float, ...]) -> None:
    """Records of two rows with tuned rates; a run with a rate not chosen does not count."""
    made, kept = Runs(table, TABLES[table], 1), {}
    for row, figures in {"FCA": fca, "FedAvg + balanced softmax": (0.50, 0.55, 0.53)}.items():
        for job in made.trials(row):
            score = -abs(job.rate - 2e-3) if job.rate else 0.0
            kept[job.mark] = {"kind": "trial", "row": row, "seed": 1000, "rate": job.rate, "score": score}
        other = made.job(row, 0, 8e-3)
        kept[other.mark] = run(row, 0, 0.99, rate=8e-3)
        for seed, value in enumerate(figures):
            job = made.job(row, seed, 2e-3)
            kept[job.mark] = run(row, seed, value, rate=2e-3)
    records.write(table, {mark: {**one, "mark": mark} for mark, one in kept.items()})


def rows_of(**figures: tuple[float, ...]) -> dict[str, list[records.Record]]:
    return {row: [run(row, seed, value) for seed, value in enumerate(of)] for row, of in figures.items()}


def test_advice_says_where_other_images_have_another_best_method() -> None:
    rows = rows_of(a=(0.5, 0.52, 0.51), b=(0.6, 0.63, 0.61))
    agreed = advice.best("t", rows, "a", "average")
    assert agreed is not None and agreed.clear and agreed.other is None
    for record in rows["a"]:
        record["curve"] = [[1, 0.9, 0.9, 0.5, 0.5]]
    found = advice.best("t", rows, "a", "average")
    assert found is not None and (found.row, found.other) == ("b", "a") and not found.clear
    assert any("on validation images a" in line for line in advice.reason(found))


def test_advice_compares_seeds_that_all_rows_have() -> None:
    """The reference has a third, worse seed; without it, it is the best row."""
    reference = [run("FedAvg", seed, value) for seed, value in enumerate((0.6, 0.7, 0.1))]
    rows = {"FedAvg": reference, "FCA": [run("FCA", seed, 0.6) for seed in range(2)]}
    found = advice.best("x", rows, "FedAvg", "average")
    assert found is not None and (found.row, found.seeds) == ("FedAvg", 2)


def test_advice_says_what_all_seeds_of_the_best_row_and_the_reference_say() -> None:
    rows = {"a": [run("a", seed, 0.5) for seed in range(4)], "c": [run("c", seed, 0.1) for seed in range(2)]}
    rows |= {"b": [run("b", seed, value) for seed, value in enumerate((0.6, 0.6, 0.6, 0.8, 0.9))]}
    found = advice.best("t", rows, "a", "average")
    assert found is not None and found.gap is not None and (found.row, found.seeds) == ("b", 4)
    assert (found.gap.seeds, found.gap.mean, found.mean) == (4, pytest.approx(0.15), pytest.approx(0.65))


def test_advice_is_the_best_method_of_the_table_with_its_interval() -> None:
    rows = rows_of(a=(0.5, 0.52, 0.51), b=(0.6, 0.63, 0.61), c=(0.9,), Local=(0.8, 0.8, 0.8))
    found = advice.best("t", rows, "a", "average")
    assert found is not None and (found.row, found.seeds) == ("b", 3) and found.clear
    assert found.mean == pytest.approx(0.6133, abs=1e-4)
    reverse = advice.best("t", rows, "b", "average")
    assert reverse is not None and reverse.gap is None and not reverse.clear
    close = advice.best("t", rows_of(a=(0.5, 0.6), b=(0.52, 0.59)), "a", "average")
    assert close is not None and close.row == "b" and not close.clear
    assert advice.best("t", rows_of(a=(0.5, 0.6)), "a", "average") is None
    assert advice.best("t", rows_of(b=(0.5, 0.6), c=(0.5, 0.7)), "a", "average") is None


def test_the_picture_says_what_is_recorded_and_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    assert advice.picture().count("not measured yet") == len(advice.SHAPES)
    made, kept = Runs("fedmlp-list-1", TABLES["fedmlp-list-1"], 1), {}
    for row, figures in {"FedAvg (missing = 0)": (0.5, 0.5, 0.5), "FedMLP": (0.56, 0.57, 0.58)}.items():
        for seed, value in enumerate(figures):
            mark = made.job(row, seed, None).mark
            kept[mark] = run(row, seed, value, mark=mark, rate=0)
    records.write("fedmlp-list-1", kept)
    drawn = advice.picture()
    assert drawn.count("not measured yet") == len(advice.SHAPES) - 1
    assert "FedMLP: G 57.0 †" in drawn and "+7.0 (+4.5 … +9.5) against FedAvg (missing = 0)" in drawn
    for shape in advice.SHAPES:
        assert set(shape.tables) <= set(TABLES)


def test_the_goal_counts_rivals_that_are_beaten_for_certain_and_those_not_met() -> None:
    """Seeds that both have; a rival that a table has no row of is not missing from it."""
    rows = {name: (f"train.lr={i}",) for i, name in enumerate((goal.OWN, "FCA", "FedIIC", "BalanceFL"))}
    table = Runs("one", Table("", "phantom", rows), 1)
    for row, values in {goal.OWN: (0.6, 0.7, 0.65), "FCA": (0.5, 0.6, 0.56), "FedIIC": (0.7,)}.items():
        for seed, value in enumerate(values):
            table.records[table.job(row, seed, None).mark] = run(row, seed, value)
    found = list(goal.lines({"one": table, "two": Runs("two", Table("", "phantom", {}), 1)}))
    assert found[0] == "| rival | [one](one.md) | two |"
    half = stats.t.ppf(0.975, 2) * np.std([10, 10, 9], ddof=1) / 3**0.5
    sure = f"+9.7 ({29 / 3 - half:+.1f} … {29 / 3 + half:+.1f}), 3 seeds; validation +9.7"
    assert f"| FCA | {sure} | no row of it |" in found
    assert "| FedIIC | -10.0, one seed; validation -10.0 | no row of it |" in found
    assert "| BalanceFL | not run | no row of it |" in found
    assert found[-1].startswith(
        "Of 2 comparisons that are made it is ahead in 1, with an interval above 0 in 1 and below 0 in 0; 1 "
    )


def test_rivals_and_tables_of_the_goal_are_rows_and_tables() -> None:
    assert set(goal.SINGLE) <= set(TABLES)
    assert {goal.OWN, *goal.RIVALS} <= set(TABLES["pbc-skew"].rows)
    for name in goal.SEVERAL:
        assert {goal.OWN, *goal.RIVALS_OF_SEVERAL} <= set(TABLES[name].rows)

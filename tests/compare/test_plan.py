"""What is compared: arms, grids, seeds and folds, and one sentence for whatever is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.compare import Arm, arm_from, make_plan, numbers
from equipoise.compare.plan import settled, variant
from equipoise.config import load
from equipoise.errors import ConfigError, DataError, MethodError
from equipoise.methods import METHODS

Table = dict[str, dict[str, Any]]


def labels(plan: Any) -> list[str]:
    return [arm.label for arm in plan.arms]


def test_a_run_for_every_arm_seed_and_fold(table: Table) -> None:
    plan = make_plan(table, ["fedavg", "fca"], seeds=(0, 7))
    assert [job.name.rpartition("/")[2] for job in plan.jobs] == ["0", "0", "7", "7"]
    assert [job.config.train.seed for job in plan.jobs] == [0, 0, 7, 7]
    assert plan.reference == plan.arms[0] and plan.task == "single"
    assert all(job.config.engine.kind == "serial" for job in plan.jobs)
    folded = make_plan(table, ["fedavg"], seeds=(3,), folds=2)
    assert [job.name for job in folded.jobs] == ["fedavg/3-0", "fedavg/3-1"]
    assert [job.config.data.split.fold for job in folded.jobs] == [0, 1]


def test_a_preset_is_named_after_a_colon(table: Table) -> None:
    preset = next(iter(METHODS["fediic"].presets))
    plan = make_plan(table, [f"fediic:{preset}"])
    fields = METHODS["fediic"].presets[preset]
    assert all(getattr(plan.jobs[0].config.method, key) == value for key, value in fields.items())
    assert plan.jobs[0].name == f"fediic-{preset}/0"


def test_the_files_method_section_counts_for_its_own_method(table: Table) -> None:
    table["method"] = {"name": "fedprox", "mu": 0.5}
    plan = make_plan(table, ["fedavg", "fedprox"])
    assert [job.config.method_name for job in plan.jobs] == ["fedavg", "fedprox"]
    assert plan.jobs[1].config.method.mu == 0.5  # type: ignore[attr-defined]
    assert "mu" not in plan.jobs[0].config.table()["method"]


def test_a_grid_multiplies_the_methods_that_have_the_option(table: Table) -> None:
    plan = make_plan(table, ["fedavg", "fca"], grid=["method.lambda_own=1,2.5", "train.lr=1e-3,0.01"])
    assert labels(plan) == [
        "fedavg train.lr=0.001",
        "fedavg train.lr=0.01",
        "fca lambda_own=1 train.lr=0.001",
        "fca lambda_own=1 train.lr=0.01",
        "fca lambda_own=2.5 train.lr=0.001",
        "fca lambda_own=2.5 train.lr=0.01",
    ]
    assert plan.jobs[-1].config.method.lambda_own == 2.5 and plan.jobs[-1].config.train.lr == 0.01  # type: ignore[attr-defined]
    words = make_plan(table, ["fedavg"], grid=["train.objective=cross_entropy,balanced_softmax"])
    assert labels(words) == [
        "fedavg train.objective=cross_entropy",
        "fedavg train.objective=balanced_softmax",
    ]


def test_every_arm_is_compared_at_its_own_point_of_the_grid(table: Table) -> None:
    grid = ["partition.sites=2,3", "method.lambda_own=1,2"]
    plan = make_plan(table, ["fedavg", "fca"], grid=grid)
    assert {arm.label: plan.reference_of(arm).label for arm in plan.arms} == {
        "fedavg partition.sites=2": "fedavg partition.sites=2",
        "fedavg partition.sites=3": "fedavg partition.sites=3",
        "fca partition.sites=2 lambda_own=1": "fedavg partition.sites=2",
        "fca partition.sites=2 lambda_own=2": "fedavg partition.sites=2",
        "fca partition.sites=3 lambda_own=1": "fedavg partition.sites=3",
        "fca partition.sites=3 lambda_own=2": "fedavg partition.sites=3",
    }
    for name in ("fca lambda_own=2", *(f"fca partition.sites={count} lambda_own=2" for count in (2, 3))):
        other = make_plan(table, ["fedavg", "fca"], grid=grid, reference=name)
        assert other.reference_of(other.arms[1]).label == "fca partition.sites=3 lambda_own=2"
    own = make_plan(table, ["fedavg", "fca"], grid=["method.lambda_own=1,2"])
    assert {own.reference_of(arm).label for arm in own.arms} == {"fedavg"}


def test_an_arm_in_words(table: Table) -> None:
    arm = arm_from("FedAvg + BSM: method.name=fedavg train.objective='{ name = \"focal\", gamma = 1.0 }'")
    assert arm == Arm(
        "FedAvg + BSM", (("method.name", "fedavg"), ("train.objective", {"name": "focal", "gamma": 1.0}))
    )
    plan = make_plan(table, ["fca"], arms=[arm], reference="FedAvg + BSM")
    assert plan.jobs[1].name == "FedAvg-+-BSM/0"
    assert plan.reference == plan.arms[1]


def test_all_takes_every_method_that_fits(table: Table) -> None:
    plan = make_plan(table, ["all"])
    fitting = [name for name, cls in METHODS.items() if "single" in cls.tasks]
    assert set(labels(plan)) <= set(fitting)
    assert {"local", "fedavg", "fca"} <= set(labels(plan))
    assert {text.partition(":")[0] for text in plan.left_out} == set(METHODS) - set(labels(plan))
    assert any("fedmlp" in text for text in plan.left_out)


def test_a_method_of_ones_own(table: Table, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from equipoise import Method\n\n\nclass Mine(Method):\n    presets = {'bold': {}}\n"
    )
    plan = make_plan(table, ["mine.py:Mine", "mine.py:Mine:bold"], base=tmp_path)
    assert [job.name for job in plan.jobs] == ["mine.py-Mine/0", "mine.py-Mine-bold/0"]
    assert plan.jobs[1].config.method_name == "mine.py:Mine"


# What defines a method --------------------------------------------------------------------------------------

NEGATIVE = {"name": "bce", "missing": "negative"}
WEIGHTED = '{ name = "bce", pos_weight = true }'
SAID = '{ name = "bce", missing = "negative" }'


@pytest.fixture
def findings(table: Table) -> Table:
    """Several labels per image, of which every site misses one; the file counts what is missing as
    negative."""
    table["data"]["task"] = "multi"
    table["partition"]["missing"] = 1
    table["train"]["objective"] = NEGATIVE
    return table


def objectives(plan: Any) -> dict[str, str]:
    return {job.arm.label: job.config.objective.toml for job in plan.jobs}


def test_a_method_keeps_the_objective_that_defines_it(findings: Table) -> None:
    plan = make_plan(findings, ["fedavg", "fedrs", "rscfed", "fedfixmatch", "fedirm", "cbafed", "fednoro"])
    assert objectives(plan) == {
        "fedavg": SAID,
        "fedrs": SAID,
        "rscfed": WEIGHTED,
        "fedfixmatch": WEIGHTED,
        "fedirm": WEIGHTED,
        "cbafed": WEIGHTED,
        "fednoro": '"bce"',
    }
    assert plan.remarks == (
        *(
            f"{name}: objective = {WEIGHTED} as the method recommends; the file says {SAID}"
            for name in ("rscfed", "fedfixmatch", "fedirm", "cbafed")
        ),
        f'fednoro: objective = "bce" as the method recommends; the file says {SAID}',
    )


def test_what_is_asked_for_one_arm_or_by_hand_wins(findings: Table) -> None:
    plan = make_plan(findings, ["cbafed"], grid=["train.objective='bce','focal'"])
    assert list(objectives(plan).values()) == ['"bce"', '"focal"']
    assert plan.remarks[1] == (
        f'cbafed train.objective=focal: objective = "focal" as asked for; the method recommends {WEIGHTED}'
    )
    arm = arm_from("mine: method.name=cbafed train.objective.missing=ignore")
    assert objectives(make_plan(findings, arms=[arm])) == {"mine": '"bce"'}
    plan = make_plan(findings, ["cbafed"], by_hand=["train.objective"])
    assert objectives(plan) == {"cbafed": SAID}
    assert plan.remarks == (f"cbafed: objective = {SAID} as asked for; the method recommends {WEIGHTED}",)


def test_an_arm_that_names_no_method_is_the_files_own(findings: Table) -> None:
    findings["method"] = {"name": "cbafed"}
    plan = make_plan(findings, arms=[arm_from("slow: train.lr=1e-4")])
    assert objectives(plan) == {"slow": SAID}
    assert plan.remarks == (f"slow: objective = {SAID} as the file says; the method recommends {WEIGHTED}",)


def test_a_method_that_is_a_base_loss_says_what_it_replaces(findings: Table) -> None:
    plan = make_plan(findings, ["fedfocal", "fedavg-pl", "fedlc"])
    assert plan.remarks == (
        f'fedfocal: objective = "focal", which is the method, in place of {SAID}',
        f'fedavg-pl: objective = "bce", which is the method, in place of {SAID}',
    )


def test_other_keys_that_a_method_recommends_are_defaults(table: Table) -> None:
    table["train"]["persist_optimizer"] = False
    plan = make_plan(table, ["fedavg", "fca"])
    assert [job.config.train.persist_optimizer for job in plan.jobs] == [False, False]
    assert objectives(plan)["fca"] == '"balanced_softmax"'
    assert plan.remarks == ("fca: persist_optimizer = false as the file says; the method recommends true",)


def test_a_recommended_objective_is_for_data_that_it_fits(table: Table) -> None:
    table["train"]["objective"] = "focal"
    plan = make_plan(table, ["rscfed", "fednoro"])
    assert objectives(plan) == {"rscfed": '"focal"', "fednoro": '"focal"'}
    assert plan.remarks == ()


def test_the_recipe_of_findings_lets_every_method_be_itself() -> None:
    """What is missing counts as negative unless a method says otherwise: FedRS and FedAvg-PL differ from
    FedAvg by that."""
    recipe = load(Path(__file__).parents[2] / "recipes" / "phantom-findings.toml")

    def base_loss(name: str) -> Any:
        arm = Arm(name, (("method.name", name),))
        config = settled(variant(recipe, arm), arm, Path.cwd())
        return config.method.base_loss(config.objective)

    assert len({base_loss(name).toml for name in ("fedavg", "fedrs", "fedavg-pl")}) == 3
    for name in ("rscfed", "fedfixmatch", "fedirm", "cbafed", "fednoro", "fedmlp", "fedavg-pl"):
        assert "negative" not in base_loss(name).toml, name
    assert "negative" in base_loss("fedavg").toml


def test_a_file_that_agrees_needs_no_words(table: Table) -> None:
    table["train"]["objective"] = ["balanced_softmax"]
    assert make_plan(table, ["fedavg", "fca", "fedmas"]).remarks == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [("0..4", (0, 1, 2, 3, 4)), ("0,3, 7", (0, 3, 7)), ("5", (5,)), ("1..2,2,9", (1, 2, 9))],
)
def test_numbers(text: str, found: tuple[int, ...]) -> None:
    assert numbers(text) == found


@pytest.mark.parametrize("text", ["", "a", "4..0", "1,,2", "-1", "1.5"])
def test_what_is_no_list_of_seeds(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write 0\.\.4 or 0,3,7"):
        numbers(text)


REFUSED: dict[str, tuple[list[str], dict[str, Any], type[Exception], str]] = {
    "no methods": ([], {}, ConfigError, "nothing to compare"),
    "unknown method": (["fedavgg"], {}, ConfigError, "did you mean 'fedavg'"),
    "unknown preset": (["fediic:dalla"], {}, ConfigError, "unknown preset of 'fediic' 'dalla'"),
    "the same twice": (["fca", "fca"], {}, ConfigError, "a name of its own"),
    "unknown reference": (["fedavg", "fca"], {"reference": "fac"}, ConfigError, "did you mean 'fca'"),
    "grid of nothing": (["fca"], {"grid": ["method.lambda_own"]}, ConfigError, "section.key=value,value"),
    "grid of an unknown option": (
        ["fca"],
        {"grid": ["method.lambda_onw=1"]},
        ConfigError,
        "did you mean 'lambda_own'",
    ),
    "grid with a bad value": (["fca"], {"grid": ["train.lr=1,-1"]}, ConfigError, "train.lr"),
    "wrong task": (["fedmlp"], {}, MethodError, "fedmlp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused_before_any_run(table: Table, name: str) -> None:
    methods, options, error, part = REFUSED[name]
    with pytest.raises(error, match=part):
        make_plan(table, methods, **options)


def test_folds_and_a_column_of_splits_are_refused(table: Table) -> None:
    table["data"] = {"kind": "csv", "path": "gone.csv", "label": "x", "split": "fold"}
    with pytest.raises(ConfigError, match="remove the column"):
        make_plan(table, ["fedavg"], folds=3)
    with pytest.raises(DataError, match=r"gone\.csv"):
        make_plan(table, ["fedavg"])
    with pytest.raises(ConfigError, match="LABEL: section"):
        arm_from("no label")

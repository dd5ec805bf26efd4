"""Every recipe: its rows resolve without data, at both scales, and its numbers and metrics are where they
should be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from equipoise.compare.plan import variant
from equipoise.config import Config, load, resolve
from equipoise.data import JoinedData
from equipoise.errors import ConfigError
from equipoise.reproduce import Paper, find, names, read
from equipoise.reproduce.plan import chosen, placed, shrunk, small_arms, stopping
from equipoise.reproduce.recipe import FOLDER
from equipoise.setup import fits
from equipoise.site.views import VIEWS

LOCAL = Path(__file__).resolve().parents[2] / "recipes" / "local"
PAPERS = {"fca", "fediic", "fedmlp", "fedmas", "fedsdc"}
METRICS = {"balanced_accuracy", "macro_auc", "map", "accuracy", "macro_f1", "head", "medium", "tail"}


def configs(paper: Paper, small: bool = False, data: Path = Path("downloads")) -> dict[str, Config]:
    """Every row of a table, resolved without its data."""
    table = placed(paper, data, Path.cwd())
    arms = chosen(paper, ())
    if small:
        table = shrunk(table, paper.recipe)
        arms = small_arms(paper, arms, table, Path.cwd())
        arms = [stopping(arm, table, Path.cwd()) for arm in arms]
    return {arm.label: resolve(variant(table, arm, 0)) for arm in arms}


def test_every_table_of_the_five_papers_has_a_recipe() -> None:
    tables = {re.match(r"(\w+)-table(\d+)", name).groups() for name in names()}  # type: ignore[union-attr]
    wanted = {
        "fca": range(4, 9),
        "fediic": range(1, 4),
        "fedmlp": range(1, 4),
        "fedmas": range(1, 9),
        "fedsdc": range(1, 3),
    }
    assert tables == {(paper, str(number)) for paper, numbers in wanted.items() for number in numbers}
    assert {name.partition("-")[0] for name in names()} == PAPERS


@pytest.mark.parametrize("name", names())
def test_every_row_resolves_at_both_scales(name: str) -> None:
    paper = find(name)
    full, small = configs(paper), configs(paper, small=True)
    runnable = [label for label, row in paper.recipe.rows.items() if not row.cannot]
    assert list(full) == list(small) == runnable and runnable
    for config in full.values():
        fits(config, "multi" if config.data.multi else "single")
        assert config.net.name != "small-cnn" and config.net.weights is None
        assert all(view in VIEWS for view in config.train.views or ())
        assert config.evaluate.select != "best_validation" or config.evaluate.every == 1
    for config in small.values():
        assert config.net.name == "small-cnn" and config.data.image_size <= 56
        assert getattr(config.method, "target", "small-cnn") == "small-cnn"
    for label, config in small.items():
        assert config.train.epochs == full[label].train.epochs
        assert (
            config.train.epochs * config.train.rounds <= 200
            and config.train.rounds <= full[label].train.rounds
        )
        assert config.train.stop is not None and config.train.rounds // config.evaluate.every >= 20
        warmup = getattr(config.method, "warmup", None) or 0
        watched = config.train.stop.patience * config.evaluate.every
        assert config.train.stop.after >= warmup + 0.2 * config.train.rounds - 0.5
        assert 0.35 * config.train.rounds <= watched < 0.45 * config.train.rounds
        early = config.train.stop.after + watched < config.train.rounds
        assert early or warmup >= 0.4 * config.train.rounds
        assert config.data.split.validation > 0


@pytest.mark.parametrize("name", names())
def test_numbers_and_metrics_are_sound(name: str) -> None:
    recipe = find(name).recipe
    for places in recipe.columns.values():
        for place in [places] if isinstance(places, str) else places:
            view, *_, metric = place.split(".")
            assert view in ("generalisation", "specialisation", "average", "attributes") and metric in METRICS
    for row in recipe.rows.values():
        assert row.reported
        for number in row.reported.values():
            middle, spread = number if isinstance(number, tuple) else (number, 0.0)
            assert 1 < middle < 100 and 0 <= spread < 10


def test_the_papers_best_rows_are_as_printed() -> None:
    def reported(name: str, row: str) -> dict[str, Any]:
        return find(name).recipe.rows[row].reported

    assert reported("fca-table4", "FCA")["S bACC"] == (75.9, 0.6)
    assert reported("fca-table5-split2", "FCA") == {
        "A bACC": (66.2, 0.5),
        "A bAUC": (92.0, 1.0),
    }  # Tables 6 to 8 have 0.1
    assert reported("fediic-table1-isic", "FedIIC") == {"BACC": 78.84, "F1": 78.05, "ACC": 85.71}
    means = {"Average BACC": 68.91, "Average AUC": 77.18, "Average mAP": 26.5}
    assert reported("fedmlp-table2-miss7", "FedMLP") == {"BACC": 70.08, "AUC": 75.76, "mAP": 22.48, **means}
    assert reported("fedmas-table1-niid", "Fed-MAS")["Tail"] == (16.2, 1.3)
    assert reported("fedsdc-table1-niid1", "FedSDC+") == {"micro-F1": (70.0, 1.12)}


def test_averages_agree_with_what_they_are_averages_of() -> None:
    for row in find("fca-table4").recipe.rows.values():
        for metric in ("bACC", "bAUC"):
            s, g, a = (row.reported[f"{view} {metric}"][0] for view in "SGA")  # type: ignore[index]
            assert a == pytest.approx((s + g) / 2, abs=0.16)  # the paper averages before it rounds
    for name in ("fedmas-table1-iid", "fedmas-table1-niid"):
        for row in find(name).recipe.rows.values():
            thirds = [row.reported[group][0] for group in ("Head", "Medium", "Tail")]  # type: ignore[index]
            assert row.reported["All"][0] == pytest.approx(sum(thirds) / 3, abs=0.06)  # type: ignore[index]


# The last column of FedMLP's Tables 1 and 2: each row's mean over the four levels of missing labels.
MEANS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "FedAvg": ((62.34, 85.31, 55.56), (55.62, 72.19, 20.25)),
    "FedAvg-PL": ((70.38, 85.45, 53.68), (58.55, 70.86, 19.90)),
    "RSCFed": ((73.52, 84.16, 59.10), (59.43, 72.55, 22.92)),
    "FedFixMatch": ((69.44, 83.59, 54.38), (58.38, 72.14, 21.11)),
    "FedIRM": ((72.01, 84.79, 55.05), (56.04, 70.23, 21.27)),
    "CBAFed": ((64.01, 81.48, 53.20), (58.68, 68.03, 19.54)),
    "FedLSR": ((61.99, 84.77, 54.93), (55.17, 68.09, 19.99)),
    "FedNoRo": ((80.00, 89.53, 66.36), (68.29, 76.68, 25.13)),
    "FedMLP": ((81.73, 90.98, 67.29), (68.91, 77.18, 26.50)),
}


@pytest.mark.parametrize("row", MEANS)
def test_four_levels_average_to_the_papers_last_column(row: str) -> None:
    for table, levels, printed in zip((1, 2), ((1, 2, 3, 4), (1, 3, 5, 7)), MEANS[row], strict=True):
        found = [find(f"fedmlp-table{table}-miss{level}").recipe.rows[row].reported for level in levels]
        for metric, mean in zip(("BACC", "AUC", "mAP"), printed, strict=True):
            assert sum(one[metric] for one in found) / 4 == pytest.approx(mean, abs=0.011)  # type: ignore[misc]
            assert [one[f"Average {metric}"] for one in found] == [mean] * 4


def test_p_values_are_as_printed() -> None:
    printed = {
        name: {label: row.p_value for label, row in find(name).recipe.rows.items() if row.p_value}
        for name in names()
    }
    both = {"BSM-FL + KD": "< 0.001", "Fed-MAS": "< 0.001"}
    assert {name: found for name, found in printed.items() if found} == {"fedmas-table2": both}


AUTHORS = {
    "fca": "Wicaksana, Yan and Cheng 2023",
    "fediic": "Wu, Yu, Yang, Cheng and Yan 2023",
    "fedmlp": "Sun, Wu, Shi, Yu, Cheng and Yan 2024",
    "fedmas": "Elbatel, Wang, Martí, Fu and Li 2023",
    "fedsdc": "Gao, Lan, Liu, Wang and Fan 2025",
}


@pytest.mark.parametrize("paper", AUTHORS)
def test_all_authors_are_named(paper: str) -> None:
    text = (FOLDER / f"{paper}.toml").read_text()
    assert load(FOLDER / f"{paper}.toml")["reproduce"]["source"] == AUTHORS[paper]
    assert AUTHORS[paper] in text.partition("\n")[0]


def test_inherited_rows_keep_their_settings() -> None:
    first, later = find("fedmlp-table2-miss1"), find("fedmlp-table2-miss5")
    assert [arm.changes for arm in first.arms] == [arm.changes for arm in later.arms]
    assert (first.table["partition"]["missing_seed"], later.table["partition"]["missing_seed"]) == (
        1037,
        2023,
    )
    assert first.recipe.rows["FedMLP"].reported != later.recipe.rows["FedMLP"].reported


def test_protocols() -> None:
    fca = configs(find("fca-table4"))["FCA"]
    assert (fca.train.rounds, fca.train.batch_size, fca.train.lr, fca.train.milestones) == (
        80,
        64,
        1e-3,
        (60, 70),
    )
    assert (
        fca.train.persist_optimizer
        and fca.net.name == "efficientnet-b0-torchvision"
        and fca.data.image_size == 224
    )
    assert (
        configs(find("fediic-table1-isic"))["FedIIC"].net.name == "efficientnet-b0"
    )  # not torchvision's there
    assert [part.name for part in fca.objective.parts] == ["balanced_softmax"]
    plain = configs(find("fca-table4"))["FedAvg CE"]
    assert [part.name for part in plain.objective.parts] == ["cross_entropy"]
    mas = configs(find("fedmas-table1-iid"))["FedAvg"]
    assert (mas.train.optimizer, mas.train.lr, mas.train.nesterov, mas.train.epochs) == ("sgd", 0.1, True, 10)
    sdc = configs(find("fedsdc-table1-niid1"))["FedSDC"]
    assert (sdc.net.batch_norm, sdc.train.participation, sdc.data.image_size) == ("frozen", 0.67, 56)
    real = configs(find("fediic-table1-real"))["CLIMB"]
    assert (real.train.rounds, real.train.lr, real.evaluate.select) == (30, 1e-4, "mean_last_5")
    assert real.method.model_dump()["dual_lr"] == 0.01
    assert isinstance(real.data, JoinedData) and real.data.parts[-1].but == ("ham10000",)


def test_what_counts_rounds_is_shortened_with_them() -> None:
    small = configs(find("fedmlp-table1-miss1"), small=True)
    assert small["FedNoRo"].method.model_dump()["ramp"] == round(489 * 200 / 500)
    assert small["FedMLP"].method.model_dump()["warmup"] == round(50 * 200 / 500)
    assert "warmup" not in small["FedAvg"].method.model_dump()


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("fca-table4", "ham10000-sites"),
        ("fedmas-table8", "ham10000-sites"),
        ("fedsdc-table1-niid1", "ham10000"),
        ("fedsdc-table1-iid", "pbc"),
        ("fedmlp-table2-miss7", "cxr14"),
    ],
)
def test_other_data_takes_over_what_it_does_not_say(name: str, fragment: str) -> None:
    paper = find(name)
    for config in configs(paper, small=True, data=LOCAL / f"{fragment}.toml").values():
        assert config.data.kind == "csv"
        if fragment != "ham10000-sites":
            assert config.data.split.test == paper.table["data"]["split"]["test"]
        fits(config, "multi" if config.data.multi else "single")


def test_a_name_that_is_none() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fca-table4'"):
        find("fca-tabel4")
    with pytest.raises(ConfigError, match="has 2 parts: name one of fca-table5-split1, fca-table5-split2"):
        find("fca-table5")


def test_a_recipe_with_a_number_in_no_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    text = (
        '[reproduce]\ntitle = "t"\nsource = "s"\nimages = 1\ncolumns = { BACC = '
        '"generalisation.balanced_accuracy" }\n'
    )
    path.write_text(text + "[reproduce.rows.A]\nreported = { BAC = 1.0 }\n")
    with pytest.raises(ConfigError, match="unknown column 'BAC'"):
        read(path)
    path.write_text(text.replace("title", "titel"))
    with pytest.raises(ConfigError, match=r"reproduce\."):
        read(path)


def test_every_file_belongs_to_some_table() -> None:
    used = {"fca.toml"}
    for path in FOLDER.glob("*.toml"):
        used |= set(re.findall(r'^extends = "(.+)"$', path.read_text(), re.MULTILINE))
    assert {path.name for path in FOLDER.glob("*.toml")} == used | {f"{name}.toml" for name in names()}
    assert "reproduce" in load(FOLDER / "fca-table4.toml")

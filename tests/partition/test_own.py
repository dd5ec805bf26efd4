"""Partitions of one's own: a function or a class says who holds which rows, and is held to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.config import Config, resolve
from equipoise.data.samples import Samples
from equipoise.errors import ConfigError, PartitionError
from equipoise.partition import Holding, divide

MINE = '''
import numpy as np
from pydantic import Field
from equipoise.partition import PartitionOptions


def stripes(labels, sites, generator, step=1):
    """Row i to site i mod sites, in blocks of `step`."""
    owner = np.arange(len(labels)) // step % sites
    return {f"hospital-{site}": np.flatnonzero(owner == site) for site in range(sites)}


def shuffled(labels, sites, generator):
    parts = np.array_split(generator.permutation(len(labels)), sites)
    return {f"s{i}": part.tolist() for i, part in enumerate(parts)}


def careless(labels, sites, generator):
    """Draws from a global generator."""
    return {f"s{i}": part for i, part in enumerate(np.array_split(np.random.permutation(len(labels)), sites))}


class Halves(PartitionOptions):
    """The first rows to one site, the others to another."""

    share: float = Field(default=0.5, gt=0, lt=1)

    def sites_of(self, samples, seed):
        cut = int(self.share * len(samples))
        return {"first": np.arange(cut), "second": np.arange(cut, len(samples))}


class Unfinished(PartitionOptions):
    pass


RNG = np.random.default_rng()


def unseeded(labels, sites, generator):
    return shuffled(labels, sites, RNG)


def part(labels, sites, generator):
    """Leaves every fourth row out."""
    rows = np.flatnonzero(np.arange(len(labels)) % 4)
    return {"a": rows[::2], "b": rows[1::2]}


def several(labels, sites, generator):
    assert labels.ndim == 2
    return {"with": np.flatnonzero(labels[:, 0]), "without": np.flatnonzero(labels[:, 0] == 0)}


def answers(labels, sites, generator, which):
    return {
        "list": [[0, 1]],
        "empty": {},
        "number": {1: [0, 1]},
        "nobody": {"a": [0, 1], "b": []},
        "twice": {"a": [0, 1], "b": [2, 1]},
        "within": {"a": [0, 0, 1]},
        "beyond": {"a": [0, 60]},
        "below": {"a": [-1]},
        "float": {"a": [0.0, 1.0]},
        "mask": {"a": np.ones(60, bool)},
        "deep": {"a": [[0, 1]]},
        "slash": {"../a": range(60)},
    }[which]


value = 3
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def config(folder: Path, name: str, **options: Any) -> Config:
    return resolve({"partition": {"kind": f"mine.py:{name}", **options}}, folder)


def samples(multi: bool = False) -> Samples:
    labels = np.arange(60) % 3
    return Samples(
        images=np.zeros((60, 1, 1, 1), dtype=np.uint8),
        labels=np.eye(3, dtype=np.float32)[labels] if multi else labels,
        classes=("a", "b", "c"),
        task="multi" if multi else "single",
        ids=np.array([f"row{i}" for i in range(60)]),
        fingerprint="",
    )


def divided(one: Config, multi: bool = False, seed: int = 0) -> dict[str, Holding]:
    found = divide(samples(multi), one.partition, one.data.split, seed)
    return {holding.name: holding for holding in found}


def rows(holding: Holding) -> list[int]:
    return sorted(np.concatenate([holding.train, holding.validation, holding.test]).tolist())


def test_a_function_says_who_holds_what(folder: Path) -> None:
    found = divided(config(folder, "stripes", sites=3, step=2))
    assert {name: rows(one) for name, one in found.items()} == {
        f"hospital-{site}": [row for row in range(60) if row // 2 % 3 == site] for site in range(3)
    }
    assert all(len(one.test) and len(one.validation) for one in found.values())


def test_a_class_does_too(folder: Path) -> None:
    found = divided(config(folder, "Halves", share=0.25))
    assert rows(found["first"]) == list(range(15)) and rows(found["second"]) == list(range(15, 60))


@pytest.mark.parametrize("name", ["shuffled", "careless"])
def test_draws_follow_the_seed(folder: Path, name: str) -> None:
    before = repr(np.random.get_state(legacy=False))
    one = config(folder, name, sites=4)
    first, again, other = (divided(one, seed=seed) for seed in (0, 0, 1))
    assert all(rows(first[site]) == rows(again[site]) for site in first)
    assert any(rows(first[site]) != rows(other[site]) for site in first)
    assert repr(np.random.get_state(legacy=False)) == before


def test_several_labels(folder: Path) -> None:
    assert rows(divided(config(folder, "several"), multi=True)["with"]) == list(range(0, 60, 3))


def test_rows_may_be_left_out_and_count_nowhere(folder: Path) -> None:
    found = divided(config(folder, "part"))
    assert sorted(row for one in found.values() for row in rows(one)) == [r for r in range(60) if r % 4]
    # A long tail of what is held: 15 rows of each class, of which test rows stay.
    tail = divided(config(folder, "part", long_tail=4))
    held = [row for one in tail.values() for row in (*one.train, *one.validation)]
    counts = np.bincount([row % 3 for row in held], minlength=3)
    tested = np.bincount([row % 3 for one in found.values() for row in one.test], minlength=3)
    whole = 15 - tested
    assert sorted(counts.tolist(), reverse=True) == [
        whole.max(),
        round(whole.max() / 2),
        round(whole.max() / 4),
    ]


@pytest.mark.parametrize(
    ("which", "why"),
    [
        ("list", "must give a dict of site names and their rows, and gave a list"),
        ("empty", "and gave an empty one"),
        ("number", "must name its sites with text, and named one 1"),
        ("nobody", "gives site 'b' no rows: leave it out"),
        ("twice", "gives row 1 twice, to 'a' and 'b'"),
        ("within", "gives row 0 twice, to 'a' and 'a'"),
        ("beyond", "gives site 'a' row 60, and the rows are 0 to 59"),
        ("below", "gives site 'a' row -1"),
        ("float", r"must give site 'a' a list of row numbers, not float64 \[2\]"),
        ("mask", r"not bool \[60\]"),
        ("deep", r"not int64 \[1, 2\]"),
        ("slash", "the site name '../a' cannot be a folder's name"),
    ],
)
def test_what_is_no_partition_is_refused(folder: Path, which: str, why: str) -> None:
    with pytest.raises(PartitionError, match=why) as refused:
        divided(config(folder, "answers", which=which))
    assert "\n" not in str(refused.value)


def test_the_same_every_time_or_not_at_all(folder: Path) -> None:
    with pytest.raises(PartitionError, match="divides the same data in two ways for the same seed"):
        divided(config(folder, "unseeded"))
    with pytest.raises(
        PartitionError, match=r"partition\.kind 'mine\.py:Unfinished' fails: NotImplementedError"
    ):
        divided(config(folder, "Unfinished"))
    with pytest.raises(
        PartitionError, match=r"leaves 15 rows out, so partition\.test_per_class cannot be kept"
    ):
        divided(config(folder, "part", test_per_class=2))


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        (
            "stripes",
            {"stap": 2},
            "unknown option of partition.kind 'mine.py:stripes' 'stap': did you mean 'step'",
        ),
        ("answers", {}, "needs the option 'which'"),
        ("Halves", {"shore": 2}, "unknown key 'partition.shore': did you mean 'share'"),
        ("Halves", {"share": 2}, "partition.share"),
        ("value", {}, "is not a class that builds on PartitionOptions"),
        ("nowhere", {}, "'mine.py' has no 'nowhere'"),
    ],
)
def test_what_is_wrong_in_the_config_is_said_first(
    folder: Path, name: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        config(folder, name, **options)


def test_the_config_keeps_name_and_options(folder: Path) -> None:
    for one in (config(folder, "stripes", sites=3, step=2), config(folder, "Halves", share=0.25)):
        assert resolve(one.table()).digest == one.digest
        assert set(one.marks) == {one.partition.kind}
    assert config(folder, "stripes", step=2).table()["partition"]["step"] == 2

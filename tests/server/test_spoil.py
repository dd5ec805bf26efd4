"""Bad answers in whole tiny runs: rejected by name, and otherwise as if the site had not answered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hostile import COUNTED, DOZEN, SCORED, TRAIN
from tests.spoiled import KINDS, Spoil, scaled

from equipoise.config import Config, resolve
from equipoise.engine import Engine
from equipoise.errors import SiteError
from equipoise.exchange import decode_upload, encode_upload
from equipoise.leaves import Sum
from equipoise.methods.parts.closed import packed, unpacked
from equipoise.running import Result, resume, run

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
Rows = Callable[[Path], list[dict[str, Any]]]
Private = Callable[[Path], dict[str, str]]

BAD_SITE = "site-01"


def journal(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


# Bad answers ------------------------------------------------------------------------------------------------


def bad_by_round(engine: Engine, kinds: Sequence[str]) -> Engine:
    """The bad site's answer is of another kind in every round."""
    for number, kind in enumerate(kinds):
        engine = Spoil(engine, BAD_SITE, TRAIN[kind][0], (number,))
    return engine


FIRST = ("huge change", "moderately huge change", "just below the norm")
"""judged by what others send where there are no rounds before, so one of them comes first as well"""


@pytest.mark.parametrize(
    ("method", "kinds"),
    [
        ("fedavg", (FIRST[0], *KINDS)),
        pytest.param("fedavg", (FIRST[1], *DOZEN), marks=pytest.mark.sweep),
        ("fedavg", FIRST[2:]),
        pytest.param("fca", (FIRST[0], *KINDS), marks=pytest.mark.sweep),
    ],
)
def test_a_bad_answer_counts_as_none(
    method: str, kinds: Sequence[str], tiny: MakeConfig, rows: Rows, private: Private, tmp_path: Path
) -> None:
    """Kind after kind in one run, and a last round without any: the bits of a run that lost these answers."""
    rounds, left = len(kinds) + 1, ["site-00", "site-02"]
    config = tiny(method, train={"rounds": rounds, "batch_size": 64}, evaluate={"every": rounds})
    lost = run(
        config,
        tmp_path / "lost",
        wrap=lambda engine: Spoil(engine, BAD_SITE, lambda data: None, range(rounds - 1)),
    )
    spoiled = run(config, tmp_path / "spoiled", wrap=lambda engine: bad_by_round(engine, kinds))
    rejected = journal(tmp_path / "spoiled", "rejected")
    assert [(line["site"], line["round"], line["question"]) for line in rejected] == [
        (BAD_SITE, number, "train") for number in range(1, rounds)
    ]
    for kind, line in zip(kinds, rejected, strict=True):
        assert re.search(TRAIN[kind][1], line["reason"]) and BAD_SITE in line["reason"], kind
    found = rows(tmp_path / "spoiled")
    assert [row["sites"] for row in found] == [left] * (rounds - 1) + [["site-00", BAD_SITE, "site-02"]]
    assert found == rows(tmp_path / "lost")
    assert spoiled.state_hash == lost.state_hash
    assert private(tmp_path / "spoiled") == private(tmp_path / "lost")


@pytest.fixture(scope="module")
def unevaluated(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """unevaluated(exact): the folder of a run that lost one site's evaluation."""

    @cache
    def make(exact: bool) -> Path:
        folder = tmp_path_factory.mktemp("lost") / "run"
        config = tiny("fedavg", train={"rounds": 1, "batch_size": 64}, evaluate={"exact": exact})
        run(config, folder, wrap=lambda engine: Spoil(engine, BAD_SITE, lambda data: None, (0,), "evaluate"))
        return folder

    return make


@pytest.mark.parametrize(
    ("exact", "name"),
    [
        *(
            (False, name)
            for name in (
                "negative decisions",
                "huge own histogram",
                "one decision more",
                "surer than possible",
            )
        ),
        *((True, name) for name in ("one row more", "NaN scores")),
    ],
)
def test_a_bad_evaluation_counts_as_none(
    exact: bool, name: str, tiny: MakeConfig, rows: Rows, unevaluated: Callable[[bool], Path], tmp_path: Path
) -> None:
    change, reason = (SCORED if exact else COUNTED)[name]
    config = tiny("fedavg", train={"rounds": 1, "batch_size": 64}, evaluate={"exact": exact})
    run(config, tmp_path / "spoiled", wrap=lambda engine: Spoil(engine, BAD_SITE, change, (0,), "evaluate"))
    assert rows(tmp_path / "spoiled") == rows(unevaluated(exact))
    (line,) = journal(tmp_path / "spoiled", "rejected")
    assert (line["site"], line["question"]) == (BAD_SITE, "evaluate") and re.search(reason, line["reason"])


@pytest.mark.parametrize("own", [None, 0.1])
def test_moments_that_no_features_have_do_not_end_a_run(
    own: float | None, tiny: MakeConfig, tmp_path: Path
) -> None:
    """A site's sums may be within all bounds and of no images: a direction varies less than not at all."""

    def change(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        second = unpacked(upload["second"].value)
        size = second.shape[-1]
        direction = torch.nn.functional.normalize(torch.arange(size, dtype=second.dtype), dim=0)
        bent = second - 5 * torch.outer(direction, direction)
        return encode_upload(upload | {"second": Sum(packed(bent))}, header)

    method = {"name": "equipoise", "own_covariance": own}
    config = resolve(tiny("equipoise").table() | {"method": method})
    result = run(config, tmp_path, wrap=lambda engine: Spoil(engine, BAD_SITE, change, range(3), "describe"))
    assert not journal(tmp_path, "rejected")
    assert all(bool(value.isfinite().all()) for value in result.server["closed"].values())
    assert result.server["closed"]["precision"].dim() == (2 if own is None else 3)


def test_who_is_left_out_is_told_at_once(tiny: MakeConfig, tmp_path: Path) -> None:
    told: list[str] = []

    def watch(event: str, facts: dict[str, Any]) -> None:
        told.extend([facts["reason"]] if event == "rejected" else [])

    spoil = lambda engine: Spoil(engine, BAD_SITE, KINDS["NaN"][0], (1,))  # noqa: E731
    run(tiny("fedavg"), tmp_path, watch=watch, wrap=spoil)
    assert told == [
        "round 2: site 'site-01' was left out of 'train': leaf 'delta' has values that are not finite"
    ]


def test_an_answer_that_runs_ahead_is_slowed_down(tiny: MakeConfig, rows: Rows, tmp_path: Path) -> None:
    run(tiny("fedavg"), tmp_path, wrap=lambda engine: Spoil(engine, BAD_SITE, scaled(20.0), (0, 1)))
    slowed = journal(tmp_path, "slowed")
    assert [(line["site"], line["round"], line["question"]) for line in slowed] == [
        (BAD_SITE, r, "train") for r in (1, 2)
    ]
    assert all(1 / 3 < line["factors"]["delta"] < 1 for line in slowed)
    assert [row["sites"] for row in rows(tmp_path)] == [["site-00", "site-01", "site-02"]] * 2
    assert not journal(tmp_path, "rejected")


@pytest.mark.parametrize(("method", "sites"), [("centralised", 3), ("fedavg", 1)])
def test_where_all_images_are_in_one_place_answers_are_large_beside_nobodys(
    method: str, sites: int, tiny: MakeConfig, tmp_path: Path
) -> None:
    """A first round of many steps may move a new model by many times its size."""
    config = tiny(method, partition={"kind": "iid", "sites": sites})
    run(config, tmp_path, wrap=lambda engine: Spoil(engine, "site-00", scaled(150.0), (0,)))
    assert not journal(tmp_path, "slowed") and not journal(tmp_path, "rejected")


def test_a_large_answer_is_judged_alike_after_a_stop(tiny: MakeConfig, rows: Rows, tmp_path: Path) -> None:
    """What earlier rounds have shown is in the checkpoint: of two answers one is left out, resumed or not."""
    config = tiny("fedavg", train={"rounds": 4})

    class Stop(Exception):
        pass

    def wrap(engine: Engine, falls: bool) -> Engine:
        alone = Spoil(engine, "site-02", lambda data: None, (2, 3))
        large = Spoil(alone, BAD_SITE, scaled(100.0), (2, 3))

        def stop(data: bytes) -> bytes:
            raise Stop

        return Spoil(large, "site-00", stop, (2, 3)) if falls else large

    run(config, tmp_path / "straight", wrap=lambda engine: wrap(engine, False))
    with pytest.raises(Stop):
        run(config, tmp_path / "a", wrap=lambda engine: wrap(engine, True))
    run(config, tmp_path / "a", wrap=lambda engine: wrap(engine, False))
    assert rows(tmp_path / "a") == rows(tmp_path / "straight")
    for folder in ("a", "straight"):
        assert {(line["site"], line["round"]) for line in journal(tmp_path / folder, "rejected")} == {
            (BAD_SITE, 3),
            (BAD_SITE, 4),
        }


def test_losing_a_site_matters(tiny: MakeConfig, once: Once, tmp_path: Path) -> None:
    lose = lambda engine: Spoil(engine, BAD_SITE, lambda data: None, (0,))  # noqa: E731
    lost = run(tiny("fedavg"), tmp_path / "lost", wrap=lose)
    assert once(tiny("fedavg")).state_hash != lost.state_hash


def test_too_few_sites_stop_the_run_and_it_can_go_on(tiny: MakeConfig, once: Once, tmp_path: Path) -> None:
    config = tiny("fca", exchange={"min_sites": 3})
    straight = once(config)
    with pytest.raises(SiteError, match=r"round 2: only 2 of 3 sites .* 3 are needed"):
        run(config, tmp_path / "a", wrap=lambda engine: Spoil(engine, BAD_SITE, lambda data: None, (1,)))
    assert resume(tmp_path / "a").state_hash == straight.state_hash

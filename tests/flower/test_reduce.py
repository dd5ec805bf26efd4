"""Robust sums over Flower: the bits of the simulation, and only with sites that allow it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import Config
from equipoise.deploy import apps
from equipoise.deploy.policy import Policy
from equipoise.errors import ConfigError
from equipoise.exchange.ledger import COMPARED
from equipoise.running import Result, run
from equipoise.server.journal import read as read_journal

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
SITES = tuple(f"site-0{i}" for i in range(5))


def five(tiny: MakeConfig, rule: str, **sections: dict[str, Any]) -> Config:
    return tiny(
        **{"partition": {"sites": 5}, "exchange": {"reduce": rule}, "evaluate": {"every": 2}} | sections
    )


@pytest.mark.parametrize("rule", ["median", pytest.param("trimmed", marks=pytest.mark.slow), "krum"])
def test_a_robust_sum_over_flower_is_the_simulation(
    rule: str, tiny: MakeConfig, town: Any, once: Once
) -> None:
    config = five(tiny, rule, evaluate={"every": 2, "exact": False})
    there = town(config, {site: {"reduce": ["mean", rule]} for site in SITES})
    assert there.go().state_hash == once(config).state_hash


def test_a_site_that_does_not_allow_it_stays_out(tiny: MakeConfig, town: Any) -> None:
    there = town(
        five(tiny, "median", train={"rounds": 1}), {site: {"reduce": ["median"]} for site in SITES[:4]}
    )
    there.go()
    (line,) = [line for line in read_journal(there.run / "journal.jsonl")[0] if line["event"] == "refused"]
    assert line["site"] == SITES[4] and line["reason"] == (
        "policy rule 'reduce': to combine updates by 'median' the coordinator reads each site's own, "
        "and this site allows 'mean' only"
    )


def test_the_policy_says_which_rules_it_allows(tiny: MakeConfig) -> None:
    def broken(config: Config, **policy: Any) -> list[str]:
        rules = Policy(min_sites=1, **policy)
        return [sentence for sentence in rules.terms(config) if "'reduce'" in sentence]

    assert not broken(tiny())
    assert broken(five(tiny, "krum")) and broken(five(tiny, "krum"), reduce=("mean", "median"))
    assert not broken(five(tiny, "krum"), reduce=("krum",))
    assert "no rule only" in broken(tiny(), reduce=())[0]


def test_the_ledger_of_a_site_says_who_reads_its_update(tiny: MakeConfig, town: Any) -> None:
    """Also what `equipoise site check` shows, which is made at the site."""
    there = town(five(tiny, "krum", train={"rounds": 1}), {site: {"reduce": ["krum"]} for site in SITES})
    there.go()
    (place,) = (there.sites["site-00"] / "runs").iterdir()
    rows = apps.desk(str(there.sites["site-00"]))._run(place.name).ledger().rows()
    assert {row["read_by"] for row in rows if row["kind"] == "mean"} == {COMPARED}
    assert COMPARED not in {row["read_by"] for row in rows if row["kind"] != "mean"}


def test_too_few_sites_are_an_error_before_the_first_round(tiny: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'reduce = "krum" with hostile = 0.2 needs 5 of 3 sites'):
        run(tiny(exchange={"reduce": "krum"}), tmp_path / "few")
    with pytest.raises(ConfigError, match="needs 3 of 2 sites in a round"):
        run(tiny(exchange={"reduce": "median"}, train={"participation": 0.7}), tmp_path / "drawn")

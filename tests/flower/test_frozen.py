"""Frozen tensors across hospitals: their digest is listed among what leaves, and is the same everywhere, or
there is no run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from flwr.app import Message
from tests import doctored
from tests.nets.test_encoder import written

from equipoise import blueprint
from equipoise.config import Config
from equipoise.deploy import site
from equipoise.deploy.card import LONGEST, SPLITS, Card
from equipoise.deploy.card import rows as rows_of_joining
from equipoise.deploy.keys import new_keys, new_pair
from equipoise.deploy.setting import check_site
from equipoise.engine.flower.wire import unwrap
from equipoise.errors import SiteError
from equipoise.running import Result
from equipoise.server.journal import read as read_journal
from equipoise.setup import Material

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
Rows = Callable[[Path], list[dict[str, Any]]]
OTHER = "site-01"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The [net] of a config with an encoder in an ONNX file."""
    path = tmp_path_factory.mktemp("encoder") / "e.onnx"
    return {"name": "onnx", "weights": str(path), "sha256": written(path)[1]}


def give(folder: Path, encoder: dict[str, str], file: Path | str) -> None:
    """Write into a site's site.toml where the file of the encoder is."""
    with (folder / "site.toml").open("a") as text:
        text.write(tomli_w.dumps({"weights": {encoder["sha256"]: str(file)}}))


# What is listed ---------------------------------------------------------------------------------------------


def card(**more: Any) -> Card:
    counts = {split: (1, 1) for split in SPLITS}
    told = {"images": dict.fromkeys(SPLITS, 2), "counts": counts, "input": LONGEST, **more}
    return Card(classes=("a", "b"), task="multi", shape=(16, 16, 3), partial=True, **told)


def test_everything_that_a_card_says_has_a_row() -> None:
    optional = {"known": card().counts, "frozen": "0" * 64, "small_cell": 5, "withheld": {}}
    for one in (card(), card(**optional)):
        listed = rows_of_joining(one.classes, one.shape, one.model_fields_set)
        assert sorted(row["leaf"] for row in listed) == sorted(one.model_fields_set)
    assert {row["leaf"] for row in listed} == set(Card.model_fields)


def test_an_encoder_gives_the_simulation_and_its_digest_is_listed(
    tiny: MakeConfig, encoder: dict[str, str], rows: Rows, town: Any, once: Once
) -> None:
    config = tiny("fca", net=encoder, evaluate={"every": 2})
    there, cards = town(config), list[dict[str, Any]]()
    for folder in there.sites.values():
        give(folder, encoder, encoder["weights"])

    def tap(asked: Message, reply: Message) -> Message:
        table, _ = unwrap(reply.content)
        cards.extend([table["card"]] if "card" in table else [])
        return reply

    there.wire.change = tap
    found, expected = there.go(), once(replace(config, evaluate=there.config.evaluate))
    assert found.state_hash == expected.state_hash
    assert rows(there.run) == rows(expected.folder)
    leaves = doctored.table(there.run / "ledger.json")["leaves"]
    joining = {row["leaf"] for row in leaves if row["question"] == "join"}
    assert len(cards) == 3 and "frozen" in joining
    assert all(set(said) == joining for said in cards)


@pytest.mark.parametrize("kind", ["encoder", "stage", "tensors", "nothing"])
def test_a_site_sees_the_digest_before_it_takes_part(
    kind: str, tiny: MakeConfig, encoder: dict[str, str], town: Any, tmp_path: Path
) -> None:
    nets: dict[str, dict[str, Any]] = {
        "encoder": encoder,
        "stage": {"freeze": "block1"},
        "tensors": {"freeze": ["body.conv1.*"]},
        "nothing": {},
    }
    there = town(tiny("fca"))
    folder = there.sites[OTHER]
    give(folder, encoder, encoder["weights"])
    new_keys(tmp_path, [], [])
    (folder / "keys").mkdir()
    new_pair(folder / "keys" / "site")
    shutil.copy(tmp_path / "keys" / "ca.crt", folder / "keys")
    file = tmp_path / "run.toml"
    file.write_text(tomli_w.dumps({"method": {"name": "fca"}, "net": nets[kind]}))
    listed = {row["leaf"] for row in check_site(folder, file).joining}
    assert ("frozen" in listed) == (kind != "nothing")
    assert listed >= {"classes", "counts", "withheld"}


# What is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", ["block1", ["body.conv1.*"]], ids=["stage", "tensors"])
def test_a_site_with_other_frozen_tensors_ends_the_run_before_it_begins(
    freeze: str | list[str], tiny: MakeConfig, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of another torch, which draws other numbers from the same seed."""
    usual, derive = site.make_host, blueprint.derive

    def make_host(config: Config, dataset: Material, *rest: Any) -> Any:
        with monkeypatch.context() as patch:
            if dataset.holdings[0].name == OTHER:
                patch.setattr(blueprint, "derive", lambda seed, *words: derive(seed + 1, *words))
            return usual(config, dataset, *rest)

    monkeypatch.setattr(site, "make_host", make_host)
    there = town(tiny("fca", net={"freeze": freeze}))
    sentence = (
        f"site '{OTHER}' has other frozen tensors than the coordinator: every site needs the same file of "
        "weights, and the same versions of Equipoise and torch"
    )
    with pytest.raises(SiteError) as refused:
        there.go()
    assert str(refused.value) == sentence
    lines = read_journal(there.run / "journal.jsonl")[0]
    assert lines[-1]["event"] == "stopped" and lines[-1]["reason"] == sentence
    assert {kind for kind, _ in there.wire.down} == {"query"}  # invited, and asked nothing
    assert not list(there.run.glob("checkpoints/*"))


def test_a_site_with_another_encoder_does_not_join(
    tiny: MakeConfig, encoder: dict[str, str], town: Any, tmp_path: Path
) -> None:
    """The coordinator learns that the file does not fit, and only the site where it is."""
    there = town(tiny("fca", net=encoder, exchange={"min_sites": 3}))
    (tmp_path / "other.onnx").write_bytes(Path(encoder["weights"]).read_bytes() + b"\n")
    for name, folder in there.sites.items():
        give(folder, encoder, tmp_path / "other.onnx" if name == OTHER else encoder["weights"])
    with pytest.raises(SiteError, match="only 2 of 3 sites joined, 3 are needed"):
        there.go()
    own = read_journal(there.sites[OTHER] / "journal.jsonl")[0]
    reason = next(line["reason"] for line in own if line["event"] == "failed")
    assert "other.onnx" in reason and f"not {encoder['sha256']}: fetch the right file" in reason
    told = read_journal(there.run / "journal.jsonl")[0]
    why = [line["reason"] for line in told if line.get("site") == OTHER and "reason" in line]
    assert any("WeightsError; the site's journal says more" in reason for reason in why)
    assert "other.onnx" not in str(told)

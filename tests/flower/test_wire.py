"""What crosses the wire: the leaves of the ledger and nothing else; spoiled answers are turned away as in a
simulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from tests import doctored
from tests.flower.actor import PARTS, Rogue, named
from tests.flower.sentinels import WORD, at_home, write_hospitals
from tests.spoiled import Spoil

from equipoise.config import Config, resolve
from equipoise.deploy.card import SPLITS
from equipoise.deploy.coordinator import plan, read_roster, roster
from equipoise.engine import Host
from equipoise.engine.flower.wire import unwrap
from equipoise.errors import ConfigError, SiteError, StorageError
from equipoise.exchange import decode_upload
from equipoise.exchange.ledger import entries
from equipoise.exchange.question import Call
from equipoise.run_folder import RunFolder
from equipoise.running import Result, run
from equipoise.server.journal import read as read_journal

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
ROGUE = "site-01"

# A rogue site -----------------------------------------------------------------------------------------------


def rogue(asked: Message) -> bool:
    return asked.metadata.message_type == "train.train" and unwrap(asked.content)[0]["site"] == ROGUE


def test_a_rogue_site_is_turned_away_whatever_it_sends(tiny: MakeConfig, town: Any, tmp_path: Path) -> None:
    """A bad answer in every round but the last: the bits of a run that lost those answers."""
    bad, rounds = len(PARTS), len(PARTS) + 1
    train = {"rounds": rounds, "batch_size": 64}  # one step a round
    config = tiny("fedavg", train=train, evaluate={"every": rounds})
    there, spoil = town(config, retries=0), Rogue()
    there.wire.change = lambda asked, reply: spoil(asked, reply) if rogue(asked) else reply
    found = there.go()
    lost = replace(config, evaluate=there.config.evaluate)
    expected = run(lost, tmp_path, wrap=lambda engine: Spoil(engine, ROGUE, lambda data: None, range(bad)))
    assert found.state_hash == expected.state_hash
    named(there.run, ROGUE)
    (row,) = found.history[-1:]
    assert row["sites"] == ["site-00", "site-01", "site-02"]


def test_a_replayed_answer_is_asked_for_again(tiny: MakeConfig, town: Any, once: Once) -> None:
    """Round 2 gets the rogue's answer of round 1 again; the question is repeated and the run is as if nothing
    had been."""
    config = tiny("fedavg", evaluate={"every": 2})
    there, kept = town(config), list[Any]()

    def replay(asked: Message, reply: Message) -> Message:
        if rogue(asked):
            kept.append(reply.content)
            if len(kept) == 2:
                reply.content = kept[0]
        return reply

    there.wire.change = replay
    assert there.go().state_hash == once(config).state_hash
    found = [line for line in read_journal(there.run / "journal.jsonl")[0] if line["event"] == "ignored"]
    assert [(line["site"], line["round"]) for line in found] == [(ROGUE, 2)] and "replayed, stale" in found[
        0
    ]["reason"]


# A coordinator that is killed -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fca", pytest.param("fediic", marks=pytest.mark.sweep)])
def test_a_run_that_was_broken_off_anywhere_goes_on_to_the_same_bits(
    method: str, tiny: MakeConfig, town: Any, once: Once
) -> None:
    class Killed(BaseException):
        pass

    config = tiny(method, evaluate={"every": 1})
    there, seen = town(config), [0]
    stops = iter([2, 5, 9, 14, 10**6])
    limit = [next(stops)]

    def kill(asked: Message, reply: Message) -> Message:
        seen[0] += 1
        if seen[0] == limit[0]:
            limit[0] = next(stops)
            raise Killed
        return reply

    there.wire.change = kill
    ends = 0
    while True:
        try:
            found = there.go()
            break
        except Killed:
            ends += 1
            there.wire.pending.clear()
    assert ends == 4 and found.state_hash == once(config).state_hash


# What leaves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["fca", *(pytest.param(one, marks=pytest.mark.sweep) for one in ("fediic", "fedsdc"))]
)
def test_the_ledger_is_what_crosses_the_wire(method: str, tiny: MakeConfig, town: Any) -> None:
    there, seen = town(tiny(method)), list[tuple[str, dict[str, Any], dict[str, bytes]]]()

    def tap(asked: Message, reply: Message) -> Message:
        seen.append((asked.metadata.message_type, *unwrap(reply.content)))
        return reply

    there.wire.change = tap
    result = there.go()
    rows = doctored.table(there.run / "ledger.json")["leaves"]
    for kind, table, data in seen:
        if kind == "query":
            assert (
                set(table) == {"run", "ticket", "site", "round", "question", "journal", "card"} and not data
            )
            listed = {row["leaf"]: row["bytes"] for row in rows if row["question"] == "join"}
            assert set(table["card"]) == set(listed)
            assert all(0 < len(json.dumps(value)) <= listed[leaf] for leaf, value in table["card"].items())
            continue
        assert set(table) == {"run", "ticket", "site", "round", "question", "journal"} and set(data) == {
            "answer"
        }
        header, upload = decode_upload(data["answer"])
        listed = [row for row in rows if row["question"] == table["question"]]
        assert set(upload) == {row["leaf"] for row in listed}
        assert not any(row["varies"] for row in listed)
        assert sum(entry.bytes() for entry in entries(upload)) == sum(row["bytes"] for row in listed)
        assert set(header) == {"site", "round", "question", "wrote", "leaves"}
    trained = sum(len(data["answer"]) for kind, _, data in seen if kind.startswith("train."))
    assert trained == sum(row["bytes_up"] for row in result.history)


@pytest.mark.parametrize("method", ["fca", pytest.param("fedsdc", marks=pytest.mark.sweep)])
def test_what_is_private_is_nowhere_but_at_its_site(
    method: str, town: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, patients, paths, labels and private tensors: in no message, in no file of the coordinator; not
    even where a site fails."""
    train = {"rounds": 2, "batch_size": 4}
    tables = write_hospitals(tmp_path, ("east", "west"))
    there = town(resolve(tables | {"method": {"name": method}, "train": train, "engine": {"device": "cpu"}}))
    answer = Host.answer

    def fail(host: Host, call: Call, *data: Any) -> bytes:
        if call.round == 1 and call.site == "west":
            raise OSError(f"cannot read {WORD}.png")
        return answer(host, call, *data)

    monkeypatch.setattr(Host, "answer", fail)
    there.go()
    assert WORD.encode() in (there.sites["west"] / "journal.jsonl").read_bytes()
    crossed = [data for _, objects in (*there.wire.up, *there.wire.down) for data in objects]
    files = [path.read_bytes() for path in there.run.rglob("*") if path.is_file()]
    assert len(crossed) > 20 and len(files) > 5
    assert any(b"failed" in data for data in crossed) and any(b"OSError" in data for data in files)
    for site in ("east", "west"):
        secrets = at_home(there.sites[site])
        assert len(secrets) == 6 or method == "fca"
        assert method != "fca" or any("head.own" in what for what in secrets)
        for what, secret in secrets.items():
            assert not any(secret in data for data in (*crossed, *files)), f"{what} of {site}"


def test_a_site_keeps_its_own_results(tiny: MakeConfig, town: Any) -> None:
    there = town(tiny("fca", train={"rounds": 1}))
    (row,) = there.go().history
    for site, folder in there.sites.items():
        (path,) = folder.glob("runs/*/metrics.jsonl")
        (own,) = doctored.rows(path)
        told = row["test"]["sites"][site]
        assert own["round"] == 1 and own["test"]["own.own"]["balanced_accuracy"] == told["balanced_accuracy"]
        assert set(own["test"]) >= {"global.fed", "own.own"} and "validation" in own


def test_a_federation_of_more_sites_than_sums_have_room_for_is_not_planned(
    tiny: MakeConfig, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="at most 100,000 sites"):
        plan(tiny(), tmp_path / "run", {f"site-{i}": b"key" for i in range(100_001)})
    assert not (tmp_path / "run").exists()


def test_two_coordinators_do_not_share_a_folder(tmp_path: Path) -> None:
    refused = pytest.raises(StorageError, match="another process works on the run")
    run = RunFolder(tmp_path)
    with run.alone(), refused, run.alone(patience=0.3):
        pass
    with run.alone(patience=0.0):
        pass


INPUT: dict[str, Any] = {
    "image_size": 16,
    "channels": 3,
    "resize": "squash",
    "crop_keep": 1.0,
    "colour_constancy": None,
    "brightness": None,
    "window": None,
    "bits": None,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}
CARD: dict[str, Any] = {
    "classes": ["a", "b", "c"],
    "task": "single",
    "shape": [16, 16, 3],
    "input": INPUT,
    "partial": False,
    "images": dict.fromkeys(SPLITS, 3),
    "counts": {split: [1, None, 1] for split in SPLITS},
    "small_cell": 5,
    "withheld": {},
}


class Invited:
    """A fleet whose sites have said this of themselves."""

    def __init__(self, **cards: Any) -> None:
        self.cards, self.left_out = cards, dict[str, str]()

    def invite(self, *given: Any) -> dict[str, Any]:
        return self.cards

    def tell(self, event: str, site: str, reason: str) -> None:
        assert event == "left out" and len(reason) < 600 and reason.isprintable()
        self.left_out[site] = reason


def begin(fleet: Any, config: Config, folder: Path) -> list[str]:
    """The sites a run begins with."""
    return list(roster(config, RunFolder(folder), fleet, tuple(sorted(fleet.cards))))


DIFFERENT: list[tuple[dict[str, Any], str]] = [
    ({"classes": ["x", "y", "z"]}, "do not agree on their classes"),
    ({"shape": [32, 32, 3]}, "do not agree on their shape"),
    ({"task": "multi"}, "do not agree on their task"),
    ({"input": INPUT | {"colour_constancy": 6.0}}, "data.colour_constancy is None and 6.0: set the same"),
    ({"input": INPUT | {"window": [[40, 80]]}}, "do not prepare their images alike: data.window is None and"),
]
BAD_CARDS: list[tuple[Any, str]] = [
    ({"task": "other"}, "'task'"),
    ({"images": {}}, "'images'"),
    ({"images": {split: -1 for split in SPLITS}}, "'images.train'"),
    ({"images": dict.fromkeys(SPLITS, 10**9)}, "'images.train'"),
    ({"images": dict.fromkeys(SPLITS, 2**22 + 1)}, "'images.train'"),
    ({"images": dict.fromkeys(SPLITS, "3")}, "'images.train'"),
    ({"images": dict.fromkeys(SPLITS, 3.5)}, "'images.train'"),
    ({"images": dict.fromkeys(SPLITS, True)}, "'images.train'"),
    ({"images": dict.fromkeys(SPLITS, float("nan"))}, "'images.train'"),
    ({"images": {**dict.fromkeys(SPLITS, 3), "more": 3}}, "'images'"),
    ({"counts": {split: [1, 2] for split in SPLITS}}, "'counts'"),
    ({"counts": {split: [10**12, 1, 1] for split in SPLITS}}, "'counts.train"),
    ({"counts": {split: [2, 1, 1] for split in SPLITS}}, "do not add up"),
    ({"counts": {split: [1, 1, 0] for split in SPLITS}}, "do not add up"),
    ({"counts": {split: [4, None, None] for split in SPLITS}}, "do not add up"),
    ({"classes": ["a", "b", "x" * 10**6]}, "'classes.2'"),
    ({"classes": ["a", "b", "\x1b[2J"]}, "'classes'"),
    ({"classes": ["a", "a", "b"]}, "'classes'"),
    ({"classes": [f"c{i}" for i in range(5000)]}, "'classes'"),
    ({"classes": ["a"]}, "'classes'"),
    ({"classes": [["a"], "b", "c"]}, "'classes.0'"),
    ({"shape": [10**9, 10**9, 3]}, "'shape.0'"),
    ({"shape": [16, 16, 10**6]}, "'shape.2'"),
    ({"shape": [16, 16]}, "'shape"),
    ({"input": INPUT | {"window": [[40, 80]] * 4}}, "'input.window'"),
    ({"input": INPUT | {"crop_keep": 0}}, "'input.crop_keep'"),
    ({"input": {}}, "'input.image_size'"),
    ({"withheld": {"test": [3]}}, "'withheld' names classes that there are not"),
    ({"withheld": {"test": [0]}}, "'withheld' names classes that there are not, or that it counts"),
    ({"withheld": {"later": [1]}}, "'withheld'"),
    ({"withheld": {"test": [1] * 1000}}, "'withheld'"),
    ({"known": {"test": [3, 3, 3]}}, "'known' is not by split"),
    ({"shape": [0, 16, 3]}, "'shape.0'"),
    ({"partial": True}, "'partial'"),
    ({"more": 1}, "'more'"),
    ({"\x1b[2J" * 1000: 1}, "is not in order"),
]


@pytest.mark.parametrize(("changes", "sentence"), DIFFERENT)
def test_two_sites_that_mean_other_things_do_not_begin(
    changes: dict[str, Any], sentence: str, tiny: MakeConfig, tmp_path: Path
) -> None:
    with pytest.raises(SiteError, match=sentence):
        begin(Invited(one=CARD, two=CARD | changes), tiny(), tmp_path)
    assert not (tmp_path / "roster.json").exists()


@pytest.mark.parametrize(("changes", "sentence"), DIFFERENT)
def test_of_three_the_one_that_means_other_things_is_left_out(
    changes: dict[str, Any], sentence: str, tiny: MakeConfig, tmp_path: Path
) -> None:
    fleet = Invited(one=CARD | changes, three=CARD, two=CARD)
    assert begin(fleet, tiny(), tmp_path) == ["three", "two"]
    assert list(fleet.left_out) == ["one"] and sentence in fleet.left_out["one"]
    assert set(read_roster(RunFolder(tmp_path))) == {"three", "two"}


@pytest.mark.parametrize(("changes", "sentence"), BAD_CARDS)
def test_a_site_with_a_bad_card_is_left_out(
    changes: dict[str, Any], sentence: str, tiny: MakeConfig, tmp_path: Path
) -> None:
    fleet = Invited(one=CARD | changes, two=CARD)
    assert begin(fleet, tiny(), tmp_path) == ["two"]
    assert list(fleet.left_out) == ["one"] and sentence in fleet.left_out["one"]
    with pytest.raises(SiteError, match=r"only 1 of 2 sites joined, 2 are needed"):
        begin(Invited(one=CARD | changes, two=CARD), tiny(exchange={"min_sites": 2}), tmp_path / "other")

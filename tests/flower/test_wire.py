"""What crosses the wire: the leaves of the ledger and nothing else; spoiled answers are turned away as in a simulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from safetensors.torch import load_file

from equipoise.config import Config, resolve
from equipoise.deploy.coordinator import alone, roster
from equipoise.engine import Host
from equipoise.engine.flower.wire import array, unwrap, wrap
from equipoise.errors import SiteError, StorageError
from equipoise.exchange import decode_upload, encode_upload
from equipoise.exchange.ledger import entries
from equipoise.leaves import Each, Mean, Sum
from equipoise.server.journal import read as read_journal
from equipoise.testing import CLASSES, raw, write_federation

MakeConfig = Callable[..., Config]
ROGUE = "site-01"
W = "body.conv1.weight"

# A rogue site --------------------------------------------------------------------------------------------------------


def respoken(reply: Message, data: bytes | None) -> Message | None:
    """The same reply with other bytes in it; None loses it."""
    if data is None:
        return None
    table, _ = unwrap(reply.content)
    reply.content = wrap(table, {"answer": array(data)})
    return reply


def delta(
    change: Callable[[dict[str, torch.Tensor]], Any], weight: Callable[[float], float] = float
) -> Callable[[bytes], bytes]:
    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        leaf = upload["delta"]
        assert isinstance(leaf, Mean)
        value = {name: tensor.clone() for name, tensor in leaf.value.items()}
        change(value)
        return encode_upload({**upload, "delta": Mean(value, weight(float(leaf.weight)))}, header)

    return spoil


def put(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda value: value.update({W: make(value[W])})


def with_leaf(**leaves: Any) -> Callable[[bytes], bytes]:
    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        return encode_upload({**upload, **leaves}, header)

    return spoil


SPOILED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "NaN": (delta(put(lambda x: x * torch.nan)), "not finite"),
    "Inf": (delta(put(lambda x: x + torch.inf)), "not finite"),
    "broadcastable shape": (delta(put(lambda x: x[:1])), "has shape"),
    "dtype": (delta(put(lambda x: x.double())), "has dtype float64"),
    "extra leaf": (with_leaf(images=Each(torch.ones(3))), "extra tensor 'images'"),
    "missing tensor": (delta(lambda value: value.__delitem__(W)), f"missing tensor 'delta/{W}'"),
    "negative weight": (delta(lambda value: None, lambda w: -w), "negative"),
    "huge weight": (delta(lambda value: None, lambda w: 1e9), "max_weight"),
    "huge values": (delta(put(lambda x: x + 1e6)), "more than the fixed-point range"),
    "wrong kind": (with_leaf(loss=Sum(torch.tensor(1.0, dtype=torch.float64))), "is a 'sum' leaf, not 'mean'"),
    "oversize": (lambda data: data + bytes(10**7), "bytes, at most"),
    "garbage": (lambda data: bytes(range(256)) * 10, "message"),
}


QUICK = ("NaN", "extra leaf", "garbage")


@pytest.fixture(scope="module")
def lost(tiny: MakeConfig, town: Any) -> str:
    """The state a run comes to without the rogue's training answers."""
    there = town(tiny("fedavg", train={"rounds": 1}), deadline=0.5, retries=0)
    there.wire.change = lambda asked, reply: respoken(reply, None) if rogue(asked) else reply
    return str(there.go().state_hash)


def rogue(asked: Message) -> bool:
    return asked.metadata.message_type == "train.train" and unwrap(asked.content)[0]["site"] == ROGUE


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in SPOILED])
def test_a_rogue_site_is_turned_away(kind: str, tiny: MakeConfig, town: Any, lost: str) -> None:
    change, reason = SPOILED[kind]
    there = town(tiny("fedavg", train={"rounds": 1}))

    def spoil(asked: Message, reply: Message) -> Message | None:
        return respoken(reply, change(unwrap(reply.content)[1]["answer"])) if rogue(asked) else reply

    there.wire.change = spoil
    assert there.go().state_hash == lost
    found = [line for line in read_journal(there.run / "journal.jsonl")[0] if line["event"] == "rejected"]
    assert [line["site"] for line in found] == [ROGUE] and reason in found[0]["reason"]


def test_a_replayed_answer_is_noticed(tiny: MakeConfig, town: Any) -> None:
    """Round 2 gets the rogue's answer of round 1 again; the question is repeated and the run is as if nothing had been."""
    straight = town(tiny("fedavg")).go().state_hash
    there, kept = town(tiny("fedavg")), list[Any]()

    def replay(asked: Message, reply: Message) -> Message:
        if rogue(asked):
            kept.append(reply.content)
            if len(kept) == 2:
                reply.content = kept[0]
        return reply

    there.wire.change = replay
    assert there.go().state_hash == straight
    found = [line for line in read_journal(there.run / "journal.jsonl")[0] if line["event"] == "ignored"]
    assert [(line["site"], line["round"]) for line in found] == [(ROGUE, 1)] and "replayed, stale" in found[0]["reason"]


# A coordinator that is killed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fca", pytest.param("fediic", marks=pytest.mark.slow)])
def test_a_run_that_was_broken_off_anywhere_goes_on_to_the_same_bits(method: str, tiny: MakeConfig, town: Any) -> None:
    class Killed(BaseException):
        pass

    straight = town(tiny(method))
    expected = straight.go().state_hash
    there, seen = town(tiny(method)), [0]
    total = len(straight.wire.up)
    stops = iter([2, 5, 9, 14, total + 20])
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
    assert ends == 4 and found.state_hash == expected


# What leaves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fca", *(pytest.param(one, marks=pytest.mark.slow) for one in ("fediic", "fedsdc"))])
def test_the_ledger_is_what_crosses_the_wire(method: str, tiny: MakeConfig, town: Any) -> None:
    there, seen = town(tiny(method)), list[tuple[str, dict[str, Any], dict[str, bytes]]]()

    def tap(asked: Message, reply: Message) -> Message:
        seen.append((asked.metadata.message_type, *unwrap(reply.content)))
        return reply

    there.wire.change = tap
    result = there.go()
    rows = json.loads((there.run / "ledger.json").read_bytes())
    for kind, table, data in seen:
        if kind == "query":
            assert set(table) == {"run", "ticket", "site", "round", "question", "card"} and not data
            continue
        assert set(table) == {"run", "ticket", "site", "round", "question"} and set(data) == {"answer"}
        header, upload = decode_upload(data["answer"])
        listed = [row for row in rows if row["question"] == table["question"]]
        assert set(upload) == {row["leaf"] for row in listed}
        assert not any(row["varies"] for row in listed)
        assert sum(entry.bytes() for entry in entries(upload)) == sum(row["bytes"] for row in listed)
        assert set(header) == {"site", "round", "question", "wrote", "leaves"}
    trained = sum(len(data["answer"]) for kind, _, data in seen if kind.startswith("train."))
    assert trained == sum(row["bytes_up"] for row in result.history)


SECRET = "Zq7sentinelXw"


LABELS = (0, 1, 2, 0, 1, 2, 1, 1, 0, 2, 2)


@pytest.fixture
def hospital(tmp_path: Path) -> dict[str, Any]:
    """A federation whose folder and patients carry a word that must stay where it is."""
    sites = ("east", "west")
    tables = write_federation(tmp_path / SECRET, dict.fromkeys(sites, LABELS), dict.fromkeys(sites, (0, 1, 2)))
    path = Path(tables["data"]["path"])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *(f"{SECRET}-{line}" for line in lines[1:])]))  # the id comes first
    assert lines[0].startswith("id,")
    return tables


@pytest.mark.parametrize("method", ["fca", pytest.param("fedsdc", marks=pytest.mark.slow)])
def test_what_is_private_is_nowhere_but_at_its_site(
    method: str, hospital: dict[str, Any], town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, paths, labels and private tensors: in no message, in no file of the coordinator; not even where a site fails."""
    train = {"rounds": 2, "batch_size": 4}
    there = town(resolve(hospital | {"method": {"name": method}, "train": train, "engine": {"device": "cpu"}}))
    answer = Host.answer

    def fail(host: Host, call: dict[str, Any], *data: Any) -> bytes:
        if call["round"] == 1 and call["site"] == "west":
            raise OSError(f"cannot read {SECRET}.png")
        return answer(host, call, *data)

    monkeypatch.setattr(Host, "answer", fail)
    there.go()
    assert SECRET.encode() in (there.sites["west"] / "journal.jsonl").read_bytes()
    crossed = [data for _, objects in (*there.wire.up, *there.wire.down) for data in objects]
    files = [path.read_bytes() for path in there.run.rglob("*") if path.is_file()]
    assert len(crossed) > 20 and len(files) > 5
    assert any(b"failed" in data for data in crossed) and any(b"OSError" in data for data in files)
    kept = [load_file(path) for path in there.sites["east"].glob("runs/*/private/east/*.safetensors")]
    private = [raw(x) for tensors in kept for name, x in tensors.items() if name.startswith("net/") and x.numel() >= CLASSES]
    assert private or method != "fca"
    for secret in (SECRET.encode(), raw(torch.tensor(LABELS)), *private):
        assert not any(secret in data for data in (*crossed, *files))


def test_a_site_keeps_its_own_results(tiny: MakeConfig, town: Any) -> None:
    there = town(tiny("fca", train={"rounds": 1}))
    (row,) = there.go().history
    for site, folder in there.sites.items():
        (path,) = folder.glob("runs/*/metrics.jsonl")
        (own,) = map(json.loads, path.read_text().splitlines())
        told = row["test"]["sites"][site]
        assert own["round"] == 1 and own["test"]["own.own"]["balanced_accuracy"] == told["balanced_accuracy"]
        assert set(own["test"]) >= {"global.fed", "own.own"} and "validation" in own


def test_two_coordinators_do_not_share_a_folder(tmp_path: Path) -> None:
    refused = pytest.raises(StorageError, match="another process works on the run")
    with alone(tmp_path), refused, alone(tmp_path, patience=0.3):
        pass
    with alone(tmp_path, patience=0.0):
        pass


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"classes": ["x", "y", "z"]}, "do not agree on their classes"),
        ({"shape": [32, 32, 3]}, "do not agree on their shape"),
        ({"task": "multi"}, "do not agree on their task"),
        ({"task": "other"}, "'task'"),
        ({"splits": {}}, "'splits'"),
        ({"more": 1}, "'more'"),
    ],
)
def test_sites_that_mean_other_things_do_not_begin(
    changes: dict[str, Any], sentence: str, tiny: MakeConfig, tmp_path: Path
) -> None:
    part = {"images": 3, "counts": [1, None, 1]}
    card = {"classes": ["a", "b", "c"], "task": "single", "shape": [16, 16, 3], "partial": False}
    card |= {"splits": dict.fromkeys(("train", "validation", "test"), part)}

    class Pair:
        def invite(self, *given: Any) -> dict[str, Any]:
            return {"one": card, "two": card | changes}

    with pytest.raises(SiteError, match=sentence):
        roster(tiny(), tmp_path, Pair(), ("one", "two"))  # type: ignore[arg-type]
    assert not (tmp_path / "roster.json").exists()

"""Bad answers in whole tiny runs: rejected by name, and otherwise as if the site had not answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.config import Config
from equipoise.engine import Engine, Question
from equipoise.errors import SiteError
from equipoise.exchange import decode_upload, encode_upload
from equipoise.leaves import Each, Mean, Sum, Upload
from equipoise.running import Result, resume, run

MakeConfig = Callable[..., Config]
Rows = Callable[[Path], list[dict[str, Any]]]
Change = Callable[[bytes], bytes | None]
Private = Callable[[Path], dict[str, str]]

BAD_SITE = "site-01"


def journal(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


# Bad answers ---------------------------------------------------------------------------------------------------------


class Spoil:
    """One site's `train` answer of the given rounds is changed, or lost where the change gives None."""

    def __init__(self, engine: Engine, change: Change, rounds: Sequence[int]) -> None:
        self.engine, self.change, self.rounds = engine, change, rounds

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.ask(question, sites):
            if (site, question.name) == (BAD_SITE, "train") and question.round in self.rounds:
                changed = self.change(data)
                if changed is not None:
                    yield site, changed
            else:
                yield site, data

    def close(self) -> None:
        self.engine.close()


def delta(change: Callable[[dict[str, torch.Tensor]], None], weight: Callable[[float], float] = float) -> Change:
    """An answer whose delta is changed in place, and its weight by a function."""

    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        leaf = upload["delta"]
        assert isinstance(leaf, Mean)
        value = {name: tensor.clone() for name, tensor in leaf.value.items()}
        change(value)
        return encode_upload({**upload, "delta": Mean(value, weight(float(leaf.weight)))}, header)

    return spoil


def with_leaf(**leaves: Any) -> Change:
    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        changed: Upload = {**upload, **leaves}
        return encode_upload(changed, header)

    return spoil


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(value: dict[str, torch.Tensor]) -> None:
        value[name] = make(value[name])

    return change


W = "body.conv1.weight"
KINDS: dict[str, tuple[Change, str]] = {
    "NaN": (delta(put(W, lambda x: x * torch.nan)), "not finite"),
    "Inf": (delta(put(W, lambda x: x + torch.inf)), "not finite"),
    "wrong shape": (delta(put(W, lambda x: x.transpose(0, 1))), "has shape"),
    "broadcastable shape": (delta(put(W, lambda x: x[:1])), "has shape"),
    "dtype": (delta(put(W, lambda x: x.double())), "has dtype float64"),
    "extra tensor": (delta(lambda value: value.update(more=torch.ones(2))), "extra tensor 'delta/more'"),
    "extra leaf": (with_leaf(images=Each(torch.ones(3))), "extra tensor 'images'"),
    "missing tensor": (delta(lambda value: value.__delitem__(W)), f"missing tensor 'delta/{W}'"),
    "negative weight": (delta(lambda value: None, lambda w: -w), "negative"),
    "NaN weight": (delta(lambda value: None, lambda w: float("nan")), "not finite"),
    "huge weight": (delta(lambda value: None, lambda w: 1e9), "max_weight"),
    "huge values": (delta(put(W, lambda x: x + 1e6)), "more than the fixed-point range"),
    "wrong kind": (with_leaf(loss=Sum(torch.tensor(1.0, dtype=torch.float64))), "is a 'sum' leaf, not 'mean'"),
    "oversize": (lambda data: data + bytes(10**7), "bytes, at most"),
    "truncated": (lambda data: data[: len(data) // 2], "message"),
    "garbage": (lambda data: bytes(range(256)) * 10, "message"),
    "empty": (lambda data: b"", "message"),
}


@pytest.fixture(scope="module")
def lost(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Result, Path]]:
    """A run that loses the bad site's answers, once per method."""
    made: dict[str, tuple[Result, Path]] = {}

    def get(method: str) -> tuple[Result, Path]:
        if method not in made:
            folder = tmp_path_factory.mktemp("lost") / method
            config = tiny(method, train={"rounds": 3})
            made[method] = run(config, folder, wrap=lambda engine: Spoil(engine, lambda data: None, (0, 1))), folder
        return made[method]

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fedavg", pytest.param("fca", marks=pytest.mark.slow)])
def test_a_bad_answer_counts_as_none(
    method: str,
    kind: str,
    tiny: MakeConfig,
    rows: Rows,
    lost: Callable[[str], tuple[Result, Path]],
    private: Private,
    tmp_path: Path,
) -> None:
    change, reason = KINDS[kind]
    config = tiny(method, train={"rounds": 3})
    spoiled = run(config, tmp_path, wrap=lambda engine: Spoil(engine, change, (0, 1)))
    expected, folder = lost(method)
    assert spoiled.state_hash == expected.state_hash
    assert rows(tmp_path) == rows(folder)
    assert private(tmp_path) == private(folder)
    rejected = journal(tmp_path, "rejected")
    assert [(line["site"], line["round"], line["question"]) for line in rejected] == [(BAD_SITE, r, "train") for r in (0, 1)]
    assert all(reason in line["reason"] and BAD_SITE in line["reason"] for line in rejected)
    assert [row["sites"] for row in rows(tmp_path)] == [["site-00", "site-02"]] * 2 + [["site-00", "site-01", "site-02"]]


def test_losing_a_site_matters(tiny: MakeConfig, lost: Callable[[str], tuple[Result, Path]], tmp_path: Path) -> None:
    assert run(tiny("fedavg", train={"rounds": 3}), tmp_path).state_hash != lost("fedavg")[0].state_hash


def test_too_few_sites_stop_the_run_and_it_can_go_on(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny("fca", exchange={"min_sites": 3})
    straight = run(config, tmp_path / "straight")
    with pytest.raises(SiteError, match=r"round 1: only 2 of 3 sites .* 3 are needed"):
        run(config, tmp_path / "a", wrap=lambda engine: Spoil(engine, lambda data: None, (1,)))
    assert resume(tmp_path / "a").state_hash == straight.state_hash

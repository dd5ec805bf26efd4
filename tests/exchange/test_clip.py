"""Sites clip their own updates: what counts as one, to which norm, and the same bits masked and plain."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from equipoise.config import Config, resolve
from equipoise.errors import ConfigError, Rejected
from equipoise.exchange import ExchangeOptions, Line, check, clipped, encode_upload, received_by
from equipoise.exchange.ledger import entries
from equipoise.leaves import Each, Mean, Sum, Upload
from equipoise.running import run

MakeConfig = Callable[..., Config]
SENT = {"w": torch.zeros(2), "b": torch.zeros(1), "n.running_mean": torch.zeros(2)}


def upload() -> Upload:
    delta = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0]), "n.running_mean": torch.full((2,), 9.0)}
    return {
        "delta": Mean(dict(delta), 7.0),
        "single": Each(dict(delta)),
        "sums": Sum({"w": torch.full((2,), 50.0)}),
        "prototypes": Mean(torch.full((3, 4), 50.0), torch.ones(3)),
        "head": Mean({"w": torch.full((5,), 50.0)}, 1.0),
    }


def test_updates_are_made_smaller_and_nothing_else_is() -> None:
    made, factors = clipped(upload(), SENT, 0.5)
    assert factors == {"delta": 0.1, "single": 0.1}
    for name in factors:
        value = made[name].value
        assert isinstance(value, dict)
        assert math.hypot(float(value["w"].norm()), float(value["b"].norm())) == pytest.approx(0.5)
        torch.testing.assert_close(value["w"], torch.tensor([0.3, 0.0]))
        assert value["n.running_mean"].tolist() == [9.0, 9.0]
    same = upload()
    for name in ("sums", "prototypes", "head"):
        assert encode_upload({name: made[name]}) == encode_upload({name: same[name]})


def test_short_updates_keep_their_bits_and_broken_ones_are_left_to_the_guard() -> None:
    made, factors = clipped(upload(), SENT, 5.0)
    assert not factors and encode_upload(made) == encode_upload(upload())
    broken: Upload = {"delta": Mean({"w": torch.tensor([math.nan, 1.0])}, 1.0)}
    assert clipped(broken, SENT, 1.0)[1] == {}


def test_received_tensors_have_the_names_of_an_answer() -> None:
    sent = received_by({"model/body.w": torch.zeros(1), "model/head/b": torch.ones(1), "flag": torch.ones(1)})
    assert set(sent) == {"body.w", "head/b"}


def test_the_guard_turns_away_what_was_not_clipped() -> None:
    options, line = ExchangeOptions(clip=0.5), Line("train", 0, entries(upload()), 0)
    good = encode_upload(clipped(upload(), SENT, 0.5)[0])
    check("north", good, line, options, sent=SENT)
    with pytest.raises(Rejected, match=r"leaf 'delta' has norm 5, and its site did not clip it to 0.5"):
        check("north", encode_upload(upload()), line, options, sent=SENT)


def test_a_clip_beyond_the_guard_is_refused() -> None:
    with pytest.raises(ConfigError, match="is larger than max_norm"):
        resolve({"exchange": {"clip": 10.0, "max_norm": 5.0}})


def test_masked_and_plain_runs_clip_to_the_same_bits(tiny: MakeConfig, tmp_path: Path) -> None:
    """In one process and in a pool; and the sites' own notes say by how much."""
    configs = [
        tiny(exchange={"clip": 0.05, "secure": secure}, evaluate={"exact": False}, train={"rounds": 1})
        for secure in (False, True)
    ]
    plain = run(configs[0], tmp_path / "plain")
    masked = run(configs[1], tmp_path / "masked")
    pool = run(configs[1].with_engine(kind="pool", workers=2))
    free = run(tiny(evaluate={"exact": False}, train={"rounds": 1}), tmp_path / "free")
    assert plain.state_hash == masked.state_hash == pool.state_hash != free.state_hash
    for folder, count in (("plain", 3), ("masked", 3), ("free", 0)):
        lines = [
            json.loads(line)
            for path in (tmp_path / folder).rglob("notes.jsonl")
            for line in path.read_text().splitlines()
        ]
        assert sum("clipped.delta" in line for line in lines) == count

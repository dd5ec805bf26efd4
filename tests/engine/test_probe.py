"""The probe: the ledger shows every leaf that leaves in a real run, and nothing that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from equipoise.config import Config
from equipoise.engine import Engine, Question, probe
from equipoise.exchange import ExchangeOptions, check, decode_upload
from equipoise.exchange.ledger import entries
from equipoise.nets import state
from equipoise.running import prepare, run
from equipoise.setup import draw, material

pytestmark = pytest.mark.real_probe
MakeConfig = Callable[..., Config]


class Tap:
    """Writes down all that is answered."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seen = engine, list[tuple[str, int, str, bytes]]()

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site, data in self.engine.ask(question, sites):
            self.seen.append((question.name, question.round, site, data))
            yield site, data

    def close(self) -> None:
        self.engine.close()


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("method", ["fedavg", "fca", "local", "equipoise"])
def test_every_real_answer_is_in_the_ledger(
    method: str, exact: bool, tiny: MakeConfig, tmp_path: Path
) -> None:
    config = tiny(method, evaluate={"exact": exact})
    dataset = material(config)
    ledger = prepare(config, dataset.facts, dataset).ledger
    taps: list[Tap] = []

    def wrap(engine: Engine) -> Tap:
        taps.append(Tap(engine))
        return taps[0]

    run(config, tmp_path / "run", wrap=wrap)
    assert {name for name, *_ in taps[0].seen} == {line.question for line in ledger.lines}
    for name, round, site, data in taps[0].seen:
        line = ledger.line(name, round)
        assert line is not None
        check(site, data, line, ExchangeOptions())
        assert {e.name for e in entries(decode_upload(data)[1])} == {e.name for e in line.up}


def test_probing_leaves_no_trace(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny("fca")
    dataset = material(config)
    blueprint, built = draw(config, dataset.facts, dataset)
    before = {name: tensor.clone() for name, tensor in state(built.net).items()}
    first = probe(blueprint, built, 3, 3, exact=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(built.net).items())
    assert probe(blueprint, built, 3, 3, exact=True) == first


def test_what_only_a_simulation_may_ask_is_marked(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny("local")
    dataset = material(config)
    rows = prepare(config, dataset.facts, dataset).ledger.rows()
    kinds = {(row["question"], row["leaf"]): row["kind"] for row in rows}
    assert kinds[("train", "loss")] == "mean"
    assert kinds[("reveal", "model")] == "each"
    assert next(row for row in rows if row["leaf"] == "scores")["varies"] is True

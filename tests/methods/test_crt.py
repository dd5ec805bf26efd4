"""cRT: the balanced loss by loops, one round against torch.optim, and the stage after methods of every kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from equipoise.errors import MethodError
from equipoise.exchange import decode_upload
from equipoise.methods.crt import BIAS, WEIGHT, balanced_loss, fresh_head
from equipoise.nets import state
from equipoise.running import Result, make_ledger, run
from equipoise.seeds import generator
from equipoise.setup import make_host, material
from equipoise.site import Batch
from equipoise.testing import Tap, check_method, same_bits

SIZES = {"north": 9, "south": 6, "west": 14}


def tapped(config: Any, folder: Path) -> tuple[Result, Tap]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine))
        return taps[0]

    return run(config, folder, wrap=wrap), taps[0]


def batch_of(logits: Tensor, y: Tensor) -> Batch:
    """A batch whose images are the logits themselves, for a net that answers with what it sees."""
    return Batch(views=(logits,), y=y, index=torch.arange(len(y)), mask=None)


def same(x: Tensor) -> Tensor:
    return x


# A site -----------------------------------------------------------------------------------------------------------------


def test_loss_is_among_the_site_s_classes() -> None:
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    y = torch.tensor([0, 2, 2, 0])
    loc = SimpleNamespace(task="single", counts=torch.tensor([9.0, 0.0, 1.0]))
    expected = (
        -sum(math.log(math.exp(v[c]) / (math.exp(v[0]) + math.exp(v[2]))) for v, c in zip(z.tolist(), y, strict=True)) / 4
    )
    loss = balanced_loss(same, batch_of(z, y), loc)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert not torch.autograd.grad(loss, z)[0][:, 1].any()


def test_both_sides_of_a_label_weigh_the_same() -> None:
    """Label 1 is not annotated, label 2 has no positive, label 3 no negative: none of them counts."""
    z = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.zeros(6, 5, dtype=torch.float64)
    y[0, 0] = y[1, 1] = y[:4, 4] = 1
    y[:, 3] = 1
    known = torch.tensor([True, False, True, True, True])
    counts = torch.tensor([1.0, 0.0, 0.0, 6.0, 4.0])
    loc = SimpleNamespace(task="multi", counts=counts, samples=6, annotated=known)
    total = 0.0
    for c, (positives, negatives) in {0: (1, 5), 4: (4, 2)}.items():
        for i in range(6):
            p = 1 / (1 + math.exp(-z[i, c]))
            total -= 6 / (2 * positives) * math.log(p) if y[i, c] else 6 / (2 * negatives) * math.log(1 - p)
    found = balanced_loss(same, batch_of(z, y), loc)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(total / 12, rel=1e-9)
    # Each side of a label sums to half its cells, so that a constant guess is torn both ways alike.
    flat = torch.zeros(6, 5, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(balanced_loss(same, batch_of(flat, y), loc), flat)  # type: ignore[arg-type]
    torch.testing.assert_close(slope.sum(0), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)


def test_round_of_a_site(make_config: Callable[..., Any], visit: Callable[..., Any], bare: Callable[..., Any]) -> None:
    """Against torch.optim: the second of four rounds, two epochs of draws with replacement at the cosine's rate."""
    config = make_config({"name": "fedavg", "crt": 4}, ["pair", "south"], epochs=2, optimizer="sgd", momentum=0.9, lr=0.2)
    net, loc = visit(config, "pair", {"step": torch.tensor(1)}, round=2, question="retrain")
    up = config.method.retrain(net, loc)
    plain = bare(config)
    x, y = plain.rows("pair", "train")
    plain.net.eval()
    head = plain.net.head["fed"]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.2 * 0.5 * (1 + math.cos(math.pi / 4)), momentum=0.9)
    for epoch in (2, 3):
        draw = generator(3, 2, "pair", "retrain", "balanced", epoch)
        rows = torch.multinomial(
            torch.tensor([1 / 4] * 4 + [1 / 3] * 3, dtype=torch.float64), 7, replacement=True, generator=draw
        )
        for some in rows.split(4):
            optimizer.zero_grad()
            F.cross_entropy(plain.net(x[some])[:, :2], y[some]).backward()
            optimizer.step()
    assert set(up["delta"].value) == {WEIGHT, BIAS} and up["delta"].weight == 7
    for name, tensor in state(plain.net).items():
        torch.testing.assert_close(state(net)[name], tensor, rtol=1e-4, atol=1e-6)
        assert same_bits(state(net)[name], plain.first[name]) == (name not in (WEIGHT, BIAS))
    assert not up["delta"].value[WEIGHT][2].any()
    assert up["delta"].value[WEIGHT][:2].any()


# The stage --------------------------------------------------------------------------------------------------------------


def test_fresh_head_is_drawn_as_a_linear_layer_is() -> None:
    model = {WEIGHT: torch.zeros(3, 400), BIAS: torch.zeros(3), "body.x": torch.zeros(1)}
    head = fresh_head(model, torch.Generator().manual_seed(0))
    assert set(head) == {WEIGHT, BIAS}
    assert 0.99 / 20 < float(head[WEIGHT].abs().max()) <= 1 / 20 and abs(float(head[WEIGHT].mean())) < 0.003
    assert float(head[BIAS].abs().max()) <= 1 / 20


def test_heads_are_averaged_by_samples_from_one_draw(make_config: Callable[..., Any], tmp_path: Path) -> None:
    result, tap = tapped(make_config({"name": "fedavg", "crt": 2}, rounds=1), tmp_path / "run")
    head = fresh_head(result.server["model"], generator(3, 1, "server", "crt"))
    for step in range(2):
        sent = {a.site: decode_upload(a.data)[1]["delta"].value for a in tap.answers if a.question.write == f"1.{step}"}
        assert set(sent) == set(SIZES)
        head = {n: x + sum(k / 29 * sent[site][n].double() for site, k in SIZES.items()) for n, x in head.items()}
    for name, tensor in head.items():
        torch.testing.assert_close(result.server["model"][name].double(), tensor.double(), rtol=0, atol=1e-6)
    assert [row["round"] for row in result.history] == [1, 2]
    assert "retrain.loss" in result.history[-1]


AFTER: dict[str, dict[str, Any]] = {
    "fedprox": {},
    "fca": {},
    "fediic": {"spread_steps": 5},
    "fedmas": {"target": "small-cnn"},
    "equipoise.methods.balancefl:BalanceFL": {},
    "equipoise.methods.fedbabu:FedBABU": {},
    "equipoise.methods.prr:PRRImb": {},
}


@pytest.mark.parametrize("name", AFTER)
def test_stage_changes_the_head_and_nothing_else(name: str, make_config: Callable[..., Any], tmp_path: Path) -> None:
    views = {"views": ["eval", "eval"]} if name == "fediic" else {}
    without, after = (
        run(make_config({"name": name, **AFTER[name], "crt": crt}, rounds=1, **views), tmp_path / str(crt)).server
        for crt in (0, 1)
    )
    assert set(without) == set(after)
    for tensor, x in without["model"].items():
        assert same_bits(x, after["model"][tensor]) == (tensor not in (WEIGHT, BIAS)), tensor
    if name == "fca":
        kept = [load_file(tmp_path / folder / "sites" / "west" / f"{folder}.0.safetensors") for folder in ("0", "1")]
        assert same_bits(*(tree["net/head.own.weight"] for tree in kept))


@pytest.mark.parametrize("name", ["fedsdc", "local", "equipoise.methods.fedrep:FedRep"])
def test_refused_before_training_where_no_linear_head_is_shared(
    name: str, make_config: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": name, "crt": 1})
    with pytest.raises(MethodError, match=r"method\.crt = 0"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "journal.jsonl").exists()


def test_cosine_head_is_refused() -> None:
    with pytest.raises(MethodError, match="linear"):
        fresh_head({WEIGHT: torch.zeros(3, 4)}, torch.Generator())


def test_question_is_in_the_ledger_only_if_it_is_asked(make_config: Callable[..., Any], tmp_path: Path) -> None:
    for crt in (0, 1):
        config = make_config({"name": "fedavg", "crt": crt})
        stuff = material(config)
        ledger = make_ledger(config, make_host(config, stuff, tmp_path), stuff)
        lines = [line for line in ledger.lines if line.question == "retrain"]
        assert len(lines) == crt
        for line in lines:
            assert line.since == 2 and {e.name for e in line.up} == {f"delta/{WEIGHT}", f"delta/{BIAS}", "loss"}
            assert {e.kind for e in line.up} == {"mean"}


def test_run_stopped_inside_the_stage_goes_on_to_the_same_bits(make_config: Callable[..., Any], tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    config = make_config({"name": "fca", "crt": 2}, rounds=1, persist_optimizer=True)
    straight = run(config, tmp_path / "straight")
    for last in (1, 4):
        seen = 0

        def stop(event: str, facts: dict[str, Any], last: int = last) -> None:
            nonlocal seen
            seen += event == "answer" and facts["question"] == "retrain"
            if seen == last:
                raise Stopped

        with pytest.raises(Stopped):
            run(config, tmp_path / "stopped", watch=stop)
    resumed = run(config, tmp_path / "stopped")
    assert resumed.state_hash == straight.state_hash
    assert resumed.metrics == straight.metrics


def test_labels_a_site_may_not_see_do_not_enter(make_findings: Callable[..., Any], tmp_path: Path) -> None:
    servers = [
        run(make_findings({"name": "fedavg", "crt": 1}, spoilt=spoilt, rounds=1), tmp_path / str(spoilt)).server["model"]
        for spoilt in (False, True)
    ]
    assert all(same_bits(servers[0][name], servers[1][name]) for name in servers[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "task", "only"), [("fca", "single", None), ("fedavg", "multi", ("resume", "ledger", "dropout"))]
)
def test_every_rule_holds_with_the_stage(method: str, task: Any, only: tuple[str, ...] | None) -> None:
    check_method(method, {"crt": 2}, task=task, only=only)

"""cRT: the balanced loss by loops, one round against torch.optim, and the stage after methods of every
kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests.light import one_of_a_kind
from torch import Tensor

from equipoise.errors import MethodError
from equipoise.exchange import decode_upload, unpack
from equipoise.methods import METHODS
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.parts.crt import BIAS, WEIGHT, balanced_loss, fresh
from equipoise.nets import load, state
from equipoise.running import Result, prepare, run
from equipoise.seeds import generator
from equipoise.setup import make_host, material
from equipoise.testing import Tap, check_method, same_bits
from equipoise.tree import unflatten

SIZES = {"north": 9, "south": 6, "west": 14}


def tapped(config: Any, folder: Path) -> tuple[Result, Tap]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine))
        return taps[0]

    return run(config, folder, wrap=wrap), taps[0]


# A site -----------------------------------------------------------------------------------------------------


def test_loss_is_among_the_site_s_classes() -> None:
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    y = torch.tensor([0, 2, 2, 0])
    loc = SimpleNamespace(task="single", counts=torch.tensor([9.0, 0.0, 1.0]))
    expected = (
        -sum(
            math.log(math.exp(v[c]) / (math.exp(v[0]) + math.exp(v[2])))
            for v, c in zip(z.tolist(), y, strict=True)
        )
        / 4
    )
    loss = balanced_loss(z, y, loc)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert not torch.autograd.grad(loss, z)[0][:, 1].any()


def test_both_sides_of_a_label_weigh_the_same() -> None:
    """Label 1 is not annotated, label 2 has no positive, label 3 no negative: none of them counts."""
    z = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.zeros(6, 5, dtype=torch.float64)
    y[0, 0] = y[:4, 4] = 1
    y[:, 3] = 1
    y[:, 1] = torch.nan
    known = torch.tensor([True, False, True, True, True])
    counts = torch.tensor([1.0, 0.0, 0.0, 6.0, 4.0])
    loc = SimpleNamespace(
        task="multi", counts=counts, samples=6, total=torch.full((5,), 6.0), annotated=known
    )
    total = 0.0
    for c, (positives, negatives) in {0: (1, 5), 4: (4, 2)}.items():
        for i in range(6):
            p = 1 / (1 + math.exp(-z[i, c]))
            total -= 6 / (2 * positives) * math.log(p) if y[i, c] else 6 / (2 * negatives) * math.log(1 - p)
    found = balanced_loss(z, y, loc)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(total / 12, rel=1e-9)
    # Each side of a label sums to half its cells, so that a constant guess is torn both ways alike.
    flat = torch.zeros(6, 5, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(balanced_loss(flat, y, loc), flat)  # type: ignore[arg-type]
    torch.testing.assert_close(slope.sum(0), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)
    # Of pooled images each has labels of its own: an image without one counts nowhere.
    y[2:, 0] = torch.nan
    (slope,) = torch.autograd.grad(balanced_loss(flat, y, loc), flat)  # type: ignore[arg-type]
    assert slope[:2, 0].all() and not slope[2:, 0].any() and slope[:, 4].all()


def test_round_of_a_site(
    make_config: Callable[..., Any], visit: Callable[..., Any], bare: Callable[..., Any]
) -> None:
    """Against torch.optim: the second of four rounds, two epochs of draws with replacement at the cosine's
    rate."""
    config = make_config(
        {"name": "fedavg", "crt": 4}, ["pair", "south"], epochs=2, optimizer="sgd", momentum=0.9, lr=0.2
    )
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


# The stage --------------------------------------------------------------------------------------------------


def test_fresh_layers_are_drawn_as_linear_layers_are() -> None:
    old = {WEIGHT: torch.zeros(3, 400), BIAS: torch.zeros(3), "head.fed.9.weight": torch.zeros(50, 100)}
    head = fresh(old, torch.Generator().manual_seed(0))
    assert {name: tensor.shape for name, tensor in head.items()} == {
        name: tensor.shape for name, tensor in old.items()
    }
    for name, inputs in ((WEIGHT, 400), (BIAS, 400), ("head.fed.9.weight", 100)):
        bound = inputs**-0.5
        assert (0.99 if head[name].numel() > 3 else 0.1) * bound < float(head[name].abs().max()) <= bound
    assert abs(float(head[WEIGHT].mean())) < 0.003


def test_heads_are_averaged_by_samples_from_one_draw(make_config: Callable[..., Any], tmp_path: Path) -> None:
    result, tap = tapped(make_config({"name": "fedavg", "crt": 2}, rounds=1), tmp_path / "run")
    first = {name: result.server["model"][name] for name in (WEIGHT, BIAS)}
    head = fresh(first, generator(3, 1, "server", "crt"))
    for step in range(2):
        sent = {
            a.site: decode_upload(a.data)[1]["delta"].value
            for a in tap.answers
            if a.question.write == f"1.{step}"
        }
        assert set(sent) == set(SIZES)
        head = {
            n: x + sum(k / 29 * sent[site][n].double() for site, k in SIZES.items()) for n, x in head.items()
        }
    for name, tensor in head.items():
        torch.testing.assert_close(result.server["model"][name].double(), tensor.double(), rtol=0, atol=1e-6)
    assert [row["round"] for row in result.history] == [1, 2]
    assert "retrain.loss" in result.history[-1]


LIGHT: dict[str, dict[str, Any]] = {
    "fediic": {"spread_steps": 5},
    "fedmas": {"target": "small-cnn"},
    "creff": {"features": 4, "match_steps": 5, "head_epochs": 5, "draws": 1},
}
PLACES = {"moon": "head.fed.3.", "fedproc": "head.fed.4."}
"""where the classifier is, if not the whole head: behind a projector"""
PRIVATE = ("local", "fedrep")


def before_and_after(
    name: str,
    make_config: Callable[..., Any],
    make_findings: Callable[..., Any],
    folder: Path,
    patch: pytest.MonkeyPatch,
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The server tree that a run of one round hands to its ending, the one that it ends with, and its
    config."""
    make = make_findings if METHODS[name].tasks == ("multi",) else make_config
    config = make({"name": name, **LIGHT.get(name, {}), "crt": 2}, rounds=1)
    finish, seen = type(config.method).finish, list[Any]()

    def watched(self: Any, server: Any, ask: Any) -> Any:
        seen.append(server)
        return finish(self, server, ask)

    patch.setattr(type(config.method), "finish", watched)
    after = run(config, folder).server
    return seen[-1], after, config  # the first was of the trial that makes the ledger


@pytest.mark.parametrize("name", one_of_a_kind(METHODS))
def test_stage_changes_the_classifier_and_nothing_else(
    name: str,
    make_config: Callable[..., Any],
    make_findings: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After every method: the body stays to the bit, and the global predictor has another head."""
    before, after, config = before_and_after(name, make_config, make_findings, tmp_path / "run", monkeypatch)
    place = PLACES.get(name, "head.fed.")
    assert set(before) == set(after) and set(before["model"]) == set(after["model"])
    for tensor, x in before["model"].items():
        assert same_bits(x, after["model"][tensor]) != tensor.startswith(place), tensor
    if name in PRIVATE:
        early, late = (
            load_file(tmp_path / "run" / "sites" / "west" / f"{v}.safetensors") for v in ("0.0", "1.1")
        )
        for tensor in early:
            assert same_bits(early[tensor], late[tensor]) != tensor.startswith("net/head."), tensor
    if name == "fca":
        early, late = (
            load_file(tmp_path / "run" / "sites" / "west" / f"{v}.safetensors") for v in ("0.0", "1.1")
        )
        assert same_bits(early["net/head.own.weight"], late["net/head.own.weight"])
    logits = [global_logits(config, tree, tmp_path / "look") for tree in (before, after)]
    assert torch.equal(*logits) == (name in PRIVATE)  # these have their predictors at the sites


def global_logits(config: Any, server: dict[str, Any], folder: Path) -> Tensor:
    """What the global predictor of a server tree says of some noise."""
    net = make_host(config, material(config), folder).net.eval()
    load(net, server["model"])
    x = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return next(iter(config.method.predict(net, x, None, config.method.serving(server)).values()))


@pytest.mark.parametrize("name", METHODS)
def test_classifier_is_the_last_layer_that_every_logit_comes_from(
    name: str, make_config: Any, make_findings: Any
) -> None:
    """It has one row per class, and nothing of the net's behind it has parameters."""
    make = make_findings if METHODS[name].tasks == ("multi",) else make_config
    config = make({"name": name, **LIGHT.get(name, {})})
    net = make_host(config, material(config), Path("unused")).net
    layers = [n for n, _ in net.head["fed"].named_parameters()]
    chosen = [n for n in layers if f"head.fed.{n}".startswith(config.method.classifier)]
    assert layers[-1] in chosen
    assert dict(net.head["fed"].named_parameters())[layers[-1]].shape[0] == 3
    assert config.method.classifier == PLACES.get(name, "head.fed.")


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ({"name": "balancefl", "bias": False}, "linear"),
        ({"name": "fedavg"}, "cosine"),
        ({"name": "ldam-fl", "scale": 7.0}, "linear"),
    ],
)
def test_head_without_bias_is_retrained_as_it_predicts(
    method: Any, head: str, make_config: Any, visit: Any
) -> None:
    config = make_config(method | {"crt": 1})
    config = replace(config, net=config.net.model_copy(update={"head": head}))
    net, loc = visit(config, "west", {"step": torch.tensor(0)}, round=2, question="retrain")
    assert BIAS not in state(net)
    up = config.method.retrain(net, loc)
    assert set(up["delta"].value) == {WEIGHT} and up["delta"].value[WEIGHT].any()


def test_private_heads_start_from_one_draw_and_stay(make_config: Callable[..., Any], tmp_path: Path) -> None:
    """FedRep: every site re-trains a head of its own on the shared body; with a rate of 0 it is the common
    draw."""
    config = make_config({"name": "fedrep", "crt": 1, "final_epochs": 3}, rounds=1, lr=0.0)
    _, tap = tapped(config, tmp_path / "run")
    asked = [a for a in tap.answers if a.question.name == "retrain"]
    assert [a.site for a in asked] == list(SIZES) and not any(a.question.name == "tune" for a in tap.answers)
    heads = [
        {n.removeprefix("net/"): t for n, t in a.kept.items() if n.startswith("net/head.")} for a in asked
    ]
    assert set(heads[0]) == {WEIGHT, BIAS}
    drawn = fresh(heads[0], generator(3, 1, "crt"))
    for head in heads:
        assert all(same_bits(head[name], drawn[name]) for name in drawn)
    for answer in asked:
        assert set(decode_upload(answer.data)[1]) == {"loss"}


def test_released_fca_predicts_with_the_retrained_head(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    """Its global predictor is the mean of the personal heads, so that is what is put in its place."""
    server = run(
        make_config({"name": "fca", "preset": "released", "crt": 1}, rounds=1), tmp_path / "run"
    ).server
    assert same_bits(server["own"]["weight"], server["model"][WEIGHT])
    assert same_bits(server["own"]["bias"], server["model"][BIAS])


@pytest.mark.parametrize(("participation", "shuffle"), [(1.0, True), (1.0, False), (0.67, True)])
def test_bank_of_heads_is_dealt_to_all_sites(
    participation: float, shuffle: bool, make_config: Callable[..., Any], tmp_path: Path
) -> None:
    """FedSDC: each head is trained by the sites it is dealt to, and is their mean where there are several."""
    config = make_config(
        {"name": "fedsdc", "crt": 2, "shuffle": shuffle}, rounds=1, participation=participation
    )
    result, tap = tapped(config, tmp_path / "run")
    last = [a for a in tap.answers if a.question.write == "1.1"]
    assert [a.site for a in last] == list(SIZES)
    given = {a.site: unflatten(unpack(a.question.each[a.site])[1])["head"] for a in last}
    back = {a.site: decode_upload(a.data)[1]["head"].value for a in last}
    heads = result.server["heads"]
    assert len(heads) == (3 if participation == 1 else 2)
    for slot, head in heads.items():
        (tensor,) = (n for n in head if n.endswith("weight") and head[n].shape[0] == 3)
        holders = [s for s in SIZES if torch.equal(head[tensor], mean_of(back, given, s, tensor))]
        assert holders, slot
    assert all(
        up["head"].kind == "each" and set(up) == {"head", "loss"}
        for up in (decode_upload(a.data)[1] for a in last)
    )


def mean_of(back: dict[str, Any], given: dict[str, Any], site: str, tensor: str) -> Tensor:
    """The mean of what came back from all sites that were given the same head as this one."""
    same = [other for other in given if torch.equal(given[other][tensor], given[site][tensor])]
    return torch.stack([back[other][tensor] for other in same]).mean(0)


def test_best_heads_are_ranked_anew(make_config: Callable[..., Any], tmp_path: Path) -> None:
    _, tap = tapped(make_config({"name": "fedsdc+", "crt": 1}, rounds=1), tmp_path / "run")
    asked = [a.question.name for a in tap.answers if a.question.round == 1 and a.site == "west"]
    assert asked.index("rank") > asked.index("retrain")


class Elsewhere(FedAvg):
    """A method that says its classifier is where nothing is."""

    classifier: ClassVar[str] = "head.other."


def test_refused_before_training_where_there_is_no_classifier(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    config = replace(make_config({"name": "fedavg"}), method=Elsewhere(crt=1))
    with pytest.raises(MethodError, match=r"Elsewhere .* no tensors 'head\.other\.…'.*method\.crt = 0"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "journal.jsonl").exists()


def test_question_is_in_the_ledger_only_if_it_is_asked(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    for crt in (0, 1):
        config = make_config({"name": "fedavg", "crt": crt})
        dataset = material(config)
        ledger = prepare(config, dataset.facts, dataset).ledger
        lines = [line for line in ledger.lines if line.question == "retrain"]
        assert len(lines) == crt
        for line in lines:
            assert line.since == 2 and {e.name for e in line.up} == {
                f"delta/{WEIGHT}",
                f"delta/{BIAS}",
                "loss",
            }
            assert {e.kind for e in line.up} == {"mean"}


def test_run_stopped_inside_the_stage_goes_on_to_the_same_bits(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
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
        run(
            make_findings({"name": "fedavg", "crt": 1}, spoilt=spoilt, rounds=1), tmp_path / str(spoilt)
        ).server["model"]
        for spoilt in (False, True)
    ]
    assert all(same_bits(servers[0][name], servers[1][name]) for name in servers[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "task", "only"),
    [
        (
            "fca",
            "single",
            ("resume", "private", "ledger", "neutral"),
        ),
        pytest.param("fca", "single", None, marks=pytest.mark.sweep),
        *(
            pytest.param(*one, ("resume", "ledger", "dropout", "odd_sites"), marks=pytest.mark.sweep)
            for one in (("fedavg", "multi"), ("fedrep", "single"), ("fedsdc", "single"))
        ),
    ],
)
def test_every_rule_holds_with_the_stage(method: str, task: Any, only: tuple[str, ...] | None) -> None:
    check_method(method, {"crt": 2}, task=task, only=only)

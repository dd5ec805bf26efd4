"""PRR-Imb: stages, the pair's loss and gradients, prototypes, and what each site gets back, recomputed from
the answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import f1_score
from torch import Tensor, nn

from equipoise.exchange import decode_upload
from equipoise.exchange.codec import unpack
from equipoise.losses import kl
from equipoise.losses.seesaw import refinement, seesaw, shared_prototypes
from equipoise.methods.prr import PRRImb, class_features, macro_f1
from equipoise.nets import Net, load
from equipoise.nets.fourier import mix_nets
from equipoise.running import Result, run
from equipoise.seeds import generator
from equipoise.site import Batch
from equipoise.testing import Tap, same_bits
from equipoise.tree import unflatten

NAME = "prr-imb"
SIZES = {"north": 9, "south": 6, "west": 14}
COUNT = torch.tensor([8.0, 14.0, 7.0])


def tapped(
    config: Any, folder: Path, lose: Callable[..., bool] = lambda question, site: False
) -> tuple[Result, Tap]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine, lose=lose))
        return taps[0]

    return run(config, folder, wrap=wrap), taps[0]


def answers(tap: Tap, question: str, round: int) -> dict[str, Any]:
    return {
        a.site: decode_upload(a.data)[1]
        for a in tap.answers
        if (a.question.name, a.question.round) == (question, round)
    }


# A site -----------------------------------------------------------------------------------------------------


def test_stages_go_up_one_by_one_and_down_at_once() -> None:
    method = PRRImb()
    assert method.next_stage("recover", 0.95, 1.0) == "exchange"
    assert method.next_stage("exchange", 0.95, 1.0) == "sublimate"
    assert method.next_stage("exchange", 0.89, 1.0) == "exchange"
    assert method.next_stage("sublimate", 0.89, 1.0) == "exchange"
    assert method.next_stage("sublimate", 0.69, 1.0) == "recover"
    assert method.next_stage("recover", 0.69, 1.0) == "recover"
    assert method.next_stage("recover", 0.0, 0.0) == "exchange"


def test_macro_f1_is_sklearn_s() -> None:
    truth, guess = torch.tensor([0, 0, 1, 1, 1, 3]), torch.tensor([0, 1, 1, 1, 4, 3])
    confusion = torch.zeros(6, 6)
    for t, g in zip(truth, guess, strict=True):
        confusion[t, g] += 1
    assert macro_f1(confusion) == pytest.approx(f1_score(truth, guess, average="macro"), abs=1e-6)


@pytest.mark.parametrize(
    ("stage", "taught"),
    [("recover", {"deputy"}), ("exchange", {"deputy", "personal"}), ("sublimate", {"personal"})],
)
def test_pair_loss_and_who_learns_from_whom(
    double_net: Callable[..., Net], stage: str, taught: set[str]
) -> None:
    pair = nn.ModuleDict({"deputy": double_net("fed"), "personal": double_net("fed")})
    with torch.no_grad():
        for p in pair["personal"].parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2), dtype=p.dtype))
    x = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = Batch(views=(x,), y=torch.tensor([0, 1, 2, 1, 0]), index=torch.arange(5))
    weight = torch.tensor([1.0, 1.5, 2.0], dtype=torch.float64)
    confusion = {name: torch.zeros(3, 3) for name in pair}
    loc: Any = SimpleNamespace(
        down={"count": COUNT}, scratch={"stage": stage, "weight": weight, "confusion": confusion}
    )
    total = PRRImb().pair_loss(pair, batch, loc)
    z = {name: pair[name](x) for name in pair}
    for name, other in (("deputy", "personal"), ("personal", "deputy")):
        alone = seesaw(z[name], batch.y, COUNT, 0.8, weight)
        if name in taught:
            alone = alone + kl(z[other].detach(), z[name])
        expected = torch.autograd.grad(alone, list(pair[name].parameters()), retain_graph=True)
        found = torch.autograd.grad(total, list(pair[name].parameters()), retain_graph=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
        guess = z[name].argmax(1)
        by_hand = torch.zeros(3, 3)
        for t, g in zip(batch.y, guess, strict=True):
            by_hand[t, g] += 1
        assert torch.equal(confusion[name], by_hand)


def test_epochs_begin_at_recover_and_follow_the_scores(
    make_config: Callable[..., Any], visit: Callable[..., Any]
) -> None:
    config = make_config({"name": NAME})
    _, loc = visit(config, "north")
    loc.scratch["stage"] = "recover"
    order = config.method.turn(0, loc)
    assert torch.equal(order, loc.order(0)) and loc.scratch["stage"] == "recover"
    seen = []
    right, wrong = torch.eye(3) * 3, torch.eye(3).roll(1, 0) * 3
    for deputy in (right, right, wrong):
        loc.scratch["confusion"] = {"deputy": deputy, "personal": right}
        config.method.turn(len(seen) + 1, loc)
        seen.append(loc.scratch["stage"])
        assert not loc.scratch["confusion"]["deputy"].any()
    assert seen == ["exchange", "sublimate", "recover"]


@pytest.mark.parametrize(("epochs", "stage"), [(1, "exchange"), (2, "recover")])
def test_one_epoch_is_exchange(
    make_config: Callable[..., Any], visit: Callable[..., Any], epochs: int, stage: str
) -> None:
    config = make_config({"name": NAME}, epochs=epochs)
    net, loc = visit(config, "south", {"count": COUNT})
    seen = list[str]()
    fit = loc.fit
    loc.fit = lambda net, loss, order: fit(
        net, loss, order=lambda e: (order(e), seen.append(loc.scratch["stage"]))[0]
    )
    config.method.train(net, loc)
    assert len(seen) == epochs and seen[0] == stage


def test_prototypes_are_class_means_of_the_personal_model(
    make_config: Callable[..., Any], visit: Callable[..., Any], bare: Callable[..., Any]
) -> None:
    config = make_config({"name": NAME, "warmup": 0}, ["pair", "south"])
    net, loc = visit(config, "pair", question="describe")
    loc.mine["personal"]["body.conv1.weight"] += 0.1
    up = config.method.describe(net, loc)
    plain = bare(config)
    load(plain.net, loc.mine["personal"])
    x, y = plain.rows("pair", "train")
    for c in range(3):
        expected = plain.net.body(x[y == c]).mean(0).detach() if (y == c).any() else torch.zeros(64)
        torch.testing.assert_close(up["prototype"].value[c], expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(up["square"].value[c], expected**2, rtol=1e-4, atol=1e-6)
    assert up["prototype"].weight.tolist() == [1, 1, 0] and up["count"].value.tolist() == [4, 3, 0]
    assert set(PRRImb(warmup=1).describe(net, loc)) == {"count"}


def test_training_weighs_classes_by_prototypes(
    make_config: Callable[..., Any], visit: Callable[..., Any]
) -> None:
    config = make_config({"name": NAME})
    shared = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    net, loc = visit(config, "north", {"count": COUNT, "prototypes": shared})
    before = class_features(net, loc)
    weighed = config.method.train(net, loc)["deputy"].value["head.fed.weight"]
    torch.testing.assert_close(loc.scratch["weight"], refinement(before, shared, 3.0))
    net, loc = visit(config, "north", {"count": COUNT})
    assert not torch.allclose(config.method.train(net, loc)["deputy"].value["head.fed.weight"], weighed)


def test_site_predicts_with_its_personal_model(
    make_config: Callable[..., Any], visit: Callable[..., Any]
) -> None:
    config = make_config({"name": NAME})
    net, loc = visit(config, "north")
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    union = config.method.predict(net, x, None, {})
    load(net, loc.mine["personal"])
    own = config.method.predict(net, x, loc.mine, {})
    assert list(union) == ["fed"] and list(own) == ["personal"]
    assert not torch.allclose(union["fed"], own["personal"])
    expected = nn.functional.linear(
        net.body(x), *(loc.mine["personal"][f"head.fed.{n}"] for n in ("weight", "bias"))
    )
    torch.testing.assert_close(own["personal"], expected)


# The coordinator --------------------------------------------------------------------------------------------


def test_shared_prototypes() -> None:
    own = (
        torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).double()
        * torch.tensor([3.0, 0.1])[None, :, None]
    )
    moments = own.mean(0), (own**2).mean(0)
    assert torch.equal(shared_prototypes(*moments, None), own.mean(0))
    noise = torch.randn(2, 4, generator=generator(0, "prototypes"))
    std = own.std(0, unbiased=False)
    assert (std[0] > 1).any() and (std[1] < 1).all()
    expected = own.mean(0) + torch.maximum(std, torch.ones(())) * noise
    drawn = shared_prototypes(*moments, generator(0, "prototypes"))
    torch.testing.assert_close(drawn, expected, rtol=1e-6, atol=1e-9)


def test_deputies_and_global_model_from_the_answers(make_config: Callable[..., Any], tmp_path: Path) -> None:
    result, tap = tapped(make_config({"name": NAME, "warmup": 1}), tmp_path / "run")
    sent = {site: up["deputy"].value for site, up in answers(tap, "train", 1).items()}
    for name, tensor in result.server["model"].items():
        mean = sum(n / 29 * sent[site][name].double() for site, n in SIZES.items())
        torch.testing.assert_close(tensor.double(), mean, rtol=0, atol=1e-6)
    # The second of two rounds: L = 0.7 + 1/2 · 0.25
    for site, mixed in mix_nets(sent, 0.825).items():
        assert all(same_bits(result.server["deputies"][site][name], tensor) for name, tensor in mixed.items())
    # What was mixed in the first round is what each site got in the second.
    first = mix_nets({site: up["deputy"].value for site, up in answers(tap, "train", 0).items()}, 0.7)
    (question,) = {
        id(a.question): a.question for a in tap.answers if (a.question.name, a.question.round) == ("train", 1)
    }.values()
    for site in SIZES:
        given = unflatten(unpack(question.each[site])[1])["model"]
        assert all(same_bits(given[name], tensor) for name, tensor in first[site].items())
    assert not torch.allclose(first["north"]["body.conv2.weight"], first["west"]["body.conv2.weight"])


def test_batch_norm_stays_with_the_site(make_config: Callable[..., Any], tmp_path: Path) -> None:
    result, tap = tapped(make_config({"name": NAME}), tmp_path / "run")
    for up in answers(tap, "train", 1).values():
        assert not [name for name in up["deputy"].value if "norm" in name]
    assert not [name for name in result.server["model"] if "norm" in name]
    kept = {site: load_file(tmp_path / "run" / "sites" / site / "1.1.safetensors") for site in SIZES}
    assert not torch.equal(
        kept["north"]["net/body.norm1.running_mean"], kept["south"]["net/body.norm1.running_mean"]
    )
    for site in SIZES:  # the deputy's are kept beside the personal model's
        assert not torch.equal(
            kept[site]["net/body.norm1.weight"], kept[site]["mine/personal/body.norm1.weight"]
        )


def test_site_that_drops_out_keeps_its_deputy(make_config: Callable[..., Any], tmp_path: Path) -> None:
    lose = lambda question, site: site == "south" and question.name == "train" and question.round == 1  # noqa: E731
    result, tap = tapped(make_config({"name": NAME}), tmp_path / "run", lose)
    first = mix_nets({site: up["deputy"].value for site, up in answers(tap, "train", 0).items()}, 0.7)
    kept = {
        site: all(
            same_bits(result.server["deputies"][site][name], tensor) for name, tensor in first[site].items()
        )
        for site in SIZES
    }
    assert kept == {"north": False, "south": True, "west": False}


def test_some_sites_a_round(make_config: Callable[..., Any], tmp_path: Path) -> None:
    result, _ = tapped(
        make_config({"name": NAME, "warmup": 1}, rounds=3, participation=0.4), tmp_path / "run"
    )
    assert all(len(row["sites"]) == 1 for row in result.history)
    assert set(result.server["deputies"]) == {site for row in result.history for site in row["sites"]}


def test_options_are_felt(make_config: Callable[..., Any], visit: Callable[..., Any]) -> None:
    sent = {"a": {"body.w": torch.eye(6)}, "b": {"body.w": torch.eye(6).flip(0)}}
    assert not torch.allclose(
        mix_nets(sent, 0.7)["a"]["body.w"], mix_nets(sent, 0.7, phase=False)["a"]["body.w"]
    )
    shared = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))

    def trained(**options: Any) -> Tensor:
        config = make_config({"name": NAME, **options}, ["pair", "south"], epochs=3)
        net, loc = visit(config, "south", {"count": COUNT, "prototypes": shared})
        config.method.train(net, loc)
        return loc.mine["personal"]["head.fed.weight"]

    usual = trained()
    for option in (
        {"beta": 0.0},
        {"tau": 1.1},
        {"exchange_at": 99.0},
        {"exchange_at": 0.0, "sublimate_at": 0.0},
    ):
        assert not same_bits(usual, trained(**option)), option

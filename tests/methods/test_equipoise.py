"""Equipoise: every part by hand, what each preset switches off, and what it is with all of them off."""

from __future__ import annotations

import importlib
import json
import math
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.config import resolve
from equipoise.errors import MethodError, Rejected
from equipoise.exchange import Bounds, ExchangeOptions, Line, check, encode_upload
from equipoise.exchange.ledger import entries
from equipoise.exchange.withhold import withhold
from equipoise.leaves import Sum
from equipoise.methods.base import Method
from equipoise.methods.equipoise import Equipoise
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.parts import closed
from equipoise.nets import Net
from equipoise.running import run
from equipoise.site import Batch, Loc, accounting
from equipoise.testing import same_bits

ROOT = Path(__file__).resolve().parents[2]
NAME = "equipoise"
OFF = Equipoise.neutral or {}
Visit = Callable[..., Any]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def place(counts: list[float]) -> Any:
    """As much of a `Loc` as the loss of the labels looks at."""
    return SimpleNamespace(counts=torch.tensor(counts, dtype=torch.float64), task="single")


@pytest.mark.parametrize("draws", [True, False])
def test_loss_balances_what_the_draws_left(draws: bool) -> None:
    """A site with 9, 4 and no images: classes weigh 1 and 1 or 9 and 4, and the one that is not there is left
    out."""
    z, y = drawn(5, 3, seed=1), torch.tensor([0, 1, 0, 0, 1])
    share = [1, 1] if draws else [9, 4]
    expected = 0.0
    for row, c in zip(z.tolist(), y.tolist(), strict=True):
        top = [share[k] * math.exp(row[k]) for k in (0, 1)]
        expected -= math.log(top[c] / sum(top)) / 5
    found = Equipoise(draws=draws).balanced(z, y, place([9, 4, 0]))
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_classes_come_equally_often(make_config: Callable[..., Any], visit: Visit) -> None:
    net, loc = visit(make_config({"name": NAME}, epochs=200), "north")
    seen: list[Tensor] = []

    class Watched(Equipoise):
        def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
            seen.append(batch.y)
            return 0.0 * net.head["fed"].bias.sum()

    Watched().fit(net, loc)
    labels = torch.cat(seen)
    assert len(labels) == 200 * loc.samples
    found = torch.bincount(labels, minlength=3) / len(labels)
    assert found.tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    seen.clear()
    Watched(draws=False).fit(net, loc)
    assert torch.equal(torch.bincount(torch.cat(seen), minlength=3), 200 * loc.counts.long())


def test_a_mixed_image_has_a_share_of_another_and_of_its_label() -> None:
    """With the draws of the same generator, image by image; all of a batch have one share, 0.4 at most."""
    x, y = drawn(6, 3, 4, 4, seed=3), torch.tensor([0, 1, 0, 1, 1, 0])
    weight = drawn(48, 2, seed=4)
    net, loc = (lambda images: images.flatten(1) @ weight), place([9, 4])
    shares = []
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        share = 0.4 * float(torch.rand((), generator=draw))
        order = torch.randperm(6, generator=draw).tolist()
        expected = 0.0
        for i, other in enumerate(order):
            scores = net(((1 - share) * x[i] + share * x[other])[None])[0].log_softmax(0)
            expected -= float((1 - share) * scores[y[i]] + share * scores[y[other]]) / 6
        loc.scratch = {"blend": torch.Generator().manual_seed(seed)}
        found = Equipoise(mixup=0.4).loss(net, SimpleNamespace(x=x, y=y), loc)  # type: ignore[arg-type]
        assert float(found) == pytest.approx(expected, rel=1e-6)
        shares.append(share)
    assert min(shares) < 0.05 and max(shares) > 0.35


def test_momentum_of_the_coordinator() -> None:
    """v ← β v − Δ and w ← w − v: steps of 1, 1.5 and 1.75; what is no parameter moves by Δ."""
    net = SimpleNamespace(named_parameters=lambda: [("w", None)])
    method = Equipoise(beta=0.5)
    server, one = method.init(net, {"w": torch.zeros(1), "mean": torch.zeros(1)}), torch.ones(1)  # type: ignore[arg-type]
    for expected in (1.0, 2.5, 4.25):

        def ask(question: Any, *, model: Any) -> Any:
            return {"delta": {"w": one, "mean": one}}

        server = method.round(server, ask)  # type: ignore[arg-type]
        assert float(server["model"]["w"]) == expected
    assert float(server["model"]["mean"]) == 3.0


@pytest.fixture
def solved() -> dict[str, Tensor]:
    """A classifier of three classes on the features of the small net."""
    mean, middle = drawn(3, 64, seed=6).float(), drawn(64, seed=7).float()
    found = {"mean": mean, "middle": middle, "precision": torch.eye(64) / 64}
    return found | {"seen": torch.ones(3), "chance": torch.zeros(3)}


def test_prediction_is_a_mean_of_both_classifiers(double_net: Visit, solved: dict[str, Tensor]) -> None:
    net, x = double_net("fed").float(), drawn(4, 3, 16, 16, seed=2).float()
    with torch.no_grad():
        trained, z = net(x), net.body(x)
        found = Equipoise(closed=0.25, mirrors=False).predict(net, x, None, {"closed": solved})
        computed = closed.logits(z, solved)
    torch.testing.assert_close(found["both"], 0.75 * trained + 0.25 * computed)
    torch.testing.assert_close(found["trained"], trained)
    assert list(found) == ["both", "trained", "computed"]
    assert list(Equipoise(closed=0).predict(net, x, None, {})) == ["trained"]


def test_an_image_and_its_mirror_images_are_predicted_alike(
    double_net: Visit, solved: dict[str, Tensor]
) -> None:
    """By the mean of what the network makes of the four; but a network with frozen stages, whose outputs may
    be all that is kept of an image, sees the image alone."""
    net, x = double_net("fed").float(), drawn(4, 3, 16, 16, seed=2).float()
    server = {"closed": solved}
    with torch.no_grad():
        four = [net.body(x), net.body(x.flip(3)), net.body(x.flip(2)), net.body(x.flip(2, 3))]
        found = Equipoise().predict(net, x, None, server)
        torch.testing.assert_close(found["both"], closed.logits(sum(four) / 4, solved))
        torch.testing.assert_close(found["trained"], net.head["fed"](sum(four) / 4))
        turned = Equipoise().predict(net, x.flip(3), None, server)
        torch.testing.assert_close(found["both"], turned["both"], rtol=1e-4, atol=1e-4)
        alone = Equipoise(mirrors=False).predict(net, x, None, server)["both"]
        assert not torch.allclose(found["both"], alone)
        net.body.halfway = False
        assert same_bits(Equipoise().predict(net, x, None, server)["both"], alone)


def test_a_label_never_seen_is_left_to_the_trained_head(double_net: Visit, solved: dict[str, Tensor]) -> None:
    net, x = double_net("fed").float(), drawn(4, 3, 16, 16, seed=2).float()
    mean = torch.stack([solved["mean"], -solved["mean"]], 1)
    several = solved | {"mean": mean, "seen": torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])}
    several["chance"] = torch.zeros(3, 2)
    with torch.no_grad():
        found = Equipoise().predict(net, x, None, {"closed": several})
    assert same_bits(found["both"][:, 1], found["trained"][:, 1])
    torch.testing.assert_close(found["both"][:, [0, 2]], found["computed"][:, [0, 2]])


def test_a_site_knows_its_classes_and_no_others(double_net: Visit, solved: dict[str, Tensor]) -> None:
    net, x = double_net("fed").float(), drawn(4, 3, 16, 16, seed=2).float()
    mine, server = (
        {"present": torch.tensor([True, False, True]), "images": torch.tensor(6)},
        {"closed": solved},
    )
    with torch.no_grad():
        shared = Equipoise().predict(net, x, None, server)["both"]
        own = Equipoise().predict(net, x, mine, server)["both"]
        free = Equipoise(limit=False).predict(net, x, mine, server)["both"]
        trained = Equipoise(closed=0).predict(net, x, mine, {})["trained"]
    assert same_bits(shared, free)
    assert same_bits(own[:, [0, 2]], shared[:, [0, 2]])
    assert float(own.softmax(1)[:, 1].max()) < 1e-12
    assert float(trained.softmax(1)[:, 1].max()) < 1e-12


def test_the_fewer_images_were_expected_the_less_it_says_that_there_is_none(
    double_net: Visit, solved: dict[str, Tensor]
) -> None:
    net, x = double_net("fed").float(), drawn(4, 3, 16, 16, seed=2).float()
    mine = {"present": torch.tensor([True, False, False]), "images": torch.tensor(40)}
    server = {"closed": solved | {"share": torch.tensor([0.49, 0.01, 0.5])}}
    with torch.no_grad():
        shared = Equipoise().predict(net, x, None, server)["both"]
        own = Equipoise().predict(net, x, mine, server)["both"]
    # 0.4 and 20 images were expected; the mean of a Gamma distribution of shape 0.2 falls to a third, a 101st
    less = torch.tensor([0.0, math.log(3), math.log(101)])
    torch.testing.assert_close(own, shared - less)


def test_the_share_of_a_class_is_that_of_all_images() -> None:
    total = {"counts": torch.tensor([6.0, 2.0, 0.0]), "sums": drawn(3, 2, seed=1)}
    for second in (8 * torch.eye(3), torch.stack([n * torch.eye(3) for n in (6, 2, 0)])):
        solved = closed.solve(total | {"second": closed.packed(second)}, 1.0)
        assert solved["share"].tolist() == [0.75, 0.25, 0.0]


def test_a_sites_own_predictor_has_its_means(double_net: Visit, solved: dict[str, Tensor]) -> None:
    net, x = double_net("fed").float(), drawn(4, 3, 16, 16, seed=2).float()
    mine = {"sums": drawn(3, 64, seed=8).float(), "counts": torch.tensor([5.0, 2.0, 1.0])}
    with torch.no_grad():
        plain = partial(Equipoise, mirrors=False)
        own = plain(own=7.0).predict(net, x, mine, {"closed": solved})["both"]
        off = plain(own=None).predict(net, x, mine, {"closed": solved})["both"]
        shared = plain(own=7.0).predict(net, x, None, {"closed": solved})["both"]
        expected = closed.logits(net.body(x), solved, closed.own_means(solved, mine, 7.0))
    assert same_bits(off, shared) and not torch.allclose(own, shared)
    torch.testing.assert_close(own, expected)


def test_several_labels_come_as_they_are() -> None:
    """The base loss of unchanged images, whatever it is: no even draws, no mixup."""
    x, y = drawn(4, 3, seed=3), drawn(4, 3, seed=4)
    loc = SimpleNamespace(task="multi", objective=F.mse_loss)
    loss = Equipoise().loss(cast(Net, torch.nn.Flatten()), Batch((x,), y, torch.arange(4)), loc)
    assert float(loss) == float((x - y).square().mean())


@pytest.mark.parametrize(("spread", "matrices"), [(None, 1), (10.0, 1), (0.1, 3)])
def test_ending_keeps_the_classifier_of_the_last_model(
    spread: float | None, matrices: int, make_config: Callable[..., Any], visit: Visit, tmp_path: Path
) -> None:
    """The server tree's classifier is solved from the sums of all sites under the model beside it; where
    images are many for what is asked of them, each class has a covariance of its own."""
    config = make_config({"name": NAME, "own_covariance": spread}, rounds=2)
    server = run(config, tmp_path / "run").server
    parts = []
    for site in ("north", "south", "west"):
        net, loc = visit(config, site, {"model": server["model"]}, question="describe")
        loc.receive(net)
        up = config.method.describe(net, loc)
        assert all(isinstance(leaf, Sum) for leaf in up.values())
        parts.append({name: leaf.value for name, leaf in up.items()})
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    z = drawn(9, 64, seed=9).float()
    assert server["closed"]["precision"].shape[:-2] == ((matrices,) if matrices > 1 else ())
    expected = closed.logits(z, closed.solve(total, Equipoise().ridge, spread=spread))
    torch.testing.assert_close(closed.logits(z, server["closed"]), expected, rtol=1e-2, atol=1e-2)


def test_a_class_that_a_site_withholds_is_in_no_sum(make_config: Callable[..., Any], visit: Visit) -> None:
    """Nothing that is sent depends on its images: neither their number nor their features."""
    config = make_config({"name": NAME})
    net, loc = visit(config, "north", question="describe")
    up = config.method.describe(net, loc)
    gone = torch.tensor([False, True, False])
    sent, changed = withhold(up, lambda entry: gone, 3, dict(net.named_parameters()))
    assert set(changed) == set(up)
    for name, leaf in sent.items():
        assert bool(up[name].value[1].any()) and not leaf.value[1].any(), name  # type: ignore[index, union-attr]
        assert same_bits(leaf.value[[0, 2]], up[name].value[[0, 2]]), name  # type: ignore[index]


@pytest.mark.parametrize("even", [True, False])
def test_a_site_sends_a_triangle_of_each_matrix(
    even: bool, make_config: Callable[..., Any], visit: Visit
) -> None:
    """Of 64 features and three classes: a matrix has 65 · 66 / 2 = 2,145 numbers of 8 bytes."""
    config = make_config({"name": NAME, "even_covariance": even})
    up = config.method.describe(*visit(config, "north", question="describe"))
    found = {entry.leaf: entry.bytes() for entry in entries(up)}
    assert found == {"sums": 3 * 64 * 8, "counts": 3 * 8, "second": (3 if even else 1) * 2_145 * 8}


def test_an_answer_of_whole_matrices_is_refused(make_config: Callable[..., Any], visit: Visit) -> None:
    """As a site with an older version would send it: by its size, or by its shape; and a number that the
    site's images cannot add up to."""
    config = make_config({"name": NAME})
    net, loc = visit(config, "north", question="describe")
    up = config.method.describe(net, loc)
    line = Line("describe", 0, entries(up), 0)
    bounds = Bounds(config.method.limits(3, 1), {"north": {"train": loc.samples}})
    check("north", encode_upload(up), line, ExchangeOptions(), bounds)
    second = cast(Tensor, up["second"].value)
    cases = {
        r"its answer has [\d,]+ bytes, at most [\d,]+ are possible": closed.unpacked(second),
        r"tensor 'second' has shape \(2145,\), not \(3, 2145\)": second[0],
        r"leaf 'second' has .* possible with the images the site has": 4 * second,
    }
    for reason, value in cases.items():
        with pytest.raises(Rejected, match=reason):
            check("north", encode_upload(up | {"second": Sum(value)}), line, ExchangeOptions(), bounds)


def test_neutral_is_fedavg_and_every_part_is_felt(make_config: Callable[..., Any], visit: Visit) -> None:
    """At a site with two classes of three; momentum and classifier change no local training."""

    def moved(method: Method) -> Tensor:
        net, loc = visit(make_config({"name": "fedavg"}, ["only", "pair"], lr=0.02, epochs=2), "pair")
        return method.train(net, loc)["delta"].value["head.fed.weight"]  # type: ignore[index]

    plain = moved(FedAvg())
    assert same_bits(plain, moved(Equipoise(**OFF)))
    for option in ({"draws": True}, {"balance": True}, {"mixup": 0.4}):
        assert not same_bits(plain, moved(Equipoise(**(OFF | option)))), option
    assert not same_bits(moved(Equipoise()), moved(Equipoise(mixup=0.0)))
    later = {"even_covariance": True}, {"mirrors": True}
    for option in ({"beta": 0.5}, {"closed": 1.0}, {"own": 10.0}, {"limit": True}, *later):
        assert same_bits(plain, moved(Equipoise(**(OFF | option)))), option


def test_a_preset_changes_one_thing() -> None:
    """And every part has one."""
    usual = Equipoise().model_dump()
    for name, preset in Equipoise.presets.items():
        ((key, value),) = preset.items()
        assert usual[key] != value, name
        assert OFF[key] == value, name
    assert sorted(key for preset in Equipoise.presets.values() for key in preset) == sorted(OFF)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark that fills docs/results/costs.json."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("methods")


def test_costs_have_what_an_evaluation_sends(measured: ModuleType, tmp_path: Path) -> None:
    """FedAvg: the model, to be tested. Beside it: the model for `describe`, the sums of eight classes back,
    and what the classifier is made of, to be tested too."""
    given = Namespace(net="small-cnn", size=16, sites=2, images=16)
    rounds, evaluations = {}, {}
    for name in ("fedavg", NAME):
        (tmp_path / name).mkdir()
        stepper = measured.Stepper(measured.config_of(name, "single", given, tmp_path), tmp_path / name)
        stepper.step()
        rounds[name], evaluations[name] = stepper.bytes, stepper.evaluated()
        stepper.close()
    model = rounds["fedavg"] / 2
    assert rounds[NAME] == pytest.approx(rounds["fedavg"], rel=0.01)
    assert evaluations["fedavg"] == pytest.approx(model, rel=0.01)
    sums, classifier = 8 * 8 * (2_145 + 64 + 1), 4 * (8 * 64 + 64 + 64 * 64 + 3 * 8)
    found = evaluations[NAME] - evaluations["fedavg"]
    assert found == pytest.approx(model + sums + classifier, rel=0.01)


def test_the_table_of_costs_says_what_an_evaluation_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = json.loads((ROOT / "docs" / "results" / "costs.json").read_text())
    assert costs[NAME]["evaluation"] > 1 and costs["fedavg"]["evaluation"] == 0
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    heads, _, *rows = importlib.import_module("generate").costs().splitlines()
    shown = {row.split("`")[1]: row.removesuffix(" |").split(" | ")[-1] for row in rows if "`" in row}
    assert heads.endswith(" | evaluation ÷ FedAvg |")
    for name, cost in costs.items():
        assert shown[name] == f"{cost['evaluation']:.2f}", name


def test_mixup_and_differential_privacy_do_not_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixed image is no image that could be clipped by itself; without mixup and draws each is."""
    table: dict[str, Any] = {
        "data": {"kind": "phantom", "scale": 0.002, "image_size": 16},
        "partition": {"kind": "iid", "sites": 2},
        "net": {"batch_norm": "group"},
        "train": {"rounds": 1, "batch_size": 8},
        "privacy": {"noise": 1.0, "delta": 1e-5, "clip": 1.0},
        "engine": {"device": "cpu"},
    }
    monkeypatch.setattr(accounting, "_epsilon", lambda steps, delta: 1.0)  # nobody asks how private it is
    with pytest.raises(MethodError, match="not the mean of its images' losses"):
        run(resolve(table | {"method": {"name": NAME, "draws": False}}), tmp_path / "mixed")
    plain = {"name": NAME, "draws": False, "mixup": 0.0, "closed": 0.0}
    run(resolve(table | {"method": plain}), tmp_path / "plain")

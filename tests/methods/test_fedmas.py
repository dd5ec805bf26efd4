"""Fed-MAS: its loss and rescue factor against explicit loops, aggregation by rescue factor, and the frozen
network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests import doctored
from torch import Tensor, nn

from equipoise.engine import Host, Question, Serial
from equipoise.errors import ConfigError, MethodError, WeightsError
from equipoise.exchange import Reduction, decode_upload
from equipoise.leaves import Mean
from equipoise.losses import make_objective, parse_objective
from equipoise.methods import fedmas
from equipoise.methods.fedmas import FedMAS, feature_distance, rescue_factor
from equipoise.nets import Net, NetOptions, build, load
from equipoise.running import Result, run
from equipoise.setup import make_host, material
from equipoise.site import Batch
from equipoise.testing import Tap
from equipoise.tree import digest, flatten

SIZES = {"north": 9, "south": 6, "west": 14}
COUNTS = torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)
MAS = {"name": "fedmas", "target": "small-cnn"}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_net(method: FedMAS) -> Net:
    options = NetOptions(name="small-cnn")
    return (
        build(options, classes=3, projector=method.projection(), image_size=16, seed=5, base=Path.cwd())
        .double()
        .eval()
    )


def place(counts: Tensor = COUNTS) -> Any:
    """As much of a `Loc` as the loss looks at."""
    total = int(counts.sum())
    target = (
        build(NetOptions(name="small-cnn"), classes=1, image_size=16, seed=8, base=Path.cwd())
        .body.double()
        .eval()
    )
    objective = make_objective(parse_objective("balanced_softmax"), counts=counts, total=total, task="single")
    during = torch.zeros(3, dtype=torch.float64)
    return SimpleNamespace(
        objective=objective, counts=counts, frozen={"target": target}, scratch={"during": during}, plain=False
    )


def batch_of(y: Sequence[int], seed: int) -> Batch:
    return Batch(views=(draw(len(y), 3, 16, 16, seed=seed),), y=torch.tensor(y), index=torch.arange(len(y)))


def slow_distance(a: Tensor, b: Tensor) -> float:
    dot, aa, bb = (
        sum(float(x) * float(y) for x, y in zip(u, v, strict=True)) for u, v in ((a, b), (a, a), (b, b))
    )
    return 2 - 2 * dot / math.sqrt(aa * bb)


# The loss ---------------------------------------------------------------------------------------------------


def test_distance_is_two_minus_two_cosines() -> None:
    a = torch.tensor([[1.0, 0], [0, 2], [3, 3], [1, 0]], dtype=torch.float64)
    b = torch.tensor([[5.0, 0], [4, 0], [-1, -1], [1, 1]], dtype=torch.float64)
    torch.testing.assert_close(
        feature_distance(a, b), torch.tensor([0, 2, 4, 2 - math.sqrt(2)], dtype=torch.float64)
    )


@pytest.mark.parametrize("variant", ["paper", "released"])
@torch.no_grad()
def test_loss_and_running_divergence_by_loops(variant: Any) -> None:
    method, loc = FedMAS(lambda_f=3, variant=variant, target="small-cnn"), place()
    net, shift = make_net(method), torch.log(COUNTS / COUNTS.sum())
    during = [0.0, 0.0, 0.0]
    for number, y in enumerate(([0, 1, 0, 2], [1, 0, 0])):
        batch = batch_of(y, seed=number)
        projected, target = net.projector(net.body(batch.x)), loc.frozen["target"](batch.x)
        distance = [slow_distance(a, b) for a, b in zip(projected, target, strict=True)]
        expected = float(F.cross_entropy(net(batch.x) + shift, batch.y)) + 3 * sum(distance) / len(y)
        if variant == "released":
            assert net.free is not None
            expected += float(F.cross_entropy(net.free(projected) + shift, batch.y))
        assert float(method.loss(net, batch, loc)) == pytest.approx(expected, rel=1e-6)
        for d, label in zip(distance, y, strict=True):
            during[label] += d / float(COUNTS[label])
    assert loc.scratch["during"].tolist() == pytest.approx(during, rel=1e-9)


def test_pull_reaches_projector_and_encoder_and_not_the_target() -> None:
    loc, pulled, free = (
        place(),
        FedMAS(lambda_f=3, target="small-cnn"),
        FedMAS(lambda_f=0, target="small-cnn"),
    )
    net, batch = make_net(pulled), batch_of([0, 1, 0, 2], seed=3)
    slope = {}
    for method in (pulled, free):
        net.zero_grad()
        method.loss(net, batch, loc).backward()
        slope[method.lambda_f] = {
            name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None
        }
    assert slope[3]["projector.0.weight"].norm() > 1e-4
    assert (slope[3]["body.conv1.weight"] - slope[0]["body.conv1.weight"]).norm() > 1e-4
    torch.testing.assert_close(slope[3]["head.fed.weight"], slope[0]["head.fed.weight"])
    assert all(p.grad is None for p in loc.frozen["target"].parameters())


def test_missing_class_leaves_all_finite() -> None:
    method, loc = FedMAS(target="small-cnn"), place(torch.tensor([3.0, 2.0, 0.0], dtype=torch.float64))
    net = make_net(method)
    loss = method.loss(net, batch_of([0, 1, 0, 1, 0], seed=3), loc)
    loss.backward()
    assert torch.isfinite(loss)
    assert float(net.head["fed"].bias.grad[2].abs()) < 1e-6
    assert loc.scratch["during"][2] == 0


# The rescue factor ------------------------------------------------------------------------------------------


def test_rescue_factor_by_hand() -> None:
    before, during = torch.tensor([0.5, 0.25, 0.0]), torch.tensor([0.4, 0.8, 0.0])
    assert rescue_factor(before, during) == pytest.approx(0.5 * 0.4 + 0.25 * 0.8)
    assert rescue_factor(before, during, normalised=True) == pytest.approx(
        (2 / 3) * (1 / 3) + (1 / 3) * (2 / 3)
    )
    assert (
        rescue_factor(torch.tensor([-1e-7, 0.5]), torch.tensor([1.0, 1.0])) == 0.5
    )  # rounding below 0 weighs nothing
    nothing = torch.zeros(3)
    assert rescue_factor(nothing, nothing) == rescue_factor(nothing, nothing, normalised=True) == 0.0


def test_paper_and_released_factors_reward_opposite_sites() -> None:
    few, many = torch.tensor([1.0] * 3 + [0.0] * 5), torch.ones(8)
    assert rescue_factor(few, few) < rescue_factor(many, many)
    assert rescue_factor(few, few, normalised=True) > rescue_factor(many, many, normalised=True)
    assert rescue_factor(few, few, normalised=True) == pytest.approx(1 / 3)


def test_weights_are_shares_of_the_factors() -> None:
    factors = {"a": 0.2, "b": 0.6, "c": 1.2}

    def weights(factor: dict[str, float]) -> dict[str, float]:
        """Each site moves a direction of its own, so the aggregate shows the weights."""
        reduction = Reduction()
        for i, (site, value) in enumerate(factor.items()):
            reduction.add(site, {"delta": Mean(torch.eye(3, dtype=torch.float64)[i], value)})
        return dict(zip(factor, reduction.result(tuple(factor))["delta"].tolist(), strict=True))

    found = weights(factors)
    assert found == pytest.approx({"a": 0.1, "b": 0.3, "c": 0.6}, abs=1e-7)
    assert sum(found.values()) == pytest.approx(1, abs=1e-7)
    moved = {site: factors[other] for site, other in zip("abc", "cab", strict=True)}
    assert weights(moved) == pytest.approx({"a": 0.6, "b": 0.1, "c": 0.3}, abs=1e-7)
    assert weights({site: 9 * value for site, value in factors.items()}) == pytest.approx(found, abs=1e-7)


# Runs -------------------------------------------------------------------------------------------------------


def watched(config: Any, folder: Path) -> tuple[Result, Tap]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine))
        return taps[0]

    return run(config, folder, wrap=wrap), taps[0]


def notes(folder: Path, site: str) -> list[dict[str, Any]]:
    return doctored.rows(folder / "sites" / site / "notes.jsonl")


def test_aggregate_is_weighted_by_rescue_factors_that_stay_at_the_sites(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config(MAS, rounds=1)
    result, tap = watched(config, tmp_path / "run")
    factor, delta = {}, {}
    for answer in (a for a in tap.answers if a.question.name == "train"):
        upload = decode_upload(answer.data)[1]
        (note,) = notes(tmp_path / "run", answer.site)
        factor[answer.site] = note["rescue_factor"]
        assert note["round"] == 0 and set(upload) == {"delta", "loss"}
        leaf, loss = upload["delta"], upload["loss"]
        assert isinstance(leaf, Mean) and isinstance(loss, Mean)
        assert float(leaf.weight) == factor[answer.site]
        assert float(loss.weight) == SIZES[answer.site]
        delta[answer.site] = flatten(leaf.value)
        for tensor in (*delta[answer.site].values(), loss.value):
            assert not (tensor == factor[answer.site]).any()
    total, first = sum(factor.values()), bare(config).first
    assert len(set(factor.values())) == 3
    for name, tensor in result.server["model"].items():
        mean = sum(factor[site] / total * delta[site][name].double() for site in SIZES)
        torch.testing.assert_close(tensor.double(), first[name] + mean, rtol=0, atol=1e-6)
    assert set(result.server) == {"model"}


def test_rescue_factor_of_a_site_that_does_not_learn(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    # With a rate of zero and BatchNorm statistics frozen, w and each epoch's share of ŵ are the same: RF = Σ
    # w_k · 2 w_k.
    config = make_config(MAS, rounds=1, lr=0.0, epochs=2)
    frozen = config.net.model_copy(update={"batch_norm": "frozen"})
    config = type(config)(**{**vars(config), "net": frozen})
    _, tap = watched(config, tmp_path / "run")
    plain, target = bare(config), tap.engine.host.frozen["target"]
    load(plain.net, plain.first)
    for site in SIZES:
        x, y = plain.rows(site, "train")
        with torch.no_grad():
            pairs = zip(plain.net.projector(plain.net.body(x)), target(x), strict=True)
        distance = [slow_distance(a, b) for a, b in pairs]
        w = [
            sum(d for d, label in zip(distance, y, strict=True) if label == c) / int((y == c).sum())
            for c in range(3)
        ]
        (note,) = notes(tmp_path / "run", site)
        assert note["rescue_factor"] == pytest.approx(sum(2 * v * v for v in w), rel=1e-4)


def test_scaling_all_divergences_changes_nothing(
    make_config: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(MAS | {"lambda_f": 0.0}, rounds=1)
    model = run(config, tmp_path / "once").server["model"]
    monkeypatch.setattr(fedmas, "feature_distance", lambda a, b: 0.5 * feature_distance(a, b))
    scaled = run(config, tmp_path / "half").server["model"]
    before, after = (notes(tmp_path / run, "west")[0]["rescue_factor"] for run in ("once", "half"))
    assert after == pytest.approx(before / 4, rel=1e-5)
    for name in model:
        torch.testing.assert_close(scaled[name], model[name], rtol=0, atol=1e-6)


def test_tiny_rescue_factors_count_as_any_others(
    make_config: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(MAS, rounds=1)
    model = run(config, tmp_path / "plain").server["model"]
    for unit in (2.0**-30, 2.0**-50):
        monkeypatch.setattr(fedmas, "rescue_factor", lambda *a, u=unit, **k: u * rescue_factor(*a, **k))
        tiny = run(config, tmp_path / str(unit)).server["model"]
        assert 0 < notes(tmp_path / str(unit), "west")[0]["rescue_factor"] < 1e-6
        for name in model:
            torch.testing.assert_close(tiny[name], model[name], rtol=0, atol=2e-7)


@pytest.mark.parametrize(("train", "norm"), [({}, 5.0), ({"clip_norm": 2.0}, 2.0)])
def test_released_clips_gradients(
    train: dict[str, Any], norm: float, make_config: Callable[..., Any], tmp_path: Path
) -> None:
    # One step of plain descent at rate 1 along a gradient made long by the pull: the step is as long as the
    # clip allows.
    method = MAS | {"preset": "released", "lambda_f": 1e4}
    config = make_config(method, ["west"], rounds=1, optimizer="sgd", lr=1.0, batch_size=64, **train)
    _, tap = watched(config, tmp_path / "run")
    (answer,) = (a for a in tap.answers if a.question.name == "train")
    delta = flatten(decode_upload(answer.data)[1]["delta"].value)
    step = [tensor.double().norm() for name, tensor in delta.items() if "running" not in name]
    assert float(torch.stack(step).norm()) == pytest.approx(norm, rel=1e-4)


def test_frozen_network_never_changes_and_its_features_are_computed_once(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config(MAS)
    before = digest(make_host(config, material(config), tmp_path / "unused").frozen["target"].state_dict())
    _, tap = watched(config, tmp_path / "run")
    host = tap.engine.host
    target = host.frozen["target"]
    assert not any(module.training for module in target.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in target.modules())
    assert not any(p.requires_grad for p in target.parameters())
    assert digest(target.state_dict()) == before
    for site in SIZES:
        with torch.no_grad():
            torch.testing.assert_close(
                host._caches[site]["target"][0], target(bare(config).rows(site, "train")[0])
            )


@pytest.mark.parametrize(("view", "every_step"), [("eval", False), ("flip", True)])
def test_plain_training_images_do_not_pass_the_frozen_network_again(
    view: str, every_step: bool, make_config: Callable[..., Any], tmp_path: Path
) -> None:
    passes: list[int] = []

    def count(engine: Serial) -> Serial:
        engine.host.frozen["target"].register_forward_hook(lambda *_: passes.append(1))
        return engine

    run(make_config(MAS, views=[view]), tmp_path / "run", wrap=count)
    assert (len(passes) > len(SIZES)) if every_step else (len(passes) == len(SIZES))


class OtherTarget(Serial):
    """South has another frozen network than the rest."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.common = host.frozen["target"]
        self.strange = build(
            NetOptions(name="small-cnn"), classes=1, image_size=16, seed=99, base=Path.cwd()
        ).body.eval()

    def ask(self, question: Question, sites: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for site in sites:
            self.host.frozen = {"target": self.strange if site == "south" else self.common}
            yield from super().ask(question, [site])


def test_sites_with_different_frozen_networks_are_refused(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(
        MethodError, match=r"frozen target networks differ: give every site the same method\.target_weights"
    ):
        run(make_config(MAS), tmp_path / "run", wrap=lambda engine: OtherTarget(engine.host))


def test_a_site_that_is_not_drawn_for_the_first_round_is_looked_at_too(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    for seed in range(3):  # one of three sites is drawn, and not south every time
        with pytest.raises(MethodError, match="differ"):
            run(
                make_config(MAS, participation=0.34, seed=seed),
                tmp_path / str(seed),
                wrap=lambda engine: OtherTarget(engine.host),
            )


def test_one_pixel_of_one_kernel_is_enough_to_be_refused(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    def wrap(engine: Any) -> Any:
        other = OtherTarget(engine.host)
        other.strange.load_state_dict(other.common.state_dict())
        kernel = next(other.strange.parameters()).data
        kernel[0, 0, 0, 0] = torch.nextafter(kernel[0, 0, 0, 0], torch.tensor(9.0))
        return other

    with pytest.raises(MethodError, match="differ"):
        run(make_config(MAS), tmp_path / "run", wrap=wrap)


def test_released_has_a_second_classifier_on_the_projector() -> None:
    paper, released = (
        make_net(FedMAS(variant=variant, target="small-cnn")) for variant in ("paper", "released")
    )
    assert paper.free is None
    assert isinstance(released.free, nn.Linear)
    assert (released.free.in_features, released.free.out_features) == (released.projector[-1].out_features, 3)
    assert [type(layer).__name__ for layer in released.projector] == [
        "Linear",
        "BatchNorm1d",
        "ReLU",
        "Linear",
    ]


def test_released_trains_and_averages_the_second_classifier(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config(MAS | {"preset": "released"}, rounds=1)
    first = make_host(config, material(config), tmp_path / "unused").initial
    model = run(config, tmp_path / "run").server["model"]
    assert not torch.equal(model["free.weight"], first["free.weight"])


def test_neutral_is_fedavg_bit_for_bit(make_config: Callable[..., Any], tmp_path: Path) -> None:
    plain = run(make_config({"name": "fedavg"}, objective="balanced_softmax"), tmp_path / "plain").server[
        "model"
    ]
    model = run(make_config(MAS | (FedMAS.neutral or {})), tmp_path / "run").server["model"]
    assert all(torch.equal(model[name], plain[name]) for name in plain)


def test_without_mas_sites_count_by_samples(make_config: Callable[..., Any], tmp_path: Path) -> None:
    _, tap = watched(make_config(MAS | {"preset": "kd"}, rounds=1), tmp_path / "run")
    weights = {
        a.site: decode_upload(a.data)[1]["delta"].weight for a in tap.answers if a.question.name == "train"
    }
    assert {site: float(weight) for site, weight in weights.items()} == SIZES
    assert notes(tmp_path / "run", "west")[0].keys() == {"round", "question", "weight"}


def test_every_preset_is_another_method(make_config: Callable[..., Any], tmp_path: Path) -> None:
    hashes = {
        preset: run(
            make_config(MAS | {"preset": preset}, ["north", "south"], rounds=1, batch_size=16),
            tmp_path / preset,
        ).state_hash
        for preset in FedMAS.presets
        if preset != "lambda-3"
    }
    assert len(set(hashes.values())) == len(hashes), hashes
    assert FedMAS(**FedMAS.presets["lambda-3"]) == FedMAS()


def test_one_site_without_extra_terms_is_local_training(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    train = {"rounds": 2, "optimizer": "sgd", "objective": "cross_entropy"}
    run(make_config({"name": "local"}, ["west"], **train), tmp_path / "local")
    model = run(make_config(MAS | (FedMAS.neutral or {}), ["west"], **train), tmp_path / "run").server[
        "model"
    ]
    alone = load_file(tmp_path / "local" / "sites" / "west" / "1.0.safetensors")
    for name in ("head.fed.weight", "body.conv1.weight"):
        torch.testing.assert_close(model[name], alone[f"net/{name}"], rtol=0, atol=1e-6)


def test_missing_target_weights_are_named(make_config: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"weights '.*moco\.pth' is missing: put a file"):
        run(make_config(MAS | {"target_weights": "moco.pth"}), tmp_path / "run")


def test_unknown_target_is_refused_with_the_nearest_name(make_config: Callable[..., Any]) -> None:
    with pytest.raises(
        ConfigError,
        match=r"'method\.target' is \"resnet81\": unknown net 'resnet81': did you mean 'resnet18'",
    ):
        make_config({"name": "fedmas", "target": "resnet81"})

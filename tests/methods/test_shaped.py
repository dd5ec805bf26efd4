"""Losses as methods: each base loss by explicit loops in double precision, composed, with absent classes and
missing labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.config import resolve
from equipoise.errors import ConfigError
from equipoise.losses import Objective, make_objective, parse_objective
from equipoise.methods import METHODS
from equipoise.methods.base import Method
from equipoise.methods.shaped import BSMFL, LDAMFL, FedAvgPL, FedFocal, FedLC, FedRS
from equipoise.nets import Cosine, build
from equipoise.running import run
from equipoise.setup import material
from equipoise.site import Batch
from equipoise.testing import Bench
from equipoise.use import export, load

COUNTS = [6.0, 3.0, 0.0]
Z = torch.tensor(
    [[0.3, -0.5, 0.9], [1.2, 0.1, -0.4], [-0.7, 0.8, 0.2], [0.0, -0.3, -1.1]], dtype=torch.float64
)
Y = torch.tensor([0, 1, 1, 0])
MANY = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
POSITIVES, TOTAL = [6.0, 0.0, 2.0], 8
LABELLED = torch.tensor([True, True, False])
PARTLY = MANY.masked_fill(~LABELLED, torch.nan)
"""the same where the last label is missing"""


def single(
    method: Method, base: Any = "cross_entropy", counts: list[float] = COUNTS, **kwargs: Any
) -> Objective:
    options = method.base_loss(parse_objective(base))
    return make_objective(
        options, counts=torch.tensor(counts), total=int(sum(counts)), task="single", **kwargs
    )


def multi(method: Method, base: Any = "bce", labelled: Tensor | None = LABELLED, **kwargs: Any) -> Objective:
    options = method.base_loss(parse_objective(base))
    counts = torch.tensor(POSITIVES) * (1 if labelled is None else labelled)
    return make_objective(options, counts=counts, total=TOTAL, task="multi", labelled=labelled, **kwargs)


def ce(rows: list[list[float]], y: list[int]) -> float:
    """Mean cross-entropy, by loops."""
    total = 0.0
    for row, c in zip(rows, y, strict=True):
        total += math.log(sum(math.exp(z) for z in row)) - row[c]
    return total / len(rows)


def bce(z: float, y: float) -> float:
    p = 1 / (1 + math.exp(-z))
    return -math.log(p) if y else -math.log(1 - p)


def shaped(function: Callable[[float, int], float]) -> list[list[float]]:
    return [[function(z, c) for c, z in enumerate(row)] for row in Z.tolist()]


def cells(z: Callable[[int, int], float], classes: tuple[int, ...] = (0, 1)) -> list[float]:
    return [bce(z(i, c), float(MANY[i, c])) for i in range(4) for c in classes]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


# One label per image ----------------------------------------------------------------------------------------


def test_balanced_softmax_by_hand() -> None:
    rows = shaped(lambda z, c: z + math.log(COUNTS[c] / 9 + 1e-9))
    assert single(BSMFL())(Z, Y).item() == pytest.approx(ce(rows, Y.tolist()), rel=1e-12)


def test_balanced_softmax_of_equal_counts_is_cross_entropy() -> None:
    assert single(BSMFL(), counts=[4, 4, 4])(Z, Y).item() == pytest.approx(
        F.cross_entropy(Z, Y).item(), abs=1e-6
    )


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_fedlc_by_hand(tau: float) -> None:
    margins = [tau * n**-0.25 for n in (6, 3, 1e-8)]
    rows = shaped(lambda z, c: z - margins[c])
    assert single(FedLC(tau=tau))(Z, Y).item() == pytest.approx(ce(rows, Y.tolist()), rel=1e-9)


def test_strict_fedlc_leaves_out_the_true_class() -> None:
    margins = [n**-0.25 for n in (6, 3, 1e-8)]
    total = 0.0
    for row, y in zip(Z.tolist(), Y.tolist(), strict=True):
        others = sum(math.exp(z - margins[c]) for c, z in enumerate(row) if c != y)
        total += math.log(others) - (row[y] - margins[y])
    assert single(FedLC(strict=True))(Z, Y).item() == pytest.approx(total / 4, rel=1e-9)
    with pytest.raises(ConfigError, match="no multi-label form"):
        multi(FedLC(strict=True))


def test_fedrs_by_hand_and_before_the_shift_of_the_base() -> None:
    rows = shaped(lambda z, c: z * (1.0, 1.0, 0.3)[c])
    assert single(FedRS(alpha=0.3))(Z, Y).item() == pytest.approx(ce(rows, Y.tolist()), rel=1e-12)
    rows = shaped(lambda z, c: z * (1.0, 1.0, 0.3)[c] + math.log(COUNTS[c] / 9 + 1e-9))
    assert single(FedRS(alpha=0.3), "balanced_softmax")(Z, Y).item() == pytest.approx(
        ce(rows, Y.tolist()), rel=1e-12
    )
    rows = shaped(lambda z, c: z * (1.0, 0.3 + 0.7 * 3 / 6, 0.3)[c])
    assert single(FedRS(alpha=0.3, mode="proportional"))(Z, Y).item() == pytest.approx(
        ce(rows, Y.tolist()), rel=1e-12
    )


def test_fedrs_of_zero_gives_absent_classes_no_gradient() -> None:
    for alpha, none in ((0.0, True), (0.5, False)):
        z = Z.clone().requires_grad_()
        single(FedRS(alpha=alpha))(z, Y).backward()
        assert (z.grad[:, 2].abs().max() == 0) == none  # type: ignore[index]


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_focal_by_hand(gamma: float) -> None:
    p = Z.softmax(1)
    expected = mean(
        [(1 - float(p[i, y])) ** gamma * -math.log(float(p[i, y])) for i, y in enumerate(Y.tolist())]
    )
    assert single(FedFocal(gamma=gamma))(Z, Y).item() == pytest.approx(expected, rel=1e-12)


def test_losses_that_are_the_method_take_the_place_of_the_configured_one() -> None:
    for method in (FedFocal(), BSMFL(), LDAMFL()):
        assert single(method, "fedlc+balanced_softmax")(Z, Y).item() == single(method)(Z, Y).item()
    for method in (FedLC(), FedRS()):
        assert single(method, "focal")(Z, Y).item() != single(method)(Z, Y).item()
    everything = {"name": "bce", "missing": "negative", "over": "all"}
    assert multi(FedAvgPL(), everything)(Z, PARTLY).item() == multi(FedAvgPL())(Z, PARTLY).item()


def test_neutral_options_are_cross_entropy_to_the_bit() -> None:
    for cls in (FedLC, FedRS, FedFocal):
        z = Z.float().requires_grad_()
        loss, plain = single(cls(**cls.neutral))(z, Y), F.cross_entropy(z, Y)  # type: ignore[arg-type]
        assert torch.equal(loss, plain)
        assert torch.equal(*(torch.autograd.grad(x, z)[0] for x in (loss, plain)))


def ldam(weight: list[float], margin: float, scale: float) -> float:
    """Present classes have counts 6 and 3; Z are the logits, `scale` times the cosines."""
    small = margin * (6 / 3) ** -0.25
    total, norm = 0.0, 0.0
    for row, y in zip(Z.tolist(), Y.tolist(), strict=True):
        moved = [
            scale * (z / scale - ((small, margin, 0.0)[c] if c == y else 0.0)) for c, z in enumerate(row)
        ]
        total += weight[y] * ce([moved], [y])
        norm += weight[y]
    return total / norm


def test_ldam_by_hand_and_its_weights_from_a_round_on() -> None:
    method = LDAMFL(max_margin=0.4, scale=7.0, defer=0.5, beta=0.9)
    assert single(method, round=4, rounds=10)(Z, Y).item() == pytest.approx(
        ldam([1, 1, 0], 0.4, 7.0), rel=1e-10
    )
    weight = [0.1 / (1 - 0.9**6), 0.1 / (1 - 0.9**3)]
    late = single(method, round=5, rounds=10)(Z, Y).item()
    assert late == pytest.approx(ldam([w * 2 / sum(weight) for w in weight], 0.4, 7.0), rel=1e-10)
    assert abs(late - ldam([1, 1, 0], 0.4, 7.0)) > 1e-3


def test_ldam_without_margin_and_scale_is_cross_entropy_of_cosines() -> None:
    head, z = LDAMFL(scale=1).make_head(5, 3), torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    assert isinstance(head, Cosine)
    loss = single(LDAMFL(max_margin=0, scale=1))(head(z), Y)
    cosines = F.normalize(z) @ F.normalize(head.weight).T
    assert loss.item() == pytest.approx(F.cross_entropy(cosines, Y).item(), abs=1e-6)


def test_ldam_head_gives_scaled_cosines() -> None:
    head, z = LDAMFL(scale=8.0).make_head(5, 3), torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    assert isinstance(head, Cosine)
    torch.testing.assert_close(head(z), 8 * F.cosine_similarity(z[:, None], head.weight[None], dim=2))


# Several labels per image -----------------------------------------------------------------------------------


def test_partial_loss_by_hand() -> None:
    assert multi(FedAvgPL())(Z, PARTLY).item() == pytest.approx(
        mean(cells(lambda i, c: float(Z[i, c]))), rel=1e-12
    )
    z = Z.clone().requires_grad_()
    multi(FedAvgPL())(z, PARTLY).backward()
    assert z.grad is not None
    assert (z.grad[:, 2] == 0).all() and (z.grad[:, :2] != 0).all()


def test_positive_weight_counts_observed_labels() -> None:
    weight = [8 / 6, 1.0]
    values = [
        bce(float(Z[i, c]), float(MANY[i, c])) * (weight[c] if MANY[i, c] else 1)
        for i in range(4)
        for c in (0, 1)
    ]
    assert multi(FedAvgPL(pos_weight=True))(Z, PARTLY).item() == pytest.approx(mean(values), rel=1e-12)


def test_balanced_softmax_of_several_labels_is_the_ratio_of_fedmlp() -> None:
    # σ'(z) = π₁ e^z / (π₁ e^z + π₀); a label without positives counts as half a sample
    shares = (6 / 8, 0.5 / 8)
    values = []
    for i in range(4):
        for c in (0, 1):
            up = shares[c] * math.exp(float(Z[i, c]))
            p = up / (up + 1 - shares[c])
            values.append(-math.log(p if MANY[i, c] else 1 - p))
    assert multi(BSMFL())(Z, PARTLY).item() == pytest.approx(mean(values), rel=1e-10)


def test_fedlc_of_several_labels_by_hand() -> None:
    shift = (2**-0.25 - 6**-0.25, 8**-0.25 - 0.5**-0.25)
    values = cells(lambda i, c: float(Z[i, c]) + 2 * shift[c])
    assert multi(FedLC(tau=2.0))(Z, PARTLY).item() == pytest.approx(mean(values), rel=1e-10)


@pytest.mark.parametrize(
    "method", [FedLC(), LDAMFL(), BSMFL(), FedFocal(), FedAvgPL(), FedRS()], ids=lambda m: type(m).__name__
)
def test_a_label_without_positives_learns_from_its_negatives(method: Method) -> None:
    """The second label has none: its logits must still be pushed down, as any annotated label's."""
    z = (0.1 * Z).requires_grad_()
    absent = torch.tensor([1.0, 0.0, 0.0]) * MANY
    multi(method, round=9, rounds=10)(z, absent).backward()
    assert z.grad is not None
    assert (z.grad[:, 1] > 0.004).all()


def test_focal_of_several_labels_by_hand() -> None:
    values = [(1 - math.exp(-loss)) ** 1.5 * loss for loss in cells(lambda i, c: float(Z[i, c]))]
    assert multi(FedFocal(gamma=1.5))(Z, PARTLY).item() == pytest.approx(mean(values), rel=1e-10)


@pytest.mark.parametrize("late", [False, True])
def test_ldam_of_several_labels_by_hand(late: bool) -> None:
    """Margins and weights within each label, whose negatives and positives are 2 and 6, 8 and 0, 6 and 2."""
    method, scale, beta = LDAMFL(max_margin=0.4, scale=3.0, beta=0.5), 3.0, 0.5
    sides, targets, values = [(2.0, 6.0), (8.0, 0.0), (6.0, 2.0)], MANY * torch.tensor([1.0, 0.0, 1.0]), []
    for i in range(4):
        for c, counts in enumerate(sides):
            y = int(targets[i, c])
            # a side that is lacking counts as half a sample; the rarer side has the whole margin
            rank = [max(n, 0.5) ** -0.25 for n in counts]
            margin = 0.4 * rank[y] / max(rank)
            raw = [(1 - beta) / (1 - beta**n) if n else 0.0 for n in counts]
            weight = raw[y] * 8 / (raw[0] * counts[0] + raw[1] * counts[1]) if late else 1.0
            cosine = float(Z[i, c]) / scale
            values.append(weight * bce(scale * (cosine - (margin if y else -margin)), y))
    objective = multi(method, labelled=None, round=8 if late else 7, rounds=10)
    assert objective(Z, targets).item() == pytest.approx(mean(values), rel=1e-10)


def test_one_label_does_not_change_the_weight_of_another() -> None:
    """Whatever the first label's counts are, the gradient at the last one's cells stays."""
    targets = torch.tensor([[1.0, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0]], dtype=torch.float64)
    for method in (LDAMFL(), FedLC(), BSMFL(), FedFocal(), FedAvgPL(pos_weight=True)):
        options = method.base_loss(parse_objective("bce"))
        slopes = []
        for first in (1.0, 7.0):
            counts = torch.tensor([first, 0.0, 3.0])
            objective = make_objective(options, counts=counts, total=TOTAL, task="multi", round=9, rounds=10)
            z = (0.1 * Z).requires_grad_()
            slopes.append(torch.autograd.grad(objective(z, targets), z)[0][:, 2])
        assert torch.equal(*slopes), type(method).__name__


def test_fedrs_stands_between_the_partial_loss_and_missing_as_absent() -> None:
    negative = {"name": "bce", "missing": "negative"}

    def gradient(objective: Objective) -> Tensor:
        z = Z.clone().requires_grad_()
        return torch.autograd.grad(objective(z, PARTLY), z)[0]

    torch.testing.assert_close(
        gradient(multi(FedRS(alpha=0.0), negative)), gradient(multi(FedAvgPL())) * 2 / 3
    )
    assert torch.equal(gradient(multi(FedRS(alpha=1.0), negative)), gradient(multi(Method(), negative)))
    half = gradient(multi(FedRS(alpha=0.5), negative))
    z = Z.tolist()
    for i in range(4):  # the missing label's cell: BCE(z/2, 0), so σ(z/2)/2 over all 12 cells
        assert float(half[i, 2]) == pytest.approx(0.5 / (1 + math.exp(-z[i][2] / 2)) / 12, rel=1e-12)
    # an annotated label without positives is not scaled
    torch.testing.assert_close(half[:, 1], gradient(multi(Method(), negative))[:, 1])


# In a run ---------------------------------------------------------------------------------------------------

NAMES: dict[type[Method], str] = {
    cls: name for name, cls in METHODS.items() if cls in (BSMFL, FedLC, FedRS, FedFocal, LDAMFL, FedAvgPL)
}


CASES: dict[str, tuple[dict[str, Any], Any, list[float]]] = {
    "balanced softmax": (
        {"name": "fedavg"},
        "balanced_softmax+ldam",
        [math.log(n / 9 + 1e-9) for n in COUNTS],
    ),
    "FedLC": ({"name": "fedlc", "tau": 0.5}, "ldam", [-0.5 * max(n, 1e-8) ** -0.25 for n in COUNTS]),
    "FedNoRo": ({"name": "fednoro"}, "ldam", [math.log(n / 9 + 1e-9) for n in COUNTS]),
}
"""method, base loss, and the shift that stands beside LDAM"""


@pytest.mark.parametrize("case", CASES)
def test_shifts_are_added_after_the_scale(case: str) -> None:
    """30 (cos − m on the true class) + shift, from features to the loss, as a config puts net, method and
    base loss together."""
    method, objective, shift = CASES[case]
    config = resolve(
        {"net": {"name": "small-cnn", "head": "cosine"}, "method": method, "train": {"objective": objective}}
    )
    make = config.method.make_head
    net = build(config.net, classes=3, make_head=make, image_size=16, seed=0, base=Path())
    head = net.head["fed"].double()
    bound = make_objective(
        config.method.base_loss(config.objective),
        counts=torch.tensor(COUNTS),
        total=9,
        task="single",
        round=0,
        rounds=10,
    )
    features = torch.randn(4, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    loc: Any = SimpleNamespace(objective=bound, task="single", counts=torch.tensor(COUNTS), scratch={})
    batch = Batch(views=(features,), y=Y, index=torch.arange(4))
    margin, total = (0.5 * 2**-0.25, 0.5), 0.0
    for row, y in zip(
        F.cosine_similarity(features[:, None], head.weight[None], dim=2).tolist(), Y.tolist(), strict=True
    ):
        total += ce(
            [[30 * (cos - (margin[y] if c == y else 0.0)) + shift[c] for c, cos in enumerate(row)]], [y]
        )
    assert config.method.loss(head, batch, loc).item() == pytest.approx(total / 4, rel=1e-6)


def test_ldam_by_objective_is_ldam_by_method(make_config: Callable[..., Any], tmp_path: Path) -> None:
    """The same weights and the same predictor: one scale, in training and after it."""
    by_method = make_config({"name": "ldam-fl", "scale": 12.0})
    table = make_config({"name": "fedavg"}).table()
    by_objective = resolve(
        table
        | {"net": {"name": "small-cnn", "head": "cosine"}}
        | {"train": table["train"] | {"objective": {"name": "ldam", "scale": 12.0}}}
    )
    found = {
        key: run(config, tmp_path / key)
        for key, config in (("method", by_method), ("objective", by_objective))
    }
    assert found["method"].state_hash == found["objective"].state_hash
    assert found["method"].metrics == found["objective"].metrics
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    models = {key: load(result.folder) for key, result in found.items()}
    assert torch.equal(models["method"].logits(x), models["objective"].logits(x))
    net = models["objective"].net
    expected = 12 * F.cosine_similarity(net.features(x)[:, None], net.head["fed"].weight[None], dim=2)
    torch.testing.assert_close(models["objective"].logits(x), expected, rtol=1e-4, atol=1e-5)
    export(models["objective"], tmp_path / "model.safetensors", "safetensors")
    assert torch.equal(load(tmp_path / "model.safetensors")(x), models["objective"](x))


@pytest.mark.parametrize(
    ("method", "net", "objective", "message"),
    [
        ("fedavg", {"scale": 5.0}, "cross_entropy", "net.scale is the factor of a cosine head"),
        ("fedavg", {"head": "cosine", "scale": 5.0}, "ldam", "net.scale is 5, the base loss counts on 30"),
        (
            "moon",
            {"head": "cosine"},
            "ldam",
            "needs a head that gives cosines, and method 'moon' brings another",
        ),
    ],
)
def test_what_does_not_fit_a_scale_is_refused(
    make_config: Callable[..., Any], method: str, net: dict[str, Any], objective: str, message: str
) -> None:
    table = make_config({"name": method}).table()
    changed = table | {"net": table["net"] | net, "train": table["train"] | {"objective": objective}}
    with pytest.raises(ConfigError, match=message):
        material(resolve(changed))


def test_a_form_that_several_labels_lack_is_refused_before_training(
    make_findings: Callable[..., Any],
) -> None:
    for method in ({"name": "fedrs", "mode": "proportional"}, {"name": "fedlc", "strict": True}):
        with pytest.raises(ConfigError, match=f"objective '{method['name']}'"):
            material(make_findings(method))


@pytest.mark.parametrize("cls", [BSMFL, FedLC, FedFocal, LDAMFL])
def test_another_method_than_fedavg(
    make_config: Callable[..., Any], tmp_path: Path, cls: type[Method]
) -> None:
    plain = run(make_config({"name": "fedavg"}, rounds=1), tmp_path / "plain").server["model"]
    model = run(make_config({"name": NAMES[cls]}, rounds=1), tmp_path / "run").server["model"]
    assert not torch.equal(model["body.conv1.weight"], plain["body.conv1.weight"])
    assert ("head.fed.bias" in model) == (cls is not LDAMFL)


def test_fedrs_differs_from_fedavg_where_a_class_is_absent(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    plain = run(make_config({"name": "fedavg"}), tmp_path / "plain").state_hash
    assert run(make_config({"name": NAMES[FedRS]}), tmp_path / "whole").state_hash == plain
    bench = Bench(FedRS)
    with bench.own_cache():
        config = bench.config({"whole": (0, 0, 0, 1, 1, 1, 2, 2), "without": (0, 0, 0, 0, 1, 1, 1, 1)})
        found = [
            bench.run(replace(config, method=method)).result.state_hash
            for method in (FedRS(), FedRS(alpha=1.0))
        ]
    assert found[0] != found[1]


@pytest.mark.parametrize("cls", NAMES)
def test_hidden_labels_never_enter(
    make_findings: Callable[..., Any], tmp_path: Path, cls: type[Method]
) -> None:
    objective = {"name": "bce", "pos_weight": True, "missing": "negative"}
    sound, spoilt = (
        run(
            make_findings({"name": NAMES[cls]}, spoilt=kind, objective=objective),
            tmp_path / str(kind),
        ).state_hash
        for kind in (False, True)
    )
    assert sound == spoilt


def test_partial_loss_differs_from_missing_as_absent(
    make_findings: Callable[..., Any], tmp_path: Path
) -> None:
    negative = {"name": "bce", "missing": "negative"}
    hashes = {
        key: run(make_findings({"name": name}, objective=objective), tmp_path / key).state_hash
        for key, name, objective in (
            ("pl", NAMES[FedAvgPL], negative),
            ("negative", "fedavg", negative),
            ("ignore", "fedavg", "bce"),
        )
    }
    assert hashes["pl"] == hashes["ignore"] != hashes["negative"]

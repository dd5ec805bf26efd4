"""FedNoRo: who is noisy, what noisy sites learn, how models are weighted, and what leaves in which phase."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from equipoise.config import Config
from equipoise.exchange import decode_upload
from equipoise.losses import make_objective, parse_objective
from equipoise.methods.fednoro import ABSENT, FITS, FedNoRo, nearness, noisy_sites
from equipoise.nets import Net, load
from equipoise.running import run
from equipoise.site import Batch
from equipoise.testing import Tap
from equipoise.tree import digest

NAME = "fednoro"


def draws() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in range(FITS)]


# Who is noisy -----------------------------------------------------------------------------------------------


def losses(seed: int = 0) -> Tensor:
    """Eight sites, of which 1 and 5 have large losses, on very different scales by class."""
    x = 0.2 * torch.rand(8, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[[1, 5]] += 0.8
    return x * torch.tensor([1.0, 100.0, 0.01], dtype=torch.float64)


def test_sites_with_large_losses_are_noisy_whatever_a_class_is_scaled_by() -> None:
    for seed in range(5):
        assert noisy_sites(losses(seed), draws()).nonzero().flatten().tolist() == [1, 5]


def test_votes_are_those_of_scikit_learn() -> None:
    for seed in range(5):
        x, votes = losses(seed), np.zeros(8)
        scaled = ((x - x.amin(0)) / (x.amax(0) - x.amin(0))).numpy()
        for i in range(FITS):
            fit = GaussianMixture(2, covariance_type="diag", random_state=i).fit(scaled)
            votes += fit.predict(scaled) == fit.means_.sum(1).argmax()
        assert noisy_sites(x, draws()).tolist() == (votes > FITS / 2).tolist()


def test_class_a_site_lacks_counts_as_the_smallest_of_the_others() -> None:
    given, filled = losses(), losses()
    given[2, 1] = given[5, 0] = ABSENT
    filled[2, 1], filled[5, 0] = given[[0, 1, 3, 4, 5, 6, 7], 1].min(), given[[0, 1, 2, 3, 4, 6, 7], 0].min()
    assert torch.equal(noisy_sites(given, draws()), noisy_sites(filled, draws()))
    nobody = torch.cat([losses(), torch.full((8, 1), ABSENT, dtype=torch.float64)], 1)
    assert noisy_sites(nobody, draws()).nonzero().flatten().tolist() == [1, 5]


@pytest.mark.parametrize(
    "given", [torch.ones(4, 3, dtype=torch.float64), losses()[:1], torch.zeros(3, 0)], ids=str
)
def test_equal_sites_one_site_or_no_losses_mean_that_nobody_is_noisy(given: Tensor) -> None:
    found = noisy_sites(given, draws())
    assert found.dtype == torch.bool and found.tolist() == [False] * len(given)


# Weights ----------------------------------------------------------------------------------------------------


def changes() -> dict[str, dict[str, Tensor]]:
    place = {"a": (0.0, 0.0), "b": (3.0, 1.0), "c": (6.0, 8.0), "d": (10.0, 0.0)}
    return {site: {"w": torch.tensor([x, 0.0]), "b": torch.tensor([y])} for site, (x, y) in place.items()}


def test_noisy_sites_count_less_the_further_they_are_from_the_nearest_clean_one() -> None:
    samples = torch.tensor([10.0, 20.0, 30.0, 40.0], dtype=torch.float64)
    # c is |6−3| + |8−1| = 10 from b and 14 from a; d is 7 + 1 = 8 from b and 10 from a.
    raw = [10, 20, 30 * math.exp(-1), 40 * math.exp(-0.8)]
    found = nearness(changes(), samples, {"c", "d", "elsewhere"})
    assert found.tolist() == pytest.approx([w / sum(raw) for w in raw], rel=1e-7)


@pytest.mark.parametrize("who", [set(), {"a", "b", "c", "d"}])
def test_without_noisy_or_without_clean_sites_it_is_the_mean_by_samples(who: set[str]) -> None:
    samples = torch.tensor([10.0, 20.0, 30.0, 40.0], dtype=torch.float64)
    assert nearness(changes(), samples, who).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-12)
    same = {site: changes()["a"] for site in "abcd"}
    assert nearness(same, samples, {"b"}).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-12)


# Losses -----------------------------------------------------------------------------------------------------

COUNTS = torch.tensor([6.0, 2.0, 0.0], dtype=torch.float64)


def place(
    method: FedNoRo,
    task: Any,
    round: int,
    own: Tensor | None = None,
    guide: Tensor | None = None,
    base: Any = None,
) -> Any:
    options = method.base_loss(parse_objective(base or ("cross_entropy" if task == "single" else "bce")))
    objective = make_objective(options, counts=COUNTS, total=8, task=task, labelled=own)
    scratch = {} if guide is None else {"teacher": lambda x: guide}
    facts = {"objective": objective, "task": task, "round": round, "scratch": scratch}
    return SimpleNamespace(**facts, counts=COUNTS, samples=8)


def tensor(seed: int) -> Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_single_label_losses_by_hand() -> None:
    z, guide, y = tensor(0), tensor(1), torch.tensor([0, 1, 0, 0])
    clean = taught = 0.0
    for i in range(4):
        mass = [
            math.exp(float(z[i, c])) * (6, 2)[c] / 8 for c in range(2)
        ]  # the site has none of the last class
        teacher = [math.exp(float(guide[i, c]) / 0.8) for c in range(3)]
        clean -= math.log(mass[int(y[i])] / sum(mass)) / 4
        for c in range(2):
            t = teacher[c] / sum(teacher)
            taught += t * (math.log(t) - math.log(mass[c] / sum(mass))) / 4
    weight = 0.8 * math.exp(-5 * (1 - 0.25) ** 2)
    batch, method = Batch(views=(z,), y=y, index=torch.arange(4)), FedNoRo(warmup=2, ramp=8)
    alone = method.loss(lambda x: x, batch, place(method, "single", 4))  # type: ignore[arg-type]
    assert float(alone) == pytest.approx(clean, rel=1e-6)
    found = method.loss(lambda x: x, batch, place(method, "single", 4, guide=guide))  # type: ignore[arg-type]
    assert float(found) == pytest.approx((1 - weight) * clean + weight * taught, rel=1e-6)


def test_the_teacher_does_not_push_classes_the_site_lacks() -> None:
    z = tensor(0).requires_grad_()
    batch = Batch(views=(z,), y=torch.tensor([0, 1, 0, 0]), index=torch.arange(4))
    method = FedNoRo(warmup=0, ramp=0)
    loss = method.loss(lambda x: x, batch, place(method, "single", 0, guide=tensor(1)))  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(loss, z)
    assert slope[:, 2].abs().max() < 1e-8
    assert slope[:, :2].abs().min() > 1e-4


@pytest.mark.parametrize("adjust", [True, False])
def test_several_labels_by_hand(adjust: bool) -> None:
    z, guide, own = tensor(0), tensor(1), torch.tensor([True, True, False])
    y = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]], dtype=torch.float64)
    base = taught = 0.0
    for i in range(4):
        for c in range(2):
            odds = float(z[i, c]) + (math.log((6 / 2, 2 / 6)[c]) if adjust else 0)
            base += math.log1p(math.exp(-odds if y[i, c] else odds)) / 8
        student, teacher = (1 / (1 + math.exp(-v)) for v in (float(z[i, 2]), float(guide[i, 2]) / 0.8))
        taught += (student - teacher) ** 2 / 4
    weight = 0.8 * math.exp(-5)  # before the warm-up is over the weight is its least
    batch, method = (
        Batch(views=(z,), y=y.masked_fill(~own, torch.nan), index=torch.arange(4)),
        FedNoRo(warmup=10, ramp=8, adjust=adjust),
    )
    found = method.loss(lambda x: x, batch, place(method, "multi", 3, own, guide))  # type: ignore[arg-type]
    assert float(found) == pytest.approx((1 - weight) * base + weight * taught, rel=1e-9)


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize(
    ("task", "base", "plain"),
    [
        ("single", "balanced_softmax", "cross_entropy"),
        ("single", "balanced_softmax+focal", "focal"),
        ("multi", "adjusted_bce", "bce"),
    ],
)
def test_class_shares_count_once(task: str, base: str, plain: str, guided: bool) -> None:
    """With a base loss that shifts by them already, the loss is that with the base loss without its shift."""
    own = torch.tensor([True, True, False]) if task == "multi" else None
    y = (
        torch.tensor([0, 1, 0, 0])
        if own is None
        else torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]]).double()
    )
    y = y if own is None else y.masked_fill(~own, torch.nan)
    batch, method = Batch(views=(tensor(0),), y=y, index=torch.arange(4)), FedNoRo(warmup=0, ramp=0)
    guide = tensor(1) if guided else None
    shifted, bare = (
        method.loss(lambda x: x, batch, place(method, task, 0, own, guide, given))  # type: ignore[arg-type]
        for given in (base, plain)
    )
    assert float(shifted) == pytest.approx(float(bare), rel=1e-12)


def test_who_gets_a_teacher(double_net: Callable[..., Net]) -> None:
    net = double_net("fed")

    def taught(task: str, own: list[bool], down: dict[str, Any], **options: Any) -> bool:
        loc: Any = SimpleNamespace(task=task, down=down, train=SimpleNamespace(complete=all(own)), scratch={})
        FedNoRo(**options).prepare(net, loc)
        return "teacher" in loc.scratch

    every, some = [True] * 3, [True, False, True]
    assert taught("single", every, {"noisy": torch.tensor(True)})
    assert not taught("single", every, {"noisy": torch.tensor(False)})
    assert not taught("single", every, {})
    assert not taught("single", every, {"noisy": torch.tensor(True)}, strength=0.0)
    assert taught("multi", some, {})
    assert not taught("multi", every, {})


# Runs -------------------------------------------------------------------------------------------------------


def tapped(config: Config, folder: Path, **more: Any) -> tuple[Any, Any]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine, **more))
        return taps[0]

    result = run(config, folder, wrap=wrap)
    return result, [a for a in taps[0].answers if a.question.name != "evaluate"]


def leaves(answers: Any) -> list[tuple[int, str, dict[str, str]]]:
    """What left, by round and question."""
    found = [
        (a.question.round, a.question.name, {n: leaf.kind for n, leaf in decode_upload(a.data)[1].items()})
        for a in answers
    ]
    return [entry for i, entry in enumerate(found) if entry not in found[:i]]


MEANS = {"delta": "mean", "loss": "mean"}
MODELS = {"delta": "each", "samples": "each", "loss": "mean"}


def test_what_leaves_in_which_phase(
    make_config: Callable[..., Config], make_findings: Any, tmp_path: Path
) -> None:
    judged = (1, "class_loss", {"loss": "each"})
    _, answers = tapped(make_config({"name": NAME, "warmup": 1}, rounds=3, batch_size=16), tmp_path / "a")
    assert leaves(answers) == [(0, "train", MEANS), judged, (1, "train", MODELS), (2, "train", MODELS)]
    _, answers = tapped(
        make_config({"name": NAME, "warmup": 1, "daagg": False}, rounds=3, batch_size=16), tmp_path / "b"
    )
    assert leaves(answers) == [(0, "train", MEANS), judged, (1, "train", MEANS), (2, "train", MEANS)]
    _, answers = tapped(make_findings({"name": NAME, "warmup": 1}, rounds=3, batch_size=16), tmp_path / "c")
    assert leaves(answers) == [(0, "train", MEANS), judged, (1, "train", MEANS), (2, "train", MEANS)]
    empty = [
        decode_upload(a.data)[1]["loss"].value.numel() for a in answers if a.question.name == "class_loss"
    ]
    assert empty == [0, 0, 0]


@pytest.mark.parametrize(("warmup", "phases"), [(0, [0]), (1, [0, 1]), (8, [0, 8]), (9, [0]), (50, [0])])
def test_phases_are_within_the_run(warmup: int, phases: list[int]) -> None:
    assert list(FedNoRo(warmup=warmup).phases(9)) == phases


def test_class_losses_are_those_of_the_stage_1_model(
    make_config: Callable[..., Config], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": NAME, "warmup": 1}, rounds=3)
    result, answers = tapped(config, tmp_path / "run")
    taken_apart = bare(config)
    load(taken_apart.net, result.server["judge"])
    after = run(make_config({"name": NAME, "warmup": 1}, rounds=1), tmp_path / "one").server["model"]
    assert all(torch.equal(result.server["judge"][name], after[name]) for name in after)
    for site in ("north", "south", "west"):
        x, y = taken_apart.rows(site, "train")
        logp = taken_apart.net(x).log_softmax(1).detach().double()
        expected = [float(-logp[y == c, c].mean()) for c in range(3)]
        assert result.server["losses"][site].tolist() == pytest.approx(expected, rel=1e-4)
    assert 1 <= sum(bool(flag) for flag in result.server["noisy"].values()) <= 2
    told = {
        a.site: bytes(a.question.each[a.site])
        for a in answers
        if a.question.name == "train" and a.question.round == 2
    }
    assert len(set(told.values())) == 2  # clean or noisy


def test_the_new_model_is_the_weighted_mean(make_config: Callable[..., Config], tmp_path: Path) -> None:
    config = make_config({"name": NAME, "warmup": 1}, rounds=2)
    result, answers = tapped(config, tmp_path / "run")
    uploads = {
        a.site: decode_upload(a.data)[1]
        for a in answers
        if a.question.name == "train" and a.question.round == 1
    }
    deltas = {site: up["delta"].value for site, up in uploads.items()}
    samples = torch.tensor([9.0, 6.0, 14.0], dtype=torch.float64)
    weight = nearness(deltas, samples, {site for site, flag in result.server["noisy"].items() if flag})
    assert any(abs(float(w) - n / 29) > 1e-3 for w, n in zip(weight, samples, strict=True))
    for name, tensor in result.server["model"].items():
        change = sum(
            float(w) * delta[name].double() for w, delta in zip(weight, deltas.values(), strict=True)
        )
        expected = result.server["judge"][name].double() + change
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-7)


def test_sites_that_come_later_are_judged_by_the_same_model(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    config = make_config({"name": NAME, "warmup": 0}, rounds=6, participation=0.34)
    result, answers = tapped(config, tmp_path / "run")
    asked = [(a.question.round, a.site) for a in answers if a.question.name == "class_loss"]
    trained = [(a.question.round, a.site) for a in answers if a.question.name == "train"]
    firsts = {site: min(r for r, s in trained if s == site) for _, site in trained}
    assert sorted(asked) == sorted((round, site) for site, round in firsts.items())
    assert len(firsts) >= 2
    assert set(result.server["losses"]) == set(result.server["noisy"]) == set(firsts)


def test_nobody_noisy_and_no_adjustment_is_fedavg(make_config: Callable[..., Config], tmp_path: Path) -> None:
    # A single site can be neither noisier nor farther than others, and takes the path of stage 2 all the
    # same.
    plain = run(make_config({"name": "fedavg"}, ["west"]), tmp_path / "plain").server["model"]
    method = {"name": NAME, "warmup": 0, "adjust": False}
    model = run(make_config(method, ["west"]), tmp_path / "run").server["model"]
    for name in plain:
        torch.testing.assert_close(model[name], plain[name], rtol=0, atol=1e-6)
    everyone = run(make_config({"name": "fedavg"}), tmp_path / "all").server["model"]
    quiet = method | {"strength": 0.0, "daagg": False}
    model = run(make_config(quiet), tmp_path / "quiet").server["model"]
    assert all(torch.equal(model[name], everyone[name]) for name in everyone)


def test_every_switch_counts(make_config: Callable[..., Config], tmp_path: Path) -> None:
    base: dict[str, Any] = {"name": NAME, "warmup": 1, "ramp": 0}
    arms: list[dict[str, Any]] = [{}, {"daagg": False}, {"strength": 0.0}, {"adjust": False}, {"warmup": 2}]
    found = [
        digest(run(make_config(base | arm, batch_size=16), tmp_path / str(i)).server["model"])
        for i, arm in enumerate(arms)
    ]
    assert len(set(found)) == len(arms)

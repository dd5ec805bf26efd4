"""RSCFed: group weights against explicit loops, the consistency term by hand, and who sees what in a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.config import Config
from equipoise.exchange import decode_upload
from equipoise.methods.parts.apart import blend, distance
from equipoise.methods.rscfed import RSCFed
from equipoise.running import run
from equipoise.seeds import generator
from equipoise.site import Batch
from equipoise.testing import Tap

NAME = "rscfed"
SAMPLES = torch.tensor([40.0, 10.0, 25.0, 60.0, 5.0], dtype=torch.float64)


def changes(seed: int = 0) -> dict[str, dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"w": (4, 3), "b": (4,)}
    return {
        site: {
            name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in shapes.items()
        }
        for site in "abcde"
    }


def test_distance_is_the_sum_of_norms_not_the_norm_of_all() -> None:
    a, b = (
        {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([1.0])},
        {"w": torch.tensor([0.0, 4.0]), "b": torch.tensor([13.0])},
    )
    assert distance(a, b) == pytest.approx(5 + 12, rel=1e-12)
    mixed = blend({"a": a, "b": b}, torch.tensor([0.25, 0.75]))
    assert mixed["w"].tolist() == [0.75, 3.0] and mixed["b"].tolist() == [10.0]


@pytest.mark.parametrize("centre", ["samples", "uniform"])
@pytest.mark.parametrize(("group", "size"), [(3, 3), (9, 4), (0, 5), (1, 1)])
def test_weights_by_explicit_loops(group: int, size: int, centre: Any) -> None:
    given, names = changes(), list("abcde")
    method = RSCFed(groups=4, group=group, beta=2.0, centre=centre)
    draw, expected = torch.Generator().manual_seed(7), dict.fromkeys(names, 0.0)
    for _ in range(4):
        chosen = torch.randperm(5, generator=draw)[:size].tolist()
        share = {i: float(SAMPLES[i]) if centre == "samples" else 1.0 for i in chosen}
        omega = {}
        for i in chosen:
            far = 0.0
            for tensor in ("w", "b"):
                mean = sum(share[j] * given[names[j]][tensor] for j in chosen) / sum(share.values())
                far += math.sqrt(float(((given[names[i]][tensor] - mean) ** 2).sum()))
            omega[i] = float(SAMPLES[i]) * math.exp(-2.0 * far / float(SAMPLES[i]))
        for i in chosen:
            expected[names[i]] += omega[i] / sum(omega.values()) / 4
    found = method.consensus(given, SAMPLES, torch.Generator().manual_seed(7))
    assert found.tolist() == pytest.approx(list(expected.values()), rel=1e-10)
    assert float(found.sum()) == pytest.approx(1, rel=1e-12)


def test_without_distance_one_group_of_all_is_the_mean_by_samples() -> None:
    found = RSCFed(groups=1, group=0, beta=0.0).consensus(
        changes(), SAMPLES, torch.Generator().manual_seed(0)
    )
    assert found.tolist() == pytest.approx((SAMPLES / SAMPLES.sum()).tolist(), rel=1e-12)


def test_a_huge_beta_leaves_a_weight_and_one_site_is_a_group() -> None:
    found = RSCFed(groups=1, group=0, beta=1e9).consensus(
        changes(), SAMPLES, torch.Generator().manual_seed(0)
    )
    assert found.isfinite().all() and float(found.max()) == pytest.approx(1)
    alone = RSCFed().consensus({"a": changes()["a"]}, SAMPLES[:1], torch.Generator().manual_seed(0))
    assert alone.tolist() == [1.0]


def test_consistency_is_the_mean_over_missing_cells() -> None:
    draw = torch.Generator().manual_seed(1)
    logits, second = (torch.randn(4, 3, generator=draw, dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    own = torch.tensor([True, False, False])
    y = torch.zeros(4, 3, dtype=torch.float64).masked_fill(~own, torch.nan)
    loc: Any = SimpleNamespace(
        objective=lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], y[:, 0]),
        scratch={"teacher": lambda x: 2 * x},
    )
    batch = Batch(views=(logits, second), y=y, index=torch.arange(4))
    found = RSCFed(strength=0.7).loss(lambda x: x, batch, loc)  # type: ignore[arg-type]
    term = 0.0
    for i in range(4):
        for c in (1, 2):
            student, teacher = (1 / (1 + math.exp(-z.item())) for z in (logits[i, c], 2 * second[i, c]))
            term += 0.7 * (student - teacher) ** 2 / 8
    base = loc.objective(logits, y)
    assert found.item() == pytest.approx(base.item() + term, rel=1e-10)
    (slope,) = torch.autograd.grad(found - base, logits)
    assert not slope[:, 0].any() and slope[:, 1:].all()
    loc.scratch = {}
    assert torch.equal(RSCFed().loss(lambda x: x, batch, loc), base)  # type: ignore[arg-type]


def tapped(config: Config, folder: Path, **more: Any) -> tuple[Any, Any]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine, **more))
        return taps[0]

    return run(config, folder, wrap=wrap), [a for a in taps[0].answers if a.question.name == "train"]


def test_the_new_model_is_the_consensus_of_what_sites_sent(
    make_config: Callable[..., Config], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": NAME, "group": 2, "groups": 3, "beta": 20.0}, rounds=1)
    result, answers = tapped(config, tmp_path / "run")
    uploads = {a.site: decode_upload(a.data)[1] for a in answers}
    assert {name: leaf.kind for name, leaf in uploads["north"].items()} == {
        "delta": "each",
        "samples": "each",
        "loss": "mean",
    }
    assert all(
        not any(name.startswith("mine/") for name in a.kept) for a in answers
    )  # nothing is missing: no teacher
    deltas = {site: up["delta"].value for site, up in uploads.items()}
    samples = torch.tensor([float(up["samples"].value) for up in uploads.values()], dtype=torch.float64)
    assert samples.tolist() == [9, 6, 14]
    method: Any = config.method
    weight = method.consensus(deltas, samples, generator(3, 0, "server", "groups")).tolist()
    first = bare(config).first
    for name, tensor in result.server["model"].items():
        expected = first[name].double() + sum(
            w * d[name].double() for w, d in zip(weight, deltas.values(), strict=True)
        )
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-7)


def test_a_whole_group_without_distance_is_fedavg(make_config: Callable[..., Config], tmp_path: Path) -> None:
    plain = run(make_config({"name": "fedavg"}, rounds=1), tmp_path / "plain").server["model"]
    whole = {
        "name": NAME,
        "group": 0,
        "groups": 1,
        "beta": 1e-12,
    }  # not 0, for which the mean is asked for as a mean
    model = run(make_config(whole, rounds=1), tmp_path / "run").server["model"]
    for name in plain:
        torch.testing.assert_close(model[name], plain[name], rtol=0, atol=1e-6)
    other = run(make_config({"name": NAME}, rounds=1), tmp_path / "default").server["model"]
    assert any((other[name] - plain[name]).abs().max() > 1e-4 for name in plain)


def test_a_lost_site_is_in_no_group(
    make_config: Callable[..., Config], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": NAME, "group": 1, "groups": 50}, rounds=1)
    result, answers = tapped(
        config, tmp_path / "run", lose=lambda question, site: site == "south" and question.write is not None
    )
    deltas = {a.site: decode_upload(a.data)[1]["delta"].value for a in answers if a.site != "south"}
    moved = result.server["model"]["head.fed.bias"] - bare(config).first["head.fed.bias"]
    basis = torch.stack([delta["head.fed.bias"] for delta in deltas.values()]).double()
    share = torch.linalg.lstsq(basis.T, moved.double()[:, None]).solution[:, 0]
    torch.testing.assert_close(basis.T @ share, moved.double(), rtol=1e-4, atol=1e-6)
    assert float(share.sum()) == pytest.approx(1, abs=1e-3)

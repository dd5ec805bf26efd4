"""CReFF: the sites' class gradients against autograd, and one round of the coordinator recomputed from the
answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.errors import MethodError
from equipoise.exchange import decode_upload
from equipoise.losses.matching import match, train_head
from equipoise.methods.creff import CReFF
from equipoise.running import Result, run
from equipoise.seeds import generator
from equipoise.testing import Tap, same_bits

NAME = "creff"
QUICK: dict[str, Any] = {"features": 6, "match_steps": 5, "head_epochs": 10, "draws": 2, "head_rate": 0.1}
HEAD = {"weight": torch.full((3, 64), 0.01), "bias": torch.tensor([0.5, 0.0, -0.5])}


def tapped(config: Any, folder: Path) -> tuple[Result, Tap]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine))
        return taps[0]

    return run(config, folder, wrap=wrap), taps[0]


def test_class_gradients_are_autograd_s(
    make_config: Callable[..., Any], visit: Callable[..., Any], bare: Callable[..., Any]
) -> None:
    config = make_config({"name": NAME, **QUICK}, ["pair", "south"])
    head = {"weight": torch.randn(3, 64, generator=torch.Generator().manual_seed(0)), "bias": HEAD["bias"]}
    net, loc = visit(config, "pair", {"head": head})
    # Every image is in each draw, and images are looked at as they are: the mean over all images of the
    # class.
    up = config.method.train(net, loc)
    found, plain = up["gradient"].value, bare(config)
    assert up["gradient"].weight.tolist() == [1.0, 1.0, 0.0]
    x, y = plain.rows("pair", "train")
    for c in range(3):
        weight, bias = (head[name].double().requires_grad_() for name in ("weight", "bias"))
        if not (y == c).any():
            assert not found["weight"][c].any() and not found["bias"][c].any()
            continue
        with torch.no_grad():
            z = plain.net.body(x[y == c]).double()
        loss = F.cross_entropy(F.linear(z, weight, bias), y[y == c])
        expected = torch.autograd.grad(loss, (weight, bias))
        torch.testing.assert_close(found["weight"][c].double(), expected[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found["bias"][c].double(), expected[1], rtol=1e-4, atol=1e-6)


def test_draws_are_of_some_images_and_averaged(
    make_config: Callable[..., Any], visit: Callable[..., Any]
) -> None:
    config = make_config({"name": NAME})
    net, loc = visit(config, "west", {"head": HEAD})
    everything = CReFF(draws=1)._class_gradients(net, loc)["bias"]
    one, many = (CReFF(draws=d, images=1)._class_gradients(net, loc)["weight"][1] for d in (1, 100))
    assert not torch.allclose(one, many, rtol=0.1)
    whole = CReFF(draws=1)._class_gradients(net, loc)["weight"][1]
    assert float((many - whole).norm()) < 0.4 * float((one - whole).norm())
    # The last classes' rows: with this head p is known, and a bias gradient is p − e_c.
    assert everything[1].argmin() == 1 and float(everything[1].sum()) == pytest.approx(0, abs=1e-6)


def test_round_of_the_coordinator(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    """Features and head of two rounds from the answers: plain means over the owners, features kept, a fresh
    head each time."""
    config = make_config({"name": NAME, **QUICK}, ["pair", "only", "south"])
    result, tap = tapped(config, tmp_path / "run")
    first = bare(config).first
    head = {name: first[f"head.fed.{name}"] for name in ("weight", "bias")}
    features = torch.randn(3, 6, 64, generator=generator(3, 0, "server", "features"))
    for round in range(2):
        gradients = [
            (leaf.value, leaf.weight)
            for a in tap.answers
            if a.question.name == "train" and a.question.round == round
            for leaf in [decode_upload(a.data)[1]["gradient"]]
        ]
        assert [weight.tolist() for _, weight in gradients] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
        wanted = {
            name: torch.stack(
                [
                    sum(v[name][c] for v, w in gradients if w[c]) / sum(w[c] for _, w in gradients)
                    for c in range(3)
                ]
            )
            for name in ("weight", "bias")
        }
        wanted = {name: tensor.float() for name, tensor in wanted.items()}
        features = match(features, head, wanted, torch.ones(3, dtype=torch.bool), 5, 0.1)
        draw = generator(3, round, "server", "head")
        fresh = {
            "weight": (torch.rand(3, 64, generator=draw) * 2 - 1) / 8,
            "bias": (torch.rand(3, generator=draw) * 2 - 1) / 8,
        }
        head = train_head(fresh, features, 10, 0.1, 32, generator(3, round, "server", "order"))
    torch.testing.assert_close(result.server["features"], features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result.server["head"]["weight"], head["weight"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result.server["head"]["bias"], head["bias"], rtol=1e-4, atol=1e-5)


def test_class_without_owner_is_not_matched_and_still_trains_the_head(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": NAME, **QUICK}, ["pair", "only"], rounds=1)
    server = run(config, tmp_path / "run").server
    drawn = torch.randn(3, 6, 64, generator=generator(3, 0, "server", "features"))
    moved = [not same_bits(server["features"][c], drawn[c]) for c in range(3)]
    assert moved == [True, True, False]
    fresh = (torch.rand(3, 64, generator=generator(3, 0, "server", "head")) * 2 - 1) / 8
    assert float((server["head"]["weight"][2] - fresh[2]).abs().max()) > 1e-3


def test_model_is_fedavg_s_whatever_the_head_becomes(make_config: Callable[..., Any], tmp_path: Path) -> None:
    fedavg = run(make_config({"name": "fedavg"}), tmp_path / "fedavg").server["model"]
    for i, options in enumerate((QUICK, QUICK | {"head_rate": 10.0, "match_steps": 0})):
        server = run(make_config({"name": NAME, **options}), tmp_path / str(i)).server
        assert all(same_bits(server["model"][name], tensor) for name, tensor in fedavg.items())
        assert not torch.allclose(server["head"]["weight"], fedavg["head.fed.weight"], atol=1e-2)


def test_retrained_head_is_what_counts(make_config: Callable[..., Any], visit: Callable[..., Any]) -> None:
    config = make_config({"name": NAME})
    net, _ = visit(config, "north")
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    for mine in (None, {}):
        with torch.no_grad():
            found = config.method.predict(net, x, mine, {"head": HEAD})
            assert list(found) == ["retrained", "fed"]
            torch.testing.assert_close(
                found["retrained"], net.body(x).sum(1, keepdim=True) * 0.01 + HEAD["bias"]
            )
            torch.testing.assert_close(found["fed"], net(x))


def test_classifier_retrained_by_sites_takes_its_place(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    server = run(make_config({"name": NAME, **QUICK, "crt": 1}), tmp_path / "run").server
    for name, tensor in server["head"].items():
        assert same_bits(tensor, server["model"][f"head.fed.{name}"])


def test_head_without_bias_is_refused(make_config: Callable[..., Any], tmp_path: Path) -> None:
    config = make_config({"name": NAME})
    config = type(config)(**(vars(config) | {"net": config.net.model_copy(update={"head": "cosine"})}))
    with pytest.raises(MethodError, match="linear"):
        run(config, tmp_path / "run")


def test_options_are_felt(make_config: Callable[..., Any], tmp_path: Path) -> None:
    def head(**options: Any) -> Tensor:
        config = make_config({"name": NAME, **QUICK, **options}, ["pair", "only"], rounds=1)
        return run(config, tmp_path / config.digest).server["head"]["weight"]

    usual = head()
    for option in ({"features": 3}, {"match_rate": 1.0}, {"head_batch": 4}, {"images": 1}):
        assert not torch.allclose(usual, head(**option)), option

"""Training on pooled images: what a round sees in how many steps, whose labels count, who refuses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.deploy.coordinator import federated
from equipoise.errors import ConfigError
from equipoise.running import run
from equipoise.setup import make_host, material
from equipoise.site import Loc

CPU = torch.device("cpu")
SIZES = {"north": 9, "south": 6, "west": 14}


def seen(
    config: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[str, int, list[int]]], Any]:
    """Every training step of a run: the site that was asked, the round, and the rows of the batch."""
    steps, fit = list[tuple[str, int, list[int]]](), Loc.fit

    def spy(self: Loc, net: Any, loss: Any, **given: Any) -> float:
        def counted(net: Any, batch: Any, loc: Loc) -> Any:
            steps.append((loc.site, loc.round, batch.index.tolist()))
            return loss(net, batch, loc)

        return fit(self, net, counted, **given)

    monkeypatch.setattr(Loc, "fit", spy)
    result = run(config, folder)
    probed = [step for step in steps if not step[0].startswith("probe")]
    return probed, result


def test_a_round_sees_the_images_of_a_round_of_fedavg_in_as_many_steps(
    make_config: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled, result = seen(make_config({"name": "centralised"}, epochs=2), tmp_path / "pooled", monkeypatch)
    apart, _ = seen(make_config({"name": "fedavg"}, epochs=2), tmp_path / "apart", monkeypatch)
    assert {site for site, _, _ in pooled} == {"north"}
    for round in (0, 1):
        rows = [row for _, when, batch in pooled if when == round for row in batch]
        assert sorted(rows) == sorted([*range(29)] * 2)
        steps = [batch for _, when, batch in pooled if when == round]
        assert len(steps) == len([batch for _, when, batch in apart if when == round])
        assert {len(batch) for batch in steps} <= {3, 4}  # 29 rows in 9 steps; the sites' are of 2 to 5
    assert all(sorted(row["sites"]) == sorted(SIZES) for row in result.history)


def test_a_share_of_the_images_where_a_share_of_the_sites_is_drawn(
    make_config: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config({"name": "centralised"}, participation=0.5, persist_optimizer=True)
    steps, _ = seen(config, tmp_path, monkeypatch)
    assert {site for site, _, _ in steps} == {"north"}  # always there, so that its moments are
    for round in (0, 1):
        rows = [row for _, when, batch in steps if when == round for row in batch]
        assert len(rows) == len(set(rows)) == 14


def test_one_site_is_fedavg(make_config: Callable[..., Any], tmp_path: Path) -> None:
    one, other = (
        run(make_config({"name": name}, ["south"], batch_size=3), tmp_path / name)
        for name in ("centralised", "fedavg")
    )
    assert one.state_hash == other.state_hash


def test_every_site_has_the_one_model(make_config: Callable[..., Any], tmp_path: Path) -> None:
    config = make_config({"name": "centralised"})
    config = replace(config, net=config.net.model_copy(update={"batch_norm": "local"}))
    test = run(config, tmp_path).metrics["test"]
    pooled, sites = test["generalisation"], test["sites"]
    right = sum(site["accuracy"] * sum(site["support"]) for site in sites.values())
    assert right == pytest.approx(pooled["accuracy"] * sum(pooled["support"]))


def test_missing_labels_are_left_out_image_by_image(
    make_findings: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_findings({"name": "centralised"})
    dataset = material(config)
    data = dataset.sites(CPU, pooled=True)["south"]
    train = data.splits["train"]
    assert not train.complete
    held = {holding.name: holding for holding in dataset.holdings}
    start = 0
    for name in sorted(held):
        rows = range(start, start + len(held[name].train))
        for row in rows:
            assert train.known[row].tolist() == held[name].labelled.tolist()
        start = rows.stop
    assert data.total.tolist() == train.known.sum(0).tolist()
    one, other = (
        run(make_findings({"name": "centralised"}, spoilt=spoilt), tmp_path / str(spoilt))
        for spoilt in (False, True)
    )
    assert one.state_hash == other.state_hash
    negative = run(
        make_findings({"name": "centralised"}, objective={"name": "bce", "missing": "negative"}),
        tmp_path / "negative",
    )
    assert negative.state_hash != one.state_hash


def test_the_loss_is_over_the_cells_that_somebody_labelled(
    make_findings: Callable[..., Any], tmp_path: Path
) -> None:
    """The mean binary cross-entropy over the known cells of a batch, by hand."""
    config = make_findings({"name": "centralised"}, objective="bce")
    host = make_host(config, material(config), tmp_path)
    data = host.sites["north"]
    batch = data.splits["train"].take(torch.arange(20), [host.views["eval"]], [torch.Generator()])
    loc: Any = type("Here", (), {"objective": host._objective(data, 0)})
    with torch.no_grad():
        loss = config.method.loss(host.net, batch, loc)
        p = host.net(batch.x).double().sigmoid()
    cells = [
        -(p[i, c].log() if batch.y[i, c] else (1 - p[i, c]).log())
        for i in range(20)
        for c in range(3)
        if not batch.y[i, c].isnan()
    ]
    assert 20 < len(cells) < 60
    assert float(loss) == pytest.approx(float(torch.stack(cells).mean()), rel=1e-5)


def test_hospitals_refuse_it(make_config: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="'centralised' needs all images in one place"):
        federated(make_config({"name": "centralised"}))


@pytest.mark.parametrize(
    ("exchange", "why"),
    [({"secure": True}, "no sum to mask"), ({"reduce": "median"}, "nobody to compare")],
)
def test_what_needs_several_sites_is_refused(
    tiny: Callable[..., Any], tmp_path: Path, exchange: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"'centralised' trains in one place, so there is {why}: leave"):
        run(tiny("centralised", exchange=exchange), tmp_path / "run")

"""FedSDC and FedSDC+: the bank of heads, the deal, the momentum, the ranking and the vote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score
from torch import Tensor, nn

from equipoise.errors import MethodError
from equipoise.exchange import decode_upload, unpack
from equipoise.methods.fedsdc import FedSDC, FedSDCPlus
from equipoise.methods.parts.bank import Bottleneck, vote
from equipoise.nets import Net, NetOptions, build, load, state
from equipoise.running import Result, run
from equipoise.seeds import generator
from equipoise.setup import make_host, material
from equipoise.site import Batch
from equipoise.testing import Tap, same_bits
from equipoise.tree import Tree, flatten, plus, unflatten

SIZES = {"north": 9, "south": 6, "west": 14}


def make_net(method: FedSDC) -> Net:
    return build(
        NetOptions(name="small-cnn"),
        classes=3,
        make_head=method.make_head,
        image_size=16,
        seed=5,
        base=Path.cwd(),
    )


class Room:
    """An `ask` without sites: every head comes back one larger, the body moves as told, ranking is as
    told."""

    def __init__(
        self, round: int, sites: Sequence[str], delta: Tree, confusion: Tensor | None = None
    ) -> None:
        self.round, self.sites, self.delta, self.confusion = round, tuple(sites), delta, confusion
        self.dealt: dict[str, Tree] = {}
        self.asked: list[str] = []

    def generator(self, *purpose: object) -> torch.Generator:
        return generator(0, self.round, "server", *purpose)

    def __call__(
        self, question: Any, *, each: Mapping[str, Tree] | None = None, everyone: bool = False, **down: Any
    ) -> dict[str, Any]:
        self.asked.append(question.__name__ + (" of everyone" if everyone else ""))
        if question.__name__ == "rank":
            return {"confusion": self.confusion}
        self.dealt = {site: given["head"] for site, given in (each or {}).items()}
        trained = {site: head | {"up.bias": head["up.bias"] + 1} for site, head in self.dealt.items()}
        return {"delta": self.delta, "head": trained}


def start(method: FedSDC) -> tuple[Tree, Net]:
    net = make_net(method)
    return method.init(net, state(net)), net


def steps(server: Tree, seed: int) -> Tree:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=draw) for name, tensor in server["model"].items()}


# The bank ---------------------------------------------------------------------------------------------------


def bank(method: FedSDC, width: int, sites: int) -> Tree:
    return method.bank({"shape": torch.tensor([width, 3])}, Room(0, [str(i) for i in range(sites)], {}))


@pytest.mark.parametrize("count", [1, 3, 10])
def test_one_width_in_each_bin(count: int) -> None:
    heads = bank(FedSDC(), 1000, count)
    assert list(heads) == [f"{slot:03d}" for slot in range(count)]
    for slot, head in enumerate(heads.values()):
        units = int(head["units"].sum())
        assert torch.equal(head["units"], (torch.arange(1000) < units).float())
        low, high = (1000 * (0.4 + 0.6 * edge / count) for edge in (slot, slot + 1))
        assert low - 1 <= units <= high


def test_without_diversity_a_head_is_one_linear_layer() -> None:
    method = FedSDC(diversity=False)
    assert (
        type(method.make_head(64, 3)) is nn.Linear
    )  # no second layer and no dropout: both are part of diversity
    heads = bank(method, 256, 5)
    assert list(heads) == [f"{slot:03d}" for slot in range(5)]
    for head in heads.values():
        assert {name: tuple(x.shape) for name, x in head.items()} == {"weight": (3, 256), "bias": (3,)}
        assert max(float(x.abs().max()) for x in head.values()) <= 1 / 16
        assert head["weight"].std() == pytest.approx((1 / 3 / 256) ** 0.5, rel=0.15)
    assert len({float(head["weight"][0, 0]) for head in heads.values()}) == 5
    server, net = start(method)
    assert server["shape"].tolist() == [net.width, 3] and not [
        name for name in server["model"] if name.startswith("head.")
    ]


def test_linear_heads_vote_as_linear_layers_do() -> None:
    net, heads = Flat(3).eval(), bank(FedSDC(diversity=False), 3, 4)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    each = torch.stack([x @ h["weight"].T + h["bias"] for _, h in sorted(heads.items())])
    found = FedSDC(diversity=False).predict(net, x, None, {"heads": heads})
    torch.testing.assert_close(found["vote"], vote(each))
    torch.testing.assert_close(found["mean"].exp(), each.softmax(2).mean(0))


def test_the_narrowest_counts() -> None:
    assert {int(head["units"].sum()) for head in bank(FedSDC(narrowest=1.0), 64, 5).values()} == {64}
    widths = [int(head["units"].sum()) for head in bank(FedSDC(narrowest=0.01), 64, 50).values()]
    assert widths[0] == 1 and max(widths) > 60


def test_heads_start_as_linear_layers_of_their_own_width_do() -> None:
    for head in bank(FedSDC(), 256, 4).values():
        units = float(head["units"].sum())
        for name, fan in (("down.weight", 256), ("down.bias", 256), ("up.weight", units), ("up.bias", units)):
            assert head[name].abs().max() <= fan**-0.5
        assert head["up.weight"].std() == pytest.approx((1 / 3 / units) ** 0.5, rel=0.15)


def test_narrow_head_is_a_narrow_network() -> None:
    width, units = 40, 23
    wide = Bottleneck(width, 3, dropout=0.2).double().eval()
    wide.units[units:] = 0
    narrow = nn.Sequential(nn.Linear(width, units), nn.Dropout(0.2), nn.Linear(units, 3)).double().eval()
    with torch.no_grad():
        narrow[0].weight.copy_(wide.down.weight[:units])
        narrow[0].bias.copy_(wide.down.bias[:units])
        narrow[2].weight.copy_(wide.up.weight[:, :units])
        narrow[2].bias.copy_(wide.up.bias)
    z, y = (
        torch.randn(7, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        torch.tensor([0, 1, 2, 0, 1, 2, 0]),
    )
    torch.testing.assert_close(wide(z), narrow(z))
    for head in (wide, narrow):
        F.cross_entropy(head(z), y).backward()
    torch.testing.assert_close(wide.down.weight.grad[:units], narrow[0].weight.grad)
    torch.testing.assert_close(wide.up.weight.grad[:, :units], narrow[2].weight.grad)
    assert not wide.down.weight.grad[units:].any()
    assert not wide.up.weight.grad[:, units:].any()


# The round --------------------------------------------------------------------------------------------------


def test_every_head_is_dealt_and_trained_exactly_once_a_round() -> None:
    method, sites = FedSDC(), ["a", "b", "c", "d", "e"]
    server, _ = start(method)
    first, orders = None, []
    for round in range(4):
        room = Room(round, sites, steps(server, round))
        before = server.get("heads")
        server = method.round(server, room)
        first = first or {
            slot: head | {"up.bias": head["up.bias"] - 1} for slot, head in server["heads"].items()
        }
        before = before or first
        holder = {
            slot: [s for s in sites if same_bits(room.dealt[s]["down.weight"], head["down.weight"])]
            for slot, head in before.items()
        }
        assert sorted(s for found in holder.values() for s in found) == sites
        orders.append([holder[slot][0] for slot in sorted(holder)])
        for slot, head in server["heads"].items():
            torch.testing.assert_close(head["up.bias"], first[slot]["up.bias"] + round + 1)
            assert same_bits(head["units"], first[slot]["units"])
    assert len(set(map(tuple, orders))) > 1


def test_without_shuffling_each_site_keeps_its_head() -> None:
    method, sites = FedSDC(shuffle=False), ["a", "b", "c"]
    server, _ = start(method)
    for round in range(3):
        room = Room(round, sites, steps(server, round))
        server = method.round(server, room)
        for slot, site in enumerate(sites):
            assert same_bits(room.dealt[site]["units"], server["heads"][f"{slot:03d}"]["units"])
            assert same_bits(room.dealt[site]["up.bias"] + 1, server["heads"][f"{slot:03d}"]["up.bias"])
    with pytest.raises(MethodError, match=r"keeps its head: set train\.participation = 1"):
        method.round(server, Room(3, ["a", "c"], steps(server, 3)))
    with pytest.raises(MethodError, match="keeps its head"):
        method.round(server, Room(3, ["a", "c", "d"], steps(server, 3)))


def test_server_momentum_by_hand_over_three_rounds() -> None:
    method = FedSDC(beta=0.5)
    server, net = start(method)
    learnt = {name for name, _ in net.named_parameters()}
    assert not [name for name in server["model"] if name.startswith("head.")]
    assert set(server["momentum"]) == learnt & set(server["model"])
    statistics = set(server["model"]) - learnt
    assert statistics and all("running" in name for name in statistics)
    expected, velocity = dict(server["model"]), dict.fromkeys(server["model"], torch.zeros(()))
    for round in range(3):
        delta = steps(server, round)
        for name in expected:
            # φ − φ_k is −delta; statistics are simply averaged.
            velocity[name] = (0.5 if name in learnt else 0.0) * velocity[name] - delta[name]
            expected[name] = expected[name] - velocity[name]
        server = method.round(server, Room(round, ["a", "b"], delta))
        for name in expected:
            torch.testing.assert_close(server["model"][name], expected[name], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(velocity["body.conv1.weight"], -delta["body.conv1.weight"])


def test_without_momentum_the_body_moves_as_in_fedavg() -> None:
    method = FedSDC(beta=0.0)
    server, _ = start(method)
    for round in range(2):
        delta = steps(server, round)
        expected = plus(server["model"], delta)
        server = method.round(server, Room(round, ["a", "b"], delta))
        assert all(same_bits(server["model"][name], expected[name]) for name in expected)


# The ranking ------------------------------------------------------------------------------------------------


class Flat(nn.Module):
    """A net whose features are its images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.head = nn.Identity(), nn.ModuleDict({"fed": Bottleneck(width, 3, 0.0)})


def planted(good: int, count: int = 4) -> Tree:
    """Random heads, one of which tells the classes by the largest of three features."""
    heads = bank(FedSDC(narrowest=1.0), 3, count)
    heads[f"{good:03d}"] |= {
        "down.weight": torch.eye(3),
        "up.weight": torch.eye(3),
        "down.bias": torch.zeros(3),
        "up.bias": torch.zeros(3),
    }
    return heads


@pytest.mark.parametrize("rank_on", ["validation", "train"])
@pytest.mark.parametrize("good", [0, 2, 3])
def test_planted_head_is_ranked_first_on_the_images_asked_for(good: int, rank_on: Any) -> None:
    y = torch.tensor([0, 1, 2, 0, 1, 2, 1, 1])
    x = F.one_hot(y, 3).float()
    scanned = []

    def scan(split: str) -> list[Batch]:
        scanned.append(split)
        return [Batch((x[:5],), y[:5], torch.arange(5)), Batch((x[5:],), y[5:], torch.arange(3))]

    heads, method = planted(good), FedSDCPlus(rank_on=rank_on)
    confusion = method.rank(Flat(3), SimpleNamespace(scan=scan, classes="abc", down={"heads": heads}))[
        "confusion"
    ].value
    assert scanned == [rank_on]
    assert isinstance(confusion, Tensor) and confusion.shape == (4, 3, 3)
    assert torch.equal(confusion[good], torch.diag(torch.tensor([2, 4, 2])))
    assert torch.equal(confusion.sum((1, 2)), torch.full((4,), 8))
    room = Room(0, ["a"], {}, confusion)
    chosen = method.best({"model": {}, "heads": heads}, room)
    assert chosen[0] == good and len(chosen) == 2
    assert room.asked == ["rank of everyone"]


def test_heads_are_ranked_by_balanced_accuracy_best_first() -> None:
    # Right on the common class only, right on the rare ones only, wrong, half right; nobody has the third
    # class.
    tables = [[[90, 10], [5, 5]], [[50, 50], [0, 10]], [[0, 100], [10, 0]], [[50, 50], [5, 5]]]
    confusion = torch.zeros(4, 3, 3, dtype=torch.int64)
    confusion[:, :2, :2] = torch.tensor(tables)
    heads: Tree = {f"{slot:03d}": {} for slot in range(4)}

    def best(gamma: float, **options: Any) -> list[int]:
        method = FedSDC(gamma=gamma, **options)
        return method.best({"model": {}, "heads": heads}, Room(0, ["a"], {}, confusion)).tolist()

    assert best(0.25) == [1]  # 0.75 against 0.70, 0 and 0.50
    assert best(0.3) == [1, 0]
    assert best(0.75) == [1, 0, 3]
    # Micro-F1 is accuracy: 95, 60, 0 and 55 of 110.
    assert best(0.25, rank_by="micro_f1") == [0]
    assert best(0.75, rank_by="micro_f1") == [0, 1, 3]


def test_micro_f1_is_that_of_scikit_learn() -> None:
    draw = torch.Generator().manual_seed(3)
    y, guess = torch.randint(0, 3, (50,), generator=draw), torch.randint(0, 3, (6, 50), generator=draw)
    confusion = torch.stack([torch.from_numpy(confusion_matrix(y, g, labels=[0, 1, 2])) for g in guess])
    heads: Tree = {f"{slot:03d}": {} for slot in range(6)}
    for rule, score in (
        ("micro_f1", lambda g: f1_score(y, g, average="micro")),
        ("balanced_accuracy", lambda g: balanced_accuracy_score(y, g)),
    ):
        wanted = sorted(range(6), key=lambda slot: -score(guess[slot]))[:5]
        found = FedSDC(gamma=0.8, rank_by=rule).best(
            {"model": {}, "heads": heads}, Room(0, ["a"], {}, confusion)
        )
        assert found.tolist() == wanted


def test_all_heads_vote_without_being_ranked() -> None:
    room = Room(0, ["a"], {})
    heads: Tree = {f"{slot:03d}": {} for slot in range(3)}
    assert FedSDC().best({"model": {}, "heads": heads}, room).tolist() == [0, 1, 2]
    assert room.asked == []


def test_ranking_without_images_is_refused() -> None:
    heads: Tree = {f"{slot:03d}": {} for slot in range(3)}
    with pytest.raises(
        MethodError, match=r"no validation images to rank heads on: set data\.split\.validation"
    ):
        FedSDCPlus().best({"model": {}, "heads": heads}, Room(0, ["a"], {}, torch.zeros(3, 3, 3)))


def test_serving_has_the_chosen_heads_or_the_best_alone() -> None:
    server = {
        "model": {},
        "chosen": torch.tensor([3, 1]),
        "heads": {f"{slot:03d}": {"x": torch.tensor(slot)} for slot in range(4)},
    }
    assert set(FedSDCPlus().serving(server)["heads"]) == {"001", "003"}
    assert set(FedSDCPlus(ensemble=False).serving(server)["heads"]) == {"003"}


# The vote ---------------------------------------------------------------------------------------------------


def logits_of(*heads: Sequence[float]) -> Tensor:
    """[H, 1, C] for one image."""
    return torch.tensor(heads, dtype=torch.float32)[:, None]


@pytest.mark.parametrize(
    ("heads", "winner"),
    [
        ([[1.0, 0, 0], [1, 0, 0], [0, 90, 0]], 0),  # the majority, whatever the logits
        ([[2.0, 0, 0], [0, 3, 0], [0, 3, 0], [9, 0, 0]], 0),  # a tie: 11 against 6
        ([[2.0, 0, 0], [0, 9, 0]], 1),
        ([[5.0, 0, 4.9], [0, 6, 5.9]], 1),  # a tie: the third class has the largest sum but no vote
        ([[101.0, 0, 100.9], [0, 102, 101.9]], 1),  # … so much that its softmax leaves nothing to the others
        ([[102.0, 0, 101.9], [0, 101, 100.9]], 0),
    ],
)
def test_majority_wins_and_a_tie_goes_to_the_larger_sum(heads: list[list[float]], winner: int) -> None:
    found = vote(logits_of(*heads))
    assert found.argmax(1).tolist() == [winner]
    counts = F.one_hot(logits_of(*heads).argmax(2), 3).sum(0)
    assert torch.equal(found.floor().long(), counts)


def test_prediction_is_by_the_heads_on_the_servers_body() -> None:
    net, heads = Flat(3).eval(), planted(1)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    each = torch.stack([
        (x @ h["down.weight"].T + h["down.bias"]) @ h["up.weight"].T + h["up.bias"]
        for _, h in sorted(heads.items())
    ])  # fmt: skip
    found = FedSDC().predict(net, x, None, {"heads": heads})
    assert list(found) == ["vote", "mean"]
    torch.testing.assert_close(found["vote"], vote(each))
    torch.testing.assert_close(found["mean"].exp(), each.softmax(2).mean(0))


def test_mean_of_certain_heads_is_finite() -> None:
    net, heads = Flat(3).eval(), planted(0, count=2)
    heads["001"] = heads["000"]
    found = FedSDC().predict(net, torch.tensor([[900.0, 0.0, 0.0]]), None, {"heads": heads})
    assert found["mean"].tolist() == [[0.0, -900.0, -900.0]]


# Runs -------------------------------------------------------------------------------------------------------


def tapped(
    config: Any, folder: Path, lose: Callable[..., bool] = lambda question, site: False
) -> tuple[Result, Tap]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine, lose=lose))
        return taps[0]

    return run(config, folder, wrap=wrap), taps[0]


def given(question: Any, site: str) -> Tree:
    return unflatten(unpack(question.each[site])[1])["head"]


def same_head(a: Tree, b: Tree) -> bool:
    return all(same_bits(a[name], b[name]) for name in a)


def test_site_that_drops_out_leaves_its_head_as_it_was(
    make_config: Callable[..., Any], tmp_path: Path
) -> None:
    lose = lambda question, site: site == "south" and question.name == "train"  # noqa: E731
    result, tap = tapped(make_config({"name": "fedsdc"}, rounds=1), tmp_path / "run", lose)
    answers = {a.site: a for a in tap.answers if a.question.name == "train"}
    question, heads = answers["south"].question, result.server["heads"]
    assert len(heads) == 3
    kept = {
        site: [slot for slot, head in heads.items() if same_head(head, given(question, site))]
        for site in SIZES
    }
    assert {site: len(slots) for site, slots in kept.items()} == {"north": 0, "south": 1, "west": 0}
    back = {site: decode_upload(answers[site].data)[1]["head"].value for site in SIZES}
    for site in ("north", "west"):
        assert sum(same_head(head, dict(back[site])) for head in heads.values()) == 1


def test_body_is_the_mean_of_the_bodies_without_momentum(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = make_config({"name": "fedsdc", "beta": 0.0}, rounds=1)
    result, tap = tapped(config, tmp_path / "run")
    delta = {
        a.site: flatten(decode_upload(a.data)[1]["delta"].value)
        for a in tap.answers
        if a.question.name == "train"
    }
    first, total = bare(config).first, sum(SIZES.values())
    for name, tensor in result.server["model"].items():
        mean = sum(n / total * delta[site][name].double() for site, n in SIZES.items())
        torch.testing.assert_close(tensor.double(), first[name] + mean, rtol=0, atol=1e-6)


def test_plus_with_all_heads_is_fedsdc(make_config: Callable[..., Any], tmp_path: Path) -> None:
    plain, plus_all, plus_some = (
        run(make_config(method), tmp_path / str(i))
        for i, method in enumerate(
            ({"name": "fedsdc"}, {"name": "fedsdc+", "gamma": 1.0}, {"name": "fedsdc+"})
        )
    )
    assert plain.state_hash == plus_all.state_hash
    assert plain.metrics == plus_all.metrics
    for part in ("model", "momentum", "heads"):
        assert all(
            same_bits(x, flatten(plain.server[part])[name])
            for name, x in flatten(plus_some.server[part]).items()
        )
    assert len(plus_some.server["chosen"]) == 1


def test_two_of_three_sites_a_round_share_two_heads(make_config: Callable[..., Any], tmp_path: Path) -> None:
    result, tap = tapped(make_config({"name": "fedsdc+"}, rounds=3, participation=0.67), tmp_path / "run")
    trained = [
        {a.site for a in tap.answers if a.question.name == "train" and a.question.round == r}
        for r in range(3)
    ]
    assert [len(sites) for sites in trained] == [2, 2, 2]
    assert len(result.server["heads"]) == 2 and len(result.server["chosen"]) == 1
    assert all(torch.isfinite(x).all() for x in flatten(result.server).values())
    with pytest.raises(MethodError, match="keeps its head"):
        run(make_config({"name": "fedsdc", "preset": "m2"}, rounds=9, participation=0.67), tmp_path / "m2")


def test_heads_are_ranked_on_the_images_of_all_sites(
    make_config: Callable[..., Any], bare: Callable[..., Any], tmp_path: Path
) -> None:
    """Two of three sites train in a round; the head that votes is the best on the validation images of all
    three."""
    config = make_config({"name": "fedsdc+", "dropout": 0.0}, rounds=3, participation=0.67, lr=0.03)
    result, tap = tapped(config, tmp_path / "run")
    asked = [
        {a.site for a in tap.answers if (a.question.name, a.question.round) == ("rank", r)} for r in range(3)
    ]
    assert asked == [set(SIZES)] * 3
    assert [len(row["sites"]) for row in result.history] == [2, 2, 2]
    plain = bare(config)
    x, y = (
        torch.cat(parts) for parts in zip(*(plain.rows(site, "validation") for site in SIZES), strict=True)
    )
    load(plain.net, result.server["model"])
    with torch.no_grad():
        z = plain.net.body(x)
    found = []
    for slot in sorted(result.server["heads"]):
        h = result.server["heads"][slot]
        guess = (
            (z @ h["down.weight"].T + h["down.bias"]) * h["units"] @ h["up.weight"].T + h["up.bias"]
        ).argmax(1)
        found.append(balanced_accuracy_score(y, guess))
    assert result.server["chosen"].tolist() == [found.index(max(found))]
    counts = [
        decode_upload(a.data)[1]["confusion"].value.sum() for a in tap.answers if a.question.name == "rank"
    ]
    assert sum(map(int, counts)) == 3 * 2 * len(y)  # three rounds, two heads


@pytest.mark.parametrize(
    ("preset", "widths", "deals"), [("m1", None, 1), ("m2", 3, 1), ("m3", None, 2), (None, 3, 2)]
)
def test_ablation_arms(
    make_config: Callable[..., Any], tmp_path: Path, preset: str | None, widths: int | None, deals: int
) -> None:
    # A head is known by its bias, which no learning changes. Without diversity it is linear and has no width.
    method = {"name": "fedsdc"} | ({"preset": preset} if preset else {})
    result, tap = tapped(
        make_config(method, rounds=4, lr=0.0, optimizer="sgd", batch_size=16), tmp_path / "run"
    )
    heads = result.server["heads"].values()
    if widths is None:
        assert all(set(head) == {"weight", "bias"} for head in heads)
    else:
        assert len({float(head["units"].sum()) for head in heads}) == widths
    bias = "bias" if widths is None else "up.bias"
    orders = {
        tuple(float(given(question, site)[bias][0]) for site in SIZES)
        for question in {
            a.question.round: a.question for a in tap.answers if a.question.name == "train"
        }.values()
    }
    assert (len(orders) > 1) == (deals > 1)
    assert len({frozenset(order) for order in orders}) == 1


def test_one_site_without_momentum_is_local_training(make_config: Callable[..., Any], tmp_path: Path) -> None:
    method = FedSDC(beta=0.0, dropout=0.0, diversity=False)
    config = make_config(
        {"name": "fedsdc", "beta": 0.0, "dropout": 0.0, "diversity": False}, ["west"], optimizer="sgd"
    )
    server = run(config, tmp_path / "run").server
    dataset = material(config)
    host = make_host(config, dataset, tmp_path / "plain")
    net, rows = host.net, host.sites["west"].splits["train"]
    load(net, host.initial)
    ask = SimpleNamespace(sites=("west",), generator=lambda *purpose: generator(3, 0, "server", *purpose))
    (head,) = method.bank({"shape": torch.tensor([64, 3])}, ask).values()
    load(net, {f"head.fed.{name}": tensor for name, tensor in head.items()})
    (everything,) = rows.batches(torch.arange(14), 14, [host.views["eval"]], [torch.Generator()])
    for round in range(2):
        order = torch.randperm(14, generator=generator(3, round, "west", "train", "shuffle", 0))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        net.train()
        for part in order.split(4):
            optimizer.zero_grad()
            F.cross_entropy(net(everything.x[part]), everything.y[part]).backward()
            optimizer.step()
        net.eval()
    for name, tensor in server["model"].items():
        torch.testing.assert_close(tensor, state(net)[name], rtol=0, atol=1e-6)
    for name, tensor in server["heads"]["000"].items():
        torch.testing.assert_close(tensor, state(net)[f"head.fed.{name}"], rtol=0, atol=1e-6)

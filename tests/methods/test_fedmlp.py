"""FedMLP: losses, tags and descriptions against explicit loops, and who learns what from whom in a run."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from equipoise.config import Config, resolve
from equipoise.exchange import Reduction, decode_upload
from equipoise.leaves import Mean, Upload
from equipoise.losses import ObjectiveOptions, known
from equipoise.losses.tagging import NONE, selected
from equipoise.methods import fedmlp
from equipoise.methods.fedmlp import FedMLP
from equipoise.running import Result, run
from equipoise.setup import material
from equipoise.site import Batch
from equipoise.testing import Answer, Tap, write_federation

SITES = {
    "north": (0, 0, 1, 1, 2, 2, 0, 1, 2, 1, 0, 2),
    "south": (0, 1, 1, 2, 2, 0, 0, 2),
    "west": (0, 1, 2, 0, 1, 2, 2, 1, 0, 2),
}
TEST = {site: (0, 1, 2) for site in SITES}
EAGER = {
    "name": "fedmlp",
    "warmup": 1,
    "negative_share": 0.5,
    "positive_share": 0.6,
    "low": 0.48,
    "high": 0.52,
}
"""tags from the second round on, and many"""
MISSING_SEED = 23
"""north and south miss the last class, west the first; everybody labels the one between"""


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def place(n: int, own: list[int], *, positives: list[int] | None = None, **more: Any) -> Any:
    """As much of a `Loc` as the method looks at: three classes, of which the site labels `own`."""
    y = (torch.arange(n)[:, None] < torch.tensor(positives or [0, 0, 0])).double()
    tags = torch.full((n, 3), NONE, dtype=torch.int8)
    facts: dict[str, Any] = {
        "mine": {"tags": tags},
        "scratch": {},
        "down": {},
        "notes": {},
        "train": holds(y, own),
    }
    loc = SimpleNamespace(**(facts | {"samples": n, "classes": ("a", "b", "c")} | more))
    loc.note = loc.notes.__setitem__
    return loc


def only(y: Tensor, own: list[int]) -> Tensor:
    """The labels of a site that labels `own`."""
    return y.masked_fill(torch.tensor([c not in own for c in range(3)]), torch.nan)


def holds(y: Tensor, own: list[int]) -> Any:
    """The training rows of such a site."""
    return SimpleNamespace(labels=only(y, own), known=known(only(y, own)))


def batch_of(y: Tensor, *logits: Tensor, own: Sequence[int] = (0, 1, 2)) -> Batch:
    """A batch whose images are the logits themselves, for a net that answers with what it sees."""
    return Batch(views=logits, y=only(y, list(own)), index=torch.arange(len(y)))


def same(x: Tensor) -> Tensor:
    return x


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


# Losses -----------------------------------------------------------------------------------------------------


def adjusted(logits: Tensor, known: Mapping[tuple[int, int], float], prior: list[float]) -> float:
    """Equation 3-4 as printed: the probability is re-weighted by the prior, summed over known cells, divided
    by B·C."""
    total = 0.0
    for (i, c), label in known.items():
        p = sigmoid(float(logits[i, c])) * prior[c]
        q = (1 - sigmoid(float(logits[i, c]))) * (1 - prior[c])
        total -= math.log(p / (p + q)) if label else math.log(q / (p + q))
    return total / logits.numel()


def test_warm_up_loss_by_equations_3_and_4() -> None:
    first, second = draw(4, 3, seed=1), draw(4, 3, seed=2)
    y = torch.tensor([[1.0, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0]], dtype=torch.float64)
    loc, method = place(10, [0, 2], positives=[2, 0, 7]), FedMLP()
    loc.scratch["shift"] = method.shift(loc).double()
    known = {(i, c): float(y[i, c]) for i in range(4) for c in (0, 2)}
    expected = [adjusted(view, known, [0.2, 0.5, 0.7]) for view in (first, second)]
    found = method.loss(same, batch_of(y, first, second, own=[0, 2]), loc)
    assert float(found) == pytest.approx(sum(expected) / 2, rel=1e-6)
    assert float(method.loss(same, batch_of(y, second, own=[0, 2]), loc)) == pytest.approx(
        expected[1], rel=1e-6
    )


@pytest.mark.parametrize("cr", [True, False])
def test_late_loss_over_labels_tags_and_the_rest(cr: bool) -> None:
    logits, guide = draw(4, 3, seed=3), draw(4, 3, seed=4)
    y = torch.tensor([[1.0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.float64)
    loc, method = place(10, [0], positives=[4, 0, 0]), FedMLP(cr=cr)
    loc.mine["tags"][:4, 1] = torch.tensor([1, 0, NONE, 0], dtype=torch.int8)
    loc.mine["tags"][2, 2] = 1
    loc.scratch = {"shift": method.shift(loc).double(), "received": lambda x: guide}
    known = {(i, 0): float(y[i, 0]) for i in range(4)} | {(0, 1): 1.0, (1, 1): 0.0, (3, 1): 0.0, (2, 2): 1.0}
    # Class 1: one of three tags is positive. Class 2: a single tag, kept half a sample from certain.
    expected = adjusted(logits, known, [0.4, 1 / 3, 0.5])
    if cr:
        rest = [(i, c) for i in range(4) for c in range(3) if (i, c) not in known]
        assert len(rest) == 4
        expected += (
            sum((sigmoid(float(logits[i, c])) - sigmoid(float(guide[i, c]))) ** 2 for i, c in rest) / 12
        )
    found = method.late_loss(same, batch_of(y, logits, own=[0]), loc)
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("over", "labelled", "missing"), [("all", 12, 12), ("labelled", 8, 4)])
def test_warm_up_consistency_is_the_squared_distance_on_missing_classes(
    over: Any, labelled: int, missing: int
) -> None:
    views, guides = (draw(4, 3, seed=1), draw(4, 3, seed=2)), (draw(4, 3, seed=5), draw(4, 3, seed=6))
    y = torch.tensor([[1.0, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0]], dtype=torch.float64)
    answer = {id(view): guide for view, guide in zip(views, guides, strict=True)}
    loc = place(10, [0, 2], positives=[2, 0, 7])
    loc.scratch = {"shift": torch.zeros(3, dtype=torch.float64), "received": lambda x: answer[id(x)]}
    expected = 0.0
    for view, guide in zip(views, guides, strict=True):
        for i in range(4):
            for c in (0, 2):
                p = sigmoid(float(view[i, c]))
                expected -= (math.log(p) if y[i, c] else math.log(1 - p)) / labelled
            expected += (sigmoid(float(view[i, 1])) - sigmoid(float(guide[i, 1]))) ** 2 / missing
    method = FedMLP(wpc=False, warmup_cr=True, over=over)
    assert float(method.loss(same, batch_of(y, *views, own=[0, 2]), loc)) == pytest.approx(
        expected / 2, rel=1e-9
    )


def test_late_loss_over_the_cells_of_each_term() -> None:
    logits, guide = draw(4, 3, seed=3), draw(4, 3, seed=4)
    y, loc = torch.zeros(4, 3, dtype=torch.float64), place(4, [0])
    loc.mine["tags"][:3, 1] = torch.tensor([1, 0, 0], dtype=torch.int8)
    loc.scratch = {"shift": torch.zeros(3, dtype=torch.float64), "received": lambda x: guide}
    known = {(i, 0): 0.0 for i in range(4)} | {(0, 1): 1.0, (1, 1): 0.0, (2, 1): 0.0}
    rest = [(i, c) for i in range(4) for c in range(3) if (i, c) not in known]
    supervised = sum(
        -math.log(sigmoid(float(logits[cell])) if label else 1 - sigmoid(float(logits[cell])))
        for cell, label in known.items()
    )
    distance = sum((sigmoid(float(logits[cell])) - sigmoid(float(guide[cell]))) ** 2 for cell in rest)
    both, alone = FedMLP(wpc=False, over="labelled"), FedMLP(**FedMLP.presets["released"])
    assert float(both.late_loss(same, batch_of(y, logits, own=[0]), loc)) == pytest.approx(
        supervised / 7 + distance / 5, rel=1e-9
    )
    assert float(alone.late_loss(same, batch_of(y, logits, own=[0]), loc)) == pytest.approx(
        supervised / 7, rel=1e-9
    )


def test_consistency_moves_only_unknown_cells_and_not_the_guide() -> None:
    logits, guide = draw(4, 3, seed=3).requires_grad_(), draw(4, 3, seed=4).requires_grad_()
    loc, y = place(4, [0]), torch.zeros(4, 3, dtype=torch.float64)
    loc.scratch = {"shift": torch.zeros(3), "received": lambda x: guide}
    loss = {cr: FedMLP(cr=cr).late_loss(same, batch_of(y, logits, own=[0]), loc) for cr in (True, False)}
    (slope,) = torch.autograd.grad(loss[True] - loss[False], logits, retain_graph=True)
    assert not slope[:, 0].any()
    assert slope[:, 1:].all()
    assert torch.autograd.grad(loss[True], guide, allow_unused=True) == (None,)


def test_shift_is_the_log_odds_of_labels_or_tags() -> None:
    loc = place(20, [0, 1], positives=[5, 0, 0])
    loc.mine["tags"][:8, 2] = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0], dtype=torch.int8)
    expected = [math.log(0.25 / 0.75), math.log((0.5 / 20) / (1 - 0.5 / 20)), math.log(0.25 / 0.75)]
    assert FedMLP().shift(loc).tolist() == pytest.approx(expected, rel=1e-6)
    assert FedMLP(wpc=False).shift(loc).tolist() == [0, 0, 0]
    loc.mine["tags"].fill_(NONE)
    assert FedMLP().shift(loc)[2] == 0


def test_labels_and_tags_of_one_class_count_together() -> None:
    """Of ten images four are labelled, one of them positive; of the others three are tagged, two positive."""
    loc = place(10, [0, 1, 2], positives=[1, 0, 0])
    loc.train.labels[4:, 0] = torch.nan
    loc.mine["tags"][4:7, 0] = torch.tensor([1, 0, 1], dtype=torch.int8)
    assert float(FedMLP().shift(loc)[0]) == pytest.approx(math.log(3 / 4), rel=1e-6)


def test_only_images_without_the_label_are_tagged_and_only_the_others_make_prototypes() -> None:
    feature, prototypes = rivals()
    seen = Seen(feature)
    y = (draw(700, 3, seed=9) > 0).float()
    y[::2, 1] = torch.nan
    train = holds(y, [0, 1, 2])
    loc = place(
        700, [], scan=seen.scan, train=train, down={"prototypes": prototypes, "degree": torch.ones(3)}
    )
    FedMLP(negative_share=0.2, positive_share=0.2)._tag(seen.net, loc)
    decided = loc.mine["tags"] != NONE
    assert decided[::2, 1].any() and not decided[1::2].any() and not decided[:, [0, 2]].any()
    up = FedMLP()._describe(seen.net, loc)
    for kind in (0, 1):
        mean = feature[y[:, 1] == kind].mean(0)
        torch.testing.assert_close(up["prototypes"].value[1, kind], mean, rtol=1e-4, atol=1e-5)
    assert torch.as_tensor(up["degree"].weight).tolist() == [0, 350, 0]


# Tags -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pool", "share", "one", "count"),
    [
        (1000, 0.005, False, 5),
        (1199, 0.005, False, 5),
        (199, 0.005, False, 0),
        (199, 0.005, True, 1),
        (0, 0.5, True, 0),
        (300, 0.01, True, 3),
        (50, 0.0, True, 0),
        (100, 0.29, False, 29),  # 0.29 · 100 is a little less than 29 in floating point
    ],
)
def test_how_many_are_selected(pool: int, share: float, one: bool, count: int) -> None:
    assert selected(pool, share, one) == count


class Seen:
    """A site whose images are features, scanned in two pieces by a net whose body is the identity."""

    def __init__(self, feature: Tensor, head: Tensor | None = None) -> None:
        self.feature, linear = feature, nn.Linear(feature.shape[1], 3)
        if head is not None:
            nn.init.zeros_(linear.bias)
            linear.weight.data.copy_(head)
        self.net: Any = SimpleNamespace(body=same, head={"fed": linear})

    def scan(self) -> list[Batch]:
        half = len(self.feature) // 2
        return [batch_of(torch.zeros(len(x), 3), x) for x in (self.feature[:half], self.feature[half:])]


def rivals(seed: int = 0) -> tuple[Tensor, Tensor]:
    """700 features and prototypes [3, 2, 5]."""
    return draw(700, 5, seed=seed).float() + 0.3, draw(3, 2, 5, seed=seed + 1).float()


def test_tags_are_the_clearest_images_of_the_pool_in_the_right_number() -> None:
    feature, prototypes = rivals()
    seen = Seen(feature)
    down = {"prototypes": prototypes, "degree": torch.tensor([0.9, 0.6, 0.35])}
    loc = place(700, [1], scan=seen.scan, down=down)
    method, expected = FedMLP(negative_share=0.05, positive_share=0.1), torch.full((700, 3), NONE)
    for _ in range(3):
        for c in (0, 2):
            z = {}
            for i in range(700):
                if expected[i, c] == NONE:
                    near = [torch.cosine_similarity(prototypes[c, n], feature[i], 0).double() for n in (0, 1)]
                    z[i] = float(near[0] - near[1])
            above, below = [i for i in z if z[i] >= 0], [i for i in z if z[i] < 0]
            d = float(down["degree"][c])
            for i in sorted(above, key=lambda i: -z[i])[: math.floor(d * 0.05 * len(above))]:
                expected[i, c] = 0
            for i in sorted(below, key=lambda i: z[i])[: math.floor(d * 0.1 * len(below))]:
                expected[i, c] = 1
        method._tag(seen.net, loc)
        assert torch.equal(loc.mine["tags"], expected.to(torch.int8))
    assert loc.mine["tags"].dtype == torch.int8
    assert (expected[:, 1] == NONE).all()
    assert int((expected[:, 0] == 1).sum()) > 10


def test_tagged_images_never_change_whatever_the_prototypes_say() -> None:
    feature, prototypes = rivals()
    seen = Seen(feature)
    loc = place(700, [], scan=seen.scan, down={"prototypes": prototypes, "degree": torch.ones(3)})
    method = FedMLP(negative_share=0.3, positive_share=0.3)
    method._tag(seen.net, loc)
    before = loc.mine["tags"].clone()
    loc.down = {"prototypes": prototypes.flip(1), "degree": torch.ones(3)}
    method._tag(seen.net, loc)
    decided = before != NONE
    assert torch.equal(loc.mine["tags"][decided], before[decided])
    assert (loc.mine["tags"] != NONE).sum() > decided.sum()


def test_without_self_adaptive_threshold_the_degree_does_not_count() -> None:
    (feature, prototypes), found = rivals(), []
    for st, degree in ((True, 1.0), (False, 0.2), (True, 0.2)):
        seen = Seen(feature)
        loc = place(
            700, [0], scan=seen.scan, down={"prototypes": prototypes, "degree": torch.full((3,), degree)}
        )
        FedMLP(st=st, negative_share=0.1, positive_share=0.1)._tag(seen.net, loc)
        found.append(loc.mine["tags"])
    assert torch.equal(found[0], found[1])
    assert (found[2] != NONE).sum() < (found[0] != NONE).sum() / 2


def test_class_without_both_prototypes_is_left_alone() -> None:
    feature, prototypes = rivals()
    prototypes[2, 1] = 0
    seen = Seen(feature)
    loc = place(700, [0], scan=seen.scan, down={"prototypes": prototypes, "degree": torch.ones(3)})
    FedMLP()._tag(seen.net, loc)
    assert (loc.mine["tags"][:, 2] == NONE).all()
    assert (loc.mine["tags"][:, 1] != NONE).any()


@pytest.mark.parametrize(
    ("n", "rule", "small"), [(99, None, True), (400, None, False), (99, False, False), (100, True, True)]
)
def test_small_sites_tag_at_least_one(n: int, rule: bool | None, small: bool) -> None:
    feature, prototypes = rivals()
    seen = Seen(feature[:n])
    loc = place(n, [0, 1], scan=seen.scan, down={"prototypes": prototypes, "degree": torch.full((3,), 0.9)})
    FedMLP(at_least_one=rule)._tag(seen.net, loc)
    assert loc.notes == {"at_least_one": float(small)}
    tagged = [int((loc.mine["tags"] == value).sum()) for value in (0, 1)]
    assert tagged == ([1, 1] if small else [0, 0] if n < 100 else [0, 2])


# What sites say of classes ----------------------------------------------------------------------------------


def described(n: int, own: list[int], seed: int, **options: Any) -> tuple[Upload, Tensor, Tensor, Tensor]:
    """The description of one site, and the features, labels and scores it is made from."""
    feature = draw(n, 5, seed=seed).float()
    seen = Seen(feature, head=draw(3, 5, seed=seed + 1).float() * 2)
    y = only((draw(n, 3, seed=seed + 2) > 0.3).float(), own)
    loc = place(n, own, scan=seen.scan, train=holds(y, own))
    score = seen.net.head["fed"](feature).detach().sigmoid()
    return FedMLP(**options)._describe(seen.net, loc), feature, y, score


def test_prototypes_are_means_over_labelling_sites_and_degrees_over_the_others() -> None:
    sites = {"a": (20, [0, 1]), "b": (31, [0]), "c": (12, [0, 2])}
    found = {name: described(n, own, seed=10 * n) for name, (n, own) in sites.items()}
    reduction = Reduction()
    for name, (upload, *_) in found.items():
        assert set(upload) == {"prototypes", "degree"}
        reduction.add(name, upload)
    answers = reduction.result(tuple(sites))
    for c, labelling in enumerate((["a", "b", "c"], ["a"], ["c"])):
        for kind in (0, 1):
            means = [found[s][1][found[s][2][:, c] == kind].mean(0) for s in labelling]
            torch.testing.assert_close(
                answers["prototypes"][c, kind], torch.stack(means).mean(0), rtol=1e-5, atol=1e-6
            )
        missing = [s for s in sites if s not in labelling]
        decided = {s: sum(float(v) < 0.3 or float(v) > 0.7 for v in found[s][3][:, c]) for s in missing}
        expected = sum(decided.values()) / sum(sites[s][0] for s in missing) if missing else 0.0
        assert float(answers["degree"][c]) == pytest.approx(expected, abs=1e-6)
        assert float(answers.weight["degree"][c]) == sum(sites[s][0] for s in missing)


def test_equation_10_as_printed_goes_over_the_labelling_sites() -> None:
    sites = {"a": (20, [0, 1]), "b": (31, [0]), "c": (12, [0, 2])}
    found = {
        name: described(n, own, seed=10 * n, **FedMLP.presets["eq-10"]) for name, (n, own) in sites.items()
    }
    reduction = Reduction()
    for name, (upload, *_) in found.items():
        reduction.add(name, upload)
    answers = reduction.result(tuple(sites))
    for c, labelling in enumerate((["a", "b", "c"], ["a"], ["c"])):
        images = sum(sites[s][0] for s in labelling)
        share = {
            s: sum(float(v) < 0.3 or float(v) > 0.7 for v in found[s][3][:, c]) / sites[s][0]
            for s in labelling
        }
        expected = sum(sites[s][0] / images * share[s] for s in labelling)
        assert float(answers["degree"][c]) == pytest.approx(expected, abs=1e-6)
        assert float(answers.weight["degree"][c]) == images


def test_prototypes_may_be_weighted_by_images() -> None:
    sites = {"a": (20, [0, 1]), "b": (31, [0]), "c": (12, [0, 2])}
    found = {
        name: described(n, own, seed=10 * n, prototypes_by="samples") for name, (n, own) in sites.items()
    }
    reduction = Reduction()
    for name, (upload, *_) in found.items():
        reduction.add(name, upload)
    answers = reduction.result(tuple(sites))
    for kind in (0, 1):
        means = torch.stack([found[s][1][found[s][2][:, 0] == kind].mean(0) for s in sites])
        expected = torch.tensor([20.0, 31.0, 12.0]) @ means / 63
        torch.testing.assert_close(answers["prototypes"][0, kind], expected, rtol=1e-5, atol=1e-6)


def test_kind_nobody_has_shown_has_no_weight() -> None:
    seen, y = Seen(draw(6, 5).float()), torch.zeros(6, 3)
    y[:, 1] = 1
    upload = FedMLP()._describe(seen.net, place(6, [0, 1], scan=seen.scan, train=holds(y, [0, 1])))
    weight = upload["prototypes"].weight
    assert torch.as_tensor(weight).tolist() == [[1, 0], [0, 1], [0, 0]]


def ask_with(upload: Upload, round: int) -> Any:
    """An `ask` that gets this answer from the only site."""

    def ask(question: Any, **down: Any) -> Any:
        reduction = Reduction()
        reduction.add("a", upload)
        return reduction.result(("a",))

    ask.round = round
    return ask


def test_what_no_answer_speaks_of_stays_as_it_was() -> None:
    server = {
        "model": {"w": torch.zeros(2)},
        "prototypes": torch.full((3, 2, 5), 7.0),
        "degree": torch.tensor([1.0, 0.5, 0.25]),
    }
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    upload: Upload = {
        "delta": Mean({"w": torch.ones(2)}, 3),
        "prototypes": Mean(torch.ones(3, 2, 5), mask),
        "degree": Mean(torch.full((3,), 0.125), 3 * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)),
    }
    after = FedMLP(warmup=2).round(server, ask_with(upload, 1))
    assert after["prototypes"][..., 0].tolist() == [[1, 1], [1, 7], [7, 7]]
    assert after["degree"].tolist() == [1.0, 0.5, 0.125]
    early = FedMLP(warmup=3).round(server, ask_with({"delta": upload["delta"]}, 1))
    assert early["degree"] is server["degree"] and early["prototypes"] is server["prototypes"]


@pytest.mark.parametrize(
    ("warmup", "rounds", "phases"), [(0, 9, [0]), (1, 9, [0]), (5, 9, [0, 4]), (9, 9, [0, 8]), (50, 9, [0])]
)
def test_phases_are_within_the_run(warmup: int, rounds: int, phases: list[int]) -> None:
    assert list(FedMLP(warmup=warmup).phases(rounds)) == phases


# Runs -------------------------------------------------------------------------------------------------------


Make = Callable[..., Config]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """make(method table, missing, …, **train): three sites, three findings, each site without the labels of
    `missing` of them."""
    root = tmp_path_factory.mktemp("findings")
    tables = write_federation(root / "all", SITES, TEST, task="multi")
    alone = write_federation(root / "alone", {"west": SITES["west"]}, {"west": TEST["west"]}, task="multi")

    def config(
        method: Mapping[str, Any], missing: int = 1, table: Any = None, one: bool = False, **train: Any
    ) -> Config:
        chosen = table or (alone if one else tables)
        options = {"rounds": 3, "batch_size": 4, "lr": 0.01, "seed": 3, "views": ["weak", "weak"]} | train
        rest = {
            "net": {"name": "small-cnn"},
            "engine": {"device": "cpu"},
            "train": options,
            "method": dict(method),
        }
        partition = chosen["partition"] | (
            {"missing": missing, "missing_seed": MISSING_SEED} if missing else {}
        )
        return resolve(chosen | rest | {"partition": partition, "evaluate": {"every": 99}})

    return config


def tapped(config: Config, folder: Path) -> tuple[Result, list[Answer]]:
    taps = list[Tap]()

    def wrap(engine: Any) -> Any:
        taps.append(Tap(engine))
        return taps[0]

    return run(config, folder, wrap=wrap), taps[0].answers


def tags(folder: Path, version: str) -> dict[str, Tensor]:
    return {
        site: load_file(folder / "sites" / site / f"{version}.safetensors")["mine/tags"] for site in SITES
    }


def test_tags_stay_at_the_site_and_only_grow(make: Make, tmp_path: Path) -> None:
    config = make(EAGER, rounds=4)
    _, answers = tapped(config, tmp_path / "run")
    early, late = tags(tmp_path / "run", "2.0"), tags(tmp_path / "run", "3.0")
    holdings = {holding.name: torch.from_numpy(holding.labelled) for holding in material(config).holdings}
    assert any(all(mask[c] for mask in holdings.values()) for c in range(3))  # one class nobody misses
    for site, own in holdings.items():
        decided = early[site] != NONE
        assert decided.any()
        assert torch.equal(late[site][decided], early[site][decided])
        assert (late[site][:, own] == NONE).all()
        assert (late[site][:, ~own] != NONE).any()
    leaves = {"delta", "loss", "prototypes", "degree"}
    for answer in (a for a in answers if a.question.name == "train"):
        upload = decode_upload(answer.data)[1]
        assert set(upload) == leaves
        assert {leaf.kind for leaf in upload.values()} == {"mean"}
        kept = answer.kept["mine/tags"]
        for leaf in (upload["loss"], upload["prototypes"], upload["degree"]):
            assert leaf.value.shape != kept.shape and leaf.value.is_floating_point()


def test_descriptions_leave_from_the_last_warm_up_round_on(make: Make, tmp_path: Path) -> None:
    _, answers = tapped(make(EAGER | {"warmup": 2, "st": False}), tmp_path / "run")
    found = {a.question.round: set(decode_upload(a.data)[1]) for a in answers if a.question.name == "train"}
    assert found == {0: {"delta", "loss"}, **{r: {"delta", "loss", "prototypes", "degree"} for r in (1, 2)}}
    assert all((t == NONE).all() for t in tags(tmp_path / "run", "1.0").values())
    assert all((t != NONE).any() for t in tags(tmp_path / "run", "2.0").values())


def test_labels_a_site_does_not_have_change_nothing(make: Make, tmp_path: Path) -> None:
    config = make(EAGER)
    sound = write_federation(tmp_path / "corrupt", SITES, TEST, task="multi")
    path = Path(sound["data"]["path"])
    with open(path) as file:
        rows = list(csv.DictReader(file))
    own = {holding.name: holding.labelled for holding in material(config).holdings}
    flipped = 0
    for row in rows:
        for c in range(3):
            if row["split"] == "train" and not own[row["site"]][c]:
                row[f"c{c}"], flipped = str(1 - int(row[f"c{c}"])), flipped + 1
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert flipped == sum(map(len, SITES.values()))
    first, second = run(config, tmp_path / "a"), run(make(EAGER, table=sound), tmp_path / "b")
    assert first.state_hash == second.state_hash
    for site, found in tags(tmp_path / "a", "2.0").items():
        assert torch.equal(found, tags(tmp_path / "b", "2.0")[site])


@pytest.mark.sweep
def test_every_switch_counts(make: Make, tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {
        "all": {},
        **{f"no {name}": {name: False} for name in ("mld", "wpc", "cr", "st")},
    }
    arms |= {"warm": {"warmup_cr": True}, "over": {"over": "labelled"}, "eq-10": {"degree_of": "labelling"}}
    arms |= {"weighted": {"prototypes_by": "samples"}, "released": {"preset": "released"}}
    hashes = {arm: run(make(EAGER | change), tmp_path / arm).state_hash for arm, change in arms.items()}
    assert len(set(hashes.values())) == len(arms), hashes
    assert all((t == NONE).all() for t in tags(tmp_path / "no mld", "2.0").values())


def test_presets_add_one_component_after_the_other() -> None:
    rows = [name for name in FedMLP.presets if name.startswith("mld")]
    on = {
        name: {c for c in ("mld", "wpc", "cr", "st") if getattr(FedMLP(**FedMLP.presets[name]), c)}
        for name in rows
    }
    assert on == {name: set(name.split("+")) for name in rows}
    for before, after in pairwise(rows):
        assert differing(before, after) == {after.split("+")[-1]}
    assert FedMLP(**FedMLP.presets[rows[-1]]) == FedMLP()
    assert differing(rows[-1], "eq-10") == {"degree_of"}


def differing(one: str, other: str) -> set[str]:
    """The options in which two presets differ."""
    first, second = (FedMLP(**FedMLP.presets[name]) for name in (one, other))
    return {name for name in FedMLP.model_fields if getattr(first, name) != getattr(second, name)}


def test_released_has_detection_alone_and_a_consistency_while_warming_up() -> None:
    released = FedMLP(**FedMLP.presets["released"])
    assert released.mld and released.warmup_cr
    assert not (released.wpc or released.cr or released.st or released.at_least_one)
    assert (released.over, released.prototypes_by, released.degree_of) == ("labelled", "samples", "missing")


def test_equations_named_are_those_of_the_paper() -> None:
    named = [int(n) for part in re.findall(r"Eq\. ([\d-]+)", str(fedmlp.__doc__)) for n in part.split("-")]
    assert set(named) == {3, 4, 5, 6, 7, 9, 10}  # 1 and 2 are others' losses, and 10 is the last


def test_neutral_is_fedavg_on_the_labels_there_are(make: Make, tmp_path: Path) -> None:
    objective = {"name": "bce", "over": "all"}
    plain = run(make({"name": "fedavg"}, objective=objective), tmp_path / "plain").server["model"]
    model = run(make({"name": "fedmlp", **(FedMLP.neutral or {})}), tmp_path / "run").server["model"]
    assert set(model) == set(plain)
    assert all(torch.equal(model[name], plain[name]) for name in plain)


@pytest.mark.parametrize("named", ["adjusted_bce", {"name": "bce", "pos_weight": True}, "focal"])
def test_its_base_loss_is_its_own_whatever_the_config_names(named: Any) -> None:
    objective = ObjectiveOptions.model_validate(named)
    assert FedMLP().base_loss(objective) == ObjectiveOptions.model_validate({"name": "bce", "over": "all"})
    assert FedMLP(over="labelled").base_loss(objective) == ObjectiveOptions.model_validate("bce")


def test_one_site_without_extra_terms_is_local_training(make: Make, tmp_path: Path) -> None:
    train = {"optimizer": "sgd", "objective": {"name": "bce", "over": "all"}}
    run(make({"name": "local"}, 0, one=True, **train), tmp_path / "local")
    model = run(
        make({"name": "fedmlp", **(FedMLP.neutral or {})}, 0, one=True, **train), tmp_path / "run"
    ).server["model"]
    alone = load_file(tmp_path / "local" / "sites" / "west" / "2.0.safetensors")
    for name in model:
        torch.testing.assert_close(model[name], alone[f"net/{name}"], rtol=0, atol=1e-6)


def test_site_notes_whether_it_tags_at_least_one(make: Make, tmp_path: Path) -> None:
    run(make(EAGER | {"negative_share": 0.005}), tmp_path / "run")
    for site in SITES:
        lines = [
            json.loads(line)
            for line in (tmp_path / "run" / "sites" / site / "notes.jsonl").read_text().splitlines()
        ]
        assert [line["round"] for line in lines if line.get("at_least_one") == 1.0] == [1, 2]
        assert "at_least_one" not in lines[0]  # nothing is tagged while warming up

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.losses import composed

from equipoise.errors import ConfigError
from equipoise.losses import OBJECTIVES, ObjectiveOptions, make_objective, multilabel, parse_objective, single
from equipoise.losses.parts import Focal
from equipoise.losses.shaping import positive_prior

COUNTS = torch.tensor([8, 2, 0])
PRIOR = torch.tensor([0.8, 0.2, 0.0], dtype=torch.float64)
Z = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.4]], dtype=torch.float64)
Y = torch.tensor([0, 1])
MANY = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
LABELLED = torch.tensor([True, True, False])
PARTLY = MANY.masked_fill(~LABELLED, torch.nan)
"""the same where the last label is missing"""


def one(value, **kwargs):
    return make_objective(parse_objective(value), counts=COUNTS, total=10, task="single", **kwargs)


def many(value, **kwargs):
    return make_objective(parse_objective(value), counts=COUNTS, total=10, task="multi", **kwargs)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cross_entropy", lambda: F.cross_entropy(Z, Y)),
        ("balanced_softmax", lambda: composed.balanced_softmax(Z, Y, PRIOR)),
        ({"name": "logit_adjustment", "tau": 0.5}, lambda: composed.logit_adjustment(Z, Y, PRIOR, 0.5)),
        ({"name": "focal", "gamma": 1.0}, lambda: single.focal(Z, Y, 1.0)),
        ({"name": "class_balanced", "beta": 0.9}, lambda: single.class_balanced(Z, Y, COUNTS, 0.9)),
        ({"name": "fedlc", "tau": 0.5}, lambda: composed.fedlc(Z, Y, COUNTS, 0.5)),
        ({"name": "fedlc", "strict": True}, lambda: composed.fedlc(Z, Y, COUNTS, 1.0, strict=True)),
        ({"name": "fedrs", "alpha": 0.1}, lambda: composed.fedrs(Z, Y, COUNTS, 0.1)),
        ({"name": "ldam", "scale": 5}, lambda: single.ldam(Z, Y, COUNTS, scale=5.0)),
        (["fedrs", "focal"], lambda: single.focal(Z * torch.tensor([1.0, 1.0, 0.5]), Y, 2.0)),
    ],
)
def test_single_label_objectives_equal_their_functions(value, expected):
    torch.testing.assert_close(one(value)(Z, Y), expected(), atol=1e-12, rtol=0)


def test_plain_cross_entropy_is_the_function_of_torch():
    objective = one("cross_entropy")
    assert objective.criterion is F.cross_entropy
    assert objective.shape(Z) is Z


def test_every_registered_objective_has_a_description_and_works_by_name_alone():
    for name, part in OBJECTIVES.items():
        assert part.__doc__
        assert "\n" not in part.__doc__
        for task in part.tasks:
            objective = make_objective(parse_objective(name), counts=COUNTS, total=10, task=task)
            logits = Z.float().requires_grad_()
            y = Y if task == "single" else MANY.float()
            loss = objective(logits, y)
            loss.backward()
            assert loss.shape == ()
            assert loss.isfinite()
            assert logits.grad.isfinite().all()
            assert objective.each(logits, y).shape == (2,)


def test_scales_come_first_whatever_the_order_of_the_parts():
    expected = torch.tensor([1.0, 1.0, 0.5]) * Z + torch.log(PRIOR + 1e-9)
    for name in ("fedrs+balanced_softmax", "balanced_softmax + fedrs"):
        torch.testing.assert_close(one(name).shape(Z), expected)
        torch.testing.assert_close(one(name)(Z, Y), F.cross_entropy(expected, Y))
    margins = torch.tensor([8**-0.25, 2**-0.25, 100.0])
    torch.testing.assert_close(one("fedlc+fedrs").shape(Z), torch.tensor([1.0, 1.0, 0.5]) * Z - margins)


def test_each_averages_to_the_loss():
    for objective, y in (
        (one("fedrs+balanced_softmax"), Y),
        (many("adjusted_bce", labelled=LABELLED), PARTLY),
    ):
        torch.testing.assert_close(objective.each(Z, y).mean(), objective(Z, y))
    objective = many({"name": "bce", "over": "all"}, labelled=LABELLED)
    torch.testing.assert_close(objective.each(Z, PARTLY).mean(), objective(Z, PARTLY))


def test_a_mask_leaves_images_out():
    objective = one("balanced_softmax")
    torch.testing.assert_close(objective(Z, Y, torch.tensor([False, True])), objective(Z[1:], Y[1:]))
    assert objective(Z, Y, torch.tensor([False, False])).item() == 0.0


def test_ldam_reweights_after_four_fifths_of_the_rounds():
    early, late = one("ldam", round=79, rounds=100), one("ldam", round=80, rounds=100)
    cosines = -30 * Z / 4
    weight = single.effective_weight(COUNTS)
    torch.testing.assert_close(early(cosines, Y), single.ldam(cosines, Y, COUNTS))
    torch.testing.assert_close(late(cosines, Y), single.ldam(cosines, Y, COUNTS, weight=weight))
    assert not torch.isclose(early(cosines, Y), late(cosines, Y))
    never = one({"name": "ldam", "defer": 1.0}, round=99, rounds=100)
    torch.testing.assert_close(never(cosines, Y), early(cosines, Y))


def test_only_ldam_asks_for_a_cosine_head_of_its_scale():
    assert [name for name in OBJECTIVES if parse_objective(name).scale is not None] == ["ldam"]
    assert parse_objective("fedrs+ldam").scale == 30.0
    assert parse_objective({"name": "ldam", "scale": 8.0}).scale == 8.0


def test_which_objectives_shift_by_class_shares():
    assert [name for name in OBJECTIVES if parse_objective(name).prior] == [
        *("balanced_softmax", "logit_adjustment", "adjusted_bce"),
    ]
    assert parse_objective("balanced_softmax+focal").prior


def test_ldam_by_hand_with_a_shift_beside_it():
    """30 (cos − m on the true class) + log π, in double precision by numpy."""
    cosines, counts = np.array([[0.5, -0.2, 0.1], [0.3, 0.4, -0.6]]), np.array([16.0, 1.0, 3.0])
    margin = 0.5 * counts**-0.25 / (counts**-0.25).max()
    rows = 30 * (cosines - np.eye(3)[Y.numpy()] * margin) + np.log(counts / 20 + 1e-9)
    expected = np.mean([np.log(np.exp(row).sum()) - row[y] for row, y in zip(rows, Y.tolist(), strict=True)])
    for name in ("balanced_softmax+ldam", ["logit_adjustment", "ldam"]):
        objective = make_objective(
            parse_objective(name), counts=torch.tensor(counts), total=20, task="single"
        )
        assert objective(torch.tensor(30 * cosines), Y).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("bce", lambda: multilabel.masked_bce(Z, MANY, LABELLED)),
        ({"name": "bce", "over": "all"}, lambda: multilabel.masked_bce(Z, MANY, LABELLED, over="all")),
        (
            {"name": "bce", "pos_weight": True},
            lambda: multilabel.masked_bce(Z, MANY, LABELLED, torch.tensor([1.25, 5.0, 1.0])),
        ),
        ("focal", lambda: composed.masked_focal(Z, MANY, 2.0, LABELLED)),
        ("fedlc", lambda: composed.fedlc_bce(Z, MANY, COUNTS, 10 - COUNTS, 1.0, LABELLED)),
        ("adjusted_bce", lambda: composed.adjusted_bce(Z, MANY, positive_prior(COUNTS, 10), LABELLED)),
        ("logit_adjustment", lambda: composed.adjusted_bce(Z, MANY, positive_prior(COUNTS, 10), LABELLED)),
        (
            {"name": "logit_adjustment", "tau": 0.5},
            lambda: multilabel.masked_bce(Z + 0.5 * torch.logit(positive_prior(COUNTS, 10)), MANY, LABELLED),
        ),
        (
            ["adjusted_bce", {"name": "focal", "over": "all"}],
            lambda: composed.masked_focal(
                Z + torch.logit(positive_prior(COUNTS, 10)), MANY, 2.0, LABELLED, over="all"
            ),
        ),
    ],
)
def test_multi_label_objectives_equal_their_functions(value, expected):
    torch.testing.assert_close(many(value, labelled=LABELLED)(Z, PARTLY), expected(), atol=1e-12, rtol=0)


def test_missing_labels_can_be_trained_on_as_negatives():
    objective = many({"name": "bce", "missing": "negative"}, labelled=LABELLED)
    zeroed = MANY * LABELLED
    torch.testing.assert_close(objective(Z, PARTLY), F.binary_cross_entropy_with_logits(Z, zeroed))
    torch.testing.assert_close(objective.each(Z, PARTLY).mean(), objective(Z, PARTLY))


def test_a_label_the_site_does_not_know_is_not_shifted():
    for name in ("adjusted_bce", "fedlc", "logit_adjustment"):
        shaped = many(name, labelled=torch.tensor([True, False, True])).shape(Z)
        torch.testing.assert_close(shaped[:, 1], Z[:, 1], atol=0, rtol=0)
        assert (shaped[:, [0, 2]] != Z[:, [0, 2]]).all()


def test_a_label_without_positives_is_clipped_or_left_alone():
    clipped = many("adjusted_bce").shape(Z)
    torch.testing.assert_close(
        clipped[:, 2], Z[:, 2] + torch.logit(torch.tensor(0.05).double()), atol=1e-7, rtol=0
    )
    left = many({"name": "adjusted_bce", "absent": "none"}).shape(Z)
    torch.testing.assert_close(left[:, 2], Z[:, 2], atol=0, rtol=0)
    torch.testing.assert_close(left[:, :2], clipped[:, :2])


def test_a_mask_of_cells_says_which_labels_count():
    mask = torch.tensor([[False, False, True], [True, False, True]])
    objective = many({"name": "bce", "over": "all"}, labelled=LABELLED)
    torch.testing.assert_close(objective(Z, MANY, mask), multilabel.masked_bce(Z, MANY, mask, over="all"))
    left = mask & LABELLED
    torch.testing.assert_close(objective(Z, PARTLY, mask), multilabel.masked_bce(Z, MANY, left, over="all"))


def test_what_a_method_decided_about_a_missing_cell_wins_over_missing_as_negative():
    """A pseudo-positive pulls its logit up: gradient (σ(z) − 1) / cells; undecided missing cells do not
    count."""
    decided = torch.tensor([[True, True, True], [True, True, False]])
    targets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    z = Z.clone().requires_grad_()
    loss = many({"name": "bce", "missing": "negative"}, labelled=LABELLED)(z, targets, decided)
    p = 1 / (1 + np.exp(-Z.numpy()))
    cells = np.where(targets.numpy() > 0, -np.log(p), -np.log(1 - p))
    assert loss.item() == pytest.approx(cells[decided.numpy()].mean(), rel=1e-12)
    (slope,) = torch.autograd.grad(loss, z)
    assert slope[0, 2].item() == pytest.approx((p[0, 2] - 1) / 5, rel=1e-12)
    assert slope[1, 2].item() == 0.0


def test_the_total_may_differ_by_label():
    total = torch.tensor([10, 4, 7])
    objective = make_objective(parse_objective("adjusted_bce"), counts=COUNTS, total=total, task="multi")
    expected = Z + torch.logit(torch.tensor([0.8, 0.5, 1 / 14], dtype=torch.float64))
    torch.testing.assert_close(objective.shape(Z), expected)


@pytest.mark.parametrize(
    "value",
    [
        "focal",
        "fedrs+balanced_softmax",
        {"name": "ldam", "scale": 10.0},
        [{"name": "fedrs", "alpha": 0.0}, "fedlc+focal"],
        Focal(gamma=1.0),
    ],
)
def test_options_survive_a_dump(value):
    options = parse_objective(value)
    assert ObjectiveOptions.model_validate(options.model_dump()) == options
    assert ObjectiveOptions.model_validate_json(options.model_dump_json()) == options
    assert parse_objective(options) is options


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("focal", '"focal"'),
        (
            {"name": "bce", "missing": "negative", "over": "labelled"},
            '{ name = "bce", missing = "negative" }',
        ),
        (["fedrs", "balanced_softmax"], '"fedrs+balanced_softmax"'),
        ([{"name": "fedrs", "alpha": 0.25}, "focal"], '[{ name = "fedrs", alpha = 0.25 }, "focal"]'),
        ({"name": "bce", "pos_weight": True}, '{ name = "bce", pos_weight = true }'),
    ],
)
def test_the_shortest_spelling_means_the_same(value, text):
    assert parse_objective(value).toml == text
    assert parse_objective(tomllib.loads(f"it = {text}")["it"]) == parse_objective(value)


def test_a_method_can_shape_the_configured_objective():
    base = parse_objective("balanced_softmax")
    assert [part.name for part in base.after(*parse_objective("fedrs").parts).parts] == [
        "fedrs",
        "balanced_softmax",
    ]
    twice = parse_objective("fedlc+focal").after(*parse_objective({"name": "fedlc", "tau": 0.5}).parts)
    assert twice == parse_objective(
        [{"name": "fedlc", "tau": 0.5}, "focal"]
    )  # a part counts once: the method's own
    (focal,) = parse_objective("focal").parts
    assert [part.name for part in base.ending(focal).parts] == ["balanced_softmax", "focal"]
    assert [part.name for part in parse_objective("cross_entropy").ending(focal).parts] == ["focal"]


def test_the_default_is_cross_entropy():
    assert ObjectiveOptions() == parse_objective("cross_entropy")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ballanced_softmax", "unknown objective 'ballanced_softmax': did you mean 'balanced_softmax'"),
        ("fedrs+", "unknown objective ''"),
        ({"name": "focal", "gama": 2.0}, "key of objective 'focal' 'gama': did you mean 'gamma'"),
        ({"name": "focal", "gamma": -1}, "objective 'focal': gamma = -1"),
        ({"name": "fedrs", "mode": "smooth"}, "objective 'fedrs': mode = 'smooth'"),
        ({"gamma": 1.0}, "give a 'name'"),
        ("focal+balanced_softmax", "'focal' brings its own criterion, so it must be the last part"),
        ([{"name": "fedlc", "strict": True}, "focal"], "'fedlc' brings its own criterion"),
        ("balanced_softmax+bce", "mixes single-label and multi-label parts"),
        ([], "must be a name, a table with 'name', or a non-empty list"),
        (3, "not 3"),
    ],
)
def test_a_wrong_objective_is_one_clear_sentence(value, message):
    with pytest.raises(ConfigError) as caught:
        parse_objective(value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_objective_of_the_other_task_is_refused():
    with pytest.raises(
        ConfigError, match="'balanced_softmax' does not fit a multi-label task; use one of adjusted_bce"
    ):
        many("balanced_softmax")
    with pytest.raises(ConfigError, match="'bce' does not fit a single-label task"):
        one("bce")
    with pytest.raises(ConfigError, match="strict = true has no multi-label form"):
        many({"name": "fedlc", "strict": True})
    with pytest.raises(
        ConfigError, match=r"mode = \"proportional\" weighs classes against each other.*use mode = \"binary\""
    ):
        many({"name": "fedrs", "mode": "proportional"})

from __future__ import annotations

import math

import torch

from equipoise.losses.shaping import (
    Shaper,
    binary_margin_shift,
    margin_shift,
    odds_shift,
    positive_prior,
    prior_of,
    prior_shift,
    restriction,
)

Z = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
COUNTS = torch.tensor([16, 1, 0])


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, torch.tensor(b, dtype=a.dtype), atol=tolerance, rtol=0)


def test_a_shaper_scales_then_shifts():
    shaper = Shaper(scale=torch.tensor([2.0, 1.0, 0.5]), shift=torch.tensor([1.0, 0.0, -1.0]))
    close(shaper(Z), [[3.0, -2.0, -0.75]])


def test_an_empty_shaper_changes_nothing():
    assert Shaper()(Z) is Z


def test_two_shapers_have_no_order_and_no_scale_touches_a_shift():
    scale = Shaper(scale=torch.tensor([2.0, 1.0, 0.5]))
    shift = Shaper(shift=torch.tensor([1.0, 3.0, -1.0]))
    both = Shaper(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.1, 0.2, 0.3]))
    for first, second, expected in (
        (scale, shift, [[3.0, 1.0, -0.75]]),
        (scale, both, [[6.1, -1.8, 0.8]]),
        (shift, both, [[4.1, 1.2, 0.3]]),
        (shift, Shaper(), [[2.0, 1.0, -0.5]]),
        (scale, Shaper(), [[2.0, -2.0, 0.25]]),
    ):
        close(first.beside(second)(Z), expected, 1e-6)
        close(second.beside(first)(Z), expected, 1e-6)


def test_a_shaper_keeps_the_dtype_of_the_logits():
    assert prior_shift(prior_of(COUNTS))(Z.float()).dtype == torch.float32


def test_prior_is_a_distribution_and_zero_for_an_empty_site():
    close(prior_of(torch.tensor([3, 1, 0])), [0.75, 0.25, 0.0])
    close(prior_of(torch.zeros(3)), [0.0, 0.0, 0.0])


def test_prior_shift_has_a_finite_floor():
    shift = prior_shift(torch.tensor([0.75, 0.25, 0.0]), tau=2.0).shift
    close(shift, [2 * math.log(0.75), 2 * math.log(0.25), 2 * math.log(1e-9)], 1e-7)


def test_margin_shift_by_hand():
    close(margin_shift(COUNTS, tau=0.5).shift, [-0.25, -0.5, -50.0])


def test_binary_margin_shift_by_hand():
    shift = binary_margin_shift(torch.tensor([1, 16]), torch.tensor([16, 16]), tau=2.0).shift
    close(shift, [-1.0, 0.0])


def test_a_lacking_side_of_a_label_counts_as_half_a_sample():
    shift = binary_margin_shift(torch.tensor([0, 16]), torch.tensor([16, 0])).shift
    close(shift, [0.5 - 2**0.25, 2**0.25 - 0.5])


def test_restriction_binary_and_proportional():
    close(restriction(COUNTS, 0.2).scale, [1.0, 1.0, 0.2])
    close(restriction(COUNTS, 0.2, "proportional").scale, [1.0, 0.2 + 0.8 / 16, 0.2])


def test_positive_prior_is_clipped_by_half_a_sample():
    close(positive_prior(torch.tensor([0, 3, 10]), 10), [0.05, 0.3, 0.95])
    close(positive_prior(torch.tensor([0, 0]), torch.tensor([0, 4])), [0.5, 0.125])


def test_odds_shift_by_hand():
    close(odds_shift(torch.tensor([0.5, 0.75], dtype=torch.float64)).shift, [0.0, math.log(3.0)])

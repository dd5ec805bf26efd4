from __future__ import annotations

import math

import kornia
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from equipoise.errors import ConfigError, DataError
from equipoise.seeds import generator
from equipoise.site.views import (
    NORMS,
    VIEWS,
    ViewOptions,
    channel_statistics,
    colour,
    geometry,
    kinds,
    make_view,
    statistics,
)

MEAN, STD = NORMS["imagenet"]
OFF = {
    "horizontal": False,
    "vertical": False,
    "rotation": 0,
    "crop": 1,
    "strong_crop": 1,
    "blur": 0,
    "operations": 0,
    "jitter": (0, 0, 0, 0),
    "grey_share": 0,
}


def images(count=6, channels=3, height=24, width=20, seed=0):
    """Random uint8 images, laid out as rows of the image cache are."""
    shape = (count, height, width, channels)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(seed)).permute(0, 3, 1, 2)


def floats(**kwargs):
    return images(**kwargs).float() / 255


def column(*values):
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1, 1)


def view(name, mean=MEAN, std=STD, **options):
    return make_view(name, ViewOptions(**options), mean, std)


def raw(name, x, seed=0, **options):
    """What a view shows before normalisation."""
    return view(name, (0.0,) * x.shape[1], (1.0,) * x.shape[1], **options)(x, generator(seed))


# every view


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_keeps_size_and_layout_and_gives_finite_floats(name, channels):
    x = images(channels=channels)
    out = view(name, MEAN[:channels], STD[:channels])(x, generator(0))
    assert out.shape == x.shape
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert out.isfinite().all()


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_stays_between_black_and_white(name):
    for seed in range(5):
        out = raw(name, images(count=16), seed)
        assert out.min() >= -1e-5
        assert out.max() <= 1 + 1e-5


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_leaves_its_input_and_the_global_generator_alone(name):
    x, before = images(), torch.get_rng_state()
    view(name)(x, generator(0))
    assert torch.equal(x, images())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "eval"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(name):
    x = images()
    assert torch.equal(raw(name, x, 1), raw(name, x, 1))
    assert not torch.equal(raw(name, x, 1), raw(name, x, 2))


@pytest.mark.parametrize(("name", "least"), [("flip", 3), ("weak", 16), ("rand", 14), ("sim", 16)])
def test_every_image_has_its_own_parameters(name, least):
    x = images(count=1).expand(16, -1, -1, -1)
    assert len({tuple(row.flatten().tolist()) for row in raw(name, x)}) >= least


@pytest.mark.parametrize("name", [name for name, kind in VIEWS.items() if kind.fixed is None])
def test_switched_off_a_view_is_eval(name):
    x = images()
    torch.testing.assert_close(
        view(name, **OFF)(x, generator(0)), view("eval")(x, generator(0)), atol=1e-5, rtol=0
    )


def test_only_eval_is_deterministic():
    assert [name for name, kind in VIEWS.items() if kind.deterministic] == ["eval"]


def test_eval_is_the_formula_to_the_bit():
    x = images()
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    assert torch.equal(view("eval")(x, generator(0)), (x / 255 - mean) / std)


def test_a_layout_other_than_channels_last_gives_the_same():
    x = images()
    assert torch.equal(view("weak")(x.contiguous(), generator(0)), view("weak")(x, generator(0)))


@pytest.mark.parametrize("x", [floats(), images(channels=1), images()[0]])
def test_what_is_no_batch_of_bytes_is_refused(x):
    with pytest.raises(DataError, match=r"a view takes uint8 images \[N, 3, H, W\]"):
        view("eval")(x, generator(0))


def test_an_unknown_view_names_the_nearest():
    with pytest.raises(ConfigError, match="unknown view 'weka': did you mean 'weak'"):
        make_view("weka", ViewOptions(), MEAN, STD)


# normalisation


def test_channel_statistics_are_those_of_numpy_for_any_chunk():
    x = images(count=11).permute(0, 2, 3, 1).numpy()
    index = np.array([7, 1, 10, 3, 4])
    rows = x[index].astype(np.float64) / 255
    for chunk in (1, 2, 100):
        mean, std = channel_statistics(x, index, chunk)
        np.testing.assert_allclose(mean, rows.mean((0, 1, 2)), rtol=1e-12)
        np.testing.assert_allclose(std, rows.std((0, 1, 2)), rtol=1e-12)


def test_channel_statistics_of_a_constant_channel_can_be_divided_by():
    assert channel_statistics(np.full((2, 4, 4, 1), 51, np.uint8), np.arange(2)) == (
        pytest.approx((0.2,)),
        pytest.approx((1 / 255,)),
    )


def test_channel_statistics_of_nothing_are_refused():
    with pytest.raises(DataError, match="at least one image"):
        channel_statistics(np.zeros((2, 4, 4, 1), np.uint8), np.array([], dtype=np.int64))


def test_statistics_by_name_by_measure_and_by_value():
    assert statistics(ViewOptions(), 3) == NORMS["imagenet"]
    assert statistics(ViewOptions(normalise="half"), 1) == ((0.5,), (0.5,))
    assert statistics(ViewOptions(), 1)[0][0] == pytest.approx(0.449)
    assert statistics(ViewOptions(normalise="data"), 1, ((0.3,), (0.2,))) == ((0.3,), (0.2,))
    assert statistics(ViewOptions(normalise=[[0.1, 0.2], [0.3, 0.4]]), 2) == ((0.1, 0.2), (0.3, 0.4))


def test_statistics_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="needs statistics measured"):
        statistics(ViewOptions(normalise="data"), 3)
    with pytest.raises(ConfigError, match="2 channels and the images have 3"):
        statistics(ViewOptions(normalise=[[0.1, 0.2], [0.3, 0.4]]), 3)
    with pytest.raises(ConfigError, match="positive std"):
        ViewOptions(normalise=[[0.1], [0.0]])
    with pytest.raises(ConfigError, match="jitter"):
        ViewOptions(jitter=(0.4, 0.4, 0.4, 0.6))


# geometry


def test_rotation_agrees_with_kornia_inside_the_image():
    x = kornia.filters.gaussian_blur2d(floats(count=3, height=25, width=31), (5, 5), (1.0, 1.0))
    angle = torch.tensor([10.0, -35.0, 90.0])
    out = geometry.resample(x, [geometry.turn_map(angle, 25, 31)])
    inside = (..., slice(8, 17), slice(8, 23))
    torch.testing.assert_close(out[inside], kornia.geometry.rotate(x, angle)[inside], atol=1e-4, rtol=0)


def test_flips_are_exact_mirrors():
    x = floats(count=4)
    yes = torch.tensor([False, True, False, True]), torch.tensor([False, False, True, True])
    out = geometry.resample(x, [geometry.flip_map(*yes)])
    expected = torch.stack([x[0], x[1].flip(2), x[2].flip(1), x[3].flip((1, 2))])
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)


def test_a_shift_by_whole_pixels_reflects_at_the_border():
    x = floats(count=1, height=10, width=8)
    zero = torch.zeros(1)
    out = geometry.resample(x, [geometry.slant_map(zero, zero, zero + 2 / 8, zero - 3 / 10, 10, 8)])
    expected = F.pad(x[:, :, :7, 2:], (0, 0, 3, 0))
    torch.testing.assert_close(out[:, :, 3:, :6], expected[:, :, 3:], atol=1e-4, rtol=0)
    torch.testing.assert_close(out[:, :, 3:, 6:], x[:, :, :7, 6:].flip(3), atol=1e-4, rtol=0)


def test_shear_moves_each_row_by_its_distance_from_the_middle():
    x = floats(count=1, height=9, width=21)
    zero = torch.zeros(1)
    out = geometry.resample(x, [geometry.slant_map(zero + 1, zero, zero, zero, 9, 21)])
    for row in range(9):
        torch.testing.assert_close(
            out[0, :, row, 5:16], x[0, :, row, 5 + row - 4 : 16 + row - 4], atol=1e-4, rtol=0
        )
    out = geometry.resample(x.transpose(2, 3), [geometry.slant_map(zero, zero + 1, zero, zero, 21, 9)])
    for row in range(9):
        torch.testing.assert_close(
            out[0, :, 5:16, row], x[0, :, row, 5 + row - 4 : 16 + row - 4], atol=1e-4, rtol=0
        )


def test_a_crop_is_the_enlarged_box():
    x = floats(count=1, height=16, width=16)
    half = torch.tensor([0.5])
    zero = torch.zeros(1)
    out = geometry.resample(x, [geometry.affine(half, zero, -half, zero, half, half)])  # lower left quarter
    expected = F.interpolate(x[:, :, 8:, :8], scale_factor=2, mode="bilinear", align_corners=False)
    torch.testing.assert_close(out[:, :, 1:-1, 1:-1], expected[:, :, 1:-1, 1:-1], atol=1e-4, rtol=0)


def test_crops_lie_inside_the_image_and_have_the_area_asked_for():
    maps = geometry.crop_map(0.3, 60, 80, 2000, generator(0))
    wide, high = maps[:, 0, 0], maps[:, 1, 1]
    assert (maps[:, 0, 2].abs() + wide <= 1 + 1e-6).all()
    assert (maps[:, 1, 2].abs() + high <= 1 + 1e-6).all()
    whole = (wide < 1) & (high < 1)
    area, aspect = (wide * high)[whole], (80 * wide / (60 * high))[whole]
    assert 0.3 - 1e-5 <= area.min() < 0.32
    assert area.max() > 0.9
    assert 0.75 - 1e-4 <= aspect.min() < 0.78
    assert 1.28 < aspect.max() <= 4 / 3 + 1e-4


def test_maps_apply_in_the_order_given():
    x = floats(count=1, height=16, width=16)
    shift = geometry.slant_map(*(torch.tensor([v]) for v in (0.0, 0.0, 0.25, 0.0)), 16, 16)
    mirror = geometry.flip_map(torch.tensor([True]), torch.tensor([False]))
    step_by_step = geometry.resample(geometry.resample(x, [shift]), [mirror])
    torch.testing.assert_close(geometry.resample(x, [shift, mirror]), step_by_step, atol=1e-4, rtol=0)
    assert not torch.allclose(geometry.resample(x, [mirror, shift]), step_by_step, atol=0.1)


def test_the_flip_view_gives_the_four_mirrors_about_equally_often():
    one = images(count=1, height=6, width=5)
    out, one = raw("flip", one.expand(4000, -1, -1, -1)), one[0] / 255
    share = [
        out.eq(one.flip(axes)).flatten(1).all(1).float().mean().item() for axes in ((), (2,), (1,), (1, 2))
    ]
    assert sum(share) == pytest.approx(1.0)
    assert min(share) > 0.215
    assert max(share) < 0.285


@pytest.mark.parametrize("name", ["flip", "weak", "rand"])
def test_up_stays_up_when_vertical_is_off(name):
    ramp = torch.arange(0, 240, 10, dtype=torch.uint8).view(1, 1, 24, 1).expand(64, 3, 24, 20)
    options = OFF | {"horizontal": True, "rotation": 10}
    top, bottom = (
        raw(name, ramp, **options)[:, :, rows].mean((1, 2, 3)) for rows in (slice(8), slice(-8, None))
    )
    assert (top < bottom).all()
    top, bottom = (
        raw(name, ramp, **options | {"vertical": True})[:, :, rows].mean((1, 2, 3))
        for rows in (slice(8), slice(-8, None))
    )
    assert 0.25 < (top < bottom).float().mean() < 0.75


def test_sim_never_turns_an_image_upside_down():
    ramp = torch.arange(0, 240, 10, dtype=torch.uint8).view(1, 1, 24, 1).expand(64, 3, 24, 20)
    out = raw("sim", ramp, vertical=True, jitter=(0, 0, 0, 0))
    assert (out[:, :, :8].mean((1, 2, 3)) < out[:, :, -8:].mean((1, 2, 3))).all()


# filters and colour, against kornia


@pytest.mark.parametrize("cached", [colour.CACHED, 1])
def test_blur_agrees_with_kornia(monkeypatch, cached):
    monkeypatch.setattr(colour, "CACHED", cached)
    x, sigma = floats(count=3), torch.tensor([0.1, 0.7, 1.5])
    expected = kornia.filters.gaussian_blur2d(x, (11, 11), sigma[:, None].expand(3, 2))
    torch.testing.assert_close(colour.blur(x, sigma, 1.5), expected, atol=1e-4, rtol=0)


def test_blur_of_an_image_smaller_than_the_kernel():
    x = floats(height=3, width=4)
    out = colour.blur(x, torch.full((6,), 5.0), 5.0)
    assert out.isfinite().all()
    assert out.std() < x.std()


def test_brightness_agrees_with_kornia():
    factor = torch.tensor([0.0, 0.6, 1.7])
    expected = kornia.enhance.adjust_brightness_accumulative(floats(count=3), factor)
    torch.testing.assert_close(
        colour.brightness(floats(count=3), column(0.0, 0.6, 1.7)), expected, atol=1e-4, rtol=0
    )


def test_contrast_agrees_with_kornia():
    expected = torch.cat(
        [
            kornia.enhance.adjust_contrast_with_mean_subtraction(image[None], factor)
            for image, factor in zip(floats(count=3), (0.0, 0.6, 1.7), strict=True)
        ]
    )
    torch.testing.assert_close(
        colour.contrast(floats(count=3), column(0.0, 0.6, 1.7)), expected, atol=1e-4, rtol=0
    )


def test_saturation_agrees_with_kornia():
    factor = torch.tensor([0.0, 0.6, 1.7])
    expected = kornia.enhance.adjust_saturation_with_gray_subtraction(floats(count=3), factor)
    torch.testing.assert_close(
        colour.saturation(floats(count=3), column(0.0, 0.6, 1.7)), expected, atol=1e-4, rtol=0
    )


def test_hue_agrees_with_kornia():
    turn = torch.tensor([0.0, 0.1, -0.3, 0.5])
    expected = kornia.enhance.adjust_hue(floats(count=4), 2 * math.pi * turn)
    torch.testing.assert_close(
        colour.hue(floats(count=4), turn.view(-1, 1, 1, 1)), expected, atol=1e-4, rtol=0
    )


def test_hue_by_hand():
    red, grey = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.4, 0.4, 0.4])
    x = torch.stack([red, grey]).view(2, 3, 1, 1)
    out = colour.hue(x, column(1 / 3, 1 / 3)).view(2, 3)
    torch.testing.assert_close(out, torch.stack([red.roll(1), grey]), atol=1e-6, rtol=0)


def test_grey_agrees_with_kornia():
    x = floats()
    torch.testing.assert_close(colour.grey(x), kornia.color.rgb_to_grayscale(x), atol=1e-6, rtol=0)


def test_sharpness_agrees_with_kornia():
    factor = torch.tensor([0.0, 0.6, 1.7])
    expected = kornia.enhance.sharpness(floats(count=3), factor)
    torch.testing.assert_close(
        colour.sharpness(floats(count=3), column(0.0, 0.6, 1.7)), expected, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("bits", [1, 4, 7, 8])
def test_posterise_keeps_the_highest_bits(bits):
    x = images()
    expected = (x >> (8 - bits) << (8 - bits)).float() / 255
    torch.testing.assert_close(colour.posterise(x.float() / 255, bits), expected, atol=1e-6, rtol=0)


def test_solarise_agrees_with_kornia():
    torch.testing.assert_close(
        colour.solarise(floats(), 0.7), kornia.enhance.solarize(floats(), 0.7), atol=1e-6, rtol=0
    )


def test_autocontrast_agrees_with_kornia_and_leaves_a_constant_channel():
    x = 0.2 + 0.5 * floats()
    torch.testing.assert_close(colour.autocontrast(x), kornia.enhance.normalize_min_max(x), atol=1e-4, rtol=0)
    flat = torch.full((1, 3, 5, 5), 0.3)
    assert torch.equal(colour.autocontrast(flat), flat)


def test_equalise_agrees_with_kornia():
    x = torch.floor(255 * floats(height=40, width=40) ** 3) / 255
    torch.testing.assert_close(colour.equalise(x), kornia.enhance.equalize(x), atol=1e-4, rtol=0)


def test_equalise_leaves_a_channel_of_one_level():
    flat = torch.full((1, 3, 20, 20), 51 / 255)
    torch.testing.assert_close(colour.equalise(flat), flat)


# composition


def test_rand_draws_every_operation_and_each_changes_the_image():
    x = images(count=1, height=32, width=32).expand(300, -1, -1, -1)
    options = OFF | {"operations": 1, "magnitude": 20}
    out = raw("rand", x, **options)
    unchanged = torch.isclose(out, x / 255, atol=1e-4).flatten(1).all(1)
    # Of fourteen, identity changes nothing, and autocontrast nothing here: the image already spans black to
    # white.
    assert 0.08 < unchanged.float().mean() < 0.21
    assert len(kinds.Rand.choices) == 14


def test_rand_colour_table_covers_its_names():
    x, factor = floats(count=2), column(1.3, 0.7)
    for name in kinds.Rand.colours:
        assert kinds.Rand.colour(name, x, factor, 1 / 3).shape == x.shape
    torch.testing.assert_close(kinds.Rand.colour("solarise", x, factor, 1 / 3), colour.solarise(x, 2 / 3))
    torch.testing.assert_close(kinds.Rand.colour("posterise", x, factor, 1 / 3), colour.posterise(x, 7))


def test_sim_turns_about_the_asked_share_grey():
    x = images(count=300, height=8, width=8)
    out = raw("sim", x, **OFF | {"grey_share": 0.2})
    share = out.eq(out[:, :1]).flatten(1).all(1).float().mean()
    assert 0.13 < share < 0.27


def test_sim_jitters_about_the_asked_share():
    x = images(count=300, height=8, width=8)
    out = raw("sim", x, **OFF | {"jitter": (0.4, 0.4, 0.4, 0.1), "jitter_share": 0.8})
    changed = (out - x / 255).abs().amax((1, 2, 3)) > 1e-4
    assert 0.73 < changed.float().mean() < 0.87


def test_sim_blurs_about_the_asked_share():
    x = images(count=300, height=64, width=16)
    # Sigma goes up to 4.6 pixels here, so that all but 2 % of the blurs move some value.
    out = raw("sim", x, **OFF | {"blur": 40, "blur_share": 0.5})
    changed = (out - x / 255).abs().amax((1, 2, 3)) > 1e-6
    assert 0.36 < changed.float().mean() < 0.64


def test_weak_blur_grows_with_the_image():
    def loss(size):
        x = images(count=32, height=size, width=size)
        return (raw("weak", x, **OFF | {"blur": 5}).std() / (x / 255).std()).item()

    assert loss(96) < loss(32) < 0.999

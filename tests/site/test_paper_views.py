"""The papers' own views: what they do to an image, and how strongly."""

from __future__ import annotations

import math

import kornia
import pytest
import torch

from equipoise.seeds import generator
from equipoise.site.views import VIEWS, ViewOptions, base, colour, geometry, kinds, make_view, papers

PAPERS = [name for name, kind in VIEWS.items() if kind.fixed is not None]
MANY = 3000


def replace(monkeypatch, name, value):
    """Put something in the place of a function, in every module of the views that has it."""
    for module in (geometry, colour, base, kinds, papers):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)


def images(count=2, size=32, seed=0):
    shape = (count, size, size, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(seed)).permute(0, 3, 1, 2)


def smooth(count=2, size=32):
    """Images that a resampling by another library reproduces well."""
    return (
        (kornia.filters.gaussian_blur2d(images(count, size) / 255, (7, 7), (1.5, 1.5)) * 255)
        .round()
        .to(torch.uint8)
    )


def raw(name, x, seed=0, **options):
    return make_view(name, ViewOptions(**options), (0.0,) * 3, (1.0,) * 3)(x, generator(seed))


@pytest.fixture
def still(monkeypatch):
    """No flips, and every uniform draw from a list the test gives, in order."""

    def give(*values):
        waiting = [torch.tensor(value, dtype=torch.float32) for value in values]
        replace(monkeypatch, "chance", lambda share, count, generator: torch.full((count,), share >= 1))
        replace(monkeypatch, "uniform", lambda low, high, count, generator: waiting.pop(0).expand(count))
        return waiting

    return give


@pytest.fixture
def maps(monkeypatch):
    """The whole map of each of many images, [MANY, 3, 3], instead of resampled images."""

    def seen(name):
        found = []

        def resample(x, given):
            whole = given[0]
            for further in given[1:]:
                whole = whole @ further
            found.append(whole)
            return x

        replace(monkeypatch, "resample", resample)
        raw(name, images(1, 8).expand(MANY, -1, -1, -1))
        return found[0]

    return seen


@pytest.fixture
def factors(monkeypatch):
    """The factors of the first change of each colour of many images, by name."""

    def seen(name):
        found = {}
        for change in ("brightness", "contrast", "saturation", "hue"):
            replace(
                monkeypatch,
                change,
                lambda x, factor, change=change: (x, found.setdefault(change, factor.flatten()))[0],
            )
        raw(name, images(1, 8).expand(MANY, -1, -1, -1))
        return found

    return seen


def parts(whole):
    """Angle in degrees, whether mirrored, enlargement and shift (as a share of the side) of maps of a square
    image."""
    inverse = torch.linalg.inv(whole.double())
    area = torch.linalg.det(inverse[:, :2, :2])
    # A mirror flips the first column; undo it to read the angle.
    column = inverse[:, :2, 0]
    angle = torch.rad2deg(torch.atan2(-column[:, 1], column[:, 0]))
    return angle, area < 0, area.abs(), inverse[:, :2, 2] / 2


def folded(angle):
    """Angles of a line, whichever way it points: -90 to 90."""
    return (angle + 90) % 180 - 90


def test_the_papers_have_their_views():
    assert PAPERS == [
        "fca",
        "fediic-1",
        "fediic-2",
        "fedmlp",
        "fedmlp-strong",
        "fedmas",
        "fedsdc-skin",
        "fedsdc-blood",
    ]


@pytest.mark.parametrize("name", PAPERS)
def test_options_do_not_reach_a_papers_view(name):
    weaker = {
        "horizontal": False,
        "vertical": False,
        "rotation": 0,
        "crop": 1,
        "strong_crop": 1,
        "blur": 0,
        "operations": 0,
    }
    x = images()
    assert torch.equal(raw(name, x), raw(name, x, **weaker, jitter=(0, 0, 0, 0), grey_share=0, shift=0))
    assert not torch.allclose(raw(name, x), x / 255, atol=0.02)


def test_switched_on_weak_shifts_as_asked(still):
    """Angle 0; a quarter to the left, an eighth up."""
    still(0.0, 0.25, 0.125)
    x = images()
    out = raw("weak", x, crop=1, blur=0, shift=0.3, horizontal=False, vertical=False)
    torch.testing.assert_close(out[:, :, :28, :24], (x / 255)[:, :, 4:, 8:], atol=1e-4, rtol=0)


# FCA


def test_fca_blur_is_a_gaussian_nine_high_and_five_wide(still):
    still(0.0, [0.4, 4.0])  # the angle, then a sigma for each image
    x = images(2, 224)
    expected = kornia.filters.gaussian_blur2d(x / 255, (9, 5), torch.tensor([[0.4, 0.4], [4.0, 4.0]]))
    torch.testing.assert_close(raw("fca", x), expected, atol=1e-4, rtol=0)


def test_fca_blur_of_a_smaller_image_is_smaller(still):
    still(0.0, 1.0)
    x = images(1, 112)
    expected = kornia.filters.gaussian_blur2d(x / 255, (5, 3), torch.tensor([[1.0, 1.0]]))
    torch.testing.assert_close(raw("fca", x), expected, atol=1e-4, rtol=0)


def test_fca_flips_both_ways_and_turns_by_ten_degrees(maps):
    whole = maps("fca")
    angle, mirrored, area, shift = parts(whole)
    assert mirrored.double().mean() == pytest.approx(0.5, abs=0.04)
    upside_down = whole[:, 1, 1] < 0
    assert upside_down.double().mean() == pytest.approx(0.5, abs=0.04)
    assert 9.9 < folded(angle).abs().max() <= 10.001
    torch.testing.assert_close(area, torch.ones_like(area), atol=1e-5, rtol=0)
    assert shift.abs().max() < 1e-6


# FedIIC


@pytest.mark.parametrize("name", ["fediic-1", "fediic-2"])
def test_fediic_crops_keep_a_twelfth_of_the_area_or_more(name, monkeypatch):
    asked = []
    crop_map = geometry.crop_map
    replace(
        monkeypatch, "crop_map", lambda smallest, *rest: asked.append(smallest) or crop_map(smallest, *rest)
    )
    raw(name, images())
    assert asked == [0.08]


def test_fediic_second_only_crops_and_mirrors(maps):
    whole = maps("fediic-2")
    assert whole[:, 0, 1].abs().max() == 0
    assert (whole[:, 1, 1] > 0).all()
    assert (whole[:, 0, 0] < 0).double().mean() == pytest.approx(0.5, abs=0.04)
    kept = whole[:, 0, 0].abs() * whole[:, 1, 1]
    assert 0.079 < kept.min() < 0.1
    assert kept.max() > 0.95


def test_fediic_jitters_its_first_view_always_and_never_in_hue(factors):
    found = factors("fediic-1")
    assert "hue" not in found
    for name in ("brightness", "contrast", "saturation"):
        assert found[name].min() == pytest.approx(0.6, abs=0.01)
        assert found[name].max() == pytest.approx(1.4, abs=0.01)
        assert (found[name] == 1).double().mean() < 0.01


def test_fediic_jitters_four_of_five_in_its_second_view(factors):
    found = factors("fediic-2")
    for name, middle, width in (
        ("brightness", 1, 0.4),
        ("contrast", 1, 0.4),
        ("saturation", 1, 0.4),
        ("hue", 0, 0.1),
    ):
        assert found[name].min() == pytest.approx(middle - width, abs=width / 40)
        assert found[name].max() == pytest.approx(middle + width, abs=width / 40)
        assert (found[name] == middle).double().mean() == pytest.approx(0.2, abs=0.03)


def test_fediic_applies_half_of_the_operations_at_nearly_full_strength():
    view = make_view("fediic-1", ViewOptions(), (0.0,) * 3, (1.0,) * 3)
    chosen = view.drawn(MANY, generator(0))
    assert chosen.shape == (2, MANY)
    assert (chosen == 0).double().mean() == pytest.approx(0.5 + 0.5 / 14, abs=0.03)
    assert sorted(chosen.unique().tolist()) == list(range(14))
    strength = torch.tensor([part for seed in range(1000) for part in view.parts(generator(seed))])
    assert strength.max() == 1
    # 1 + 0.05 N, cut at 1: half are 1, and the mean is 1 - 0.05 / sqrt(2 pi).
    assert (strength == 1).double().mean() == pytest.approx(0.5, abs=0.05)
    assert strength.mean().item() == pytest.approx(1 - 0.05 / math.sqrt(2 * math.pi), abs=0.003)


def test_fediic_second_is_not_blurred_and_one_of_five_is_grey(monkeypatch):
    replace(monkeypatch, "blur", None)  # calling it would fail
    out = raw("fediic-2", images(500, 8))
    assert out.eq(out[:, :1]).flatten(1).all(1).double().mean() == pytest.approx(0.2, abs=0.06)


# FedMLP


def rotated_then_shifted(image, degrees, along, down):
    """Pixel by pixel in float64: turned counter-clockwise about the centre, then moved left by `along`, up by
    `down` pixels."""
    size = image.shape[-1]
    middle, angle = (size - 1) / 2, math.radians(degrees)
    out = torch.full(image.shape, math.nan, dtype=torch.float64)
    for i in range(size):
        for j in range(size):
            x, y = j + along - middle, i + down - middle
            column = middle + x * math.cos(angle) - y * math.sin(angle)
            row = middle + x * math.sin(angle) + y * math.cos(angle)
            left, top = math.floor(column), math.floor(row)
            if not (0 <= left < size - 1 and 0 <= top < size - 1):
                continue
            u, v = column - left, row - top
            out[..., i, j] = (1 - v) * (
                (1 - u) * image[..., top, left] + u * image[..., top, left + 1]
            ) + v * ((1 - u) * image[..., top + 1, left] + u * image[..., top + 1, left + 1])
    return out


def test_fedmlp_turns_and_shifts_like_explicit_loops(still):
    still(7.0, 0.02, -0.015)
    x = images(1, 40)
    out, expected = raw("fedmlp", x), rotated_then_shifted((x / 255).double(), 7.0, 0.02 * 40, -0.015 * 40)
    inside = expected.isfinite()
    assert inside.double().mean() > 0.75
    torch.testing.assert_close(out.double()[inside], expected[inside], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["fedmlp", "fedmlp-strong"])
def test_fedmlp_never_turns_an_image_upside_down(name, maps):
    whole = maps(name)
    if name == "fedmlp":
        assert (whole[:, 1, 1] > 0).all()
        angle, mirrored, area, shift = parts(whole)
        assert 9.9 < folded(angle).abs().max() <= 10.001
        assert mirrored.double().mean() == pytest.approx(0.5, abs=0.04)
        torch.testing.assert_close(area, torch.ones_like(area), atol=1e-5, rtol=0)
        assert 0.0195 < shift.abs().max() <= 0.02 * math.sqrt(2)
    else:
        # RandAugment adds up to 10° a turn (magnitude 10 of 30, twice) and shears, never half a turn.
        assert (whole[:, 1, 1] > 0.5).all()


def test_fedmlp_strong_uses_two_operations_of_magnitude_ten():
    view = make_view("fedmlp-strong", ViewOptions(), (0.0,) * 3, (1.0,) * 3)
    assert view.parts(generator(0)) == [10 / 30, 10 / 30]


# Fed-MAS


def test_fedmas_zooms_shifts_or_turns(monkeypatch, still):
    x = smooth(3, 48)
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.tensor([0, 1, 2]))
    monkeypatch.setattr(base.View, "coloured", lambda self, x, generator: x)
    still(1.15, 0.05, -0.025, 30.0)
    out, plain = raw("fedmas", x), x / 255
    inside = (slice(None), slice(12, 36), slice(12, 36))
    zoomed = kornia.geometry.scale(plain[:1], torch.tensor([[1.15, 1.15]]))[0]
    shifted = kornia.geometry.translate(plain[1:2], torch.tensor([[-0.05 * 48, 0.025 * 48]]))[0]
    turned = kornia.geometry.rotate(plain[2:], torch.tensor([30.0]))[0]
    for found, expected in zip(out, (zoomed, shifted, turned), strict=True):
        torch.testing.assert_close(found[inside], expected[inside], atol=1e-4, rtol=0)


def test_fedmas_ranges(maps):
    angle, mirrored, area, shift = parts(maps("fedmas"))
    turned = folded(angle).abs() > 1e-3
    zoomed = (area - 1).abs() > 1e-4
    shifted = shift.abs().amax(1) > 1e-5
    assert not (turned & zoomed | zoomed & shifted | turned & shifted).any()
    for share in (turned, zoomed, shifted):
        assert share.double().mean() == pytest.approx(1 / 3, abs=0.04)
    assert 44 < folded(angle).abs().max() <= 45.01
    assert area.min().sqrt() == pytest.approx(0.95, abs=0.005)
    assert area.max().sqrt() == pytest.approx(1.2, abs=0.005)
    assert 0.048 < shift.abs().max() <= 0.05001
    assert mirrored.double().mean() == pytest.approx(0.5, abs=0.04)


def test_fedmas_colours(factors):
    found = factors("fedmas")
    for name, middle, width in (
        ("brightness", 1, 0.25),
        ("contrast", 1, 0.25),
        ("saturation", 1, 0.25),
        ("hue", 0, 0.01),
    ):
        assert found[name].min() == pytest.approx(middle - width, abs=width / 40)
        assert found[name].max() == pytest.approx(middle + width, abs=width / 40)


# FedSDC


def test_fedsdc_skin(maps):
    whole = maps("fedsdc-skin")
    angle, mirrored, area, shift = parts(whole)
    assert 19.8 < folded(angle).abs().max() <= 20.001
    assert mirrored.double().mean() == pytest.approx(0.5, abs=0.04)
    assert (whole[:, 1, 1] < 0).double().mean() == pytest.approx(0.5, abs=0.04)
    torch.testing.assert_close(area, torch.ones_like(area), atol=1e-5, rtol=0)
    assert shift.abs().max() < 1e-6


def test_fedsdc_skin_colours(factors):
    found = factors("fedsdc-skin")
    assert sorted(found) == ["brightness", "contrast", "hue"]
    for name, middle in (("brightness", 1), ("contrast", 1), ("hue", 0)):
        assert found[name].min() == pytest.approx(middle - 0.1, abs=0.003)
        assert found[name].max() == pytest.approx(middle + 0.1, abs=0.003)


def test_fedsdc_skin_is_never_grey_and_blood_every_other_time():
    share = {}
    for name in ("fedsdc-skin", "fedsdc-blood"):
        out = raw(name, images(600, 8))
        share[name] = out.eq(out[:, :1]).flatten(1).all(1).double().mean().item()
    assert share == {"fedsdc-skin": 0, "fedsdc-blood": pytest.approx(0.5, abs=0.07)}


def test_fedsdc_blood_turns_all_around_and_crops_a_fifth_at_most(maps):
    whole = maps("fedsdc-blood")
    angle, mirrored, area, _ = parts(whole)
    assert mirrored.double().mean() == pytest.approx(0.5, abs=0.04)
    # Not all boxes are square, so the angle read off a turned box is a little off; it still goes all the way
    # around.
    counts = torch.histc(angle.float(), 8, -180, 180)
    assert counts.min() > MANY / 8 * 0.8
    assert area.min() >= 1 - 1e-5
    assert 1.2 < area.max() < 1.35  # 1 / 0.8, and a little where a long box was cut to the image


def test_fedsdc_blood_colours(factors):
    found = factors("fedsdc-blood")
    for name, middle in (("brightness", 1), ("contrast", 1), ("saturation", 1), ("hue", 0)):
        assert found[name].min() == pytest.approx(middle - 0.2, abs=0.005)
        assert found[name].max() == pytest.approx(middle + 0.2, abs=0.005)

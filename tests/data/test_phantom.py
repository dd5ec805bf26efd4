from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.data import PhantomData, Samples
from equipoise.data.phantom import BATCH, CLASSES, FINDINGS, SITES, TEST, TRAIN, scaled


def load(cache: Path, **options: Any) -> Samples:
    return PhantomData(**({"image_size": 16, "scale": 0.02} | options)).load(cache=cache, base=cache)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return load(tmp_path_factory.mktemp("usual"))


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Larger ones, on which more is seen."""
    return load(tmp_path_factory.mktemp("sharp"), image_size=32)


def counts(samples: Samples, split: str) -> np.ndarray:
    table = np.zeros((len(SITES), len(CLASSES)), int)
    assert samples.site is not None
    assert samples.split is not None
    for site, label, part in zip(
        samples.site.tolist(), samples.labels.tolist(), samples.split.tolist(), strict=True
    ):
        table[SITES.index(site), label] += part == split
    return table


def test_the_published_totals() -> None:
    assert TRAIN.sum(1).tolist() == [9930, 3163, 2691, 1807, 655, 351]
    assert TEST.sum(1).tolist() == [2483, 791, 672, 452, 164, 88]


def test_scaling_by_largest_remainder() -> None:
    # x 0.1: 1.7, 0.6 and 0.4 of 2.7 make 3. The floors are 1, 0, 0; cells that are not zero stay at least
    # one.
    assert scaled(np.array([[17, 6], [4, 0]]), 0.1).tolist() == [[1, 1], [1, 0]]
    # x 0.5: floors 7, 3, 5 of 16.5 -> 16 leave one, for the largest remainder (the first of two halves).
    assert scaled(np.array([15, 7, 11]), 0.5).tolist() == [8, 3, 5]
    np.testing.assert_array_equal(scaled(TRAIN, 1.0), TRAIN)


@pytest.mark.parametrize("scale", [0.001, 0.05, 0.1, 0.37])
def test_scaled_tables_keep_zeros_rare_cells_and_the_total(scale: float) -> None:
    got = scaled(TRAIN, scale)
    assert ((got == 0) == (TRAIN == 0)).all()
    assert (np.abs(got - TRAIN * scale) <= 1).all()
    assert got.sum() >= round(TRAIN.sum() * scale)
    bumped = np.maximum(0, 1 - TRAIN * scale)[TRAIN > 0].sum()
    assert got.sum() <= round(TRAIN.sum() * scale) + bumped


def test_counts_by_site_class_and_split_are_the_scaled_table(usual: Samples) -> None:
    np.testing.assert_array_equal(counts(usual, "train"), scaled(TRAIN, 0.02))
    np.testing.assert_array_equal(counts(usual, "test"), scaled(TEST, 0.02))
    assert usual.classes == CLASSES
    assert usual.task == "single"
    assert set(usual.attributes["tone"].tolist()) == {"light", "medium", "dark"}
    assert len(set(usual.ids.tolist())) == len(usual)


def test_the_same_seed_gives_the_same_bytes_anywhere(usual: Samples, tmp_path: Path) -> None:
    a, b = usual, load(tmp_path)
    assert a.images.tobytes() == b.images.tobytes()
    assert a.fingerprint == b.fingerprint
    assert a.labels.tolist() == b.labels.tolist()
    assert a.attributes["tone"].tolist() == b.attributes["tone"].tolist()


def test_another_seed_gives_other_images_with_the_same_counts(usual: Samples, tmp_path: Path) -> None:
    a, b = usual, load(tmp_path, seed=1)
    assert a.images.tobytes() != b.images.tobytes()
    assert a.fingerprint != b.fingerprint
    np.testing.assert_array_equal(counts(a, "train"), counts(b, "train"))


def test_an_interrupted_drawing_goes_on_to_the_same_images(usual: Samples, tmp_path: Path) -> None:
    def stop(text: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    options = PhantomData(image_size=16, scale=0.02)
    with pytest.raises(KeyboardInterrupt):
        options.load(cache=tmp_path, base=tmp_path, progress=stop)
    assert load(tmp_path).fingerprint == usual.fingerprint


def test_global_random_state_is_left_alone(tmp_path: Path) -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    load(tmp_path, scale=0.004)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


def test_images_look_like_skin_with_something_darker_in_the_middle(sharp: Samples) -> None:
    images = np.asarray(sharp.images, np.float32)
    middle, rim = images[:, 12:20, 12:20].mean((1, 2)), images[:, 8:24, [2, 3, 28, 29]].mean((1, 2))
    assert (rim[:, 0] > rim[:, 2]).mean() > 0.95  # skin is redder than blue
    assert (middle.sum(1) < rim.sum(1)).mean() > 0.85


def test_batches_do_not_repeat_each_other(usual: Samples) -> None:
    first, second = np.diff(np.asarray(usual.images[: 2 * BATCH], np.float32), axis=2).reshape(2, -1)
    # Lesions in the middle and dark corners are a little alike in all images; the same draws would be much
    # more so.
    assert abs(first @ second) / np.linalg.norm(first) / np.linalg.norm(second) < 0.2


def test_hospitals_differ_in_colour(usual: Samples) -> None:
    warm, cool = (
        np.asarray(usual.images[usual.site == name], np.float32).mean((0, 1, 2))
        for name in ("vienna_dias", "msk4")
    )
    assert warm[0] / warm[2] > 1.15 * cool[0] / cool[2]


def test_a_class_shows_in_its_images_and_overlaps_with_others(sharp: Samples) -> None:
    centre = np.asarray(sharp.images[:, 8:24, 8:24], np.float32).mean((1, 2))
    redness = centre[:, 0] / centre.sum(1)
    vascular, naevus = (redness[sharp.labels == CLASSES.index(name)] for name in ("VASC", "NV"))
    assert vascular.mean() > naevus.mean() + naevus.std() / 2
    assert vascular.min() < naevus.max()


def test_grey(tmp_path: Path) -> None:
    assert load(tmp_path, channels=1, scale=0.004).images.shape[-1] == 1


def test_findings_have_their_prevalences_and_come_together(tmp_path: Path) -> None:
    samples = load(tmp_path, task="multi")
    assert samples.task == "multi"
    assert samples.classes == tuple(FINDINGS)
    assert samples.labels.dtype == np.float32
    wanted = [max(1, round(share * len(samples))) for _, share in FINDINGS.values()]
    assert samples.labels.sum(0).tolist() == wanted
    assert (samples.labels.sum(1) >= 2).mean() > 0.15
    assert samples.site is not None
    assert set(samples.site.tolist()) == set(SITES)


def test_a_finding_shows_in_its_images(tmp_path: Path) -> None:
    samples = load(tmp_path, task="multi", image_size=32)
    detail = np.abs(np.diff(np.asarray(samples.images[:, 8:24, 8:24], np.float32).mean(-1), axis=2)).mean(
        (1, 2)
    )
    network = samples.labels[:, samples.classes.index("pigment_network")] == 1
    assert detail[network].mean() > 1.15 * detail[~network].mean()

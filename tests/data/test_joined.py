"""Several data sets as one: whose classes become which of ours, which rows stay, and where their pixels come
from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.config import resolve
from equipoise.data import Samples
from equipoise.errors import ConfigError, DataError
from equipoise.partition import divide

Made = Callable[..., None]


@pytest.fixture
def make(tmp_path: Path, encode: Callable[..., bytes]) -> Made:
    """make(name, [(id, class, site, group, grey)]): a table with one-coloured images."""

    def one(name: str, rows: list[tuple[str, str, str, str, int]]) -> None:
        folder = tmp_path / name
        folder.mkdir()
        for id, *_, grey in rows:
            (folder / f"{id}.png").write_bytes(encode(grey, grey, grey, form="PNG"))
        lines = [",".join((id, label, site, group)) for id, label, site, group, _ in rows]
        (folder / "labels.csv").write_text("\n".join(["file,label,site,patient", *lines]))

    return one


def part(name: str, **keys: Any) -> dict[str, Any]:
    return {"kind": "csv", "source": name, "path": f"{name}/labels.csv", "label": "label", **keys}


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Samples]:
    def joined(*parts: dict[str, Any], **keys: Any) -> Samples:
        config = resolve(
            {"data": {"kind": "joined", "image_size": 8, "parts": list(parts), **keys}}, tmp_path
        )
        assert resolve(config.table()).digest == config.digest
        return config.data.load(cache=tmp_path / "cache", base=tmp_path)

    return joined


@pytest.fixture
def two(make: Made) -> None:
    make(
        "a",
        [
            ("1", "BAS", "x", "p1", 10),
            ("2", "EOS", "y", "p1", 20),
            ("3", "KSC", "x", "p2", 30),
            ("4", "BAS", "z", "p5", 40),
        ],
    )
    make(
        "b",
        [
            ("1", "eosinophil", "u", "p1", 110),
            ("2", "platelet", "u", "p3", 120),
            ("9", "basophil", "u", "p3", 130),
        ],
    )


TAKE = {"BAS": "basophil", "EOS": "eosinophil"}


@pytest.mark.usefixtures("two")
def test_classes_sites_groups_and_pixels_of_the_whole(load: Callable[..., Samples]) -> None:
    found = load(part("a", take=TAKE, group="patient"), part("b", group="patient"))
    assert found.classes == ("basophil", "eosinophil", "platelet")
    assert [found.classes[label] for label in found.labels] == [
        "basophil", "eosinophil", "basophil", "eosinophil", "platelet", "basophil",
    ]  # fmt: skip
    assert found.site is not None and found.site.tolist() == ["a", "a", "a", "b", "b", "b"]
    assert found.attributes["source"].tolist() == found.site.tolist()
    assert found.ids.tolist() == ["a/1", "a/2", "a/4", "b/1", "b/2", "b/9"]
    assert found.group is not None and found.group.tolist() == [
        "a/p1",
        "a/p1",
        "a/p5",
        "b/p1",
        "b/p3",
        "b/p3",
    ]
    assert found.images.shape == (6, 8, 8, 3) and found.split is None
    order = np.array([5, 0, 3, 3, 2])
    assert found.images[order][:, 0, 0, 0].tolist() == [130, 10, 110, 110, 40]
    assert found.images[order].flags.writeable
    assert found.images[order[:0]].shape == (0, 8, 8, 3)


@pytest.mark.usefixtures("two")
def test_own_sites_and_images_that_another_part_has(load: Callable[..., Samples]) -> None:
    found = load(part("a", site="site", sites={"x": "north", "z": "north"}), part("b", but=["a"]), classes=[
        "KSC", "BAS", "EOS", "basophil", "platelet", "eosinophil",
    ])  # fmt: skip
    assert found.ids.tolist() == ["a/1", "a/3", "a/4", "b/9"]
    assert found.site is not None and found.site.tolist() == ["north"] * 3 + ["b"]
    assert found.labels.tolist() == [1, 0, 1, 3]
    assert found.group is not None and set(found.group.tolist()) == {
        ""
    }  # nobody knows of patients: every row stands alone


@pytest.mark.usefixtures("two")
def test_the_fingerprint_knows_every_part(load: Callable[..., Samples], make: Made) -> None:
    whole = load(part("a"), part("b"))
    assert whole.fingerprint == load(part("a"), part("b")).fingerprint
    assert whole.fingerprint != load(part("b"), part("a")).fingerprint
    assert whole.fingerprint != load(part("a", take=TAKE), part("b")).fingerprint


def test_small_sites_from_every_source(load: Callable[..., Samples], make: Made) -> None:
    for name, shift in (("a", 0), ("b", 100)):
        make(name, [(str(i), f"c{i % 3}", "s", "", shift + i) for i in range(60)])
    config = resolve({"partition": {"kind": "limited", "sites": 2, "classes": [1, 2], "rows": [3, 5]}})
    samples = load(part("a"), part("b"))
    holdings = divide(
        samples, config.partition, resolve({"data": {"split": {"validation": 0.0}}}).data.split, 0
    )
    assert [holding.name.partition("-")[0] for holding in holdings] == ["a", "a", "b", "b"]
    for holding in holdings:
        assert set(samples.site[holding.train].tolist()) == {holding.name.partition("-")[0]}  # type: ignore[index]


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "none": ([], "parts is empty"),
    "unknown kind": ([{"kind": "mattek19"}], r"parts\[0\]\.kind: .*did you mean 'matek19'"),
    "same name": ([part("a"), part("a")], r"parts\[1\] is called 'a' as another part"),
    "but of nobody": ([part("a", but=["b"])], r"parts\[0\]\.but"),
    "size of one part": (
        [part("a", image_size=9)],
        r"parts\[0\]\.image_size is the same for all parts: set data\.image_size",
    ),
    "key of no kind": ([part("a", lable="x")], r"parts\[0\]\.lable"),
    "missing key": ([{"kind": "matek19"}], r"parts\[0\]\.path"),
    "multi-label": ([{"kind": "chestxray14", "path": "x"}], "multi-label"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_do_not_fit_are_refused(name: str) -> None:
    parts, pattern = REFUSED[name]
    with pytest.raises(ConfigError, match=pattern):
        resolve({"data": {"kind": "joined", "parts": parts}})


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("keys", "pattern"),
    [
        ({"take": {"BSA": "basophil"}}, "unknown class 'BSA'"),
        ({"site": "site", "sites": {"q": "north"}}, "unknown site 'q'"),
        ({"sites": {"x": "north"}}, "knows of no sites"),
    ],
)
def test_names_the_data_does_not_have(
    load: Callable[..., Samples], keys: dict[str, Any], pattern: str
) -> None:
    with pytest.raises(DataError, match=pattern):
        load(part("a", **keys), part("b"))


@pytest.mark.usefixtures("two")
def test_a_class_the_whole_does_not_have(load: Callable[..., Samples]) -> None:
    with pytest.raises(DataError, match=r"unknown class of data\.classes 'BAS'"):
        load(part("a"), part("b"), classes=["EOS"])

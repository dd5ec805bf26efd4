"""Every published data set on a miniature of its official download."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from equipoise.config import resolve
from equipoise.data import SETS, Samples
from equipoise.data.sets import check
from equipoise.errors import DataError

Make = Callable[[str], Path]
Load = Callable[..., Samples]


# All of them ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_facts_are_whole_and_add_up(name: str) -> None:
    facts = SETS[name].facts
    assert len(set(facts.classes)) == len(facts.classes) > 1
    assert all(
        (facts.title, facts.layout, facts.licence, facts.citation, facts.papers)
    ) and facts.home.startswith("https://")
    assert set(facts.counts.classes) <= set(facts.classes)
    for counts in (facts.counts.classes, facts.counts.sites):
        complete = counts and (counts is facts.counts.sites or set(counts) == set(facts.classes))
        assert sum(counts.values()) == facts.counts.images or not complete


def test_all_twelve_are_there() -> None:
    assert len(SETS) == 12


@pytest.mark.parametrize("name", SETS)
def test_the_layout_names_what_the_reader_needs(name: str, make: Make, load: Load) -> None:
    """Taking away any part of the layout is one sentence that names it and where to get it."""
    root = make(name)
    for entry in SETS[name].facts.layout:
        official = next(
            (part for part in reversed(entry.split("/")) if "*" not in part and "CLASS" not in part), None
        )
        if (
            official is None or "(" in official
        ):  # classes as folders, and files for an option, have tests of their own
            continue
        (place,) = list(root.rglob(official))
        away = root.parent / "away"
        place.rename(away)
        with pytest.raises(DataError) as refused:
            load(name, root)
        away.rename(place)
        text = str(refused.value)
        assert "\n" not in text and str(root) in text
        assert f"'{official}'" in text or "has no folder" in text
        assert "https://" in text
    assert len(load(name, root))


@pytest.mark.parametrize("name", SETS)
def test_a_config_names_the_set_and_gets_a_fitting_objective(name: str) -> None:
    config = resolve({"data": {"kind": name, "path": "somewhere"}})
    assert config.objective.parts[0].name == ("bce" if name == "chestxray14" else "cross_entropy")


@pytest.mark.parametrize("name", [name for name, options in SETS.items() if options.parts])
def test_archives_may_stay_packed(name: str, make: Make, load: Load, pack: Callable[[Path], None]) -> None:
    root = make(name)
    before = load(name, root)
    for part in SETS[name].parts:
        if (root / part).is_dir():
            pack(root / part)
    assert list(root.glob("*.zip"))
    after = load(name, root)
    assert after.fingerprint == before.fingerprint
    np.testing.assert_array_equal(after.images, before.images)


@pytest.mark.parametrize("name", SETS)
def test_the_whole_download_may_be_one_zip(
    name: str, make: Make, load: Load, pack: Callable[[Path], None]
) -> None:
    root = make(name)
    before = load(name, root)
    pack(root)
    assert load(name, root.with_name(f"{name}.zip")).fingerprint == before.fingerprint


def test_a_truncated_archive_is_named(make: Make, load: Load, pack: Callable[[Path], None]) -> None:
    root = make("ham10000")
    pack(root / "HAM10000_images_part_2")
    archive = root / "HAM10000_images_part_2.zip"
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(
        DataError, match=r"HAM10000_images_part_2\.zip cannot be opened as a zip file.*copied whole"
    ):
        load("ham10000", root)


def test_an_unpacked_folder_is_taken_before_its_archive(make: Make, load: Load) -> None:
    root = make("ham10000")
    (root / "HAM10000_images_part_2.zip").write_bytes(b"half a download")
    assert len(load("ham10000", root)) == 4


def test_an_archive_that_must_be_unpacked_is_named(make: Make, load: Load) -> None:
    root = make("chestxray14")
    shutil.rmtree(root / "images_001")
    (root / "images.tar.gz").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"has no folder 'images', which ChestX-ray14 needs: unpack images\.tar\.gz$"
    ):
        load("chestxray14", root)


def test_a_folder_that_is_not_there(load: Load, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load("ph2", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("isic2019", "ISIC_2019_Training_Input/ISIC_0000001.jpg"),
        ("ham10000", "HAM10000_images_part_2/ISIC_0029306.jpg"),
        ("ph2", "PH2 Dataset images/IMD003/IMD003_Dermoscopic_Image/IMD003.bmp"),
        ("derm7pt", "release_v0/images/NEL/Nel028.jpg"),
        ("rsna-ich", "stage_2_train/ID_000000002.dcm"),
        ("chestxray14", "images_001/images/00000002_000.png"),
    ],
)
def test_labels_without_their_image_are_named(name: str, image: str, make: Make, load: Load) -> None:
    root = make(name)
    whole = len(load(name, root))
    (root / image).unlink()
    with pytest.raises(
        DataError, match=rf"1 of {whole} rows cannot be used.*\n.*{Path(image).stem}.* is not in {name}"
    ):
        load(name, root)
    left = load(name, root, bad_rows="skip")
    assert len(left) == whole - 1 and len(left.skipped) == 1


# One by one -------------------------------------------------------------------------------------------------


def test_isic2019(make: Make, load: Load) -> None:
    samples = load("isic2019", make("isic2019"))
    assert samples.classes == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    assert samples.labels.tolist() == [1, 0, 7]
    np.testing.assert_allclose(samples.images[:, 4, 4, 0], [0, 50, 100], atol=3)
    assert samples.group is not None
    assert samples.group.tolist() == ["BCN_1", "BCN_1", "ISIC_0000002_downsampled"]
    assert samples.attributes["sex"].tolist() == ["female", "", "male"]
    assert samples.attributes["anatomy"].tolist() == ["anterior torso", "", "head/neck"]
    assert samples.site is None and samples.split is None


def test_isic_labels_must_be_exactly_one(make: Make, load: Load) -> None:
    root = make("isic2019")
    path = root / "ISIC_2019_Training_GroundTruth.csv"
    path.write_text(path.read_text().replace("ISIC_0000001,1.0,0.0", "ISIC_0000001,1.0,1.0"))
    with pytest.raises(
        DataError, match=r"GroundTruth\.csv row 3: 2 of the classes are 1 where exactly one must be"
    ):
        load("isic2019", root)
    path.write_text(path.read_text().replace(",SCC,", ",SSC,"))
    with pytest.raises(
        DataError, match=r"GroundTruth\.csv: unknown column 'SCC': did you mean 'SSC'\? valid: AK, "
    ):
        load("isic2019", root)


def test_fed_isic2019(make: Make, load: Load) -> None:
    root = make("fed-isic2019")
    samples = load("fed-isic2019", root)
    assert samples.labels.tolist() == [1, 7]
    assert samples.site is not None and samples.split is not None
    assert samples.site.tolist() == ["bcn", "msk4"]
    assert samples.split.tolist() == ["train", "test"]
    (root / "ISIC_2019_Training_Input").rename(root / "ISIC_2019_Training_Input_preprocessed")
    with pytest.raises(DataError, match="has no folder 'ISIC_2019_Training_Input'"):
        load("fed-isic2019", root)
    small = load("fed-isic2019", root, images="ISIC_2019_Training_Input_preprocessed")
    assert small.fingerprint == samples.fingerprint
    path = root / "train_test_split"
    path.write_text(path.read_text().replace(",4,test,", ",6,test,"))
    with pytest.raises(DataError, match="row 3: center '6' is not 0 to 5"):
        load("fed-isic2019", root, images="ISIC_2019_Training_Input_preprocessed")


def test_isic_with_skin_types(make: Make, load: Load) -> None:
    root = make("isic2019-tone")
    samples = load("isic2019-tone", root)
    assert samples.attributes["tone"].tolist() == ["light", "dark", "dark"]
    assert samples.attributes["fitzpatrick"].tolist() == ["1", "4", "6"]
    assert load("isic2019-tone", root, dark_from=5).attributes["tone"].tolist() == ["light", "light", "dark"]
    path = root / "isic_train_20-19-18-17.csv"
    path.write_text(path.read_text().replace("ISIC_0000001,1,4.0", "ISIC_0000001,1,-1"))
    with pytest.raises(DataError, match="has no skin type from 1 to 6 for 'ISIC_0000001'"):
        load("isic2019-tone", root)


def test_ham10000(make: Make, load: Load) -> None:
    root = make("ham10000")
    samples = load("ham10000", root)
    assert samples.classes == ("nv", "mel", "bkl", "bcc", "akiec", "vasc", "df")
    assert samples.labels.tolist() == [2, 2, 0, 6]
    assert samples.site is not None and samples.group is not None
    assert samples.site.tolist() == ["vidir_modern", "vidir_modern", "rosendahl", "vienna_dias"]
    assert samples.group.tolist() == ["HAM_0000118", "HAM_0000118", "HAM_0002730", "HAM_0001466"]
    assert samples.attributes["localization"].tolist() == ["scalp", "scalp", "back", "ear"]
    np.testing.assert_allclose(samples.images[:, 4, 4, 0], [10, 60, 110, 160], atol=3)
    path = root / "HAM10000_metadata"
    (root / "HAM10000_metadata.tab").write_text(path.read_text().replace(",", "\t"))
    path.unlink()
    assert load("ham10000", root).fingerprint == samples.fingerprint


def test_ham10000_without_sources(make: Make, load: Load) -> None:
    root = make("ham10000")
    path = root / "HAM10000_metadata"
    path.write_text("\n".join(line.rpartition(",")[0] for line in path.read_text().splitlines()) + "\n")
    with pytest.raises(DataError, match="unknown column 'dataset'"):
        load("ham10000", root)


def test_a_wrong_class_name(make: Make, load: Load) -> None:
    root = make("ham10000")
    path = root / "HAM10000_metadata"
    path.write_text(path.read_text().replace(",df,", ",dff,"))
    with pytest.raises(DataError, match="HAM10000_metadata row 5: unknown label 'dff': did you mean 'df'"):
        load("ham10000", root)


def test_ph2(make: Make, load: Load) -> None:
    root = make("ph2")
    samples = load("ph2", root)
    assert samples.classes == ("common nevus", "atypical nevus", "melanoma")
    assert samples.ids.tolist() == ["IMD003", "IMD002", "IMD004"]
    assert samples.labels.tolist() == [0, 1, 2]
    assert samples.images[:, 4, 4, 0].tolist() == [90, 20, 160]  # the lesions' masks are white
    path = root / "PH2_dataset.txt"
    path.write_text(path.read_text().replace("                  1 ||", "                  5 ||"))
    with pytest.raises(
        DataError, match=r"PH2_dataset\.txt line 3: clinical diagnosis '5' of IMD002 is not 0, 1 or 2"
    ):
        load("ph2", root)


def test_derm7pt(make: Make, load: Load) -> None:
    root = make("derm7pt")
    samples = load("derm7pt", root)
    assert samples.classes == ("BCC", "NEV", "MEL", "MISC", "SK")
    assert samples.labels.tolist() == [0, 1, 2]
    assert samples.split is not None
    assert samples.split.tolist() == ["test", "train", "validation"]
    (root / "release_v0" / "meta" / "valid_indexes.csv").write_text("indexes\n")
    with pytest.raises(DataError, match=r"meta.csv row 4: none of train_indexes.csv, .* has index 2"):
        load("derm7pt", root)


def test_derm7pt_with_an_unknown_diagnosis(make: Make, load: Load) -> None:
    root = make("derm7pt")
    path = root / "release_v0" / "meta" / "meta.csv"
    path.write_text(path.read_text().replace("blue nevus", "green nevus"))
    with pytest.raises(DataError, match="row 3: unknown label 'green nevus'"):
        load("derm7pt", root)


def test_rsna_ich_single(make: Make, load: Load) -> None:
    samples = load("rsna-ich", make("rsna-ich"))
    assert samples.classes == ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
    assert samples.task == "single"
    assert samples.ids.tolist() == ["ID_000000001", "ID_000000002"]
    assert samples.labels.tolist() == [0, 4]
    # 0 and 20 HU: brain 0 → 0, 20/80 → 63.75; subdural (0+20)/200, (20+20)/200; bone (0+800)/2800,
    # (20+800)/2800
    assert samples.images[0, 0, 0].tolist() == [0, 26, 73]
    assert samples.images[1, 0, 0].tolist() == [64, 51, 75]
    assert samples.group is None


def test_rsna_ich_multi_with_patients(make: Make, load: Load) -> None:
    root = make("rsna-ich")
    samples = load("rsna-ich", root, task="multi", patients=True, channels=1)
    assert samples.task == "multi"
    order = samples.ids.tolist()
    assert order[:3] == ["ID_000000001", "ID_000000002", "ID_000000003"]
    assert sorted(order[3:]) == ["ID_000000004", "ID_000000005"]
    assert samples.labels[:3].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 1, 0, 1]]
    assert not samples.labels[3:].any()
    assert samples.group is not None
    assert dict(zip(order, samples.group.tolist(), strict=True)) == {
        f"ID_00000000{i + 1}": f"ID_p{i // 2}" for i in range(5)
    }  # fmt: skip
    assert samples.images[:3, 0, 0, 0].tolist() == [0, 64, 128]  # the brain window alone
    fewer = load("rsna-ich", root, task="multi", healthy=1)
    assert fewer.ids.tolist() == order[:4]


def test_rsna_ich_stage_1_lies_in_stage_2(make: Make, load: Load) -> None:
    root = make("rsna-ich")
    with pytest.raises(DataError, match=r"has no file 'stage_1_train\.csv'"):
        load("rsna-ich", root, stage=1)
    lines = (root / "stage_2_train.csv").read_text().splitlines()
    (root / "stage_1_train.csv").write_text("\n".join(lines[:7]) + "\n")
    assert load("rsna-ich", root, stage=1).ids.tolist() == ["ID_000000001"]
    (root / "stage_2_train").rename(root / "stage_1_train_images")
    assert load("rsna-ich", root, stage=1).ids.tolist() == ["ID_000000001"]


def test_rsna_ich_with_a_wrong_label(make: Make, load: Load) -> None:
    root = make("rsna-ich")
    path = root / "stage_2_train.csv"
    path.write_text(path.read_text() + "ID_000000009_epidurall,1\n")
    with pytest.raises(DataError, match="'ID_000000009_epidurall,1' is not a slice's type and 0 or 1"):
        load("rsna-ich", root)


def test_rsna_ich_expects_what_the_papers_report() -> None:
    options = SETS["rsna-ich"]
    single = options(path="x", stage=1).expected()
    assert single.images == sum(single.classes.values()) == 67_969
    multi = options(path="x", stage=1, task="multi").expected()
    assert multi.images == 185_051 and multi.classes["subdural"] == 42_496
    assert options(path="x").expected().images is None  # nobody published single-type slices of stage 2


def test_chestxray14(make: Make, load: Load) -> None:
    root = make("chestxray14")
    samples = load("chestxray14", root, channels=1)
    assert samples.task == "multi"
    assert samples.classes == (
        "Infiltration", "Effusion", "Atelectasis", "Nodule", "Mass", "Pneumothorax",
        "Consolidation", "Pleural_Thickening",
    )  # fmt: skip
    assert samples.ids.tolist() == ["00000001_000.png", "00000002_000.png", "00000004_000.png"]
    assert samples.labels.tolist() == [[0, 1, 0, 0, 0, 0, 0, 0], [0] * 8, [1, 0, 0, 0, 1, 0, 0, 0]]
    assert samples.group is not None
    assert samples.group.tolist() == ["1", "2", "3"]
    assert samples.attributes["sex"].tolist() == ["M", "M", "F"]
    both = load("chestxray14", root, view="both", findings=["Cardiomegaly", "Infiltration"])
    assert both.labels.tolist() == [[1, 0], [0, 0], [0, 1], [0, 1]]
    assert both.attributes["view"].tolist() == ["PA", "PA", "AP", "PA"]
    assert SETS["chestxray14"](path="x", view="both").expected().classes["Mass"] == 5782


def test_chestxray14_with_an_unknown_finding(make: Make, load: Load) -> None:
    with pytest.raises(ValidationError, match="did you mean 'Edema'"):
        SETS["chestxray14"](path="x", findings=["Oedema"])
    root = make("chestxray14")
    path = root / "Data_Entry_2017.csv"
    path.write_text(path.read_text().replace("Mass|", "Mas|"))
    with pytest.raises(DataError, match=r"row 5: unknown finding 'Mas': did you mean 'Mass'"):
        load("chestxray14", root)


def test_hyperkvasir(make: Make, load: Load) -> None:
    root = make("hyperkvasir")
    samples = load("hyperkvasir", root)
    assert len(samples.classes) == 23
    assert sorted(samples.labels.tolist()) == list(range(23))
    assert samples.split is None
    folded = load("hyperkvasir", root, fold=3)
    assert folded.split is not None
    held = {
        name
        for name, split in zip(folded.ids.tolist(), folded.split.tolist(), strict=True)
        if split == "test"
    }
    assert held == {f"{name}/{i:04x}.jpg" for i, name in enumerate(samples.classes) if i % 5 == 3}
    with pytest.raises(DataError, match=r"no file '2_fold_split\.csv'"):
        load("hyperkvasir", root, fold=1, folds=2)
    with pytest.raises(ValidationError, match="count from 0 to 4"):
        SETS["hyperkvasir"](path="x", fold=5)
    path = root / "5_fold_split.csv"
    path.write_text(path.read_text().replace("0005.jpg", "9999.jpg"))
    with pytest.raises(DataError, match=r"0005\.jpg: 5_fold_split\.csv does not name it"):
        load("hyperkvasir", root, fold=0)


def test_blood_cells(make: Make, load: Load) -> None:
    assert load("matek19", make("matek19")).labels.tolist() == list(range(15))
    pbc = load("acevedo20", make("acevedo20"))
    assert pbc.labels.tolist() == list(range(8))
    assert pbc.attributes["subtype"].tolist() == ["BA", "EO", "ERB", "MMY", "LY", "MO", "SNE", "PLATELET"]
    bodzas = load("bodzas23", make("bodzas23"))
    assert bodzas.labels.tolist() == list(range(9))
    assert bodzas.ids.tolist()[6:8] == ["Neutrophile Band/1.bmp", "Neutrophile Segment/1.bmp"]


def test_a_class_folder_with_another_name(make: Make, load: Load) -> None:
    root = make("bodzas23")
    (root / "data" / "Basophile").rename(root / "data" / "Basophil")
    with pytest.raises(
        DataError, match="has no folder 'Basophile', which Bodzas-23 needs: rename 'Basophil' if it is that"
    ):
        load("bodzas23", root)


# Checking ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETS)
def test_check_counts_a_miniature_and_finds_it_small(name: str, make: Make, tmp_path: Path) -> None:
    options = SETS[name](path=str(make(name)))
    facts = check(options, tmp_path)
    wanted = options.expected()
    assert facts["ok"] is (wanted.images is None)
    assert (
        facts["images"]
        == {"found": sum(one["found"] for one in facts["classes"].values()), "published": wanted.images}
        or options.multi
    )
    assert list(facts["classes"]) == list(options.classes)
    assert all(text.endswith("are published") for text in facts["problems"])
    json.dumps(facts)


def test_check_is_content_with_what_was_published(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.data.sets import Counts
    from equipoise.data.sets.ham10000 import Ham10000

    sites = {"vidir_modern": 2, "rosendahl": 1, "vienna_dias": 1}
    monkeypatch.setattr(Ham10000, "expected", lambda self: Counts(4, {"bkl": 2, "nv": 1, "df": 1}, sites))
    root = make("ham10000")
    facts = check(SETS["ham10000"](path=str(root)), tmp_path)
    assert facts["ok"] and facts["problems"] == []
    assert facts["groups"] == 3 and facts["warnings"] == []
    table = root / "HAM10000_metadata"
    held = table.read_text()
    table.write_text(held.replace("HAM_0002730", "HAM_0000118").replace("HAM_0001466", "unknown"))
    missing, moved = check(SETS["ham10000"](path=str(root)), tmp_path)["warnings"]
    assert missing.startswith("patient or group 'unknown' (1 row: 'ISIC_0029307') is a word for a missing")
    assert "1 patient or group is at several sites ('HAM_0000118' at vidir_modern, rosendahl)" in moved
    table.write_text(held)
    (root / "HAM10000_images_part_1" / "ISIC_0024306.jpg").write_text("not an image")
    (root / "HAM10000_images_part_2" / "ISIC_0029307.jpg").unlink()
    facts = check(SETS["ham10000"](path=str(root)), tmp_path)
    assert not facts["ok"]
    first, second, *counts = facts["problems"]
    assert first == "HAM10000_metadata row 5: file 'ISIC_0029307.jpg' is not in ham10000"
    assert second.startswith(
        "HAM10000_metadata row 2: image 'HAM10000_images_part_1/ISIC_0024306.jpg' is broken"
    )
    assert counts == [
        "images: 3 where 4 are published",
        "class df: 0 where 1 are published",
        "site vienna_dias: 0 where 1 are published",
    ]


def test_no_pydicom_is_one_sentence(make: Make, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(DataError, match=r"^DICOM images need pydicom: run pip install pydicom$"):
        load("rsna-ich", make("rsna-ich"))

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from equipoise.data import CsvData, Samples
from equipoise.errors import DataError

TABLE = """\
file,label,hospital,patient,sex,fold
a.jpg,nv,north,p1,f,train
b.jpg,mel,north,p1,m,training
c.jpg,nv,south,p2,,val
d.jpg,bcc,south,p3,f,Testing
"""


@pytest.fixture
def clinic(tmp_path: Path, encode: Any) -> Path:
    """labels.csv and a folder of four images, red 10, 20, 30, 40."""
    (tmp_path / "images").mkdir()
    for i, name in enumerate("abcd"):
        (tmp_path / "images" / f"{name}.jpg").write_bytes(encode(10 * (i + 1), 60, 90))
    (tmp_path / "labels.csv").write_text(TABLE)
    return tmp_path


def load(clinic: Path, **options: Any) -> Samples:
    given: dict[str, Any] = {
        "path": "labels.csv",
        "images": "images",
        "label": "label",
        "image_size": 8,
    } | options
    return CsvData(**given).load(cache=clinic / "cache", base=clinic)


def test_reads_images_labels_and_columns(clinic: Path) -> None:
    samples = load(clinic, site="hospital", group="patient", attributes=["sex"], split="fold")
    assert samples.task == "single"
    assert samples.classes == ("bcc", "mel", "nv")
    assert samples.labels.dtype == np.int64
    assert samples.labels.tolist() == [2, 1, 2, 0]
    assert samples.images.shape == (4, 8, 8, 3)
    assert samples.images.dtype == np.uint8
    np.testing.assert_allclose(samples.images[:, 4, 4, 0], [10, 20, 30, 40], atol=3)
    assert samples.ids.tolist() == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    assert samples.site is not None
    assert samples.site.tolist() == ["north", "north", "south", "south"]
    assert samples.group is not None
    assert samples.group.tolist() == ["p1", "p1", "p2", "p3"]
    assert samples.split is not None
    assert samples.split.tolist() == ["train", "train", "validation", "test"]
    assert samples.attributes["sex"].tolist() == ["f", "m", "", "f"]
    assert samples.skipped == ()


def test_columns_not_asked_for_are_absent(clinic: Path) -> None:
    samples = load(clinic)
    assert (samples.site, samples.group, samples.split, samples.attributes) == (None, None, None, {})


def test_classes_keep_the_order_given(clinic: Path) -> None:
    assert load(clinic, classes=["nv", "mel", "bcc"]).labels.tolist() == [0, 1, 0, 2]


def test_a_zip_gives_the_same_as_a_folder(clinic: Path) -> None:
    with zipfile.ZipFile(clinic / "images.zip", "w") as archive:
        for name in "abcd":
            archive.write(clinic / "images" / f"{name}.jpg", f"{name}.jpg")
    folder, zipped = load(clinic), load(clinic, images="images.zip")
    np.testing.assert_array_equal(folder.images, zipped.images)
    assert folder.fingerprint == zipped.fingerprint


def test_images_lie_beside_the_table_by_default(clinic: Path) -> None:
    (clinic / "labels.csv").rename(clinic / "images" / "labels.csv")
    assert len(load(clinic, path="images/labels.csv", images=None)) == 4


def test_a_name_without_extension_is_found(clinic: Path, encode: Any) -> None:
    (clinic / "images" / "e.png").write_bytes(encode(50, 60, 90, form="PNG"))
    (clinic / "labels.csv").write_text("file,label\na,nv\ne,mel\n")
    samples = load(clinic)
    assert samples.images[1, 0, 0].tolist() == [50, 60, 90]
    assert samples.ids.tolist() == ["a", "e"]


def test_marks_quotes_and_blank_lines_of_spreadsheets_are_understood(clinic: Path) -> None:
    text = 'file,label,note\n"a.jpg","nv","large, ""odd"""\n\nb.jpg, mel ,\n'
    (clinic / "labels.csv").write_text(text, encoding="utf-8-sig")
    samples = load(clinic, attributes=["note"])
    assert samples.classes == ("mel", "nv")
    assert samples.attributes["note"].tolist() == ['large, "odd"', ""]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_semicolons_and_tabs_are_recognised(clinic: Path, separator: str) -> None:
    options: dict[str, Any] = {"site": "hospital", "group": "patient", "attributes": ["sex"], "split": "fold"}
    commas = load(clinic, **options)
    (clinic / "labels.csv").write_text(TABLE.replace(",", separator), encoding="utf-8-sig")
    assert load(clinic, **options).fingerprint == commas.fingerprint
    with pytest.raises(DataError, match="unknown column 'file'"):
        load(clinic, separator=",")


def test_a_separator_may_be_given(clinic: Path) -> None:
    (clinic / "labels.csv").write_text("file|label,note\na.jpg|nv\nb.jpg|mel\n")
    assert load(clinic, label="label,note", separator="|").classes == ("mel", "nv")
    with pytest.raises(ValidationError):
        load(clinic, separator="||")


def test_a_comma_in_a_header_with_semicolons_misleads_nobody(clinic: Path) -> None:
    (clinic / "labels.csv").write_text("file;label;a, b, c, d\na.jpg;nv;1\nb.jpg;mel;2\n")
    assert load(clinic).classes == ("mel", "nv")


def test_backslashes_are_said_plainly(clinic: Path) -> None:
    (clinic / "labels.csv").write_text("file,label\nimages\\a.jpg,nv\nimages/b.jpg,mel\n")
    with pytest.raises(
        DataError, match=r"row 2: file 'images\\a.jpg' has backslashes: write / between folders"
    ):
        load(clinic, images=".")
    for key, value in (("path", "sub\\labels.csv"), ("images", "sub\\images")):
        with pytest.raises(DataError, match=r"sub\\\w+(\.csv)? does not exist: write / between folders"):
            load(clinic, **{key: value})


def test_an_id_column(clinic: Path) -> None:
    (clinic / "labels.csv").write_text("file,label,key\na.jpg,nv,one\na.jpg,mel,two\n")
    assert load(clinic, id="key").ids.tolist() == ["one", "two"]


def test_several_label_columns(clinic: Path) -> None:
    (clinic / "labels.csv").write_text("file,Mass,Edema\na.jpg,0,1\nb.jpg,1.0,1\nc.jpg,0,0\n")
    samples = load(clinic, label=None, labels=["Mass", "Edema"])
    assert samples.task == "multi"
    assert samples.classes == ("Mass", "Edema")
    assert samples.labels.dtype == np.float32
    assert samples.labels.tolist() == [[0, 1], [1, 1], [0, 0]]


def test_several_labels_in_one_column(clinic: Path) -> None:
    (clinic / "labels.csv").write_text("file,label\na.jpg,Mass|Edema\nb.jpg,No Finding\nc.jpg,Edema\n")
    samples = load(clinic, label_separator="|")
    assert samples.task == "multi"
    assert samples.classes == ("Edema", "Mass")
    assert samples.labels.tolist() == [[1, 1], [0, 0], [1, 0]]


@pytest.fixture
def messy(clinic: Path, noise_jpeg: bytes) -> Path:
    """A table with everything that can be wrong."""
    (clinic / "images" / "torn.jpg").write_bytes(noise_jpeg[: len(noise_jpeg) // 2])
    (clinic / "images" / "text.jpg").write_text("not an image")
    lines = [
        "file,label,hospital,fold",
        "a.jpg,nv,north,train",
        "gone.jpg,nv,north,train",
        "torn.jpg,nv,north,train",
        "b.jpg,mell,north,train",
        "c.jpg,,north,train",
        "a.jpg,mel,north,train",
        "d.jpg,mel,,train",
        "d.jpg,mel,north,holdout",
        "d.jpg,mel",
        "text.jpg,mel,north,train",
        ",mel,north,train",
        "d.jpg,mel,north,test",
    ]
    (clinic / "labels.csv").write_text("\n".join(lines) + "\n")
    return clinic


REASONS = [
    "row 3: file 'gone.jpg' is not in images",
    "row 4: image 'torn.jpg' is broken: image file is truncated",
    "row 5: unknown label 'mell': did you mean 'mel'?",
    "row 6: the label is empty",
    "row 7: id 'a.jpg' is also in row 2",
    "row 8: column 'hospital' is empty",
    "row 9: 'holdout' in column 'fold' is not train, validation or test",
    "row 10: has 2 fields where the header has 4",
    "row 11: image 'text.jpg' is broken: not an image",
    "row 12: column 'file' is empty",
]


def test_all_bad_rows_are_refused_at_once(messy: Path) -> None:
    with pytest.raises(DataError) as refusal:
        load(messy, classes=["mel", "nv"], site="hospital", split="fold")
    first, *listed = str(refusal.value).splitlines()
    assert "labels.csv: 10 of 12 rows cannot be used" in first
    assert 'bad_rows = "skip"' in first
    assert len(listed) == len(REASONS)
    for line, reason in zip(listed, REASONS, strict=True):
        assert line.strip().startswith(reason)


def test_skip_leaves_bad_rows_out_and_lists_them(messy: Path) -> None:
    for _ in range(2):  # decoded, then from the cache
        samples = load(messy, classes=["mel", "nv"], site="hospital", split="fold", bad_rows="skip")
        assert samples.ids.tolist() == ["a.jpg", "d.jpg"]
        assert samples.labels.tolist() == [1, 0]
        np.testing.assert_allclose(samples.images[:, 0, 0, 0], [10, 40], atol=3)
        assert len(samples.skipped) == len(REASONS)
        for text, reason in zip(samples.skipped, REASONS, strict=True):
            assert text.startswith(reason)


def test_a_long_list_of_bad_rows_is_cut(clinic: Path) -> None:
    rows = "".join(f"{i}.jpg,nv\n" for i in range(30))
    (clinic / "labels.csv").write_text(f"file,label\na.jpg,mel\n{rows}")
    with pytest.raises(DataError, match="30 of 31 rows") as refusal:
        load(clinic)
    lines = str(refusal.value).splitlines()
    assert len(lines) == 22
    assert lines[-1].strip() == "and 10 more"


def test_a_multi_label_value_that_is_neither_zero_nor_one(clinic: Path) -> None:
    (clinic / "labels.csv").write_text("file,Mass\na.jpg,1\nb.jpg,2\nc.jpg,N/A\n")
    with pytest.raises(
        DataError,
        match=r"(?s)row 3: '2' in column 'Mass'.*row 4: 'N/A' in column 'Mass' is neither 0 nor 1; leave it "
        r"empty where the image is not labelled",
    ):
        load(clinic, label=None, labels=["Mass"])


@pytest.mark.parametrize("blank", ["", "-1", "-1.0", " "])
def test_an_empty_cell_is_a_label_the_image_does_not_have(clinic: Path, blank: str) -> None:
    (clinic / "labels.csv").write_text(
        f"file,Mass,Edema\na.jpg,1,{blank}\nb.jpg,{blank},{blank}\nc.jpg,0,1\n"
    )
    samples = load(clinic, label=None, labels=["Mass", "Edema"])
    gap = np.nan
    np.testing.assert_array_equal(samples.labels, np.array([[1, gap], [gap, gap], [0, 1]], np.float32))
    (clinic / "labels.csv").write_text("file,Mass,Edema\na.jpg,1,0\nb.jpg,0,0\nc.jpg,0,1\n")
    assert load(clinic, label=None, labels=["Mass", "Edema"]).fingerprint != samples.fingerprint


def test_one_empty_word_among_several_labels(clinic: Path) -> None:
    (clinic / "labels.csv").write_text("file,label\na.jpg,Mass|\nb.jpg,Edema\nc.jpg,\n")
    with pytest.raises(
        DataError, match=r"(?s)2 of 3 rows.*row 2: the label is empty.*row 4: the label is empty"
    ):
        load(clinic, label_separator="|")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "labels.csv is empty: copy or save it again, with its header row"),
        (" \n\n", "labels.csv is empty"),
        ("file,lable\na.jpg,nv\n", "unknown column 'label': did you mean 'lable'"),
        ("file,label,label\na.jpg,nv,nv\n", "column 'label' appears 2 times"),
        ("file,label\n", "holds no samples: it has a header row and no others"),
        ("file;lable\na.jpg;nv\n", "unknown column 'label': did you mean 'lable'"),
        ("file,label\na.jpg,nv\nb.jpg,nv\n", "only one class"),
        ("file,label\na.jpg,caf\xe9\n".encode("latin-1"), "not UTF-8"),
    ],
)
def test_a_table_that_cannot_be_used(clinic: Path, text: str | bytes, sentence: str) -> None:
    (clinic / "labels.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=sentence) as refusal:
        load(clinic)
    assert "\n" not in str(refusal.value)


def test_nothing_left_after_skipping(clinic: Path) -> None:
    (clinic / "labels.csv").write_text("file,label\nx.jpg,nv\ny.jpg,mel\n")
    with pytest.raises(DataError, match="2 of 2 rows"):
        load(clinic, bad_rows="skip")


@pytest.mark.parametrize(
    ("key", "value"), [("path", "none.csv"), ("images", "none.zip"), ("images", "labels.csv")]
)
def test_files_that_are_not_there_or_not_what_they_should_be(clinic: Path, key: str, value: str) -> None:
    with pytest.raises(DataError, match=r"does not exist|cannot be opened as a folder or a zip file"):
        load(clinic, **{key: value})


def test_a_changed_image_is_decoded_again(clinic: Path, encode: Any) -> None:
    before = load(clinic)
    path = clinic / "images" / "b.jpg"
    times = path.stat()
    path.write_bytes(encode(200, 60, 90))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    after = load(clinic)
    np.testing.assert_allclose(after.images[:, 0, 0, 0], [10, 200, 30, 40], atol=3)
    assert before.fingerprint != after.fingerprint


def test_a_changed_image_in_a_zip_is_decoded_again(clinic: Path, encode: Any) -> None:
    marks = []
    for red in (100, 200):
        with zipfile.ZipFile(clinic / "images.zip", "w") as archive:
            for name in "abcd":
                data = encode(red if name == "b" else 10, 60, 90, form="BMP")  # all of one size
                archive.writestr(zipfile.ZipInfo(f"{name}.jpg"), data)
        samples = load(clinic, images="images.zip")
        assert abs(int(samples.images[1, 0, 0, 0]) - red) <= 3
        marks.append(samples.fingerprint)
    assert marks[0] != marks[1]


def test_the_fingerprint_covers_labels_and_columns_but_not_where_files_lie(clinic: Path) -> None:
    options: dict[str, Any] = {"site": "hospital", "attributes": ["sex"], "classes": ["bcc", "mel", "nv"]}
    marks = [load(clinic, **options).fingerprint]
    for old, new in (("b.jpg,mel", "b.jpg,nv"), ("c.jpg,nv,south", "c.jpg,nv,north"), ("p1,m", "p1,f")):
        (clinic / "labels.csv").write_text(TABLE.replace(old, new))
        marks.append(load(clinic, **options).fingerprint)
    marks.append(load(clinic, **(options | {"image_size": 9})).fingerprint)
    assert len(set(marks)) == len(marks)
    (clinic / "labels.csv").write_text(TABLE)
    (clinic / "images").rename(clinic / "moved")
    assert load(clinic, images="moved", **options).fingerprint == marks[0]


@pytest.mark.parametrize(
    "options",
    [
        {"label": None},
        {"labels": ["Mass"]},
        {"label": None, "labels": ["Mass"], "classes": ["Mass"]},
        {"label": None, "labels": []},
        {"classes": ["nv", "nv"]},
        {"split": {"test": 0.6, "validation": 0.4}},
        {"lable": "label"},
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CsvData(**({"path": "labels.csv", "label": "label"} | options))


def some(table: Path, every: int, folder: Path) -> str:
    """A table with every so many-th row of another."""
    header, *lines = table.read_text().splitlines(keepends=True)
    (folder / "some.csv").write_text("".join([header, *lines[::every]]))
    return str(folder / "some.csv")


DERMOSCOPY = {
    1: {"rosendahl": 1356, "vidir_modern": 2059, "vidir_molemax": 2364, "vienna_dias": 260},
    20: {"rosendahl": 67, "vidir_modern": 105, "vidir_molemax": 117, "vienna_dias": 13},
}


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.sweep)])
def test_real_dermoscopy(every: int, shared_data: Path, tmp_path: Path) -> None:
    options = CsvData(
        path=some(shared_data / "ham10000/labels.csv", every, tmp_path),
        images="ham10000/images.zip",
        label="label",
        site="site",
        group="lesion_id",
        image_size=16,
    )
    samples = options.load(cache=tmp_path, base=shared_data)
    assert samples.classes == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert samples.images.shape == (sum(DERMOSCOPY[every].values()), 16, 16, 3)
    assert 20 < samples.images.mean() < 235
    sites = dict(zip(*np.unique(np.asarray(samples.site), return_counts=True), strict=True))
    assert sites == DERMOSCOPY[every]


@pytest.mark.parametrize(("every", "count"), [(10, 298), pytest.param(1, 2975, marks=pytest.mark.sweep)])
def test_real_chest_x_rays_say_the_same_in_both_ways_of_labelling(
    every: int, count: int, shared_data: Path, tmp_path: Path
) -> None:
    table = some(shared_data / "nih_cxr14_part1/labels.csv", every, tmp_path)
    common: dict[str, Any] = {"path": table, "images": "nih_cxr14_part1/images.zip"}
    common |= {"channels": 1, "image_size": 8, "group": "patient"}
    words = CsvData(**common, label="labels", label_separator="|").load(cache=tmp_path, base=shared_data)
    columns = CsvData(**common, labels=words.classes).load(cache=tmp_path, base=shared_data)
    assert len(words.classes) == 14
    assert words.images.shape == (count, 8, 8, 1)
    np.testing.assert_array_equal(words.labels, columns.labels)
    assert len(list(tmp_path.glob("*.raw"))) == 1

"""Files, folders, zip files and DICOM; a bad image is named and the others go on."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equipoise.errors import DataError
from equipoise.predict.images import find_images
from equipoise.running import Result
from equipoise.use import Predictor, load


@pytest.fixture
def model(finished: Callable[..., Result]) -> Predictor:
    return load(finished("fedavg").folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """a.png, sub/b.png, a broken c.png, a note; the same in a zip file."""
    draw = np.random.default_rng(0)
    place = tmp_path / "images"
    (place / "sub").mkdir(parents=True)
    for name in ("a.png", "sub/b.png"):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(place / name)
    (place / "c.png").write_bytes(b"not an image")
    (place / "note.txt").write_text("x" * 200)
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for path in sorted(place.rglob("*")):
            archive.write(path, path.relative_to(place))
    return place


def test_images_are_found_in_order(folder: Path) -> None:
    names = [name for name, _ in find_images([folder.with_suffix(".zip"), folder, folder / "a.png"])]
    inside = ["a.png", "c.png", "sub/b.png"]
    assert names == [f"{folder}.zip/{n}" for n in inside] + [f"{folder}/{n}" for n in inside] + [
        str(folder / "a.png")
    ]


def test_each_answer_is_that_of_the_image_alone(model: Predictor, folder: Path) -> None:
    found = {row.file: row for row in model.predict([folder, folder.with_suffix(".zip")])}
    assert len(found) == 6
    for place in (str(folder), f"{folder}.zip"):
        broken = found[f"{place}/c.png"]
        assert broken.probabilities is None
        assert broken.error == "not an image; save it as PNG, JPEG, TIFF, DICOM or NIfTI"
        for name in ("a.png", "sub/b.png"):
            pixels = (
                torch.from_numpy(np.array(Image.open(folder / name))).permute(2, 0, 1)[None].double() / 255
            )
            mean, std = (
                torch.tensor(values).view(3, 1, 1)
                for values in (model.blueprint.input.mean, model.blueprint.input.std)
            )
            expected = model(((pixels - mean) / std).float())[0].tolist()
            assert found[f"{place}/{name}"].probabilities == pytest.approx(expected, abs=1e-6)
            assert sum(found[f"{place}/{name}"].probabilities) == pytest.approx(1, abs=1e-5)


def test_batches_do_not_matter(model: Predictor, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(model.predict([folder] * 3))
    monkeypatch.setattr(Predictor, "batch", 2)
    parts = list(model.predict([folder] * 3))
    assert [row.file for row in parts] == [row.file for row in whole]
    for one, other in zip(parts, whole, strict=True):
        assert one.error == other.error
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)


def test_a_decision_is_the_likeliest_class_or_all_that_are_likely(
    model: Predictor, finished: Callable[..., Result]
) -> None:
    assert model.decide([0.1, 0.2, 0.4, 0.05, 0.05, 0.1, 0.05, 0.05]) == [model.classes[2]]
    several = load(finished("fedavg", data={"task": "multi"}).folder)
    assert several.decide([0.6, 0.5, 0.9, 0, 0, 0, 0, 0.1]) == [
        several.classes[0],
        several.classes[2],
    ]
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(several(x), 1 / (1 + (-several.logits(x)).exp()))


def dicom(pixels: np.ndarray) -> bytes:
    """A grey image of 8 bits as a DICOM file."""
    import pydicom

    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
        pydicom.uid.SecondaryCaptureImageStorage,
        "1.2.3",
    )
    content = pydicom.dataset.FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    content.SOPClassUID, content.SOPInstanceUID, content.Modality = (
        meta.MediaStorageSOPClassUID,
        "1.2.3",
        "DX",
    )
    content.Rows, content.Columns = pixels.shape
    content.SamplesPerPixel, content.PhotometricInterpretation = 1, "MONOCHROME2"
    content.BitsAllocated = content.BitsStored = 8
    content.HighBit, content.PixelRepresentation = 7, 0
    content.WindowCenter, content.WindowWidth = 127.5, 255
    content.PixelData = pixels.tobytes()
    file = io.BytesIO()
    content.save_as(file, enforce_file_format=True)
    return file.getvalue()


def test_dicom_without_an_extension_is_read(model: Predictor, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (16, 16), dtype=np.uint8)
    place = tmp_path / "study"
    place.mkdir()
    (place / "IM0001").write_bytes(dicom(pixels))
    (place / "index").write_text("x" * 200)
    Image.fromarray(pixels).save(tmp_path / "same.png")
    (slide,), (same,) = list(model.predict([place])), list(model.predict([tmp_path / "same.png"]))
    assert slide.file == f"{place}/IM0001"
    assert slide.probabilities == pytest.approx(same.probabilities, abs=1e-6)


def test_what_is_not_there_is_refused_before_the_first_image(
    model: Predictor, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"gone\.png does not exist"):
        next(model.predict([folder, tmp_path / "gone.png"]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no image"):
        list(model.predict([tmp_path / "empty"]))

"""Miniatures: a few generated images in the layout of each official download."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from equipoise.data import SETS
from equipoise.data.sets import SetData

Make = Callable[[str], Path]
ONE_HOT = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"


def write(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def image(path: Path, red: int, form: str | None = None) -> None:
    """A picture of one colour, in the format of its extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 9), (red, 60, 90)).save(path, form)


def dicom(values: np.ndarray, **changes: Any) -> bytes:
    """A CT slice as a DICOM file; a change of None removes an element."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
        CTImageStorage,
        generate_uid(entropy_srcs=["slice"]),
    )
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    content = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    content.PatientID, content.Modality = "ID_aaaa", "CT"
    content.SamplesPerPixel, content.PhotometricInterpretation = 1, "MONOCHROME2"
    content.Rows, content.Columns = values.shape[:2]
    content.BitsAllocated, content.BitsStored, content.HighBit = 16, 16, 15
    content.PixelRepresentation = int(values.dtype.kind == "i")
    content.RescaleSlope, content.RescaleIntercept = 1, -1024
    content.PixelData = values.tobytes()
    for name, value in changes.items():
        if value is None:
            delattr(content, name)
        else:
            setattr(content, name, value)
    file = BytesIO()
    pydicom.dcmwrite(file, content, enforce_file_format=True)
    return file.getvalue()


def hot(name: str, column: int) -> str:
    return ",".join([name, *("1.0" if i == column else "0.0" for i in range(9))])


def isic2019(root: Path) -> None:
    names = ["ISIC_0000000", "ISIC_0000001", "ISIC_0000002_downsampled"]
    for i, name in enumerate(names):
        image(root / "ISIC_2019_Training_Input" / f"{name}.jpg", 50 * i)
    labels = [ONE_HOT, *(hot(name, column) for name, column in zip(names, (1, 0, 7), strict=True))]
    write(root / "ISIC_2019_Training_GroundTruth.csv", "\n".join(labels) + "\n")
    about = ["image,age_approx,anatom_site_general,lesion_id,sex"]
    about += [
        f"{names[0]},55.0,anterior torso,BCN_1,female",
        f"{names[1]},30.0,,BCN_1,",
        f"{names[2]},,head/neck,,male",
    ]
    write(root / "ISIC_2019_Training_Metadata.csv", "\n".join(about) + "\n")


def fed_isic2019(root: Path) -> None:
    isic2019(root)
    lines = [
        f"{ONE_HOT},target,center,fold,fold2",
        f"{hot('ISIC_0000000', 1)},1,0,train,train_0",
        f"{hot('ISIC_0000002_downsampled', 7)},7,4,test,test_4",
    ]
    write(root / "train_test_split", "\n".join(lines) + "\n")


def isic_tone(root: Path) -> None:
    isic2019(root)
    lines = ["image_name,target,fitzpatrick,year", "ISIC_0000000,0,1,2018", "ISIC_0000001,1,4.0,2018"]
    lines += ["ISIC_0000002_downsampled,0,6,2017", "ISIC_9999999,0,2,2020"]
    write(root / "isic_train_20-19-18-17.csv", "\n".join(lines) + "\n")


def ham10000(root: Path) -> None:
    for part, name, red in (
        (1, "ISIC_0024306", 10),
        (1, "ISIC_0024307", 60),
        (2, "ISIC_0029306", 110),
        (2, "ISIC_0029307", 160),
    ):
        image(root / f"HAM10000_images_part_{part}" / f"{name}.jpg", red)
    lines = [
        "lesion_id,image_id,dx,dx_type,age,sex,localization,dataset",
        "HAM_0000118,ISIC_0024306,bkl,histo,80.0,male,scalp,vidir_modern",
        "HAM_0000118,ISIC_0024307,bkl,histo,80.0,male,scalp,vidir_modern",
        "HAM_0002730,ISIC_0029306,nv,histo,,female,back,rosendahl",
        "HAM_0001466,ISIC_0029307,df,histo,75.0,male,ear,vienna_dias",
    ]
    write(root / "HAM10000_metadata", "\n".join(lines) + "\n")


def ph2(root: Path) -> None:
    for name, red in (("IMD002", 20), ("IMD003", 90), ("IMD004", 160)):
        folder = root / "PH2 Dataset images" / name
        image(folder / f"{name}_Dermoscopic_Image" / f"{name}.bmp", red)
        image(folder / f"{name}_lesion" / f"{name}_lesion.bmp", 255)
    lines = [
        "||   Name ||  Histological Diagnosis || Clinical Diagnosis || Asymmetry | Pigment Network || "
        "Colors ||",
        "|| IMD003 ||                         ||                  0 ||         0 |               T ||   4  "
        "  ||",
        "|| IMD002 ||                         ||                  1 ||         1 |               T ||   3  "
        "4 ||",
        "|| IMD004 ||  melanoma               ||                  2 ||         2 |              AT ||   5  "
        "  ||",
        "",
        "Clinical Diagnosis: 0 - Common Nevus; 1 - Atypical Nevus; 2 - Melanoma",
    ]
    write(root / "PH2_dataset.txt", "\n".join(lines) + "\n")


def derm7pt(root: Path) -> None:
    for name, red in (("NEL/Nel026.jpg", 20), ("NEL/Nel028.jpg", 90), ("NGL/Ngl013.jpg", 160)):
        image(root / "release_v0" / "images" / name, red)
    lines = [
        "case_num,diagnosis,location,sex,clinic,derm",
        "1,basal cell carcinoma,abdomen,female,NEL/NEL027.JPG,NEL/Nel026.jpg",
        "2,blue nevus,head neck,male,NEL/NEL029.JPG,NEL/Nel028.jpg",
        "3,melanoma (in situ),upper limbs,male,NGL/NGL014.JPG,NGL/Ngl013.jpg",
    ]
    write(root / "release_v0" / "meta" / "meta.csv", "\n".join(lines) + "\n")
    for name, index in (("train", 1), ("valid", 2), ("test", 0)):
        write(root / "release_v0" / "meta" / f"{name}_indexes.csv", f"indexes\n{index}\n")


SLICES = {
    "ID_000000001": ("epidural",),
    "ID_000000002": ("subdural",),
    "ID_000000003": ("intraventricular", "subdural"),
    "ID_000000004": (),
    "ID_000000005": (),
}


def rsna_ich(root: Path) -> None:
    lines = ["ID,Label"]
    for i, (name, types) in enumerate(SLICES.items()):
        values = np.full((8, 8), 1024 + 20 * i, np.int16)
        write(root / "stage_2_train" / f"{name}.dcm", dicom(values, PatientID=f"ID_p{i // 2}"))
        for kind in ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural"):
            lines.append(f"{name}_{kind},{int(kind in types)}")
        lines.append(f"{name}_any,{int(bool(types))}")
    write(root / "stage_2_train.csv", "\n".join([*lines, *lines[1:7]]) + "\n")  # some slices are listed twice


def chestxray14(root: Path) -> None:
    for i in range(4):
        image(root / "images_001" / "images" / f"0000000{i + 1}_000.png", 50 * i)
    lines = [
        "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View "
        "Position,OriginalImage[Width,Height],",
        "00000001_000.png,Cardiomegaly|Effusion,0,1,58,M,PA,2682,2749,",
        "00000002_000.png,No Finding,0,2,81,M,PA,2500,2048,",
        "00000003_000.png,Infiltration,0,3,40,F,AP,2500,2048,",
        "00000004_000.png,Mass|Infiltration,1,3,41,F,PA,2500,2048,",
    ]
    write(root / "Data_Entry_2017.csv", "\n".join(lines) + "\n")


def hyperkvasir(root: Path) -> None:
    lines = ["file-name;class-name;split-index"]
    for i, name in enumerate(SETS["hyperkvasir"].facts.classes):
        image(root / "labeled-images" / "lower-gi-tract" / "some-findings" / name / f"{i:04x}.jpg", 10 * i)
        lines.append(f"{i:04x}.jpg;{name};{i % 5}")
    write(root / "labeled-images" / "image-labels.csv", "Video file,Organ,Finding,Classification\n")
    write(root / "5_fold_split.csv", "\n".join(lines) + "\n")


def matek19(root: Path) -> None:
    for i, name in enumerate(SETS["matek19"].facts.classes):
        image(root / "AML-Cytomorphology_LMU" / name / f"{name}_0001.tiff", 10 * i)
    write(root / "AML-Cytomorphology_LMU" / "annotations.dat", "")


def acevedo20(root: Path) -> None:
    files = ("BA_1", "EO_2", "ERB_3", "MMY_4", "LY_5", "MO_6", "SNE_7", "PLATELET_8")
    for i, (name, file) in enumerate(zip(SETS["acevedo20"].facts.classes, files, strict=True)):
        image(root / "PBC_dataset_normal_DIB" / name / f"{file}.jpg", 20 * i)
    write(root / "PBC_dataset_normal_DIB" / "neutrophil" / ".DS_1.jpg", b"left behind by a system")


def bodzas23(root: Path) -> None:
    folders = (
        "Basophile",
        "Eosinophile",
        "Lymphoblast",
        "Lymphocyte",
        "Monocyte",
        "Myeloblast",
        "Neutrophile Band",
    )
    for i, folder in enumerate((*folders, "Neutrophile Segment", "Normoblast")):
        image(root / "data" / folder / "1.bmp", 20 * i)


WRITERS: dict[str, Callable[[Path], None]] = {
    "fed-isic2019": fed_isic2019,
    "isic2019": isic2019,
    "isic2019-tone": isic_tone,
    "ham10000": ham10000,
    "ph2": ph2,
    "derm7pt": derm7pt,
    "rsna-ich": rsna_ich,
    "chestxray14": chestxray14,
    "hyperkvasir": hyperkvasir,
    "matek19": matek19,
    "acevedo20": acevedo20,
    "bodzas23": bodzas23,
}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(name): the folder of a new miniature."""

    def one(name: str) -> Path:
        root = tmp_path / name
        WRITERS[name](root)
        return root

    return one


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    """load(name, root, key=value …): its samples, at 8 pixels."""

    def one(name: str, root: Path, **options: Any) -> Any:
        data: SetData = SETS[name](**({"path": str(root), "image_size": 8} | options))
        return data.load(cache=tmp_path / "cache", base=tmp_path)

    return one


@pytest.fixture
def slice_file() -> Callable[..., bytes]:
    """slice_file(values, Element=value …): a CT slice as a DICOM file."""
    return dicom


@pytest.fixture
def pack() -> Callable[[Path], None]:
    """pack(folder): a zip file in its place that holds it under its own name, as the official archives do."""

    def one(folder: Path) -> None:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        with zipfile.ZipFile(folder.with_name(f"{folder.name}.zip"), "w") as archive:
            for path in files:
                archive.write(path, path.relative_to(folder.parent))
        for path in files:
            path.unlink()
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir()
        folder.rmdir()

    return one

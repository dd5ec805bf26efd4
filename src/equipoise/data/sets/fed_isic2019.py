"""Fed-ISIC2019 of FLamby: 23,247 images of ISIC 2019 at six centres, with FLamby's own split into train and
test.

    ISIC_2019_Training_Input/ISIC_0000000.jpg, …      (or ISIC_2019_Training_Input.zip)
    train_test_split                                  image, MEL … UNK, target, center, fold, fold2; from
    FLamby's repository

The split is made 80 / 20 per centre and is not stratified by class: all three VASC of one centre are in
train.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from equipoise.data.options import SPLITS
from equipoise.data.rows import Bad, Row
from equipoise.data.sets.base import Counts, Download, Facts, SetData
from equipoise.data.sets.isic2019 import CITATION, CLASSES, IMAGES, LICENCE, diagnoses

SITES = ("bcn", "vidir_molemax", "vidir_modern", "rosendahl", "msk4", "vienna_dias")
"""FLamby's centres 0 to 5"""
SPLIT = "train_test_split"


class FedIsic2019(SetData):
    """Fed-ISIC2019: dermoscopy, eight diagnoses, six real centres, fixed train and test."""

    facts = Facts(
        title="Fed-ISIC2019",
        classes=CLASSES,
        counts=Counts(
            23_247,
            dict(zip(CLASSES, (4185, 11_326, 3323, 867, 2426, 239, 253, 628), strict=True)),
            dict(zip(SITES, (12_413, 3954, 3363, 2259, 819, 439), strict=True)),
        ),
        layout=(f"{IMAGES}/*.jpg", SPLIT),
        home="https://challenge.isic-archive.com/data/#2019 and flamby/datasets/fed_isic2019 of "
        "https://github.com/owkin/FLamby",
        licence=LICENCE,
        citation=f"Ogier du Terrail et al. 2022 (FLamby); {CITATION}",
        papers="FCA, Fed-MAS",
    )
    parts = (IMAGES,)

    kind: Literal["fed-isic2019"] = "fed-isic2019"
    images: str = IMAGES
    """The folder of images; FLamby's smaller copies lie in ISIC_2019_Training_Input_preprocessed."""

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        where = {
            fields["image"]: (fields["center"], fields["fold"])
            for _, _, fields in download.table(SPLIT, columns=("image", "center", "fold"))
        }
        for row in diagnoses(download, SPLIT, self.images):
            if isinstance(row, Bad):
                yield row
                continue
            centre, fold = where[row.id]
            if centre not in map(str, range(len(SITES))) or fold not in SPLITS:
                wrong = f"center '{centre}' is not 0 to 5, or fold '{fold}' not train or test"
                yield Bad(row.number, f"{row.place}: {wrong}")
            else:
                yield replace(row, site=SITES[int(centre)], split=SPLITS[fold])

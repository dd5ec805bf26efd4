"""ISIC 2019 with skin types: the labels of Bevan and Atapour-Abarghouei, estimated from the skin around each
lesion.

    ISIC_2019_Training_Input/ISIC_0000000.jpg, …      (or ISIC_2019_Training_Input.zip)
    ISIC_2019_Training_GroundTruth.csv                image, MEL, NV, BCC, AK, BKL, DF, VASC, SCC, UNK
    isic_train_20-19-18-17.csv                        image_name, fitzpatrick (1 to 6), …; data/csv of their
    repository

Images without a skin type are reported as rows that cannot be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from pydantic import Field

from equipoise.data.rows import Bad, Row
from equipoise.data.sets.base import Counts, Download, Facts, SetData
from equipoise.data.sets.isic2019 import CITATION, CLASSES, COUNTS, IMAGES, LABELS, LICENCE, diagnoses

TYPES = "isic_train_20-19-18-17.csv"


class IsicTone(SetData):
    """ISIC 2019 with Fitzpatrick skin types: attributes `tone` (light or dark) and `fitzpatrick` (1 to 6)."""

    facts = Facts(
        title="ISIC 2019 with skin types",
        classes=CLASSES,
        counts=Counts(COUNTS.images, COUNTS.classes),
        layout=(f"{IMAGES}/*.jpg", LABELS, TYPES),
        home="https://challenge.isic-archive.com/data/#2019 and "
        "https://github.com/pbevan1/Detecting-Melanoma-Fairly",
        licence=LICENCE,
        citation=f"Bevan and Atapour-Abarghouei 2022; {CITATION}",
        papers="Fed-MAS",
    )
    parts = (IMAGES,)

    kind: Literal["isic2019-tone"] = "isic2019-tone"
    dark_from: int = Field(default=4, ge=2, le=6)
    """The first Fitzpatrick type that counts as dark skin; the paper does not say where it cuts."""

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        types = {
            fields["image_name"]: fields["fitzpatrick"].removesuffix(".0")
            for _, _, fields in download.table(TYPES, columns=("image_name", "fitzpatrick"))
        }
        for row in diagnoses(download, LABELS, IMAGES):
            if isinstance(row, Bad):
                yield row
                continue
            kind = types.get(row.id, "")
            if kind not in ("1", "2", "3", "4", "5", "6"):
                yield Bad(row.number, f"{row.place}: {TYPES} has no skin type from 1 to 6 for '{row.id}'")
            else:
                tone = "dark" if int(kind) >= self.dark_from else "light"
                yield replace(row, attributes={"tone": tone, "fitzpatrick": kind})

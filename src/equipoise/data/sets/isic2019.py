"""ISIC 2019, training part: 25,331 dermoscopy images of eight diagnoses.

    ISIC_2019_Training_Input/ISIC_0000000.jpg, …      (or ISIC_2019_Training_Input.zip)
    ISIC_2019_Training_GroundTruth.csv                image, MEL, NV, BCC, AK, BKL, DF, VASC, SCC, UNK
    ISIC_2019_Training_Metadata.csv                   image, age_approx, anatom_site_general, lesion_id, sex

A group is a lesion; images without a lesion id stand alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from equipoise.data.rows import Bad, Row
from equipoise.data.sets.base import Counts, Download, Facts, SetData

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
IMAGES = "ISIC_2019_Training_Input"
LABELS, METADATA = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"
COUNTS = Counts(25_331, dict(zip(CLASSES, (4522, 12_875, 3323, 867, 2624, 239, 253, 628), strict=True)))
HOME = "https://challenge.isic-archive.com/data/#2019"
LICENCE = "CC BY-NC 4.0"
CITATION = "Tschandl et al. 2018, Codella et al. 2018, Combalia et al. 2019 (HAM10000, MSK and BCN_20000)"


class Isic2019(SetData):
    """ISIC 2019: dermoscopy, eight diagnoses, grouped by lesion."""

    facts = Facts(
        title="ISIC 2019",
        classes=CLASSES,
        counts=COUNTS,
        layout=(f"{IMAGES}/*.jpg", LABELS, METADATA),
        home=HOME,
        licence=LICENCE,
        citation=CITATION,
        papers="FedIIC",
    )
    parts = (IMAGES,)

    kind: Literal["isic2019"] = "isic2019"

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        columns = ("image", "lesion_id", "sex", "anatom_site_general")
        about = {fields["image"]: fields for _, _, fields in download.table(METADATA, columns=columns)}
        for row in diagnoses(download, LABELS, IMAGES):
            if isinstance(row, Bad):
                yield row
                continue
            one = about.get(row.id, {})
            attributes = {"sex": one.get("sex", ""), "anatomy": one.get("anatom_site_general", "")}
            yield replace(row, group=one.get("lesion_id") or row.id, attributes=attributes)


def diagnoses(download: Download, table: str, images: str) -> Iterator[Row | Bad]:
    """The rows of a table with one column of 0 and 1 per diagnosis, as the ISIC challenges have it."""
    places = download.below(images)
    for number, place, fields in download.table(table, columns=("image", *CLASSES)):
        name = fields["image"]
        held = [diagnosis for diagnosis in CLASSES if fields[diagnosis] in ("1", "1.0")]
        if len(held) == 1:
            yield Row(number, place, name, held[0], places.get(name, f"{images}/{name}.jpg"))
        else:
            yield Bad(number, f"{place}: {len(held)} of the classes are 1 where exactly one must be")

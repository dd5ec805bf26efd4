"""HAM10000: 10,015 dermoscopy images of seven diagnoses from four sources, several images of some lesions.

    HAM10000_images_part_1/ISIC_0024306.jpg, …        (or HAM10000_images_part_1.zip)
    HAM10000_images_part_2/ISIC_0029306.jpg, …        (or HAM10000_images_part_2.zip)
    HAM10000_metadata                                 lesion_id, image_id, dx, dx_type, age, sex,
    localization, dataset

The metadata must be those of the Harvard Dataverse (CSV, or its .tab): copies elsewhere lack `dataset`, the
source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from equipoise.data.rows import Bad, Row
from equipoise.data.sets.base import Counts, Download, Facts, SetData

CLASSES = ("nv", "mel", "bkl", "bcc", "akiec", "vasc", "df")
PARTS = ("HAM10000_images_part_1", "HAM10000_images_part_2")
METADATA = ("HAM10000_metadata", "HAM10000_metadata.tab", "HAM10000_metadata.csv")
COLUMNS = ("lesion_id", "image_id", "dx", "sex", "localization", "dataset")


class Ham10000(SetData):
    """HAM10000: dermoscopy, seven diagnoses, four sources, grouped by lesion."""

    facts = Facts(
        title="HAM10000",
        classes=CLASSES,
        counts=Counts(
            10_015,
            dict(zip(CLASSES, (6705, 1113, 1099, 514, 327, 142, 115), strict=True)),
            {"vidir_molemax": 3954, "vidir_modern": 3363, "rosendahl": 2259, "vienna_dias": 439},
        ),
        layout=(*(f"{part}/*.jpg" for part in PARTS), METADATA[0]),
        home="https://doi.org/10.7910/DVN/DBW86T",
        licence="CC BY-NC 4.0",
        citation="Tschandl, Rosendahl and Kittler 2018",
        papers="FedSDC, FedIIC (its sources as sites)",
    )
    parts = PARTS

    kind: Literal["ham10000"] = "ham10000"

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        places = download.below(*PARTS)
        for number, place, fields in download.table(*METADATA, columns=COLUMNS):
            name = fields["image_id"]
            yield Row(
                number,
                place,
                id=name,
                label=fields["dx"],
                file=places.get(name, f"{name}.jpg"),
                site=fields["dataset"],
                group=fields["lesion_id"],
                attributes={"sex": fields["sex"], "localization": fields["localization"]},
            )

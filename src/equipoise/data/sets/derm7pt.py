"""derm7pt, from the Interactive Atlas of Dermoscopy: 1,011 dermoscopy images with the authors' split.

    release_v0/images/NEL/Nel026.jpg, …               (or release_v0.zip)
    release_v0/meta/meta.csv                          case_num, diagnosis, …, location, sex, …, clinic, derm
    release_v0/meta/train_indexes.csv, valid_indexes.csv, test_indexes.csv      indexes: rows of meta.csv from
    0

The twenty diagnoses are put together into the five classes of the authors' paper. Clinical photographs are
left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal

from equipoise.data.rows import Bad, Row
from equipoise.data.sets.base import Counts, Download, Facts, SetData

GROUPS: dict[str, tuple[str, ...]] = {
    "BCC": ("basal cell carcinoma",),
    "NEV": ("nevus", "blue nevus", "clark nevus", "combined nevus", "congenital nevus", "dermal nevus",
            "recurrent nevus", "reed or spitz nevus"),
    "MEL": ("melanoma", "melanoma (in situ)", "melanoma (less than 0.76 mm)", "melanoma (0.76 to 1.5 mm)",
            "melanoma (more than 1.5 mm)", "melanoma metastasis"),
    "MISC": ("dermatofibroma", "lentigo", "melanosis", "miscellaneous", "vascular lesion"),
    "SK": ("seborrheic keratosis",),
}  # fmt: skip
CLASS = {diagnosis: name for name, diagnoses in GROUPS.items() for diagnosis in diagnoses}
INDEXES = {"train_indexes.csv": "train", "valid_indexes.csv": "validation", "test_indexes.csv": "test"}


class Derm7pt(SetData):
    """derm7pt (Interactive Atlas of Dermoscopy): dermoscopy, five classes, the authors' train, validation and
    test."""

    facts = Facts(
        title="derm7pt",
        classes=tuple(GROUPS),
        counts=Counts(1011, dict(zip(GROUPS, (42, 575, 252, 97, 45), strict=True))),
        layout=(
            "release_v0/images/*/*.jpg",
            "release_v0/meta/meta.csv",
            *(f"release_v0/meta/{name}" for name in INDEXES),
        ),
        home="https://derm.cs.sfu.ca",
        licence="research and education only, on registration",
        citation="Kawahara et al. 2019; Argenziano et al. 2000",
        papers="FedIIC",
    )
    parts = ("release_v0",)

    kind: Literal["derm7pt"] = "derm7pt"

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        split = {
            fields["indexes"]: part
            for name, part in INDEXES.items()
            for _, _, fields in download.table(name, columns=("indexes",))
        }
        places = download.below("images")
        columns = ("diagnosis", "location", "sex", "derm")
        for number, place, fields in download.table("meta.csv", columns=columns):
            index = str(number - 2)  # the header is row 1
            if index not in split:
                yield Bad(number, f"{place}: none of {', '.join(INDEXES)} has index {index}")
                continue
            yield Row(
                number,
                place,
                id=fields["derm"],
                label=CLASS.get(fields["diagnosis"], fields["diagnosis"]),
                file=places.get(PurePosixPath(fields["derm"]).stem, fields["derm"]),
                split=split[index],
                attributes={"sex": fields["sex"], "location": fields["location"]},
            )

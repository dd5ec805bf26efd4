"""PH²: 200 dermoscopy images of melanocytic lesions from one hospital.

    PH2 Dataset images/IMD002/IMD002_Dermoscopic_Image/IMD002.bmp, …
    PH2_dataset.txt                                   columns between '||': name, histology, clinical
    diagnosis (0, 1, 2), …

The archive is a .rar file: unpack it. Masks (IMD002_lesion and the like) are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from equipoise.data.rows import Bad, Row
from equipoise.data.sets.base import Counts, Download, Facts, SetData
from equipoise.errors import DataError

CLASSES = ("common nevus", "atypical nevus", "melanoma")
"""in the order of the numbers in the table"""
IMAGES, TABLE = "PH2 Dataset images", "PH2_dataset.txt"


class Ph2(SetData):
    """PH²: dermoscopy, common and atypical nevi and melanomas of one hospital."""

    facts = Facts(
        title="PH²",
        classes=CLASSES,
        counts=Counts(200, dict(zip(CLASSES, (80, 80, 40), strict=True))),
        layout=(f"{IMAGES}/IMD*/IMD*_Dermoscopic_Image/IMD*.bmp", TABLE),
        home="https://www.fc.up.pt/addi/ph2%20database.html",
        licence="research and education only, not to be passed on",
        citation="Mendonça et al. 2013",
        papers="FedIIC",
    )

    kind: Literal["ph2"] = "ph2"

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        places = download.below(IMAGES)
        table = download.find(TABLE)
        lines = download.read(table).decode("utf-8", "replace").splitlines()
        held = []
        for number, line in enumerate(lines, start=1):
            cells = [cell.strip() for cell in line.split("||")]
            if len(cells) > 3 and cells[1].startswith("IMD"):  # others: headings, and the legend below
                held.append((number, cells))
        if not held:
            raise DataError(f"{download.root / table} has no line '|| IMD… ||': download it again")
        for number, cells in held:
            name, place = cells[1], f"{TABLE} line {number}"
            if cells[3] not in ("0", "1", "2"):
                yield Bad(number, f"{place}: clinical diagnosis '{cells[3]}' of {name} is not 0, 1 or 2")
            else:
                yield Row(number, place, name, CLASSES[int(cells[3])], places.get(name, f"{name}.bmp"))

"""Acevedo-20 (PBC): 17,092 single normal blood cells of eight classes.

    PBC_dataset_normal_DIB/basophil/BA_100102.jpg, …  one folder per class (or PBC_dataset_normal_DIB.zip)

The letters before '_' in a file's name are a finer class, given as the attribute `subtype`.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

from equipoise.data.sets.base import Counts, Facts, FolderSet

COUNTS: dict[str, int] = {
    "basophil": 1218,
    "eosinophil": 3117,
    "erythroblast": 1551,
    "ig": 2895,
    "lymphocyte": 1214,
    "monocyte": 1420,
    "neutrophil": 3329,
    "platelet": 2348,
}


class Acevedo20(FolderSet):
    """Acevedo-20 (PBC): single normal blood cells, eight classes, finer ones as attribute `subtype`."""

    facts = Facts(
        title="Acevedo-20",
        classes=tuple(COUNTS),
        counts=Counts(17_092, COUNTS),
        layout=("PBC_dataset_normal_DIB/CLASS/*.jpg",),
        home="https://doi.org/10.17632/snkd93bnjr.1",
        licence="CC BY 4.0",
        citation="Acevedo et al. 2020",
        papers="FedSDC",
    )
    parts = ("PBC_dataset_normal_DIB",)

    kind: Literal["acevedo20"] = "acevedo20"

    def attributes(self, name: str) -> dict[str, str]:
        return {"subtype": PurePosixPath(name).stem.partition("_")[0]}

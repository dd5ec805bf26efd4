"""Bodzas-23: 16,027 single white blood cells, normal and leukaemic, of nine classes.

    Basophile/*.bmp, Eosinophile/*.bmp, …             one folder per class, anywhere below the root

The folders keep the authors' spelling; the classes are named in English.
"""

from __future__ import annotations

from typing import Literal

from equipoise.data.sets.base import Counts, Facts, FolderSet

FOLDERS: dict[str, str] = {
    "Basophile": "basophil",
    "Eosinophile": "eosinophil",
    "Lymphoblast": "lymphoblast",
    "Lymphocyte": "lymphocyte",
    "Monocyte": "monocyte",
    "Myeloblast": "myeloblast",
    "Neutrophile Band": "band neutrophil",
    "Neutrophile Segment": "segmented neutrophil",
    "Normoblast": "normoblast",
}


class Bodzas23(FolderSet):
    """Bodzas-23: single white blood cells, nine classes."""

    facts = Facts(
        title="Bodzas-23",
        classes=tuple(FOLDERS.values()),
        counts=Counts(
            16_027,
            {
                "basophil": 1023,
                "eosinophil": 1017,
                "lymphoblast": 2557,
                "lymphocyte": 3046,
                "monocyte": 2040,
                "myeloblast": 2534,
                "normoblast": 510,
            },
        ),
        layout=("CLASS/*.bmp",),
        home="https://doi.org/10.6084/m9.figshare.c.6612970",
        licence="CC BY 4.0",
        citation="Bodzas, Kodytek and Zidek 2023",
        papers="FedSDC",
    )
    folders = FOLDERS

    kind: Literal["bodzas23"] = "bodzas23"

"""Matek-19 (AML-Cytomorphology_LMU): 18,365 single blood cells of 100 leukaemia patients and 100 controls.

    AML-Cytomorphology_LMU/BAS/BAS_0001.tiff, …       one folder per class, by the abbreviations of the
    authors

Which patient a cell comes from is not published.
"""

from __future__ import annotations

from typing import Literal

from equipoise.data.sets.base import Counts, Facts, FolderSet

COUNTS: dict[str, int] = {
    "BAS": 79,
    "EBO": 78,
    "EOS": 424,
    "KSC": 15,
    "LYA": 11,
    "LYT": 3937,
    "MMZ": 15,
    "MOB": 26,
    "MON": 1789,
    "MYB": 42,
    "MYO": 3268,
    "NGB": 109,
    "NGS": 8484,
    "PMB": 18,
    "PMO": 70,
}


class Matek19(FolderSet):
    """Matek-19: single blood cells, fifteen classes with a long tail."""

    facts = Facts(
        title="Matek-19",
        classes=tuple(COUNTS),
        counts=Counts(18_365, COUNTS),
        layout=("AML-Cytomorphology_LMU/CLASS/*.tiff",),
        home="https://doi.org/10.7937/tcia.2019.36f5o9ld",
        licence="CC BY 3.0",
        citation="Matek et al. 2019",
        papers="FedSDC",
    )
    parts = ("AML-Cytomorphology_LMU",)

    kind: Literal["matek19"] = "matek19"

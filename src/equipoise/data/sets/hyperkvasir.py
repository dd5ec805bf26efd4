"""HyperKvasir, labelled images: 10,662 images of the gastrointestinal tract in 23 classes.

labeled-images/lower-gi-tract/…/polyps/*.jpg, …   one folder per class (or labeled-images.zip,
labeled-images/upper-gi-tract/…/pylorus/*.jpg, …   or hyper-kvasir-labeled-images.zip)
5_fold_split.csv or 2_fold_split.csv              only with `fold`: file-name;class-name;split-index, from
official_splits of
                                                  the authors' repository
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field, model_validator

from equipoise.data.rows import Bad, Row
from equipoise.data.sets.base import Counts, Download, Facts, FolderSet

COUNTS: dict[str, int] = {
    "barretts": 41,
    "barretts-short-segment": 53,
    "bbps-0-1": 646,
    "bbps-2-3": 1148,
    "cecum": 1009,
    "dyed-lifted-polyps": 1002,
    "dyed-resection-margins": 989,
    "esophagitis-a": 403,
    "esophagitis-b-d": 260,
    "hemorrhoids": 6,
    "ileum": 9,
    "impacted-stool": 131,
    "polyps": 1028,
    "pylorus": 999,
    "retroflex-rectum": 391,
    "retroflex-stomach": 764,
    "ulcerative-colitis-grade-0-1": 35,
    "ulcerative-colitis-grade-1": 201,
    "ulcerative-colitis-grade-1-2": 11,
    "ulcerative-colitis-grade-2": 443,
    "ulcerative-colitis-grade-2-3": 28,
    "ulcerative-colitis-grade-3": 133,
    "z-line": 932,
}


class HyperKvasir(FolderSet):
    """HyperKvasir: endoscopy, 23 classes with a long tail, the authors' folds where asked for."""

    facts = Facts(
        title="HyperKvasir",
        classes=tuple(COUNTS),
        counts=Counts(10_662, COUNTS),
        layout=("labeled-images/*-gi-tract/*/CLASS/*.jpg", "5_fold_split.csv (with fold)"),
        home="https://datasets.simula.no/hyper-kvasir and https://github.com/simula/hyper-kvasir",
        licence="CC BY 4.0",
        citation="Borgli et al. 2020",
        papers="Fed-MAS",
    )
    parts = ("labeled-images", "hyper-kvasir-labeled-images")

    kind: Literal["hyperkvasir"] = "hyperkvasir"
    folds: Literal[2, 5] = 5
    """Which of the official splits `fold` counts in."""
    fold: int | None = Field(default=None, ge=0)
    """The official fold that is the test set, from 0; without it the images are split as `split` says."""

    @model_validator(mode="after")
    def _fold_exists(self) -> HyperKvasir:
        if self.fold is not None and self.fold >= self.folds:
            raise ValueError(f"fold {self.fold} is not one of {self.folds}: count from 0 to {self.folds - 1}")
        return self

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        if self.fold is None:
            yield from super().rows(download)
            return
        table = f"{self.folds}_fold_split.csv"
        columns = ("file-name", "split-index")
        folds = {
            fields["file-name"]: (number, place, fields["split-index"])
            for number, place, fields in download.table(table, columns=columns, delimiter=";")
        }
        for row in super().rows(download):
            entry = None if isinstance(row, Bad) else folds.pop(PurePosixPath(row.file).name, None)
            if isinstance(row, Bad):
                yield row
            elif entry is None:
                yield Bad(row.number, f"{row.place}: {table} does not name it")
            else:
                yield replace(row, split="test" if entry[2] == str(self.fold) else "train")
        for file, (number, place, _) in folds.items():
            yield Bad(number, f"{place}: file '{file}' is not in {download.root.name}")

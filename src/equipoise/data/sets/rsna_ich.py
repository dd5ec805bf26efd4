"""RSNA 2019 intracranial haemorrhage: slices of head CT with any of five types of bleeding, as DICOM files.

    stage_2_train.csv                                 ID (ID_000012eaf_epidural, …_any: six rows per slice),
    Label stage_2_train/ID_000012eaf.dcm, …                 (or stage_2_train.zip)

Those are the files served today. The papers used stage 1 (`stage = 1`: stage_1_train.csv with
stage_1_train_images, whose slices are all in stage_2_train too). Three channels are the brain, subdural and
bone windows; one channel is the brain window. Stage 1 is known to hold one file without whole pixels,
ID_6431af929: leave it out with `bad_rows = "skip"`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from equipoise.data.dicom import HEADER, WINDOWS, patient
from equipoise.data.grey import Window
from equipoise.data.rows import Bad, Row
from equipoise.data.sets.base import Counts, Download, Facts, SetData

CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
FOLDERS = {1: ("stage_1_train_images", "stage_2_train"), 2: ("stage_2_train",)}
"""where the slices of a stage may lie"""

HEALTHY = 87_948
"""slices without bleeding in FedMLP's selection"""

PUBLISHED: dict[tuple[int, str], tuple[int, tuple[int, ...]]] = {
    (1, "single"): (67_969, (1497, 13_932, 8914, 14_717, 28_909)),
    (1, "multi"): (97_103, (2761, 32_564, 23_766, 32_122, 42_496)),
    (2, "multi"): (107_933, (3145, 36_118, 26_205, 35_675, 47_166)),
}
"""(stage, task) → slices with bleeding, and of each type"""


class RsnaIch(SetData):
    """RSNA intracranial haemorrhage: head CT slices, five types of bleeding, one or several per slice."""

    facts = Facts(
        title="RSNA-ICH",
        classes=CLASSES,
        counts=Counts(67_969, dict(zip(CLASSES, PUBLISHED[1, "single"][1], strict=True))),
        layout=("stage_2_train/*.dcm", "stage_2_train.csv"),
        home="https://www.kaggle.com/c/rsna-intracranial-hemorrhage-detection",
        licence="non-commercial and research use, with citation",
        citation="Flanders et al. 2020",
        papers="FCA, FedIIC (one type per slice), FedMLP (several)",
    )
    parts = ("stage_1_train_images", "stage_2_train")

    kind: Literal["rsna-ich"] = "rsna-ich"
    window: tuple[Window, ...] | None = tuple(WINDOWS.values())
    """Centre and width of each channel in Hounsfield units; by default brain, subdural and bone."""
    task: Literal["single", "multi"] = "single"
    """single: slices with exactly one type of bleeding; multi: all slices with bleeding, and `healthy` ones
    without."""
    stage: Literal[1, 2] = 2
    """2: the labels served today; 1: those of the papers, a subset."""
    healthy: int = Field(default=HEALTHY, ge=0)
    """With task = "multi": how many slices without bleeding are kept, chosen by a hash of their names."""
    patients: bool = False
    """Group slices by patient, so that no split cuts one; reads the beginning of every file each time the
    data is loaded."""

    @property
    def multi(self) -> bool:
        return self.task == "multi"

    def expected(self) -> Counts:
        if (self.stage, self.task) not in PUBLISHED:
            return Counts()
        bleeding, types = PUBLISHED[self.stage, self.task]
        return Counts(bleeding + (self.healthy if self.multi else 0), dict(zip(CLASSES, types, strict=True)))

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        places = download.below(self._folder(download))
        held = self._types(download)
        names = [name for name, types in held.items() if (types if self.multi else len(types) == 1)]
        if self.multi:
            healthy = [name for name, types in held.items() if not types]
            healthy.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())
            names += healthy[: self.healthy]
        for number, name in enumerate(names):
            types, file = held[name], places.get(name, f"{name}.dcm")
            try:
                group = patient(download.read(file, HEADER)) if self.patients and name in places else None
            except ValueError as error:
                yield Bad(number, f"slice {name}: image '{file}' is broken: {error}")
                continue
            yield Row(number, f"slice {name}", name, types if self.multi else types[0], file, group=group)

    def _folder(self, download: Download) -> str:
        """The folder of slices that is there; the first where none is, for the error to name."""
        folders = FOLDERS[self.stage]
        parts = {part.removesuffix(".zip") for name in download.images for part in name.split("/")[:-1]}
        return next((folder for folder in folders if folder in parts), folders[0])

    def _types(self, download: Download) -> dict[str, list[str]]:
        """The types of bleeding in each slice; some slices are listed twice."""
        held: dict[str, list[str]] = {}
        for number, place, fields in download.table(f"stage_{self.stage}_train.csv", columns=("ID", "Label")):
            name, _, kind = fields["ID"].rpartition("_")
            types = held.setdefault(name, [])
            if kind not in (*CLASSES, "any") or fields["Label"] not in ("0", "1"):
                wrong = f"'{fields['ID']},{fields['Label']}' is not a slice's type and 0 or 1"
                download.bad.append(Bad(number, f"{place}: {wrong}"))
            elif kind != "any" and fields["Label"] == "1" and kind not in types:
                types.append(kind)
        return held

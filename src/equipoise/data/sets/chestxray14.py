"""NIH ChestX-ray14: 112,120 frontal chest X-rays of 30,805 patients, fourteen findings mined from reports.

    Data_Entry_2017.csv (or Data_Entry_2017_v2020.csv)    Image Index, Finding Labels, …, Patient ID, …, View
    Position, … images/00000001_000.png, …                            (images_001.tar.gz to images_012.tar.gz,
    unpacked)

FedMLP keeps the views from behind (PA) and the eight findings that are most frequent in the whole set; it
does not list them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import field_validator

from equipoise.data.rows import Bad, Row
from equipoise.data.sets.base import Counts, Download, Facts, SetData
from equipoise.names import unknown

FINDINGS: dict[str, int] = {
    "Infiltration": 19_894,
    "Effusion": 13_317,
    "Atelectasis": 11_559,
    "Nodule": 6331,
    "Mass": 5782,
    "Pneumothorax": 5302,
    "Consolidation": 4667,
    "Pleural_Thickening": 3385,
    "Cardiomegaly": 2776,
    "Emphysema": 2516,
    "Edema": 2303,
    "Fibrosis": 1686,
    "Pneumonia": 1431,
    "Hernia": 227,
}
"""the findings with their number in both views, most frequent first"""
EIGHT = tuple(FINDINGS)[:8]
VIEWS = {"PA": 67_310, "AP": 44_810, "both": 112_120}
TABLE = ("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv")


class ChestXray14(SetData):
    """NIH ChestX-ray14: chest X-rays, several findings per image, grouped by patient."""

    facts = Facts(
        title="ChestX-ray14",
        classes=EIGHT,
        counts=Counts(VIEWS["PA"]),
        layout=("images/*.png", TABLE[0]),
        home="https://nihcc.app.box.com/v/ChestXray-NIHCC",
        licence="free use with citation and acknowledgement of the NIH Clinical Center",
        citation="Wang et al. 2017",
        papers="FedMLP",
    )

    kind: Literal["chestxray14"] = "chestxray14"
    view: Literal["PA", "AP", "both"] = "PA"
    """Which X-rays: taken from behind (PA), from in front (AP), or both."""
    findings: tuple[str, ...] = EIGHT
    """The findings to learn, in order; others are left out of the labels, not the images."""

    @field_validator("findings")
    @classmethod
    def _known(cls, findings: tuple[str, ...]) -> tuple[str, ...]:
        for name in findings:
            if name not in FINDINGS:
                raise ValueError(unknown("finding", name, FINDINGS))
        if not findings or len(set(findings)) < len(findings):
            raise ValueError("findings must be a list of different names")
        return findings

    @property
    def multi(self) -> bool:
        return True

    @property
    def classes(self) -> tuple[str, ...]:
        return self.findings

    def expected(self) -> Counts:
        both = {name: FINDINGS[name] for name in self.findings}
        return Counts(VIEWS[self.view], both if self.view == "both" else {})

    def rows(self, download: Download) -> Iterator[Row | Bad]:
        places = download.below("images")
        columns = ("Image Index", "Finding Labels", "Patient ID", "View Position")
        for number, place, fields in download.table(*TABLE, columns=columns):
            if self.view not in ("both", fields["View Position"]):
                continue
            file = fields["Image Index"]
            findings = [] if fields["Finding Labels"] == "No Finding" else fields["Finding Labels"].split("|")
            strange = [name for name in findings if name not in FINDINGS]
            if strange:
                yield Bad(number, f"{place}: {unknown('finding', strange[0], FINDINGS)}")
                continue
            yield Row(
                number,
                place,
                id=file,
                label=[name for name in findings if name in self.findings],
                file=places.get(file.removesuffix(".png"), file),
                group=fields["Patient ID"],
                attributes={
                    "sex": fields.get("Patient Gender") or fields.get("Patient Sex", ""),
                    "view": fields["View Position"],
                },
            )

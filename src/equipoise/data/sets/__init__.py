"""Published data sets, read from their official downloads: one file each, facts and a reader."""

from __future__ import annotations

from equipoise.data.sets.acevedo20 import Acevedo20
from equipoise.data.sets.base import Counts, Facts, SetData, check
from equipoise.data.sets.bodzas23 import Bodzas23
from equipoise.data.sets.chestxray14 import ChestXray14
from equipoise.data.sets.derm7pt import Derm7pt
from equipoise.data.sets.fed_isic2019 import FedIsic2019
from equipoise.data.sets.ham10000 import Ham10000
from equipoise.data.sets.hyperkvasir import HyperKvasir
from equipoise.data.sets.isic2019 import Isic2019
from equipoise.data.sets.isic_tone import IsicTone
from equipoise.data.sets.matek19 import Matek19
from equipoise.data.sets.ph2 import Ph2
from equipoise.data.sets.rsna_ich import RsnaIch

SETS: dict[str, type[SetData]] = {
    "fed-isic2019": FedIsic2019,
    "isic2019": Isic2019,
    "isic2019-tone": IsicTone,
    "ham10000": Ham10000,
    "ph2": Ph2,
    "derm7pt": Derm7pt,
    "rsna-ich": RsnaIch,
    "chestxray14": ChestXray14,
    "hyperkvasir": HyperKvasir,
    "matek19": Matek19,
    "acevedo20": Acevedo20,
    "bodzas23": Bodzas23,
}
"""`data.kind` → its options, in the order of the papers' tables"""

__all__ = ["SETS", "Counts", "Facts", "SetData", "check"]

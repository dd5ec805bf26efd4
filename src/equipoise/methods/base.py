"""The method object: hyper-parameters as fields, and a handful of hooks that each default to FedAvg.

A method runs in two places. At the coordinator: `init`, `round`, `finish`. At a site, as the answer to a
question: `train`, `evaluate`, and any further public method with the signature `(self, net, loc) -> Upload`.
It holds hyper-parameters and nothing else; what it must remember lives in the server tree or in `loc.mine`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from equipoise.data.samples import Task
from equipoise.errors import MethodError
from equipoise.exchange import Ask
from equipoise.leaves import Each, Limit, Mean, Sum, Upload
from equipoise.losses import ObjectiveOptions
from equipoise.methods.parts import crt
from equipoise.nets import FED, HEAD, Net, NetOptions, ProjectorSpec, state
from equipoise.options import Options
from equipoise.site import Batch, Loc, coarse, measure
from equipoise.site.figures import GROUPS, addable
from equipoise.tree import Tree, plus

SPLITS = ("validation", "test")
SCORES, POOLED, OWN = "scores", "pooled", "own"
"""leaves of evaluation: the logits of every image; or counts of all sites together, and of each by itself"""
PERSONAL = "personal"
"""in `loc.mine`: tensors of the net, by name, that a site's own predictor has instead of the shared ones"""

Standard = Literal["alone", "plain", "pooled"]
"""what other methods are measured against: every site by itself; models averaged and nothing else; all images
in one place, which only a simulation can have"""


class Method(Options):
    """FedAvg's round around any loss; the base of every method."""

    paper: ClassVar[str] = ""
    tasks: ClassVar[tuple[Task, ...]] = ("single", "multi")
    heads: ClassVar[tuple[str, ...]] = (FED,)
    private: ClassVar[tuple[str, ...]] = ()
    classifier: ClassVar[str] = HEAD
    views: ClassVar[tuple[str, ...]] = ("weak",)
    recommends: ClassVar[dict[str, Any]] = {}
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    neutral: ClassVar[dict[str, Any] | None] = None
    keeps_tuned: ClassVar[bool] = True
    local_batch_norm: ClassVar[bool] = False
    standard: ClassVar[Standard | None] = None

    crt: int = Field(0, ge=0)
    """rounds of classifier re-training after the last round (Kang et al. 2020); 0 = none"""

    # When the run is set up ---------------------------------------------------------------------------------

    def projection(self) -> ProjectorSpec | None:
        """A projector on the pooled features, if the method needs one."""
        return None

    def make_head(self, width: int, classes: int) -> nn.Module | None:
        """A classifier head of the method's own; None takes the one the config names."""
        return None

    def base_loss(self, objective: ObjectiveOptions) -> ObjectiveOptions:
        """The base loss as the method wants it, made from the one the config names (`after`, `ending`)."""
        return objective

    def frozen(self) -> Mapping[str, NetOptions]:
        """Frozen networks every site has beside the trained one; they are found in `loc.frozen`."""
        return {}

    # At the coordinator -------------------------------------------------------------------------------------

    def init(self, net: Net, shared: Mapping[str, Tensor]) -> Tree:
        """The first server tree; `shared` are the net's tensors that are exchanged."""
        return {"model": {name: tensor.detach().clone().contiguous() for name, tensor in shared.items()}}

    def round(self, server: Tree, ask: Ask) -> Tree:
        """One communication round: the next server tree."""
        up = ask(self.train, model=server["model"])
        return {**server, "model": plus(server["model"], up["delta"])}

    def finish(self, server: Tree, ask: Ask) -> Tree:
        """The method's ending, of each round that is reported: the classifier re-trained, if `crt` asks for
        it.

        A method's own ending starts from this one. What sites alone shall have of it belongs into `loc.mine`
        or private parts: a model that was merely trained there is kept only where `evaluate.own = "tuned"`.
        """
        return crt.stage(self, server, ask) if self.crt else server

    def phases(self, rounds: int) -> Sequence[int]:
        """Rounds from which a different set of leaves leaves the sites (the ledger is made anew at each)."""
        return (0,)

    def limits(self, classes: int, epochs: int) -> Mapping[str, Limit]:
        """By question.leaf: what no honest answer exceeds. Any other mean weighs at most the site's training
        images."""
        return {}

    def serving(self, server: Tree) -> Tree:
        """The part of the server tree that prediction needs."""
        return {"model": server["model"]}

    def predictors(self, server: Tree, ask: Ask) -> Mapping[str, Tree]:
        """The global predictors to be tested on the union of test sets; generalisation is their mean."""
        return {"global": self.serving(server)}

    # At a site ----------------------------------------------------------------------------------------------

    def init_site(self, net: Net, loc: Loc) -> Tree:
        """The site's first private tree. May set private parameters of the net in place."""
        return {}

    def prepare(self, net: Net, loc: Loc) -> None:
        """Once before local training: teachers, pseudo-labels, statistics, into `loc.scratch`."""

    def loss(self, net: Net, batch: Batch, loc: Loc) -> Tensor:
        """The loss of one batch."""
        return loc.objective(net(batch.x), batch.y)

    def fit(self, net: Net, loc: Loc) -> float:
        """Local training; the mean loss."""
        return loc.fit(net, self.loss)

    def weight(self, loc: Loc) -> float:
        """How much the site's change counts in the mean over sites, asked after local training."""
        return loc.samples

    def train(self, net: Net, loc: Loc) -> Upload:
        """Question: train locally, answer with the change of the shared tensors, weighted as `weight`
        says."""
        self.prepare(net, loc)
        loss, weight = self.fit(net, loc), self.weight(loc)
        loc.note("weight", weight)  # no other place tells site by site how much each counts
        mean = Mean(torch.tensor(loss, dtype=torch.float64), loc.samples)
        return {"delta": Mean(loc.delta(net), weight), "loss": mean}

    def retrain(self, net: Net, loc: Loc) -> Upload:
        """Question: one round of classifier re-training, answered with the change, weighted by samples."""
        return crt.answer(self, net, loc)

    @torch.no_grad()
    def evaluate(self, net: Net, loc: Loc) -> Upload:
        """Question: score the validation and test rows with the global predictor and with the site's own.

        `exact` answers with the logits of every image (simulation, where the images are at hand anyway);
        otherwise with counts that can be added up, and for the site's own predictor, which nothing is added
        to, with coarse ones; or, where the groups of classes are sent along, with its metrics, of which only
        the mean over sites is wanted.
        """
        server, exact = loc.down["server"], "exact" in loc.down
        kinds = {"global": None, "own": loc.mine} if "own" in loc.down else {"global": None}
        scores: Tree = {split: {} for split in SPLITS}
        private = {name: tensor.clone() for name, tensor in state(net).items() if name in loc.private}
        for kind, mine in kinds.items():
            theirs = {} if mine is None else {**private, **loc.tuned, **mine.get(PERSONAL, {})}
            loc.receive(net, {**server["model"], **theirs})
            for split in SPLITS:
                parts: dict[str, list[Tensor]] = {}
                for batch in loc.scan(split):
                    # Not every network takes a batch without images; a site without any gives one to be cut.
                    x = batch.x if len(batch) else batch.x.new_zeros((1, *batch.x.shape[1:]))
                    for name, logits in self.predict(net, x, mine, server).items():
                        parts.setdefault(f"{kind}.{name}", []).append(logits[: len(batch)].float().cpu())
                scores[split] |= {name: torch.cat(logits) for name, logits in parts.items()}
        if exact:
            return {SCORES: Each(scores)}
        counted = {
            split: {
                name: measure(logits, loc.data.splits[split].labels, task=loc.task)
                for name, logits in scores[split].items()
            }
            for split in SPLITS
        }
        pooled = {
            split: {n: s for n, s in counted[split].items() if n.startswith("global.")} for split in SPLITS
        }
        own = {split: {n: s for n, s in counted[split].items() if n.startswith("own.")} for split in SPLITS}
        answer: Upload = {POOLED: Sum(pooled)}
        if "own" not in kinds:
            return answer
        if GROUPS in loc.down:
            shots = loc.down[GROUPS]
            return answer | {OWN: Sum({p: {n: addable(s, shots) for n, s in own[p].items()} for p in SPLITS})}
        return answer | {OWN: Each({p: {n: coarse(s, loc.least) for n, s in own[p].items()} for p in SPLITS})}

    def predict(self, net: Net, x: Tensor, mine: Tree | None, server: Tree) -> dict[str, Tensor]:
        """Logits by predictor, the one that counts first; changes nothing. `mine` is None for the global
        predictor."""
        return {"fed": net(x)}

    def __str__(self) -> str:
        return repr(self)

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """Only what is not as it is by default."""
        usual = {name: field.get_default() for name, field in type(self).model_fields.items()}
        return [(name, value) for name, value in super().__repr_args__() if usual.get(str(name)) != value]

    # About the class ----------------------------------------------------------------------------------------

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a hyper-parameter that would take the place of a hook."""
        for name in inspect.get_annotations(cls):
            if inspect.isfunction(getattr(Method, name, None)):
                raise MethodError(
                    f"the method class '{cls.__name__}' has a hyper-parameter '{name}', which is the name of "
                    f"a hook: give it another"
                )
        super().__init_subclass__(**kwargs)

    @classmethod
    @cache
    def questions(cls) -> tuple[str, ...]:
        """Names of the questions a site answers: public methods `(self, net, loc) -> Upload`."""
        return tuple(
            name
            for name, member in inspect.getmembers(cls, inspect.isfunction)
            if not name.startswith("_")
            and list((signature := inspect.signature(member)).parameters) == ["self", "net", "loc"]
            and signature.return_annotation in ("Upload", Upload, inspect.Signature.empty)
        )

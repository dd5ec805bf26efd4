"""The scores of every test image, kept for the rounds that may be reported: what a paired test over images
needs.

One file per round in the run folder's `scores/`; written before the round is committed, and after a crash
written again with the same bytes. Only a simulation has them: where hospitals are real, no score of a single
image leaves a site.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.data.samples import Task
from equipoise.errors import StorageError
from equipoise.exchange import seal, unseal
from equipoise.exchange.codec import CodecError
from equipoise.keeping import write_atomic


@dataclass(frozen=True, eq=False)
class Scores:
    """The union of test sets as the global predictors score it."""

    task: Task
    ids: np.ndarray
    """str [N]"""
    labels: Tensor
    """int64 [N], or float32 [N, C] for several labels"""
    logits: Tensor
    """float32 [P, N, C]: one page per predictor (training alone has one per site) and reported round"""


def _path(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}.safetensors"


def write_scores(folder: Path, round: int, scores: Scores) -> None:
    """Keep the scores of one round."""
    folder.mkdir(exist_ok=True)
    header = {"round": round, "task": scores.task, "ids": scores.ids.tolist()}
    write_atomic(_path(folder, round), seal(header, {"labels": scores.labels, "logits": scores.logits}))


def keep_scores(folder: Path, rounds: Collection[int]) -> None:
    """Delete the scores of all other rounds."""
    wanted = {_path(folder, round) for round in rounds}
    for path in set(folder.glob("round-*.safetensors")) - wanted:
        path.unlink(missing_ok=True)


def read_scores(folder: Path, rounds: Sequence[int]) -> Scores | None:
    """The scores of the reported rounds together; None where some were not kept."""
    parts = []
    for round in rounds:
        path = _path(folder, round)
        if not path.exists():
            return None
        try:
            header, tensors = unseal(path.read_bytes())
            if header["round"] != round:
                raise CodecError("it is of another round")
            ids = np.array(header["ids"])
            parts.append(Scores(header["task"], ids, tensors["labels"], tensors["logits"]))
        except (OSError, CodecError, LookupError) as error:
            raise StorageError(
                f"{path} is damaged or was changed: restore it, or start the run anew"
            ) from error
    same = all(np.array_equal(part.ids, parts[0].ids) for part in parts)
    if not parts or not same:  # a site was missing in one of the rounds
        return None
    return Scores(parts[0].task, parts[0].ids, parts[0].labels, torch.cat([part.logits for part in parts]))

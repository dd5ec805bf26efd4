"""`weight`: how much a site counts in the mean of the model's change, and who is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from equipoise.config import Config
from equipoise.errors import MethodError
from equipoise.exchange import decode_upload
from equipoise.keeping import bare as bare_line
from equipoise.leaves import ONE, Limit
from equipoise.methods import METHODS, Method
from equipoise.running import run
from equipoise.site import Loc

MakeConfig = Callable[..., Config]


class Alike(Method):
    """Every site counts the same."""

    paper: ClassVar[str] = "nobody 2020"

    def weight(self, loc: Loc) -> float:
        return 1.0

    def limits(self, classes: int, epochs: int) -> dict[str, Limit]:
        return {"train.delta": ONE}


def test_a_method_says_how_much_a_site_counts(
    make_config: MakeConfig, bare: Callable[..., Any], tmp_path: Path
) -> None:
    config = replace(make_config({"name": "fedavg"}, rounds=1), method=Alike())
    seen: dict[str, Any] = {}

    class Tap:
        def __init__(self, engine: Any) -> None:
            self.engine = engine

        def ask(self, question: Any, sites: Any) -> Any:
            for site, data in self.engine.ask(question, sites):
                if question.name == "train":
                    seen[site] = decode_upload(data)[1]
                yield site, data

        def close(self) -> None:
            self.engine.close()

    result = run(config, tmp_path / "run", wrap=Tap)
    assert {float(up["delta"].weight) for up in seen.values()} == {1.0}
    assert [float(seen[site]["loss"].weight) for site in ("north", "south", "west")] == [9, 6, 14]
    name = "body.conv1.weight"
    mean = torch.stack([up["delta"].value[name].double() for up in seen.values()]).mean(0)
    moved = result.server["model"][name] - bare(config).first[name]
    torch.testing.assert_close(moved, mean.float(), rtol=0, atol=1e-7)
    for site in seen:  # what a site counts for is written down there, and only there
        (line,) = (tmp_path / "run" / "sites" / site / "notes.jsonl").read_text().splitlines()
        assert bare_line(json.loads(line)) == {"round": 0, "question": "train", "weight": 1.0}


@pytest.mark.parametrize("name", METHODS)
def test_no_method_rewrites_the_change_to_weigh_it(name: str) -> None:
    """One that counts by other than samples says so in `weight`."""
    text = Path(sys.modules[METHODS[name].__module__].__file__ or "").read_text()
    assert 'Mean(up["delta"]' not in text and '"delta": Mean(' not in text


def test_a_hyper_parameter_does_not_hide_a_hook() -> None:
    with pytest.raises(MethodError, match="'Wrong' has a hyper-parameter 'weight', which is"):

        class Wrong(Method):
            weight: float = 1.0


@pytest.mark.parametrize(("options", "notes"), [({}, False), ({"beta": 0.0, "group": 0}, True)])
def test_a_site_whose_model_is_seen_by_itself_notes_no_weight(
    options: dict[str, Any], notes: bool, make_config: MakeConfig, tmp_path: Path
) -> None:
    """How much it counts, the coordinator decides."""
    run(make_config({"name": "rscfed", **options}, rounds=1), tmp_path)
    assert bool(list(tmp_path.glob("sites/*/notes.jsonl"))) == notes

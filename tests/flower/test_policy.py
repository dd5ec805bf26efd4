"""A site's policy wins: what it refuses does not leave, and both journals say which rule it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from tests import doctored

from equipoise import locate
from equipoise.config import Config
from equipoise.deploy.policy import Policy, Refused, approved, read_policy
from equipoise.errors import ConfigError, SiteError
from equipoise.exchange import encode_upload
from equipoise.leaves import Each, Mean, Sum
from equipoise.locate import Code
from equipoise.methods import METHODS, find, fingerprint
from equipoise.running import Result
from equipoise.server.journal import read as read_journal

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
CLASSES = ("a", "b", "c")
COUNTS = {
    "train": torch.tensor([9, 4, 0]),
    "validation": torch.tensor([5, 5, 5]),
    "test": torch.tensor([5, 1, 5]),
}
PARAMETERS = ("body.conv.weight", "head.fed.weight", "head.fed.bias")


def release(
    policy: Policy, question: str, upload: dict[str, Any], read: tuple[str, ...] = ("train",)
) -> tuple[bytes, list[str]]:
    return policy.release(
        question, encode_upload(upload), classes=CLASSES, parameters=PARAMETERS, counts=COUNTS, read=read
    )


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in read_journal(folder / "journal.jsonl")[0] if line["event"] == event]


# The rules by themselves ------------------------------------------------------------------------------------


def test_each_leaves_must_be_named() -> None:
    upload = {"head": Each({"weight": torch.ones(2, 2)})}
    with pytest.raises(Refused, match=r"rule 'each'.*'train\.head'"):
        release(Policy(), "train", upload)
    with pytest.raises(Refused):
        release(Policy(each=("other.head", "train.other")), "train", upload)
    release(Policy(each=("train.head",)), "train", upload)


@pytest.mark.parametrize(
    ("upload", "read", "refused"),
    [
        ({"loss": Mean(torch.ones(3), 13)}, ("train",), True),  # class b has 4 training images
        ({"loss": Mean(torch.ones(3), 13)}, ("validation",), False),
        ({"loss": Mean(torch.ones(3), 13)}, ("train", "validation"), True),
        ({"rank": Sum(torch.ones(7, 3, 3))}, ("train",), True),  # by class twice: whose images are counted?
        ({"own": Each(torch.ones(3))}, ("train",), True),
        (
            {"scaled": Mean(torch.ones(16), torch.ones(3))},
            ("train",),
            True,
        ),  # a weight per class says as much
        (
            {"delta": Mean({"head.fed.bias": torch.ones(3), "head.fed.weight": torch.ones(3, 8)}, 13)},
            ("train",),
            False,
        ),
        (
            {"head": Mean({"bias": torch.ones(3)}, 13)},
            ("train",),
            False,
        ),  # a head without its prefix is still a head
        ({"loss": Mean(torch.tensor(1.0), 13)}, ("train",), False),
        (
            {"pooled": Sum({"validation": {"global.fed": {"confusion": torch.ones(3, 3)}}})},
            ("train", "validation", "test"),
            False,
        ),
        (
            {"pooled": Sum({"test": {"global.fed": {"confusion": torch.ones(3, 3)}}})},
            ("train", "validation"),
            True,
        ),
    ],
)
def test_what_cannot_be_told_without_small_cells_is_refused(
    upload: dict[str, Any], read: tuple[str, ...], refused: bool
) -> None:
    each = tuple(f"ask.{name}" for name in upload)
    release(Policy(small_cell=0, each=each), "ask", upload, read)
    release(Policy(small_cell=1, each=each), "ask", upload, read)
    if refused:
        with pytest.raises(Refused, match=r"rule 'small_cell'.*fewer than 5 (train|test) images"):
            release(Policy(small_cell=5, each=each), "ask", upload, read)
    else:
        assert release(Policy(small_cell=5, each=each), "ask", upload, read)[1] == []


def test_a_class_without_images_is_no_small_cell() -> None:
    policy = Policy(small_cell=4)
    release(policy, "ask", {"loss": Sum(torch.ones(3))})  # 9, 4 and 0 images
    assert policy.cells(torch.tensor([9, 3, 0])) == [9, None, 0]


def test_counts_are_told_only_where_they_may_be() -> None:
    assert Policy().cells(torch.tensor([9, 3, 0])) == [9, None, 0]
    assert Policy(each=("evaluate.own",), small_cell=0).cells(torch.tensor([9, 3, 0])) == [None, None, None]


def test_a_method_is_approved_by_its_files(tmp_path: Path) -> None:
    policy = Policy(methods=approved())
    for name, cls in METHODS.items():
        policy.approve(name, fingerprint(cls))
    with pytest.raises(Refused, match="'mine' is not approved"):
        policy.approve("mine", fingerprint(METHODS["fca"]))
    text = inspect.getsource(inspect.getmodule(METHODS["fedprox"]) or METHODS["fedprox"])
    prints = []
    for extra in ("", "\n# another line\n"):
        path = tmp_path / "mine.py"
        path.write_text(text + extra)
        prints.append(Code(f"{path}:FedProx", tmp_path, "method.name").approval)
    assert prints[0] != prints[1]
    mine = Policy(methods={f"{path}:FedProx": prints[0]})
    with pytest.raises(Refused, match="not the ones this site approved"):
        find(f"{path}:FedProx", tmp_path, mine.allow)
    path.write_text(text)
    assert find(f"{path}:FedProx", tmp_path, mine.allow).__name__ == "FedProx"


@pytest.mark.parametrize(
    ("file", "counts"),
    [("base.py", True), ("opt.py", True), ("crt.py", True), ("bank.py", True), ("mixture.py", False)],
)
def test_what_a_method_builds_on_counts_too(file: str, counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = fingerprint(METHODS["fedsdc+"]), locate.read_regular
    assert fingerprint(METHODS["fedsdc+"]) is before  # read once
    monkeypatch.setattr(
        locate, "read_regular", lambda path: real(path) + (b"#" if path.name == file else b"")
    )
    fingerprint.cache_clear()
    assert (fingerprint(METHODS["fedsdc+"]) != before) == counts
    fingerprint.cache_clear()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("small_cel = 3", "did you mean 'small_cell'"),
        ("small_cell = -1", "small_cell"),
        ("each = [", "not a readable policy"),
    ],
)
def test_a_bad_policy_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_policy(tmp_path / "policy.toml")
    with pytest.raises(ConfigError, match="equipoise site init"):
        read_policy(tmp_path / "none.toml")


# In a run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "policy", "question", "rule"),
    [
        ("fedsdc+", {"small_cell": 1000}, "rank", "small_cell"),
        ("fedsdc", {"each": ["evaluate.own"]}, "train", "each"),
    ],
)
def test_a_refusal_is_in_both_journals_and_the_run_goes_on(
    method: str, policy: dict[str, Any], question: str, rule: str, tiny: MakeConfig, town: Any
) -> None:
    config = tiny(method, train={"rounds": 1})
    if question == "rank":
        config = replace(config, method=config.method.model_copy(update={"rank_on": "train"}))
    there = town(config, {"site-01": policy})
    there.go()
    for folder, who in ((there.run, "site-01"), (there.sites["site-01"], None)):
        found = [line for line in events(folder, "refused") if line["question"] == question]
        assert found and f"rule '{rule}'" in found[0]["reason"]
        assert who is None or all(line["site"] == who for line in found)
    assert not events(there.sites["site-00"], "refused")
    if question == "train":
        assert '"sites": ["site-00", "site-02"]' in (there.run / "metrics.jsonl").read_text()


def test_an_unapproved_method_is_refused_at_the_door(tiny: MakeConfig, town: Any) -> None:
    there = town(tiny("fca", train={"rounds": 1}), {"site-02": {"methods": {}}})
    there.go()
    assert "rule 'methods'" in events(there.run, "refused")[0]["reason"]
    assert not (there.sites["site-02"] / "runs").exists() or not list(
        there.sites["site-02"].glob("runs/*/config.json")
    )
    assert not events(there.sites["site-02"], "answered")


def test_a_policy_that_changes_during_a_run_counts_at_once(tiny: MakeConfig, town: Any) -> None:
    there = town(tiny("fca"))
    seen = []

    def change(asked: Any, reply: Any) -> Any:
        seen.append(asked.metadata.message_type)
        if seen.count("train.train") == 3:
            (there.sites["site-01"] / "policy.toml").write_text(
                tomli_w.dumps({"methods": {}, "small_cell": 0})
            )
        return reply

    there.wire.change = change
    there.go()
    assert (
        "site-01" not in (there.run / "metrics.jsonl").read_text().splitlines()[1].partition('"bytes_up"')[0]
    )


def test_a_run_in_which_nobody_tells_what_it_has(tiny: MakeConfig, town: Any, once: Once) -> None:
    """Numbers of images are told, classes are not: to the same bits, and the coordinator's files have no
    counts."""
    sites = ("site-00", "site-01", "site-02")
    there = town(tiny("fca"), {site: {"each": ["evaluate.own"]} for site in sites})
    assert there.go().state_hash == once(tiny("fca")).state_hash
    cards = doctored.table(there.run / "roster.json")["sites"]
    assert all(card["images"]["train"] > 0 for card in cards.values())
    assert {n for card in cards.values() for counts in card["counts"].values() for n in counts} == {None}


def test_without_enough_sites_the_run_does_not_begin(tiny: MakeConfig, town: Any) -> None:
    there = town(tiny("fca", exchange={"min_sites": 3}), {"site-02": {"methods": {}}})
    with pytest.raises(SiteError, match="only 2 of 3 sites joined, 3 are needed"):
        there.go()
    assert "only 2 of 3" in events(there.run, "stopped")[0]["reason"]

"""The site's end: only a question in order, of this run, to this site and newer than all before is
answered."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import doctored

from equipoise import __version__
from equipoise.config import Config
from equipoise.deploy import apps
from equipoise.deploy.site import SiteClient, Whole, read_site
from equipoise.engine.flower.wire import unwrap
from equipoise.errors import ConfigError
from equipoise.exchange import decode_upload, pack, unpack
from equipoise.server.journal import read as read_journal
from equipoise.setup import material
from equipoise.tree import flatten, unflatten

MakeConfig = Callable[..., Config]
SITE = "site-00"


@dataclass
class Asked:
    """A desk that has answered one question, that question and its bytes."""

    desk: SiteClient
    table: dict[str, Any]
    data: dict[str, bytes]
    tickets: Iterator[int]

    def newer(self, **changes: Any) -> dict[str, Any]:
        """The question with a ticket of its own."""
        return self.table | {"ticket": next(self.tickets)} | changes


@pytest.fixture(scope="module")
def asked(tiny: MakeConfig, town: Any) -> Asked:
    there = town(tiny("fca", train={"rounds": 1}))
    kept: list[Any] = []

    def tap(message: Any, reply: Any) -> Any:
        if message.metadata.message_type == "train.train":
            kept.append(unwrap(message.content))
        return reply

    there.wire.change = tap
    there.go()
    table, data = next((table, data) for table, data in kept if table["site"] == SITE)
    return Asked(apps.desk(str(there.sites[SITE])), table, data, count(table["ticket"] + 10**12))


def last(desk: SiteClient) -> dict[str, Any]:
    return read_journal(desk.folder / "journal.jsonl")[0][-1]


def test_a_newer_ticket_gives_the_same_answer(asked: Asked) -> None:
    newer = asked.newer()
    echo, first = asked.desk.reply("train.train", newer, asked.data)
    again = asked.desk.reply("train.train", asked.newer(), asked.data)[1]
    assert first is not None and first == again and decode_upload(first)[0]["site"] == SITE
    assert {key: echo[key] for key in ("run", "ticket", "site", "round", "question")} == {
        key: newer[key] for key in ("run", "ticket", "site", "round", "question")
    }
    assert set(echo) == {"run", "ticket", "site", "round", "question", "journal"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "answered before"),  # a replay
        ({"ticket": 5}, "answered before"),  # stale
        ({"run": "0123456789abcdef"}, "no such run"),
        ({"run": "../../etc"}, "'run'"),
        ({"site": "site-01"}, "another site"),
        ({"round": 9}, "fewer rounds"),
        ({"round": -1}, "'round'"),
        ({"question": "loss"}, "not what its message says"),
        ({"read": "../../../secret"}, "'read'"),
        ({"write": "0.0/../../x"}, "'write'"),
        ({"keep": ["../x"]}, "'keep'"),
        ({"more": 1}, "'more'"),
        ({"ticket": "12"}, "'ticket'"),
    ],
)
def test_a_question_out_of_order_is_refused_and_journalled(
    change: dict[str, Any], reason: str, asked: Asked
) -> None:
    desk = asked.desk
    table = asked.newer(**change) if change else asked.table
    echo, answer = desk.reply("train.train", table, asked.data)
    assert answer is None and reason in echo["refused"]
    assert last(desk)["event"] == "refused" and reason in last(desk)["reason"]


@pytest.mark.parametrize("question", ["loss", "predict", "__init__", "nonsense", "model_dump"])
def test_only_questions_are_answered(question: str, asked: Asked) -> None:
    assert "refused" in asked.desk.reply(f"train.{question}", asked.newer(question=question), asked.data)[0]


def test_images_are_never_scored_one_by_one_for_the_coordinator(asked: Asked) -> None:
    """A coordinator that asks for exact evaluation, as a simulation does, gets a refusal."""
    model = unflatten(unpack(asked.data["payload"])[1])["model"]
    payload = pack(
        {}, flatten({"server": {"model": model}, "own": torch.tensor(True), "exact": torch.tensor(True)})
    )
    call = asked.newer(question="evaluate", write=None)
    echo, answer = asked.desk.reply("query.evaluate", call, {"payload": payload})
    assert answer is None and "'evaluate.scores'" in echo["refused"]


def test_what_failed_stays_here(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> bytes:
        raise OSError("cannot read patient-4711.png")

    monkeypatch.setattr(asked.desk._run(asked.table["run"]).host, "answer", fail)
    echo, answer = asked.desk.reply("train.train", asked.newer(), asked.data)
    assert (
        answer is None and echo["failed"].startswith("OSError") and "4711" not in str(echo | {"journal": ""})
    )
    assert "patient-4711.png" in last(asked.desk)["reason"]


def test_garbage_is_refused(asked: Asked) -> None:
    assert "failed" in asked.desk.reply("train.train", asked.newer(), {"payload": b"nonsense"})[0]
    assert "refused" in asked.desk.reply("train.train", asked.newer(), {})[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": "xyz"}, "no run"),
        ({"config": "text"}, "no config"),
        ({"site": "site-02"}, "another site"),
        ({"version": "0.0.1"}, "install the same"),
        ({"run": "0" * 16, "config": {"method": {"name": "no-such"}}}, "its journal says why"),
        ({"config": {"method": {"name": "fca", "lambda_own": 99.0}}}, "another config"),
    ],
)
def test_a_bad_invitation_is_refused(change: dict[str, Any], reason: str, asked: Asked) -> None:
    desk, run = asked.desk, asked.table["run"]
    config = doctored.table(desk.folder / "runs" / run / "config.json")
    letter = {"run": run, "site": SITE, "round": 0, "question": "", "config": config, "version": __version__}
    bad = letter | {"ticket": next(asked.tickets)} | change
    echo, _ = desk.reply("query", bad, {})
    assert reason in echo["refused"] and "card" not in echo
    assert "card" in desk.reply("query", letter | {"ticket": next(asked.tickets)}, {})[0]


def test_private_state_is_for_our_eyes_only(asked: Asked) -> None:
    runs = asked.desk.folder / "runs"
    private = runs / asked.table["run"] / "private" / SITE
    assert list(private.glob("*.safetensors"))
    for folder in (runs, runs / asked.table["run"], private):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


# The site's own file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('name = "a"', "'data'"),
        ('name = "../a"\n[data]', "'name'"),
        ('name = "a"\nsuperlink = "http://fl.example.org:8000"\n[data]', "without http://"),
        ('name = "a"\nsuperlnk = "x:1"\n[data]', "did you mean 'superlink'"),
        ('nmae = "a"\n[data]', "did you mean 'name'"),
        ('name = "a"\ninsecure = true\n[data]', "unknown key 'insecure'"),
        ("name = ", "not valid TOML"),
    ],
)
def test_a_bad_site_file_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_site(tmp_path)


def test_a_folder_without_site_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="equipoise site init"):
        read_site(tmp_path)


def test_a_hospital_takes_the_rows_of_its_name(tiny: MakeConfig) -> None:
    samples = material(tiny()).samples
    assert samples.site is not None
    name = str(samples.site[0])
    rows = Whole(name=name).sites_of(samples, 0)[name]
    assert rows.tolist() == [i for i, site in enumerate(samples.site) if site == name]
    with pytest.raises(ConfigError, match="no row of the data"):
        Whole(name="nowhere").sites_of(samples, 0)

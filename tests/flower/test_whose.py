"""Whose data a federation was trained on: in its config, on its page and card, and what a test lacked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests import doctored
from typer.testing import CliRunner

import equipoise
from equipoise.cli import follow
from equipoise.cli.app import app
from equipoise.config import Config, read_folder, resolve
from equipoise.deploy.coordinator import plan, unused
from equipoise.errors import ConfigError, StorageError
from equipoise.keeping import write_json
from equipoise.report import gaps, read_run, write_report
from equipoise.run_folder import RunFolder
from equipoise.running import run
from equipoise.server.journal import read as read_journal
from equipoise.text import parse_toml

MakeConfig = Callable[..., Config]
NAMES = ("site-00", "site-01", "site-02")


@pytest.fixture(scope="module")
def lost(tiny: MakeConfig, town: Any) -> Any:
    """A federation that has ended; in its last round one site did not answer the test."""
    there = town(tiny(data={"split": {"test": 0.5}}), retries=0, deadline=2.0)

    def lose(asked: Any, reply: Any) -> Any:
        last = (there.run / "metrics.jsonl").exists()
        gone = last and asked.metadata.message_type == "query.evaluate" and asked.metadata.dst_node_id == 3
        return None if gone else reply

    there.wire.change = lose
    there.go()
    return there


def page(folder: Path) -> str:
    """The words of a run's page."""
    text = re.sub(r"<[^>]+>", " ", write_report(folder).read_text())
    return " ".join(unescape(text).split())


# The config -------------------------------------------------------------------------------------------------


def test_the_stored_config_says_that_the_sites_have_the_data(lost: Any) -> None:
    table = parse_toml(RunFolder(lost.run).text("config.toml"))
    assert table["data"] == {"kind": "sites"} and table["partition"]["kind"] == "column"
    write_report(lost.run)
    for name in ("config.toml", "blueprint.json", "data.json", "report.html", "model-card.md"):
        text = (lost.run / name).read_text().lower()
        assert "phantom" not in text and "generated images" not in text and "made-up" not in text, name


@pytest.mark.parametrize("how", ["command line", "python", "run"])
def test_a_federation_is_not_resumed_on_one_machine(how: str, lost: Any, tiny: MakeConfig) -> None:
    write_json(lost.run / "flower.json", {"run": 1, "coordinator": "/srv/federation"})
    before = (lost.run / "journal.jsonl").read_bytes()
    command = f"equipoise submit {lost.run}/config.toml --to /srv/federation --out {lost.run}"
    sentence = f"a federation's run: go on with `{command}`"
    if how == "command line":
        found = CliRunner().invoke(app, ["resume", str(lost.run)])
        assert found.exit_code != 0 and isinstance(found.exception, ConfigError)
        assert sentence in str(found.exception)
    else:
        with pytest.raises(ConfigError) as error:
            equipoise.resume(lost.run) if how == "python" else run(tiny(), lost.run)
        assert sentence in str(error.value)
    assert (lost.run / "journal.jsonl").read_bytes() == before
    plan(read_folder(lost.run), lost.run, {name: name.encode() for name in NAMES})  # the command's own file


def test_submit_never_suggests_to_resume(lost: Any, tiny: MakeConfig) -> None:
    with pytest.raises(StorageError, match=r"another config: .*`equipoise submit") as error:
        plan(tiny("fca"), lost.run, {name: name.encode() for name in NAMES})
    assert "resume" not in str(error.value)
    folder = RunFolder(lost.run)
    assert all("resume" not in folder.fix(name) for name in ("ledger.json", "data.json", "roster.json"))


def test_data_at_the_sites_are_not_read_here() -> None:
    config = resolve({"data": {"kind": "sites", "name": "our moles"}})
    assert config.table()["data"] == {"kind": "sites", "name": "our moles"}
    with pytest.raises(ConfigError, match="train it with `equipoise submit`"):
        run(config)
    with pytest.raises(ConfigError, match=r"image_size is for the sites to say, in their site\.toml"):
        resolve({"data": {"kind": "sites", "image_size": 32}})


def test_a_section_that_a_federation_does_not_use_is_named(tiny: MakeConfig, tmp_path: Path) -> None:
    assert unused(resolve({})) == unused(resolve({"data": {"kind": "sites", "name": "moles"}})) == []
    found = unused(tiny())
    assert [text.split()[0] for text in found] == ["[data]", "[partition]"]
    assert all("is not used: the sites' own images are" in text for text in found)
    kept = plan(tiny(data={"name": "moles"}), tmp_path / "run", {"north": b"key"})
    assert kept.table()["data"] == {"kind": "sites", "name": "moles"}


def change_data(folder: Path, **changes: Any) -> None:
    table = parse_toml((folder / "site.toml").read_text())
    (folder / "site.toml").write_text(tomli_w.dumps(table | {"data": table["data"] | changes}))


def test_how_images_are_prepared_comes_from_the_sites(tiny: MakeConfig, town: Any) -> None:
    there = town(tiny(train={"rounds": 1}))
    for folder in there.sites.values():
        change_data(folder, resize="pad")
    there.go()
    assert doctored.table(there.run / "blueprint.json")["input"]["resize"] == "pad"


def test_a_site_that_prepares_images_otherwise_is_left_out_by_name(tiny: MakeConfig, town: Any) -> None:
    there = town(tiny(train={"rounds": 1}))
    change_data(there.sites["site-01"], resize="pad")
    there.go()
    (line,) = [one for one in read_journal(there.run / "journal.jsonl")[0] if one["event"] == "left out"]
    assert line["site"] == "site-01" and "do not prepare their images alike: data.resize is" in line["reason"]


def test_a_site_with_another_blueprint_refuses_and_names_the_field(
    tiny: MakeConfig, town: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a coordinator draws it from another config than it sent."""
    from equipoise.deploy import coordinator

    prepare = coordinator.prepare
    other = tiny(train={"rounds": 1, "lr": 0.5})
    monkeypatch.setattr(
        coordinator, "prepare", lambda config, facts: prepare(replace(config, train=other.train), facts)
    )
    there = town(tiny(train={"rounds": 1}))
    with pytest.raises(equipoise.errors.SiteError, match="only 0 of 3 sites"):
        there.go()
    lines = [one for one in read_journal(there.run / "journal.jsonl")[0] if one["event"] == "refused"]
    assert len(lines) == 3 and all("blueprint" in line["reason"] for line in lines)
    assert all("'train.lr' is not the same" in line["reason"] for line in lines)


# The page, the card and the console -------------------------------------------------------------------------


def test_page_and_card_say_whose_data_it_was(lost: Any) -> None:
    text = page(lost.run)
    card = (lost.run / "model-card.md").read_text()
    assert "fedavg on the images of site-00, site-01 and site-02" in text
    assert "images of the sites' own, as they reported" in text and "rehears" not in text
    assert "# Model card: fedavg on the images of site-00, site-01 and site-02" in card
    assert "Images of site-00, site-01 and site-02, which stayed there: " in card


def test_who_was_missing_in_the_last_test_is_said_first(lost: Any) -> None:
    found = read_run(lost.run)
    held = {site: one["test"]["images"] for site, one in found.data["sites"].items()}
    counted = held["site-00"] + held["site-02"]
    assert sum(found.test["generalisation"]["support"]) == counted
    text = page(lost.run)
    first = text.partition("Who holds what")[0]
    assert (
        f"On the {counted} test images of the sites that answered (site-00 and site-02; not site-01)" in first
    )
    missing = (
        "site-01 gave no usable answer when the reported model was tested (site-01: no answer within 2 s)"
    )
    assert missing in first and f"No figure counts the {held['site-01']} test images there." in first
    assert "test images of all sites" not in text
    card = (lost.run / "model-card.md").read_text()
    assert "of the sites that answered (site-00 and site-02) together" in card
    assert "Tested at 2 of the 3 sites" in card and missing in card
    assert missing in gaps(found)[0]


def console(folder: Path) -> list[str]:
    """What somebody who waits for a run is told of its journal."""
    told = follow.Sentences()
    return [text for line in read_run(folder).journal for text in told.sentences(line)]


def test_the_console_names_who_is_missing_and_which_rule(lost: Any, tiny: MakeConfig, town: Any) -> None:
    assert "round 2: no usable answer to 'evaluate' from site-01" in console(lost.run)
    there = town(tiny("fca", evaluate={"every": 1}), {"site-01": {"each": []}, "site-02": {"small_cell": 5}})
    there.go()
    told = "\n".join(console(there.run))
    assert told.count("site 'site-01' does not answer 'evaluate': policy rule 'each'") == 1
    assert (
        "policy rule 'small_cell': site 'site-02' tells nothing of classes with fewer than 5 images" in told
    )


def test_withheld_classes_are_on_the_page(tiny: MakeConfig, town: Any) -> None:
    data = {"scale": 0.02, "split": {"test": 0.4}}
    there = town(
        tiny(data=data, train={"rounds": 1, "batch_size": 64}), {name: {"small_cell": 5} for name in NAMES}
    )
    there.go()
    text, card = page(there.run), (there.run / "model-card.md").read_text()
    assert "Sites that have fewer than 5 test images of a class leave them out of the test" in text
    assert " <5 " in text and " not reported " in text
    assert "No site has a training image of" not in text
    assert "leave them out of the test" in card


def test_a_rehearsal_says_that_it_was_one(lost: Any, tmp_path: Path, tiny: MakeConfig, town: Any) -> None:
    there = town(tiny(train={"rounds": 1}))
    table = doctored.table(there.run / "federation.json") | {"rehearsal": {"kind": "phantom", "name": None}}
    write_json(there.run / "federation.json", table)
    there.go()
    text, card = page(there.run), (there.run / "model-card.md").read_text()
    assert "rehearsed on one machine, each site a process of its own" in text.partition("Who holds what")[0]
    assert "stayed where they are" not in text and "What would leave a site" in text
    assert "no hospital took part" in card and "generated images: it says nothing about real ones" in card

"""A coordinator that means harm: what its messages name is not run, not opened and not believed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import save_file

from equipoise import __version__
from equipoise.config import Config
from equipoise.deploy.coordinator import federated
from equipoise.deploy.keys import new_keys, new_pair
from equipoise.deploy.policy import Policy, approved, read_policy
from equipoise.deploy.rehearse import stage
from equipoise.deploy.setting import check_site, with_fix
from equipoise.deploy.site import OURS, SiteClient, read_site
from equipoise.errors import ConfigError, SiteError
from equipoise.exchange import decode_upload, pack
from equipoise.locate import Code
from equipoise.nets import state
from equipoise.running import prepare
from equipoise.server.journal import read as read_journal
from equipoise.setup import make_host, material
from equipoise.site import options
from equipoise.tree import Tree, flatten

MakeConfig = Callable[..., Config]
SITE, THREE, RUN = "site-00", ("site-00", "site-01", "site-02"), "0123456789abcdef"
MINE = (
    "from pathlib import Path\nfrom equipoise import Method\nPath({mark!r}).touch()\nclass "
    "Mine(Method):\n    '''Mine.'''\n"
)
tickets = count(1)


@pytest.fixture
def home(tiny: MakeConfig, tmp_path: Path) -> Iterator[Callable[..., SiteClient]]:
    """home(**policy) → the desk of a site with that policy."""
    from tests.flower.conftest import write_site

    made: list[SiteClient] = []

    def make(**policy: Any) -> SiteClient:
        usual: dict[str, Any] = {"small_cell": 0, "methods": approved()}
        folder = write_site(tmp_path / f"site-{len(made)}", SITE, tiny(), usual | policy)
        made.append(SiteClient(folder))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


def invite(desk: SiteClient, config: Config, run: str = RUN, **sections: dict[str, Any]) -> dict[str, Any]:
    """What a site says to an invitation."""
    table = {key: value for key, value in federated(config).table().items() if key not in OURS}
    table |= {name: {**table[name], **changes} for name, changes in sections.items()}
    letter = {"run": run, "ticket": next(tickets), "site": SITE, "round": 0, "question": ""}
    return desk.reply("query", {**letter, "config": table, "version": __version__}, {})[0]


def reasons(desk: SiteClient) -> str:
    return json.dumps(read_journal(desk.folder / "journal.jsonl")[0])


# Code -------------------------------------------------------------------------------------------------------


def test_code_that_the_coordinator_names_is_not_run(home: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.format(mark=str(tmp_path / "ran")))
    desk = home()
    for name in (
        f"{tmp_path}/mine.py:Mine",
        "../mine.py:Mine",
        "antigravity:Mine",
        "this:Mine",
        "/nowhere/at/all.py:Mine",
    ):
        told = invite(desk, tiny(), method={"name": name})
        assert told["refused"] == f"policy rule 'methods': '{name}' is not approved at this site"
    assert not (tmp_path / "ran").exists() and not {"antigravity", "this"} & set(sys.modules)
    assert not (desk.folder / "runs").exists()


def test_approved_code_is_run_and_changed_code_is_not(home: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(mark=str(tmp_path / "ran")))
    name = f"{path}:Mine"
    desk = home(methods={name: Code(name, tmp_path, "x").approval})
    path.write_text(MINE.format(mark=str(tmp_path / "ran")) + "# and more\n")
    assert "not the ones this site approved" in invite(desk, tiny(), method={"name": name})["refused"]
    assert not (tmp_path / "ran").exists()
    path.write_text(MINE.format(mark=str(tmp_path / "ran")))
    assert "card" in invite(desk, tiny(), method={"name": name})
    assert (tmp_path / "ran").exists()


def test_what_approved_code_imports_must_be_as_it_was(home: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import lq_helper\n" + MINE.format(mark=str(tmp_path / "ran")))
    (tmp_path / "lq_helper.py").write_text("")
    name = f"{tmp_path}/mine.py:Mine"
    desk = home(methods={name: Code(name, tmp_path, "x").approval})
    (tmp_path / "lq_helper.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "not the ones this site approved" in invite(desk, tiny(), method={"name": name})["refused"]
    assert not (tmp_path / "ran").exists()


def test_a_restarted_site_asks_its_policy_again(home: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    """The config that was accepted is on disk; the code it names is run only if it is still approved."""
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(mark=str(tmp_path / "ran")))
    name = f"{path}:Mine"
    desk = home(methods={name: Code(name, tmp_path, "x").approval})
    assert "card" in invite(desk, tiny(), method={"name": name})
    (tmp_path / "ran").unlink()
    path.write_text(MINE.format(mark=str(tmp_path / "ran")) + "# and more\n")
    desk.close()
    again = SiteClient(desk.folder)
    assert "not the ones this site approved" in ask(again, "train", {})[0]["refused"]
    assert not (tmp_path / "ran").exists()
    again.close()


def test_check_does_not_run_code_that_is_not_approved(home: Any, tmp_path: Path) -> None:
    """The file that the coordinator sends for `site check` names code, too; it says what there would be to
    approve."""
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(mark=str(tmp_path / "ran")))
    name = f"{path}:Mine"
    folder = home().folder
    (folder / "keys").mkdir()
    new_pair(folder / "keys" / "site")
    authority(folder)
    (tmp_path / "run.toml").write_text(tomli_w.dumps({"method": {"name": name}}))
    found = check_site(folder, tmp_path / "run.toml")
    assert not (tmp_path / "ran").exists() and found.ledger is None
    refusal = (
        f"policy rule 'methods': '{name}' is not approved at this site; its fingerprint is "
        f"{Code(name, tmp_path, 'x').approval}"
    )
    assert found.refused == [with_fix(refusal)]


def authority(folder: Path) -> None:
    """A coordinator's certificate for a site's folder."""
    new_keys(folder.parent / "coordinator", ["127.0.0.1"], ["north"])
    shutil.copy(folder.parent / "coordinator" / "keys" / "ca.crt", folder / "keys" / "ca.crt")


# Who is asked -----------------------------------------------------------------------------------------------


def ask(
    desk: SiteClient, question: str, tree: Tree, *, write: str | None = "0.0", **changes: Any
) -> tuple[dict[str, Any], Any]:
    """What a site says to a question of round 0."""
    call = {
        "run": RUN,
        "ticket": next(tickets),
        "site": SITE,
        "round": 0,
        "question": question,
        "asked": list(THREE),
    }
    call |= {"read": None, "write": write, "keep": [], "tuned": False} | changes
    kind = f"{'query' if call['write'] is None else 'train'}.{question}"
    return desk.reply(kind, call, {"payload": pack({}, flatten(tree))})


def model_of(config: Config) -> dict[str, Any]:
    """The first model of a run."""
    dataset = material(config)
    return prepare(config, dataset.facts, dataset).first()["model"]


def test_a_question_to_too_few_sites_is_not_answered(home: Any, tiny: MakeConfig) -> None:
    """A mean over one site is that site's value."""
    config = tiny()
    desk, model = home(), {"model": model_of(config)}
    assert "card" in invite(desk, config)
    for asked in ([SITE], [SITE, "site-01"], [SITE, "site-01", "site-01", SITE]):
        told, answer = ask(desk, "train", model, asked=asked)
        assert answer is None
        assert (
            "answers only when at least 3 sites are asked" in told["refused"]
            and "min_sites" in told["refused"]
        )
    assert (
        "goes to other sites"
        in ask(desk, "train", model, asked=["site-01", "site-02", "site-03"])[0]["refused"]
    )
    assert "'asked'" in ask(desk, "train", model, asked=[SITE, "../x", "\x1b[0m"])[0]["refused"]
    assert ask(desk, "train", model)[1] is not None


def test_the_coordinator_cannot_lower_it(home: Any, tiny: MakeConfig) -> None:
    """A run that would go on with fewer answers than the site allows is not joined."""
    desk = home()
    told = invite(desk, tiny(), exchange={"min_sites": 1})
    assert (
        told["refused"].startswith("policy rule 'min_sites'")
        and "set exchange.min_sites = 3" in told["refused"]
    )
    assert "card" in invite(desk, tiny(), exchange={"min_sites": 3})
    assert "card" in invite(home(min_sites=2), tiny(), exchange={"min_sites": 2})


def test_a_rule_that_becomes_stricter_counts_at_once(home: Any, tiny: MakeConfig) -> None:
    config = tiny()
    desk, model = home(min_sites=2), {"model": model_of(config)}
    assert "card" in invite(desk, config)
    assert ask(desk, "train", model, asked=[SITE, "site-01"])[1] is not None
    policy = {"small_cell": 0, "methods": approved(), "min_sites": 4}
    (desk.folder / "policy.toml").write_text(tomli_w.dumps(policy))
    assert "policy rule 'min_sites'" in ask(desk, "train", model)[0]["refused"]


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_a_federation_of_three_gives_no_sum_of_two(participation: float, tiny: MakeConfig, town: Any) -> None:
    """Neither when a site falls silent, nor when fewer are drawn."""
    config = tiny(train={"participation": participation, "rounds": 1}, exchange={"min_sites": 3})
    there = town(config, {site: {"min_sites": 3} for site in THREE}, retries=0, deadline=1.0)
    if participation == 1.0:
        there.wire.change = lambda asked, reply: (
            None if asked.metadata.dst_node_id == 4 and "train" in kind(asked) else reply
        )
    with pytest.raises(
        SiteError, match="only 2 of 3 sites gave" if participation == 1.0 else "draws 2 of 3 sites"
    ):
        there.go()


def kind(message: Any) -> str:
    return message.metadata.message_type


def test_federations_ask_for_three_unless_the_config_says_how_many(tiny: MakeConfig) -> None:
    assert tiny().exchange.min_sites == 1 and federated(tiny()).exchange.min_sites == 3
    assert federated(federated(tiny())).exchange.min_sites == 3
    assert federated(tiny(exchange={"min_sites": 2})).exchange.min_sites == 2
    assert federated(tiny(exchange={"min_sites": 1})).exchange.min_sites == 1


# What a run may find out ------------------------------------------------------------------------------------

SGD = {"optimizer": "sgd", "lr": 1.0, "batch_size": 1000, "epochs": 1}


def class_counts(config: Config) -> list[int]:
    dataset = material(config)
    labels = dataset.samples.labels[next(one for one in dataset.holdings if one.name == SITE).train]
    return [int((labels == i).sum()) for i in range(len(dataset.samples.classes))]


def test_one_step_of_plain_sgd_tells_the_class_counts(home: Any, tiny: MakeConfig) -> None:
    """Why docs/privacy.md says that withheld counts can be found out: the head's bias moves by (share - 1/C)
    · lr.

    Neither `join.counts` withheld nor the small-cell rule prevents it. A policy that allows adaptive
    optimisers only does.
    """
    config = tiny(train=SGD)
    zero = {name: x * 0 for name, x in model_of(config).items()}
    strict = {"each": ["evaluate.own"], "small_cell": 1000}
    desk = home(**strict)
    card = invite(desk, config)["card"]
    assert {n for counts in card["counts"].values() for n in counts} == {None}
    answer = ask(desk, "train", {"model": zero})[1]
    leaf = decode_upload(answer)[1]["delta"]
    bias = leaf.value["head.fed.bias"].double()
    found = (leaf.weight * (1 / len(bias) + bias)).round().int().tolist()
    assert found == class_counts(config)
    adam = tiny(train=SGD | {"optimizer": "adam"})
    desk = home(**strict, optimizers=["adam"])
    assert "card" in invite(desk, adam)
    step = decode_upload(ask(desk, "train", {"model": zero})[1])[1]["delta"].value["head.fed.bias"]
    assert torch.allclose(step.abs(), torch.ones_like(step), atol=1e-4)  # lr, whatever the counts
    told = invite(home(**strict, optimizers=["adam", "adamw"]), config)
    assert told["refused"] == "policy rule 'optimizers': this site does not train with 'sgd'"


@pytest.mark.parametrize("name", ["torch.optim:RMSprop", "torch.optim:Nothing"])
def test_an_optimiser_is_not_looked_up_before_the_policy_is_asked(
    name: str, home: Any, tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when a coordinator invites, nor when a site checks what it sent, nor after a change of
    rules."""
    desk = home(optimizers=["adam", "torch.optim:RMSprop"])
    if name.endswith("RMSprop"):
        assert "card" in invite(desk, tiny(), train={"optimizer": name})
    tried = list[str]()
    monkeypatch.setattr(options, "find_optimizer", lambda one, parts: tried.append(one))
    sentence = f"policy rule 'optimizers': this site does not train with '{name}'"
    assert invite(home(), tiny(), train={"optimizer": name})["refused"] == sentence
    (desk.folder / "policy.toml").write_text(tomli_w.dumps({"small_cell": 0, "methods": approved()}))
    desk._joined.clear()
    if name.endswith("RMSprop"):
        assert ask(desk, "train", {"model": model_of(tiny())})[0]["refused"] == sentence
    (desk.folder / "keys").mkdir()
    new_pair(desk.folder / "keys" / "site")
    authority(desk.folder)
    (tmp_path / "run.toml").write_text(tomli_w.dumps({"train": {"optimizer": name}}))
    assert check_site(desk.folder, tmp_path / "run.toml").refused == [with_fix(sentence)]
    assert not tried


def test_small_batches_are_refused(home: Any, tiny: MakeConfig) -> None:
    told = invite(home(), tiny(train={"batch_size": 4}))
    assert (
        "policy rule 'batch_size': the run trains on 4 images at a time, this site on no fewer than 8"
        in told["refused"]
    )
    assert "card" in invite(home(batch_size=4), tiny(train={"batch_size": 4}))


def test_a_rule_of_training_that_becomes_stricter_counts_at_once(home: Any, tiny: MakeConfig) -> None:
    config = tiny()
    desk, model = home(), {"model": model_of(config)}
    assert "card" in invite(desk, config) and ask(desk, "train", model)[1] is not None
    for rule in ({"batch_size": 64}, {"optimizers": ["sgd"]}):
        (desk.folder / "policy.toml").write_text(
            tomli_w.dumps({"small_cell": 0, "methods": approved(), **rule})
        )
        assert f"policy rule '{next(iter(rule))}'" in ask(desk, "train", model)[0]["refused"]


def test_questions_are_counted(home: Any, tiny: MakeConfig) -> None:
    """In a round and in a run, also when the site was started anew in between; those that are refused do not
    count."""
    config = tiny()
    desk, model = home(questions_per_round=2, questions_per_run=3), {"model": model_of(config)}
    assert "card" in invite(desk, config)
    assert ask(desk, "train", model, asked=[SITE])[1] is None
    assert all(ask(desk, "train", model)[1] is not None for _ in range(2))
    assert (
        "policy rule 'questions_per_round': this site has answered 2"
        in ask(desk, "train", model)[0]["refused"]
    )
    desk.close()
    again = SiteClient(desk.folder)
    assert "questions_per_round" in ask(again, "train", model)[0]["refused"]
    assert ask(again, "train", model, round=1, write="1.0")[1] is not None
    told = ask(again, "train", model, round=1, write="1.0")[0]
    assert "policy rule 'questions_per_run': this site has answered 3, and answers no more" in told["refused"]
    (again.folder / "runs" / RUN / "questions.json").write_text("[]")
    assert "StorageError" in ask(again, "train", model, round=1, write="1.0")[0]["failed"]
    again.close()


@pytest.mark.parametrize("small_cell", [0, 9])
def test_own_results_have_no_bin_with_few_images(small_cell: int, home: Any, tiny: MakeConfig) -> None:
    config = tiny()
    server = {"server": {"model": model_of(config)}, "own": torch.tensor(True)}
    desk = home()
    assert "card" in invite(desk, config)
    (desk.folder / "policy.toml").write_text(tomli_w.dumps({"small_cell": small_cell, "methods": approved()}))
    joined = desk._run(RUN)
    monkey = dict.fromkeys(
        joined.counts, torch.full_like(joined.counts["test"], 100)
    )  # so that the small-cell rule is silent
    joined.__dict__["counts"] = monkey
    _, answer = ask(desk, "evaluate", server, write=None)
    leaf = decode_upload(answer)[1]["own"].value
    for split in ("validation", "test"):
        for stats in leaf[split].values():
            rows, sure = stats["scores"].sum(1), stats["calibration"][:, 0]
            least = min(max(5, small_cell), int(sure.sum()))
            assert bool(((rows >= least) | (rows == 0)).all()) and bool(((sure >= least) | (sure == 0)).all())


# Paths and names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run", ["../../0123456789abcdef", "0123456789abcdef/../../x", "x0123456789abcdef", "0123456789abcdef\n"]
)
def test_a_run_is_named_by_its_name_alone(run: str, home: Any, tiny: MakeConfig) -> None:
    desk = home()
    assert "names no run" in invite(desk, tiny(), run=run)["refused"]
    assert ask(desk, "train", {}, run=run)[0]["refused"] == "the question is not in order: 'run'"


@pytest.mark.parametrize(
    "change",
    [
        {"write": "٠.٠"},  # digits, but not ours
        {"write": "0.0\n"},
        {"read": "0" * 300 + ".0"},
        {"keep": ["0.0", "x0.0"]},
        {"question": "trainé"},
        {"site": "../x"},
    ],
)
def test_no_name_is_more_than_a_name(change: dict[str, Any], home: Any, tiny: MakeConfig) -> None:
    desk = home()
    assert "card" in invite(desk, tiny())
    assert "refused" in ask(desk, **{"question": "train", "tree": {}, **change})[0]


@pytest.mark.parametrize("target", ["/dev/zero", "fifo", "/etc/hostname", "../weights.safetensors"])
def test_a_site_opens_no_file_that_the_coordinator_names(
    target: str, home: Any, tiny: MakeConfig, tmp_path: Path
) -> None:
    """Neither as the weights of the network nor as those that a method brings along; the answer says nothing
    of the file."""
    os.mkfifo(tmp_path / "fifo")
    path = str(tmp_path / target) if target == "fifo" else target
    desk = home()
    for sections in (
        {"net": {"weights": path, "sha256": "0" * 64}},
        {
            "method": {
                "name": "fedmas",
                "target": "small-cnn",
                "target_weights": path,
                "target_sha256": "0" * 64,
            }
        },
    ):
        told = invite(desk, tiny(sections.get("method", {}).get("name", "fedavg")), **sections)
        assert told["refused"].startswith(f"this site has no weights '{path}'")
        assert "[weights]" in told["refused"]


def test_weights_are_taken_from_where_the_site_says(home: Any, tiny: MakeConfig, tmp_path: Path) -> None:
    """By their name or by their sha256, whatever path the coordinator has for them; and only if they are a
    regular file."""
    config = tiny()
    net = make_host(config, material(config), tmp_path / "unused").net
    save_file(
        {name: torch.ones(x.shape) for name, x in state(net.body).items()}, tmp_path / "ours.safetensors"
    )
    sha = hashlib.sha256((tmp_path / "ours.safetensors").read_bytes()).hexdigest()
    os.mkfifo(tmp_path / "fifo.safetensors")
    for key, named in ((sha, "/their/own/path.pth"), (sha.upper(), "any"), ("start", "start")):
        desk = home()
        own = tomllib.loads((desk.folder / "site.toml").read_text()) | {
            "weights": {key: str(tmp_path / "ours.safetensors")}
        }
        (desk.folder / "site.toml").write_text(tomli_w.dumps(own))
        desk.options = read_site(desk.folder)
        assert "card" in invite(desk, config, net={"weights": named, "sha256": sha})
        assert all(bool((x == 1).all()) for x in state(desk._run(RUN).host.net.body).values())
    desk = home()
    own |= {"weights": {"start": str(tmp_path / "fifo.safetensors")}}
    (desk.folder / "site.toml").write_text(tomli_w.dumps(own))
    desk.options = read_site(desk.folder)
    assert invite(desk, config, net={"weights": "start", "sha256": sha})["failed"].startswith("WeightsError")
    assert "not a regular file" in reasons(desk)


def test_a_key_that_others_can_read_does_not_join(home: Any, tmp_path: Path) -> None:
    from equipoise.deploy.join import join

    folder = home().folder
    own = tomllib.loads((folder / "site.toml").read_text()) | {"superlink": "127.0.0.1:9"}
    (folder / "site.toml").write_text(tomli_w.dumps(own))
    (folder / "keys").mkdir()
    new_pair(folder / "keys" / "site")
    authority(folder)
    for mode in (0o640, 0o604, 0o660):
        (folder / "keys" / "site").chmod(mode)
        with pytest.raises(ConfigError, match="readable by its owner only: chmod 600"):
            join(folder, patience=0.0)


def test_a_stage_sets_what_its_sites_allow(tiny: MakeConfig, tmp_path: Path) -> None:
    """Nothing is started here: the folders of a rehearsal with two sites and a file of weights."""
    (tmp_path / "start.safetensors").touch()
    config = tiny(
        base=tmp_path,
        partition={"sites": 2},
        exchange={"min_sites": 2},
        net={"weights": "start.safetensors", "sha256": "0" * 64},
    )
    with stage(config, tmp_path / "town") as made:
        policy, site = read_policy(made.site(SITE) / "policy.toml"), read_site(made.site(SITE))
    assert (policy.min_sites, list(policy.methods)) == (2, ["fedavg"])
    new = Policy()  # all else is what a new site has
    assert (policy.small_cell, policy.batch_size, policy.each) == (new.small_cell, new.batch_size, new.each)
    assert site.weights == {"start.safetensors": str(tmp_path / "start.safetensors")}

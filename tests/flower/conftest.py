"""Flower without its servers: real messages, taken apart into Flower's wire objects and put together again,
in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from tests.light import sparing

from equipoise.config import Config, resolve
from equipoise.deploy import apps
from equipoise.deploy.card import COUNTS
from equipoise.deploy.coordinator import coordinate, federated, plan
from equipoise.deploy.policy import approved
from equipoise.deploy.site import OURS
from equipoise.methods import METHODS
from equipoise.running import Result, prepare
from equipoise.setup import material

MakeConfig = Callable[..., Config]


@pytest.fixture(scope="session")
def tiny(tiny: MakeConfig) -> MakeConfig:
    return sparing(tiny)


@pytest.fixture(autouse=True, scope="session")
def _identity() -> Iterator[None]:
    """Messages want to know who sends them; Flower's runtime says so, here we do."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_task_id", "_run_id", "_node_id"):
            patch.setattr(TaskIdentity, name, 1)
        yield


def carried(message: Message) -> tuple[Message, list[bytes]]:
    """A message after the wire, and the bytes that crossed it."""
    with no_object_id_recompute():  # nothing in it changes meanwhile
        number = message.object_id
        message.metadata.__dict__["_message_id"] = number
        objects = {inner: one.deflate() for inner, one in get_all_nested_objects(message).items()}
    crossed = list(objects.values())
    copy = inflate_object_from_contents(number, objects)
    assert isinstance(copy, Message)
    copy.metadata.__dict__["_message_id"] = number
    return copy, crossed


@dataclass
class Node:
    node_id: int
    public_key: bytes
    last_activated_at: str
    folder: Path


@dataclass
class Wire:
    """A grid whose nodes answer when pulled, the last asked first."""

    nodes: list[Node]
    change: Callable[[Message, Message], Message | None] = field(default=lambda asked, reply: reply)
    """sees every reply with its question; may change or lose it"""
    down: list[tuple[str, list[bytes]]] = field(default_factory=list)
    up: list[tuple[str, list[bytes]]] = field(default_factory=list)
    pending: dict[str, Message] = field(default_factory=dict)

    def get_nodes(self) -> list[Node]:
        return self.nodes

    def push_messages(self, messages: Sequence[Message]) -> list[str]:
        numbers = []
        for message in messages:
            copy, raw = carried(message)
            self.down.append((message.metadata.message_type, raw))
            self.pending[copy.metadata.message_id] = copy
            numbers.append(copy.metadata.message_id)
        return numbers

    def pull_messages(self, message_ids: Sequence[str]) -> Iterator[Message]:
        for number in reversed([one for one in self.pending if one in set(message_ids)]):
            asked = self.pending.pop(number)
            node = next(node for node in self.nodes if node.node_id == asked.metadata.dst_node_id)
            context = Context(1, node.node_id, {"folder": str(node.folder)}, RecordDict(), {})
            reply = self.change(asked, apps.client(asked, context))
            if reply is not None:
                copy, raw = carried(reply)
                self.up.append((asked.metadata.message_type, raw))
                yield copy


@dataclass
class Town:
    """A coordinator's run folder and one folder per site."""

    config: Config
    run: Path
    wire: Wire
    sites: dict[str, Path]

    def go(self) -> Result:
        return coordinate(self.wire, self.run)


def write_site(folder: Path, name: str, config: Config, policy: dict[str, Any]) -> Path:
    """A site's folder that holds its share of a config's data."""
    folder.mkdir(parents=True)
    table = config.table()
    data = {key: value for key, value in table["data"].items() if value is not None}
    site = {"name": name, "device": "cpu", "data": data, "partition": table["partition"]}
    (folder / "site.toml").write_text(tomli_w.dumps(site))
    (folder / "policy.toml").write_text(tomli_w.dumps(policy))
    return folder


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Town]]:
    """town(config, policy={…}) → sites and a coordinator, not yet begun. Sums over one site will do, and the
    config's method alone is approved, unless it says otherwise."""
    made: list[Town] = []
    root = tmp_path_factory.mktemp("towns")

    def make(config: Config, policy: dict[str, dict[str, Any]] | None = None, **engine: Any) -> Town:
        place = root / f"town-{len(made)}"
        if "min_sites" not in config.exchange.model_fields_set:
            config = replace(config, exchange=config.exchange.model_copy(update={"min_sites": 1}))
        config = federated(config)
        dataset = material(config)
        names = sorted(holding.name for holding in dataset.holdings)
        ledger = prepare(config, dataset.facts, dataset).ledger
        each = {f"{row['question']}.{row['leaf']}" for row in ledger.rows() if row["kind"] == "each"} | {
            COUNTS,
            "evaluate.own",
        }
        usual = {
            "small_cell": 0,
            "min_sites": 1,
            "batch_size": 1,
            "each": sorted(each),
            "methods": approved({config.method_name} & set(METHODS)),
        }
        sites = {
            name: write_site(place / name, name, config, usual | (policy or {}).get(name, {}))
            for name in names
        }
        nodes = [Node(i + 2, name.encode(), "then", folder) for i, (name, folder) in enumerate(sites.items())]
        # The coordinator has no data, and its config says nothing of any.
        table = {key: value for key, value in config.table().items() if key not in OURS}
        config = resolve(table).with_engine(
            **({"device": "cpu", "deadline": 30.0, "retries": 1, "patience": 5.0} | engine)
        )
        config = plan(config, place / "run", {name: name.encode() for name in names})
        made.append(Town(config, place / "run", Wire(nodes), sites))
        return made[-1]

    yield make
    for one in made:
        for folder in one.sites.values():
            apps.desk(str(folder)).close()
    apps.desk.cache_clear()

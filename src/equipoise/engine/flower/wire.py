"""What a message between coordinator and site holds: one JSON table, and byte strings beside it.

The bytes are the safetensors messages of `exchange.codec`; Flower carries them as values or as arrays, and
never looks into them.
Message types: `train.<question>` where the site will remember something, `query.<question>` where it will
not, and plain `query` for an invitation to a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import Field

from equipoise.exchange.codec import CodecError, read_json
from equipoise.exchange.question import Call, Question
from equipoise.exchange.reduction import MOST_SITES
from equipoise.keeping import FIRST
from equipoise.options import Options

TABLE, BYTES, JSON, FORMAT = "table", "bytes", "json", "safetensors"
INVITATION = "query"
MASKS = "query.masks"
"""the type of the letters of secure aggregation that come without a question"""
INLINE = 2**18
"""bytes up to which byte strings are part of the table's record: each record and each array of a message, and
each piece of an array, is fetched by a request of its own"""
MOST = 2**22
"""bytes of the longest table: a config, or what a site tells of itself"""
RUN = re.compile(r"[0-9a-f]{16}")
SiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]

Part = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,127}$")]
Mark = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Request(Call):
    """A call as a site may receive it from a coordinator; anything else is refused."""

    run: str = Field(pattern=f"^{RUN.pattern}$")
    ticket: int = Field(gt=0, strict=True)
    question: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")
    asked: tuple[SiteName, ...] = Field(max_length=MOST_SITES)
    """the sites this question goes to, as the coordinator says"""
    journal: str = Field(default=FIRST, pattern=r"^[0-9a-f]{64}$")
    """the head of the coordinator's journal"""
    blueprint: dict[Part, Mark] = Field(default_factory=dict, max_length=1000)
    """the digest of the coordinator's blueprint, by parts (`Blueprint.marks`); empty: it is not told"""


class StepRequest(Options):
    """A letter of secure aggregation as a site may receive it."""

    run: str = Field(pattern=f"^{RUN.pattern}$")
    ticket: int = Field(gt=0, strict=True)
    site: SiteName
    round: int = Field(ge=0, strict=True)
    question: Literal[""]
    step: str = Field(pattern=r"^[a-z]{1,16}$")
    journal: str = Field(default=FIRST, pattern=r"^[0-9a-f]{64}$")


def message_type(question: Question) -> str:
    """The Flower message type of a question."""
    return f"{'query' if question.write is None else 'train'}.{question.name}"


def array(data: bytes) -> Array:
    """Bytes as Flower carries them, not copied: they may be as many as a model has. Messages that share one
    such array share its bytes on the way to Flower's server, too."""
    made = Array("uint8", (len(data),), FORMAT, b"")
    made.data = data
    return made


def wrap(table: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> RecordDict:
    """The content of a message."""
    text = json.dumps(table, sort_keys=True)
    if sum(len(one.data) for one in (arrays or {}).values()) <= INLINE:
        values = {name: bytes(one.data) for name, one in (arrays or {}).items()}
        return RecordDict({TABLE: ConfigRecord({**values, JSON: text})})
    record = ArrayRecord()
    for name, one in (arrays or {}).items():
        record[name] = one
    return RecordDict({TABLE: ConfigRecord({JSON: text}), BYTES: record})


def unwrap(content: RecordDict) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The table and the byte strings of a message; `CodecError` when it holds anything else."""
    try:
        if not set(content) <= {TABLE, BYTES}:
            raise CodecError("it has other records")
        values = dict(content.config_records[TABLE])
        text = values.pop(JSON)
        arrays = content.array_records[BYTES] if BYTES in content else {}
        table = read_json(text, MOST) if isinstance(text, str) else None
        data = {name: one for name, one in values.items() if isinstance(one, bytes)}
        data |= {name: one.data for name, one in arrays.items() if one.stype == FORMAT}
        if not isinstance(table, dict) or len(data) != len(values) + len(arrays):
            raise CodecError("its records are of another kind")
        return table, data
    except CodecError as error:
        raise CodecError(f"not a message of ours ({error})") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CodecError(f"not a message of ours ({type(error).__name__})") from error

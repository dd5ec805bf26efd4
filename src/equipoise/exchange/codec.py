"""Bytes on the wire and on disk: the safetensors format with one JSON header. Nothing else is ever parsed,
nothing is executed.

`pack`/`unpack` turn a header and named tensors into bytes and back; `encode_upload`/`decode_upload` do so for
typed leaves, and `seal`/`unseal` for a file that is read back: its header holds the digest of the tensors and
its own. The format is read and written here rather than by its library for two reasons: a model is copied
once on its way out and at most once on its way in, and tensors keep their order, which some trees mean
something by.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.keeping import DIGEST, sealed, table_digest
from equipoise.leaves import Each, Leaf, Mean, Sum, Upload
from equipoise.tree import DTYPE_NAMES, DTYPES, flat_digest, flatten, unflatten

HEADER = "equipoise"
METADATA = "__metadata__"
WEIGHT = "@weight"
MOST_TABLE = 2**26
"""bytes of the longest table of tensors that is read where nothing shorter is asked for"""
MOST_LEAVES = 256
NESTED = 16
"""levels JSON from elsewhere may have"""
LARGEST_PLACE, MOST_AXES = 2**48, 16
"""no length and no place in a message is larger, no tensor has more axes"""
ALIGNED = 64
"""bytes that the place of every tensor of torch's own is a multiple of"""
TENSORS = "tensors"
"""in the header of a sealed file: the digest of its tensors"""
LEAVES: dict[str, type[Leaf]] = {"sum": Sum, "mean": Mean, "each": Each}


class CodecError(EquipoiseError):
    """Bytes that are not a message of ours."""


def read_json(text: str | bytes, most: int = MOST_TABLE) -> Any:
    """JSON from elsewhere; `CodecError` where it is too long, too deep, says a name twice, or is none."""
    if len(text) > most:
        raise CodecError(f"it has a text of {len(text):,} bytes, at most {most:,} are read")
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"it has a text that is not readable ({type(error).__name__})") from error
    if _deeper(value, NESTED):
        raise CodecError(f"it has a text nested more than {NESTED} levels deep")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name twice")
    return table


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _deeper(value: Any, levels: int) -> bool:
    """Whether a value of JSON has more levels than that; it is not followed any further."""
    level = [value]
    for _ in range(levels + 1):
        holders = [one for one in level if isinstance(one, (dict, list))]
        if not holders:
            return False
        level = [inner for one in holders for inner in (one.values() if isinstance(one, dict) else one)]
    return True


def shown(name: str, most: int = 80) -> str:
    """A name from elsewhere as it may be printed: short, and without signs that do something to a
    terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in name[:most]) + (
        "…" if len(name) > most else ""
    )


Room = Callable[[int, int], bytearray | memoryview]
"""room(size, begin): where a message of so many bytes is put, whose tensors begin at `begin`"""


def heap(size: int, begin: int) -> bytearray:
    """Room in the process's own memory."""
    return bytearray(size)


def pack(header: Mapping[str, Any], tensors: Mapping[str, Tensor], room: Room = heap) -> bytes:
    """One message: a JSON header and named tensors."""
    table: dict[str, Any] = {METADATA: {HEADER: json.dumps(header, sort_keys=True)}}
    if METADATA in tensors:
        raise ValueError(f"a tensor may not be called '{METADATA}'")
    place = 0
    # First those after which the next lies as torch would lay it, then wide types first, so that every tensor
    # lies where its type may be read in place; the table keeps the caller's order.
    places = {}

    def order(item: tuple[str, Tensor]) -> tuple[bool, int]:
        return item[1].nbytes % ALIGNED > 0, -item[1].element_size()

    for name, x in sorted(tensors.items(), key=order):
        places[name] = (place, place + x.nbytes)
        place = places[name][1]
    for name, x in tensors.items():
        table[name] = {"dtype": DTYPE_NAMES[x.dtype], "shape": list(x.shape), "data_offsets": places[name]}
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    message = room(8 + len(head) + place, 8 + len(head))
    struct.pack_into("<Q", message, 0, len(head))
    message[8 : 8 + len(head)] = head
    for name, x in tensors.items():
        if x.numel():
            start = 8 + len(head) + places[name][0]
            torch.frombuffer(message, dtype=x.dtype, count=x.numel(), offset=start).view(x.shape).copy_(
                x.detach()
            )
    return message


def unpack(
    data: bytes | memoryview, views: bool = False, most: int = MOST_TABLE
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a message; `CodecError` when the bytes are anything else.

    Tensors are copies, laid in memory as torch lays its own: a matrix product may round differently where
    they lie otherwise, and a resumed run would part from a straight one. A message that is mapped, a
    `memoryview`, is nobody else's to change: of that only those are copied that lie otherwise. `views` gives
    the message's own bytes, for what is only added up. A table of tensors longer than `most` bytes is not
    read.
    """
    in_place = isinstance(data, memoryview)
    data = data if isinstance(data, bytearray | memoryview) else bytearray(data)
    try:
        (size,) = struct.unpack_from("<Q", data)
        if size % 8 or size > len(data) - 8:
            raise CodecError("not a readable message (its table does not fit)")
        if size > most:
            raise CodecError(
                f"not a readable message (its table has {size:,} bytes, at most {most:,} are read)"
            )
        table = read_json(bytes(data[8 : 8 + size]), most)
        header = read_json(table.pop(METADATA)[HEADER], most)
        if not isinstance(header, dict):
            raise CodecError("the message header is not a table")
        tensors = _views(data, 8 + size, table)
        if views:
            return header, tensors
        return header, {
            name: x if in_place and x.data_ptr() % ALIGNED == 0 else x.clone() for name, x in tensors.items()
        }
    except (
        struct.error,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise CodecError(f"not a readable message ({type(error).__name__})") from error


def seal(header: Mapping[str, Any], tensors: Mapping[str, Tensor], state: str | None = None) -> bytes:
    """`pack` with digests, for a file; `state` is the digest of the tensors where that is known already."""
    return pack(sealed({**header, TENSORS: flat_digest(tensors) if state is None else state}), tensors)


def unseal(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors that were sealed; `CodecError` when a bit of either has changed."""
    header, tensors = unpack(data)
    if header.pop(DIGEST, None) != table_digest(header):
        raise CodecError("its header does not have the digest it claims")
    if header.pop(TENSORS, None) != flat_digest(tensors):
        raise CodecError("its tensors do not have the digest they claim")
    return header, tensors


def _views(data: bytearray | memoryview, start: int, table: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors a table describes; they must fill the rest of the message without gap or overlap."""
    tensors, spans = {}, []
    for name, entry in table.items():
        dtype, shape, (first, last) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if len(shape) > MOST_AXES or not all(
            type(n) is int and 0 <= n < LARGEST_PLACE for n in (*shape, first, last)
        ):
            raise CodecError(
                f"not a readable message (the place of '{shown(name)}' is not given in whole numbers)"
            )
        count = math.prod(shape)
        if last - first != count * dtype.itemsize or (start + first) % dtype.itemsize:
            raise CodecError(f"not a readable message ('{shown(name)}' has the wrong number of bytes)")
        spans.append((first, last))
        if last > len(data) - start:
            raise CodecError("not a readable message (it is cut short)")
        if count:
            tensors[name] = torch.frombuffer(data, dtype=dtype, count=count, offset=start + first).view(shape)
        else:
            tensors[name] = torch.empty(shape, dtype=dtype)
    end = 0
    for first, last in sorted(spans):
        if first != end:
            raise CodecError("not a readable message (tensors overlap or leave gaps)")
        end = last
    if end != len(data) - start:
        raise CodecError("not a readable message (bytes that belong to no tensor)")
    return tensors


def encode_upload(upload: Upload, header: Mapping[str, Any] | None = None, room: Room = heap) -> bytes:
    """The bytes of one answer."""
    tensors: dict[str, Tensor] = {}
    for name, leaf in upload.items():
        if isinstance(leaf.value, Mapping):
            tensors |= flatten(leaf.value, f"{name}/")
        else:
            tensors[name] = torch.as_tensor(leaf.value)
        if isinstance(leaf, Mean):
            tensors[name + WEIGHT] = torch.as_tensor(leaf.weight, dtype=torch.float64)
    kinds = {name: leaf.kind for name, leaf in upload.items()}
    return pack({**(header or {}), "leaves": kinds}, tensors, room)


def decode_upload(data: bytes, most: int = MOST_TABLE) -> tuple[dict[str, Any], Upload]:
    """The header and the typed leaves of one answer; `most` as for `unpack`."""
    header, tensors = unpack(data, views=True, most=most)
    kinds = header.get("leaves")
    if not isinstance(kinds, dict) or not all(
        isinstance(kind, str) and kind in LEAVES for kind in kinds.values()
    ):
        raise CodecError("the message does not say what kinds its leaves are")
    if len(kinds) > MOST_LEAVES:
        raise CodecError(f"the message has {len(kinds):,} leaves, at most {MOST_LEAVES} are read")
    upload: Upload = {}
    for name, kind in kinds.items():
        if name in tensors:
            value: Any = tensors.pop(name)
        else:
            branch = {key: tensors.pop(key) for key in [k for k in tensors if k.startswith(f"{name}/")]}
            try:
                value = unflatten({key.removeprefix(f"{name}/"): tensor for key, tensor in branch.items()})
            except ValueError as error:
                raise CodecError(f"the leaf '{shown(name)}' is no tree: {shown(str(error))}") from error
        if kind == "mean":
            if name + WEIGHT not in tensors:
                raise CodecError(f"the mean leaf '{shown(name)}' has no weight")
            upload[name] = Mean(value, tensors.pop(name + WEIGHT))
        else:
            upload[name] = Sum(value) if kind == "sum" else Each(value)
    if tensors:
        raise CodecError(f"tensors that belong to no leaf: {', '.join(map(shown, sorted(tensors)[:3]))}")
    return header, upload

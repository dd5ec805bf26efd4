"""Bytes on the wire and on disk: safetensors with one JSON header. Nothing else is ever parsed, and nothing is executed.

`pack`/`unpack` turn a header and named tensors into bytes and back; `encode_upload`/`decode_upload` do so for typed leaves.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.leaves import Each, Leaf, Mean, Sum, Upload
from equipoise.tree import flatten, unflatten

HEADER = "equipoise"
WEIGHT = "@weight"
LEAVES: dict[str, type[Leaf]] = {"sum": Sum, "mean": Mean, "each": Each}


class CodecError(EquipoiseError):
    """Bytes that are not a message of ours."""


def pack(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """One message: a JSON header and named tensors."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors gives tensors back in no fixed order, and some trees mean something by theirs: so the names go along.
    message = {"header": header, "names": list(plain)}
    return safetensors_save(_apart(plain), metadata={HEADER: json.dumps(message, sort_keys=True)})


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory as copies, which is what the other end gets anyway; safetensors takes no others."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        if memory in seen:
            tensors[name] = tensor.clone()
        seen.add(memory)
    return tensors


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a message; `CodecError` when the bytes are anything else."""
    try:
        (size,) = struct.unpack("<Q", data[:8])
        meta = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        message = json.loads(meta[HEADER])
        header, names = message["header"], message["names"]
        if not isinstance(header, dict):
            raise CodecError("the message header is not a table")
        tensors = safetensors_load(data)
        if sorted(names) != sorted(tensors):
            raise CodecError("the message does not hold the tensors it names")
        return header, {name: tensors[name] for name in names}
    except (
        SafetensorError,
        struct.error,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise CodecError(f"not a readable message ({type(error).__name__})") from error


def encode_upload(upload: Upload, header: Mapping[str, Any] | None = None) -> bytes:
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
    return pack({**(header or {}), "leaves": kinds}, tensors)


def decode_upload(data: bytes) -> tuple[dict[str, Any], Upload]:
    """The header and the typed leaves of one answer."""
    header, tensors = unpack(data)
    kinds = header.get("leaves")
    if not isinstance(kinds, dict) or not all(isinstance(kind, str) and kind in LEAVES for kind in kinds.values()):
        raise CodecError("the message does not say what kinds its leaves are")
    upload: Upload = {}
    for name, kind in kinds.items():
        if name in tensors:
            value: Any = tensors.pop(name)
        else:
            branch = {key: tensors.pop(key) for key in [k for k in tensors if k.startswith(f"{name}/")]}
            try:
                value = unflatten({key.removeprefix(f"{name}/"): tensor for key, tensor in branch.items()})
            except ValueError as error:
                raise CodecError(f"the leaf '{name}' is no tree: {error}") from error
        if kind == "mean":
            if name + WEIGHT not in tensors:
                raise CodecError(f"the mean leaf '{name}' has no weight")
            upload[name] = Mean(value, tensors.pop(name + WEIGHT))
        else:
            upload[name] = Sum(value) if kind == "sum" else Each(value)
    if tensors:
        raise CodecError(f"tensors that belong to no leaf: {', '.join(sorted(tensors)[:3])}")
    return header, upload

"""Trees of tensors: nested dicts with string keys, the shape of all state in Equipoise.

`flatten` gives the form that is written to disk and sent: one dict whose names join the keys with "/".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]
"""A nested dict of tensors. (A recursive alias would only make every access a cast.)"""
DEEPEST = 16
"""levels a tree from elsewhere may have: every walk over a tree goes as deep as the tree does"""

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""the types of tensors by the names that safetensors files have for them, and back"""


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """One dict of tensors, names joined by "/"; empty branches vanish."""
    flat: dict[str, Tensor] = {}
    for key, value in tree.items():
        if "/" in key:
            raise ValueError(f"a tree key may not contain '/': '{key}'")
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}/"))
        else:
            flat[prefix + key] = torch.as_tensor(value)
    return flat


def unflatten(flat: Mapping[str, Tensor]) -> Tree:
    """The inverse of `flatten`; a name that is a tensor and a branch at once, or lies too deep, is a
    ValueError."""
    tree: Tree = {}
    for name, value in flat.items():
        if name.count("/") >= DEEPEST:
            raise ValueError(f"a tensor lies more than {DEEPEST} levels deep")
        *path, last = name.split("/")
        branch = tree
        for key in path:
            branch = branch.setdefault(key, {})
            if not isinstance(branch, dict):
                raise ValueError(f"'{name}' lies below a tensor")
        if last in branch:
            raise ValueError(f"'{name}' is a branch and a tensor")
        branch[last] = value
    return tree


def combine(function: Callable[..., Tensor], first: Mapping[str, Any], *others: Mapping[str, Any]) -> Tree:
    """`function` applied to the tensors at the same place of every tree."""
    return {
        key: combine(function, value, *(o[key] for o in others))
        if isinstance(value, Mapping)
        else function(value, *(o[key] for o in others))
        for key, value in first.items()
    }


def plus(a: Mapping[str, Any], b: Mapping[str, Any], scale: float = 1.0) -> Tree:
    """`a + scale · b`, tensor by tensor."""
    return combine(lambda x, y: torch.add(x, y.to(x.dtype), alpha=scale), a, b)


def zeros_like(tree: Mapping[str, Any]) -> Tree:
    """A tree of zeros of the same shape."""
    return combine(torch.zeros_like, tree)


def digest(tree: Mapping[str, Any]) -> str:
    """sha256 over names, dtypes, shapes and bits: equal digests mean equal trees."""
    return flat_digest(flatten(tree))


def flat_digest(flat: Mapping[str, Tensor]) -> str:
    """The digest of a tree that is flattened already."""
    sha = hashlib.sha256()
    for name, value in sorted(flat.items()):
        tensor = value.detach().cpu().contiguous()
        sha.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        sha.update(bits.numpy().data)
    return sha.hexdigest()

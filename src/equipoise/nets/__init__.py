"""Backbones, heads and projectors."""

from equipoise.nets.assemble import VIEWS_KEPT, NetOptions, build
from equipoise.nets.encoder import encoder_sha256
from equipoise.nets.net import FED, HEAD, Cosine, Net, ProjectorSpec, load, state
from equipoise.nets.norm import batch_norm_names
from equipoise.nets.registry import NETS, ONNX
from equipoise.nets.stages import below
from equipoise.nets.weights import KNOWN, load_weights

__all__ = [
    "FED",
    "HEAD",
    "KNOWN",
    "NETS",
    "ONNX",
    "VIEWS_KEPT",
    "Cosine",
    "Net",
    "NetOptions",
    "ProjectorSpec",
    "batch_norm_names",
    "below",
    "build",
    "encoder_sha256",
    "load",
    "load_weights",
    "state",
]

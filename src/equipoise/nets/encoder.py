"""A frozen encoder from an ONNX file, run by onnxruntime: a foundation model, say, or what another framework
trained.

The bytes of the file are a tensor of the network, `body.file`: frozen like others, they are kept with the
run, compared between sites by digest and put into what is exported. Nothing is read but these bytes: weights
that a model keeps in files beside it are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.errors import ConfigError, WeightsError
from equipoise.nets.own import Made
from equipoise.nets.registry import ONNX
from equipoise.nets.stages import Stage
from equipoise.nets.weights import read_checked

STAGE = "encoder"
FILE = "body.file"
INPUTS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class Encoder(nn.Module):
    """Images [N, C, H, W] to features [N, d] by the model in a file; feature maps are averaged."""

    def __init__(self, content: bytes, title: str, output: str | None = None) -> None:
        super().__init__()
        # Half precision holds a byte exactly, and every float tensor of a network is kept and compared.
        numbers = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(torch.float16)
        self.register_buffer("file", numbers)
        self.title = title
        self._session = _session(content, title)
        inputs, outputs = self._session.get_inputs(), [one.name for one in self._session.get_outputs()]
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in INPUTS:
            raise WeightsError(f"{title} must have one input, images [N, C, H, W] in float32 or float16")
        if output is not None and output not in outputs:
            raise ConfigError(f"net.features: {title} has no output '{output}': valid: {', '.join(outputs)}")
        self.input = inputs[0]
        self.output = output or outputs[0]
        self.width = 0
        """features it gives, once it has been tried"""

    def __deepcopy__(self, memo: dict[int, Any]) -> Encoder:
        return self  # it never changes, and a session cannot be copied

    def forward(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_zeros(0, self.width)
        images = self._shown(x.detach()).cpu().numpy().astype(INPUTS[self.input.type])
        batch = self.input.shape[0]
        parts = np.split(images, len(images)) if batch == 1 else [images]
        try:
            rows = [self._session.run([self.output], {self.input.name: part})[0] for part in parts]
        except Exception as error:  # onnxruntime has a class of its own for each kind of failure
            cause = " ".join(str(error).split())
            raise WeightsError(f"{self.title} fails on images {[*images.shape]}: {cause}") from error
        features = torch.from_numpy(np.concatenate(rows).astype(np.float32))
        if features.ndim not in (2, 4) or len(features) != len(images):
            raise WeightsError(
                f"{self.title} gives {[*features.shape]} for {len(images)} images as '{self.output}': it "
                "must be features [N, d] or maps [N, d, h, w]; choose another output by net.features"
            )
        return (features.mean((2, 3)) if features.ndim == 4 else features).to(x.device)

    def _shown(self, x: Tensor) -> Tensor:
        """Images as the model takes them: grey ones three times, and of its size."""
        batch, channels, height, width = self.input.shape
        if isinstance(batch, int) and batch != 1:
            raise WeightsError(
                f"{self.title} is for exactly {batch} images: export it for any number of them"
            )
        if channels == 3 and x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        if isinstance(channels, int) and channels != x.shape[1]:
            raise ConfigError(f"{self.title} takes images of {channels} channels, not {x.shape[1]}")
        for side in (height, width):
            if isinstance(side, int) and side != x.shape[2]:
                raise ConfigError(
                    f"{self.title} takes images of {height} x {width} pixels: set data.image_size = {side}"
                )
        return x.contiguous()


def encoder_sha256(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 of the file among the tensors of a network with such an encoder."""
    return hashlib.sha256(_bytes(tensors[FILE])).hexdigest()


def _bytes(file: Tensor) -> bytes:
    return file.to(torch.uint8).numpy().tobytes()


def make_encoder(
    path: Path | None,
    sha256: str | None,
    output: str | None,
    shape: tuple[int, int],
    given: Mapping[str, Tensor] | None = None,
) -> Made:
    """The encoder in a file, or in the tensors of a run that has it; `shape` is (channels, size)."""
    if given is not None and FILE in given:
        title, content = "the run's encoder", _bytes(given[FILE])
    elif path is not None:
        title, content = f"encoder '{path}'", read_checked(path, sha256, ONNX)
    else:
        raise ConfigError("net.name = 'onnx' needs net.weights, the .onnx file, and its net.sha256")
    body = Encoder(content, title, output).eval()
    channels, size = shape
    body.width = body(torch.zeros(2, channels, size, size)).shape[1]
    return Made(body, body.width, channels_last=False, removed=frozenset())


def stages(body: nn.Module) -> Iterator[Stage]:
    """The whole encoder, which is always frozen."""
    yield Stage(STAGE, ("file",), lambda body, x: type(body).forward(body, x))


def _session(content: bytes, title: str) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ConfigError("net.name = 'onnx' needs onnxruntime: run pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # another number, other rounding
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        cause = " ".join(str(error).split())
        raise WeightsError(
            f"{title} is no ONNX model that can be run from this file alone: {cause}"
        ) from error

"""One file that holds a predictor: safetensors, which Equipoise reads again, or ONNX, which many other
programs run.

Both carry the blueprint, the pre-processing in it, and which state of the run it is, as JSON under the key
`equipoise` of their metadata. An export is tried before it gets its name: on random images it must answer as
the model does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from equipoise.blueprint import Blueprint
from equipoise.errors import ConfigError, EquipoiseError, MethodError, StorageError
from equipoise.exchange import seal
from equipoise.exchange.codec import HEADER
from equipoise.locate import Code, Parts, context
from equipoise.losses import ObjectiveOptions
from equipoise.names import unknown
from equipoise.nets import ONNX
from equipoise.predict import Predictor
from equipoise.seeds import generator
from equipoise.site import TrainOptions
from equipoise.tree import flatten
from equipoise.use.source import load

TOLERANCE = 1e-4
"""largest difference of a probability between a model and its export"""
IMAGES = 4
"""random images an export is tried on; not the number it was traced with, so that a fixed batch size is
noticed"""
TRACED = 2
OPSET = 17

Answer = Callable[[Tensor], Tensor]
Result = TypeVar("Result")


def export(model: Predictor, path: str | Path, to: str) -> float:
    """Write the predictor to a file; the largest difference between its answers and the model's."""
    if to not in KINDS:
        raise ConfigError(unknown("kind of export", to, KINDS))
    write, read = KINDS[to]
    path = Path(path)
    part = path.with_name(path.name + ".part")
    data = _tried(to, lambda: write(model))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        difference = _tried(to, lambda: parity(model, read(part)))
        if not difference < TOLERANCE:  # NaN is not less either
            raise MethodError(
                f"the {to} export answers otherwise than the model, by {difference:.2g}: nothing was written"
            )
        os.replace(part, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}; choose another --out") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return difference


def _tried(to: str, step: Callable[[], Result]) -> Result:
    """One step of an export; a network of the user's own may fail it in more ways than can be listed."""
    try:
        return step()
    except (EquipoiseError, OSError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise MethodError(
            f"the {to} export does not work ({type(error).__name__}: {text}): nothing was written; a network "
            "of your own must be for any number of images, such as x.shape[0], where len(x) is a fixed one"
        ) from error


@torch.no_grad()
def parity(model: Predictor, answer: Answer) -> float:
    """The largest difference between two predictors' probabilities of random images."""
    x = torch.randn(IMAGES, *model.blueprint.input.shape, generator=generator(0, "parity"))
    return float((model(x) - answer(x)).abs().max())


# safetensors ------------------------------------------------------------------------------------------------


def _to_safetensors(model: Predictor) -> bytes:
    header = _header(model)
    Blueprint.model_validate(header["blueprint"], context=context(Parts(Path(), _foreign)))
    return seal(header, flatten(model.tensors))


def _foreign(code: Code) -> None:
    raise ConfigError(
        f"a file cannot bring the code of '{code.name}' with it: use --to onnx, or the run folder itself"
    )


def _header(model: Predictor) -> dict[str, Any]:
    """What a file says of its model: what predicting needs. How it was trained, the run folder says."""
    plan = model.blueprint
    net = plan.net.model_copy(update={"weights": None, "sha256": None})
    train = TrainOptions.model_validate({"seed": plan.train.seed, "rounds": plan.train.rounds})
    plan = plan.model_copy(update={"net": net, "train": train, "objective": ObjectiveOptions()})
    return {"blueprint": plan.model_dump(mode="json"), "origin": model.origin.model_dump(mode="json")}


# ONNX -------------------------------------------------------------------------------------------------------


def _to_onnx(model: Predictor) -> bytes:
    onnx, _ = _onnx()
    if model.blueprint.net.name == ONNX:
        raise ConfigError(
            "a run whose encoder is an ONNX file is exported with --to safetensors, file and all"
        )
    file = io.BytesIO()
    with warnings.catch_warnings():
        # The older exporter, which follows one pass through the network: the newer one takes five to thirty
        # times as long and needs a package more. What either gets wrong, `parity` finds.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (torch.zeros(TRACED, *model.blueprint.input.shape),),
            file,  # type: ignore[arg-type]  # a stream will do, which torch's annotation does not say
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_axes={"images": {0: "n"}, "probabilities": {0: "n"}},
            opset_version=OPSET,
            dynamo=False,
        )
    content = onnx.load_from_string(file.getvalue())
    onnx.helper.set_model_props(content, {HEADER: json.dumps(_header(model))})
    onnx.checker.check_model(content)
    result: bytes = content.SerializeToString()
    return result


def _from_onnx(path: Path) -> Answer:
    _, runtime = _onnx()
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])

    def answer(x: Tensor) -> Tensor:
        (probabilities,) = session.run(["probabilities"], {"images": np.ascontiguousarray(x.numpy())})
        return torch.from_numpy(probabilities)

    return answer


def _onnx() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ConfigError(
            "ONNX needs the packages onnx and onnxruntime: run pip install onnx onnxruntime onnxscript"
        ) from error
    return onnx, onnxruntime


KINDS: dict[str, tuple[Callable[[Predictor], bytes], Callable[[Path], Answer]]] = {
    "safetensors": (_to_safetensors, load),
    "onnx": (_to_onnx, _from_onnx),
}
"""by name: how a predictor becomes bytes, and how such a file is asked"""

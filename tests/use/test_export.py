"""An export answers as the model does, says how to prepare images, and is not written when it would not."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from equipoise.errors import ConfigError, MethodError, StorageError
from equipoise.exchange import seal, unpack, unseal
from equipoise.nets import NETS, state
from equipoise.nets.norm import batch_norms
from equipoise.running import Result
from equipoise.use import Predictor, export, formats, load

PREDICTORS = [
    ("fedavg", None),
    ("fca", None),
    ("fca", "site-01"),
    ("fedsdc", None),
    ("prr-imb", "site-00"),
    ("local", "site-02"),
]
X = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def of_net(model: Predictor, name: str) -> Predictor:
    """A predictor with another, untrained network whose answers depend on the image.

    Fresh BatchNorm statistics would let the signal of a deep network die out; those of some images keep it
    alive.
    """
    plan = model.blueprint.model_copy(
        update={
            "net": model.blueprint.net.model_copy(update={"name": name}),
            "input": model.blueprint.input.model_copy(update={"image_size": 32}),
        }
    )
    net = plan.make_net().train()
    for layer in batch_norms(net):
        layer.momentum = 1.0
    x = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net(x)
    found = Predictor(plan, {"net": state(net)}, model.origin)
    assert (found(x).amax(0) - found(x).amin(0)).max() > 0.01
    return found


@pytest.mark.parametrize(("method", "site"), PREDICTORS)
def test_safetensors_bring_the_model_back(
    method: str, site: str | None, finished: Callable[..., Result], tmp_path: Path
) -> None:
    model = load(finished(method).folder, site)
    path = tmp_path / "new" / "model.safetensors"
    assert export(model, path, "safetensors") == 0
    again = load(path)
    left_out = {"net", "train", "objective"}
    assert again.blueprint.model_dump(exclude=left_out) == model.blueprint.model_dump(exclude=left_out)
    assert again.origin == model.origin and again.blueprint.net.name == model.blueprint.net.name
    assert torch.equal(again(X), model(X))
    assert sorted(path.parent.iterdir()) == [path]


LIGHT = ("small-cnn", "mobilenet-v2")
"""networks that take seconds; the others are for the sweep"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sweep] * (name not in LIGHT)) for name in NETS]
)
def test_every_net_can_be_exported(name: str, finished: Callable[..., Result], tmp_path: Path) -> None:
    assert (
        export(of_net(load(finished("fedavg").folder), name), tmp_path / "model.safetensors", "safetensors")
        == 0
    )


def test_the_file_says_how_to_prepare_images(finished: Callable[..., Result], tmp_path: Path) -> None:
    done = finished("fca", data={"image_size": 20})
    export(load(done.folder, "site-00"), tmp_path / "x.safetensors", "safetensors")
    with safe_open(tmp_path / "x.safetensors", "pt") as file:  # the library's own reader
        facts = json.loads(file.metadata()["equipoise"])
        assert "net/head.own.weight" in file.keys()  # noqa: SIM118
    assert facts["blueprint"]["input"] | {"mean": None, "std": None} == {
        "image_size": 20,
        "channels": 3,
        "resize": "squash",
        "crop_keep": 1.0,
        "colour_constancy": None,
        "brightness": None,
        "window": None,
        "bits": None,
        "mean": None,
        "std": None,
    }
    assert facts["blueprint"]["input"]["mean"] == pytest.approx([0.485, 0.456, 0.406])
    assert facts["blueprint"]["classes"] == list(done.classes)
    assert facts["origin"]["site"] == "site-00" and facts["blueprint"]["net"]["weights"] is None


def test_only_what_prediction_reads_leaves_with_it(finished: Callable[..., Result], tmp_path: Path) -> None:
    """MOON keeps a site's previous model, FCA its personal head: one is for training only, the other for its
    site only."""
    done = finished("moon")
    assert list((done.folder / "sites").glob("*/*.safetensors"))
    export(load(done.folder, "site-00"), tmp_path / "moon.safetensors", "safetensors")
    assert all(name.startswith("net/") for name in unpack((tmp_path / "moon.safetensors").read_bytes())[1])
    export(load(finished("fca").folder), tmp_path / "fca.safetensors", "safetensors")
    names = unpack((tmp_path / "fca.safetensors").read_bytes())[1]
    assert "net/head.fed.weight" in names and "net/head.own.weight" not in names


def test_an_export_that_answers_otherwise_is_not_written(
    finished: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(finished("fedavg").folder)
    wrong = {"safetensors": (formats.KINDS["safetensors"][0], lambda path: lambda x: model(x) + 2e-4)}
    monkeypatch.setattr(formats, "KINDS", wrong)
    with pytest.raises(
        MethodError, match=r"answers otherwise than the model, by 0\.0002: nothing was written"
    ):
        export(model, tmp_path / "x.safetensors", "safetensors")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_told(finished: Callable[..., Result], tmp_path: Path) -> None:
    model = load(finished("fedavg").folder)
    with pytest.raises(ConfigError, match="unknown kind of export 'onx': did you mean 'onnx'"):
        export(model, tmp_path / "x", "onx")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        export(model, tmp_path / "file" / "x", "safetensors")


def test_a_file_chooses_no_code(finished: Callable[..., Result], tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text("from equipoise.methods.base import Method\nclass Mine(Method):\n    '''Mine.'''\n")
    model = load(finished(f"{own}:Mine").folder)
    with pytest.raises(ConfigError, match=r"a file cannot bring the code of .*Mine' with it: use --to onnx"):
        export(model, tmp_path / "x.safetensors", "safetensors")
    header, tensors = formats._header(model), {"net/x": torch.zeros(1)}
    (tmp_path / "evil.safetensors").write_bytes(seal(header, tensors))
    with pytest.raises(StorageError, match="is not one of Equipoise's own"):
        load(tmp_path / "evil.safetensors")


def test_damaged_files_are_told(finished: Callable[..., Result], tmp_path: Path) -> None:
    model = load(finished("fedavg").folder)
    path = tmp_path / "x.safetensors"
    export(model, path, "safetensors")
    with pytest.raises(
        ConfigError, match=r"holds the global predictor of fedavg after round 2: leave --site out"
    ):
        load(path, "site-00")
    data = path.read_bytes()
    header, tensors = unseal(data)
    less = {name: tensor for name, tensor in tensors.items() if name != "net/head.fed.bias"}
    strange = {**tensors, "net/head.fed.bais": tensors["net/head.fed.bias"]}
    spoilt = [
        data[:-3],
        struct.pack("<Q", 2) + b"{}",
        seal({}, tensors),
        seal(header, less),
        seal(header, strange),
    ]
    for content in spoilt:
        path.write_bytes(content)
        with pytest.raises(
            StorageError, match="is not a model that `equipoise export --to safetensors` wrote"
        ):
            load(path)


# ONNX -------------------------------------------------------------------------------------------------------


def test_without_the_packages_the_fix_is_told(
    finished: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"pip install onnx onnxruntime onnxscript"):
        export(load(finished("fedavg").folder), tmp_path / "x.onnx", "onnx")


@pytest.mark.parametrize(("method", "site"), PREDICTORS)
def test_onnx_answers_as_the_model(
    method: str, site: str | None, finished: Callable[..., Result], tmp_path: Path
) -> None:
    import onnxruntime as runtime

    model = load(finished(method).folder, site)
    path = tmp_path / "model.onnx"
    assert export(model, path, "onnx") < 1e-4
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["equipoise"])
    assert facts["blueprint"]["input"] == model.blueprint.input.model_dump(mode="json")
    assert facts["origin"]["site"] == site
    for count in (1, 3):
        (found,) = session.run(None, {"images": X[:count].numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(X[:count]), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sweep] * (name not in LIGHT)) for name in NETS]
)
def test_onnx_of_every_net(name: str, finished: Callable[..., Result], tmp_path: Path) -> None:
    assert export(of_net(load(finished("fedavg").folder), name), tmp_path / "model.onnx", "onnx") < 1e-4

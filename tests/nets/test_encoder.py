"""A frozen encoder from an ONNX file."""

from __future__ import annotations

import hashlib
import io
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from equipoise import trust
from equipoise.config import resolve
from equipoise.errors import ConfigError, Untrusted, WeightsError
from equipoise.nets import NetOptions, build
from equipoise.running import run
from equipoise.use import export, load


class Maps(nn.Module):
    """Feature maps of five channels, half the size of the image, and their means."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.conv(x).relu()
        return maps, maps.flatten(2).mean(2)


def written(path: Path, size: int | None = None, batch: bool = True) -> tuple[Maps, str]:
    """The model and the sha256 of its file; with `size` it takes images of that size only."""
    torch.manual_seed(5)
    model, file = Maps().eval(), io.BytesIO()
    axes = {0: "n"} if batch else {}
    axes |= {} if size else {2: "h", 3: "w"}
    names = ["images", "maps", "features"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (torch.zeros(1, 3, size or 16, size or 16),),
            file,  # type: ignore[arg-type]
            input_names=names[:1],
            output_names=names[1:],
            dynamic_axes={"images": axes, "maps": axes, "features": {0: "n"} if batch else {}},
            dynamo=False,
        )
    path.write_bytes(file.getvalue())
    return model, hashlib.sha256(file.getvalue()).hexdigest()


@pytest.mark.parametrize(("features", "batch"), [(None, True), ("features", True), (None, False)])
def test_features_are_those_of_the_model(features: str | None, batch: bool, tmp_path: Path) -> None:
    model, sha = written(tmp_path / "e.onnx", batch=batch)
    options = NetOptions(name="onnx", weights="e.onnx", sha256=sha, features=features)
    net = build(options, classes=4, image_size=16, seed=0, base=tmp_path)
    x = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = model(x)[1].half().float()
    assert net.width == 5
    torch.testing.assert_close(net.features(x), wanted, rtol=0, atol=2e-3)
    assert net.still == {"body.file"} and not net.features(x).requires_grad


def test_grey_images_are_shown_three_times(tmp_path: Path) -> None:
    model, sha = written(tmp_path / "e.onnx")
    net = build(
        NetOptions(name="onnx", weights="e.onnx", sha256=sha), classes=2, channels=1, seed=0, base=tmp_path
    )
    x = torch.rand(2, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(net.features(x), model(x.expand(-1, 3, -1, -1))[1], rtol=0, atol=2e-3)


def table(path: Path, sha: str, **net: Any) -> dict[str, Any]:
    return {
        "data": {"kind": "phantom", "scale": 0.004, "image_size": 16},
        "method": {"name": "fca"},
        "net": {"name": "onnx", "weights": str(path), "sha256": sha, **net},
        "train": {"rounds": 2, "batch_size": 16},
        "engine": {"device": "cpu"},
    }


def test_same_bits_kept_or_not_in_a_pool_and_loaded_without_the_file(tmp_path: Path) -> None:
    path = tmp_path / "e.onnx"
    _, sha = written(path)
    views = {"views": ["eval"]}  # one variant only, so that what is kept is what would be computed
    config = table(path, sha)
    config["train"] |= views
    serial = run(resolve(config), tmp_path / "serial")
    pool = run(resolve(config | {"engine": {"kind": "pool", "workers": 2}}), tmp_path / "pool")
    anew = run(resolve(config | {"net": {**config["net"], "views_kept": 0}}), tmp_path / "anew")
    assert serial.state_hash == pool.state_hash == anew.state_hash
    assert not [name for name in serial.server["model"] if name.startswith("body.")]
    x = torch.rand(3, 3, 16, 16)
    before = load(serial.folder)(x)
    path.unlink()
    assert torch.equal(load(serial.folder)(x), before)
    export(load(serial.folder), tmp_path / "one.safetensors", "safetensors")
    assert torch.equal(load(tmp_path / "one.safetensors")(x), before)
    with pytest.raises(ConfigError, match="exported with --to safetensors"):
        export(load(serial.folder), tmp_path / "one.onnx", "onnx")


def test_somebody_elses_encoder_is_not_run_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs no code, but may take any amount of memory."""
    path = tmp_path / "e.onnx"
    _, sha = written(path)
    result = run(resolve(table(path, sha, views_kept=0)), tmp_path / "run")
    export(load(result.folder), tmp_path / "one.safetensors", "safetensors")
    monkeypatch.setenv("EQUIPOISE_TRUSTED", str(tmp_path / "nothing-yet"))
    monkeypatch.setattr(trust, "here", set())
    for model in (result.folder, tmp_path / "one.safetensors"):
        with pytest.raises(Untrusted, match=f"an ONNX encoder that you have not run before .*{sha}"):
            load(model)
    load(result.folder, trust=True)
    load(tmp_path / "one.safetensors")


def test_the_frozen_network_of_fedmas_may_be_one(tmp_path: Path) -> None:
    _, sha = written(tmp_path / "e.onnx")
    config = table(tmp_path / "e.onnx", sha)
    method = {
        "name": "fedmas",
        "target": "onnx",
        "target_weights": str(tmp_path / "e.onnx"),
        "target_sha256": sha,
    }
    config |= {"net": {"name": "small-cnn"}, "method": method}
    config["train"]["rounds"] = 1
    result = run(resolve(config), tmp_path / "run")
    assert result.server["model"]["projector.3.weight"].shape[0] == 5


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    path = tmp_path / "e.onnx"
    _, sha = written(path, size=32)

    def made(**options: Any) -> None:
        build(
            NetOptions(**{"name": "onnx", "weights": "e.onnx", "sha256": sha} | options),
            classes=2,
            image_size=16,
            seed=0,
            base=tmp_path,
        )

    with pytest.raises(ConfigError, match=r"32 x 32 pixels: set data.image_size = 32"):
        made()
    with pytest.raises(WeightsError, match="not a known file"):
        made(sha256=None)
    with pytest.raises(ConfigError, match=r"needs net.weights, the .onnx file"):
        made(weights=None)
    with pytest.raises(ConfigError, match="no output 'logits': valid: maps, features"):
        made(features="logits")
    with pytest.raises(ValueError, match="frozen as a whole"):
        made(freeze="block1")
    path.write_bytes(b"no model")
    with pytest.raises(WeightsError, match="is no ONNX model"):
        made(sha256=hashlib.sha256(b"no model").hexdigest())


def test_a_model_that_names_other_files_is_refused(tmp_path: Path) -> None:
    """Weights beside the file could be any file of the machine."""
    path = tmp_path / "e.onnx"
    written(path)
    content = onnx.load_from_string(path.read_bytes())
    onnx.save_model(content, str(path), save_as_external_data=True, location="beside.bin", size_threshold=0)
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(WeightsError, match="from this file alone"):
        build(
            NetOptions(name="onnx", weights="e.onnx", sha256=sha),
            classes=2,
            image_size=16,
            seed=0,
            base=tmp_path,
        )

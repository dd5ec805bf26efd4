"""Networks of the user's own: found by name, tried on black images, and fitted with heads like ours."""

from __future__ import annotations

import copy
import hashlib
import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from tests.own_code import forgotten
from torch import Tensor, nn

from equipoise.config import Config, resolve
from equipoise.errors import ConfigError, WeightsError
from equipoise.nets import Net, NetOptions, batch_norm_names, build, load, state

FILE = '''
import random

import numpy as np
import torch
from torch import nn


class Tiny(nn.Module):
    """Feature maps."""

    def __init__(self, channels, width=8):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


class Flat(nn.Module):
    """Features of its own making, by a view that needs the usual order of pixels."""

    def __init__(self, in_channels, image_size):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 4, 3, stride=4)
        side = (image_size - 3) // 4 + 1
        self.linear = nn.Linear(4 * side * side, 12)

    def forward(self, x):
        return self.linear(self.conv(x).view(len(x), -1))


class Classifier(nn.Module):
    """Ends in a classifier, and has a layer that is never used and one whose tensors alone are."""

    def __init__(self, channels):
        super().__init__()
        first = nn.Conv2d(channels, 6, 3)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 10, 3))
        self.read = nn.Linear(10, 1, bias=False)
        self.unused = nn.Conv2d(10, 10, 1)
        self.later = nn.ModuleDict({"norm": nn.BatchNorm1d(10), "out": nn.Linear(10, 5)})

    def forward(self, x):
        x = x + 0 * self.read.weight.sum()
        x = self.stem(x)
        return self.later["out"](self.later["norm"](x.mean((2, 3)))), x


def make(channels, depth=1):
    return nn.Sequential(*(nn.Conv2d(channels, channels, 1) for _ in range(depth)))


class Drawn(nn.Module):
    """Draws from every global generator, and counts."""

    def __init__(self, channels):
        super().__init__()
        draws = random.random(), float(np.random.rand()), float(torch.rand(()))
        self.weight = nn.Parameter(torch.tensor(draws))
        self.register_buffer("order", torch.randperm(64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("hidden", torch.rand(1), persistent=False)
        self.conv = nn.Conv2d(channels, 3, 1)

    def forward(self, x):
        self.calls += 1
        self.hidden = self.hidden + 1
        return self.conv(x).mean((2, 3)) * self.weight * (self.calls > 2)


class Tied(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = self.first
        self.norm = self.again = nn.BatchNorm2d(channels)

    def forward(self, x):
        return self.again(self.second(self.norm(self.first(x))))


class Lazy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(7))


class Half(nn.Module):
    """A fixed stem."""

    def __init__(self, channels):
        super().__init__()
        self.stem = nn.Conv2d(channels, 4, 1).requires_grad_(False)
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.conv(self.stem(x))


built = nn.Linear(1, 1)
number = 3


class NotANet:
    pass
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path


Make = Callable[..., Net]


@pytest.fixture
def options(folder: Path) -> Callable[..., NetOptions]:
    """options("Tiny", width=4) → the options of a net in mine.py."""

    def found(name: str, **keys: Any) -> NetOptions:
        full = name if ":" in name else f"mine.py:{name}"
        return resolve({"net": {"name": full, **keys}}, folder).net

    return found


@pytest.fixture
def make(options: Callable[..., NetOptions], folder: Path) -> Make:
    """make("Tiny", width=4) → a network with a body of mine.py."""

    def built(name: str, seed: int = 1, channels: int = 3, image_size: int = 16, **keys: Any) -> Net:
        chosen = options(name, **keys)
        return build(chosen, classes=4, channels=channels, image_size=image_size, seed=seed, base=folder)

    return built


def images(count: int = 3, channels: int = 3, size: int = 16) -> Tensor:
    x = torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(5))
    return x.contiguous(memory_format=torch.channels_last)


def text_of(nets: str, folder: Path) -> str:
    """A file with a net whose forward pass is the given line."""
    (folder / "odd.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Odd(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.conv = nn.Conv2d(3, 4, 3)\n        self.deep = None\n\n"
        f"    def forward(self, x):\n        z = self.conv(x)\n        {nets}\n"
    )
    return "odd.py:Odd"


# Features, names and options --------------------------------------------------------------------------------


def test_feature_maps_are_averaged_and_names_stay(make: Make) -> None:
    net = make("Tiny", width=5).eval()
    assert net.width == 5
    assert set(state(net)) == {
        *(f"body.conv.{name}" for name in ("weight", "bias")),
        *(f"body.norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")),
        *(f"head.fed.{name}" for name in ("weight", "bias")),
    }
    x, body = images(), net.body
    maps = torch.relu(body.norm(torch.nn.functional.conv2d(x, body.conv.weight, body.conv.bias, padding=1)))
    torch.testing.assert_close(net.features(x), maps.flatten(2).sum(2) / (16 * 16))


def test_channels_and_size_come_from_the_data_unless_given(make: Make) -> None:
    assert make("Tiny", channels=1).body.conv.weight.shape == (8, 1, 3, 3)
    assert make("Flat", channels=1, image_size=24).body.linear.in_features == 4 * 6 * 6
    with pytest.raises(ConfigError, match=r"'mine.py:Flat' fails on images of 3 channels and 16 x 16 pixels"):
        make("Flat", image_size=16, **{"in_channels": 1})


def test_a_function_may_build_it(make: Make) -> None:
    net = make("make", depth=3)
    assert net.width == 3 and len(net.body) == 3


def test_a_module_is_found_as_well_as_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lq_nets.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(folder))
    config = resolve({"net": {"name": "lq_nets:Tiny", "width": 3}}, folder)
    assert build(config.net, classes=2, image_size=16, seed=0, base=folder).width == 3
    assert set(config.codes) == {"lq_nets:Tiny"}


def test_the_config_is_the_same_after_it_was_written(folder: Path) -> None:
    table = {"name": "mine.py:Tiny", "width": 6, "batch_norm": "local", "features": "conv"}
    config = resolve({"net": table}, folder)
    assert {key: config.table()["net"][key] for key in table} == table
    again = resolve(config.table())
    assert again.digest == config.digest and again.net == config.net
    assert resolve({"net": {**table, "width": 7}}, folder).digest != config.digest
    assert config.net.model_copy(update={"weights": None})._maker is config.net._maker


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("mine.py:Tiny", {"widht": 3}, r"unknown key 'net\.widht': did you mean 'width'\? valid: .*features"),
        ("mine.py:Tiny", {"in_channels": 3}, r"unknown key 'net\.in_channels': did you mean 'channels'"),
        (
            "small-cnn",
            {"droput": 0.1},
            r"unknown key 'net\.droput': did you mean 'dropout'\? valid: batch_norm",
        ),
        ("small-cnn", {"width": 3}, r"unknown key 'net\.width': "),
        ("small-cnn", {"features": "conv3"}, r"features is for a network of your own, not for 'small-cnn'"),
        ("mine.py:Tiny", {"width": float("nan")}, r"'net\.width' must be a number"),
        ("smal-cnn", {}, r"unknown net 'smal-cnn': did you mean 'small-cnn'\? .*, or FILE\.py:Name"),
        ("mine.py:Tyny", {}, r"net\.name: 'mine\.py' has no 'Tyny'"),
        ("your.py:Tiny", {}, r"net\.name: there is no file .*your\.py"),
        ("mine.py:built", {}, r"net\.name: 'mine\.py:built' is a network that was built already"),
        ("mine.py:number", {}, r"'mine\.py:number' is neither a class of torch\.nn\.Module nor a function"),
        ("mine.py:NotANet", {}, r"'mine\.py:NotANet' is neither a class of torch\.nn\.Module nor a function"),
    ],
)
def test_wrong_keys_and_names_are_refused(name: str, keys: dict, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve({"net": {"name": name, **keys}}, folder)


def test_a_parameter_that_is_needed_must_be_there(folder: Path) -> None:
    (folder / "needy.py").write_text(
        "from torch import nn\nclass Needy(nn.Module):\n    def __init__(self, channels, depth): pass\n"
    )
    with pytest.raises(ConfigError, match=r"net\.name: 'needy\.py:Needy' needs 'depth': set it beside"):
        resolve({"net": {"name": "needy.py:Needy"}}, folder)


def test_code_is_found_through_a_config_only() -> None:
    for name in ("mine.py:Tiny", "monai:DenseNet121"):
        with pytest.raises(ConfigError, match=f"'{name}' leads to code, which only a config may name"):
            NetOptions(name=name)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        NetOptions(name="small-cnn", width=3)


# What a net may not do --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return [z]", r"gives a list: it must give one float tensor: features \[N, d\].*features = \"layer"),
        ("return z, z", r"gives a tuple: "),
        ("return {'z': z}", r"gives a dict: "),
        ("return z.mean((2, 3)).flatten()", r"gives float32 \[8\] for images float32 \[2, 3, 16, 16\]"),
        ("return z.flatten(2)", r"gives float32 \[2, 4, 196\] for images"),
        ("return z.mean((2, 3)).repeat(2, 1)", r"gives 4 rows of features for 2 images"),
        ("return z.reshape(1, -1)", r"gives 1 rows of features for 2 images"),
        ("return z.argmax(1, keepdim=True)", r"gives int64 \[2, 1, 14, 14\]"),
        ("return z.mean((2, 3)) / (x.sum() * 0)", r"gives features that are not numbers .* for a black"),
        ("raise ValueError('two\\nlines')", r"fails .* 16 x 16 pixels \(ValueError: two lines\)$"),
        ("return nn.functional.avg_pool2d(z, 40)", r"fails .* images of 64 pixels work, set data"),
        ("return z.double() @ z", r"fails on images of 3 channels"),
    ],
)  # fmt: skip
def test_a_wrong_forward_pass_is_told(line: str, message: str, folder: Path, make: Make) -> None:
    with pytest.raises(ConfigError, match=r"net\.name: 'odd\.py:Odd' " + message):
        make(text_of(line, folder))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("raise RuntimeError('no GPU')", r"cannot be built: RuntimeError: no GPU"),
        ("return None", r"gives a NoneType: it must build a torch\.nn\.Module"),
        ("return nn.AvgPool2d(2)", r"has no parameters: there is nothing to train"),
        ("return nn.Conv2d(3, 4, 3).double()", r"fails on images"),
        ("return nn.ModuleList([nn.Conv2d(3, 4, 3)])", r"fails on images"),
        ("return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None))", r"momentum = None"),
        ("net = nn.Conv2d(3, 4, 3)\n    net.more = nn.LazyLinear(3)\n    return net",
         r"never uses its layer 'more'"),
        ("net = nn.Conv2d(3, 4, 3)\n    net.w = nn.Parameter(torch.zeros(2).double())\n    return net",
         r"has a parameter 'w' of torch\.float64: use torch\.float32"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_or_trained_is_told(lines: str, message: str, folder: Path, make: Make) -> None:
    (folder / "odd.py").write_text(f"import torch\nfrom torch import nn\n\ndef odd():\n    {lines}\n")
    with pytest.raises(ConfigError, match=r"net\.name: 'odd\.py:odd' .*" + message):
        make("odd.py:odd")


def test_a_net_that_answers_otherwise_in_training_is_told(folder: Path, make: Make) -> None:
    net = make(text_of("return (z, z) if self.training else z", folder))
    assert net.eval()(images()).shape == (3, 4)
    with pytest.raises(ConfigError, match=r"'odd\.py:Odd' gives a tuple"):
        net.train()(images())


# Up to a layer ----------------------------------------------------------------------------------------------


def test_features_are_the_output_of_the_named_layer(make: Make) -> None:
    net = make("Classifier", features="stem.3").eval()
    x, stem = images(), net.body.stem
    maps = nn.functional.conv2d(torch.relu(stem[1](stem[0](x))), stem[3].weight, stem[3].bias)
    torch.testing.assert_close(net.features(x), maps.mean((2, 3)))
    assert net.width == 10
    # `read` is never called, but its tensor is used before the layer is reached
    parts = {name.split(".")[1] for name in state(net) if name.startswith("body.")}
    assert parts == {"stem", "read"}
    assert isinstance(net.body.later, nn.Identity)


def test_the_rest_of_a_block_is_removed_too(make: Make) -> None:
    net = make("Classifier", features="stem.0")
    assert {name for name in state(net) if "stem" in name} == {"body.stem.0.weight", "body.stem.0.bias"}
    assert net.width == 6


def test_a_layer_that_only_training_uses_stays(folder: Path, make: Make) -> None:
    (folder / "noisy.py").write_text(
        "from torch import nn\n\n\nclass Noisy(nn.Module):\n    def __init__(self, channels):\n"
        "        super().__init__()\n        self.noise = nn.Conv2d(channels, channels, 1)\n"
        "        self.conv = nn.Conv2d(channels, 4, 1)\n        self.out = nn.Linear(4, 2)\n\n"
        "    def forward(self, x):\n        x = self.noise(x) if self.training else x\n"
        "        return self.out(self.conv(x).mean((2, 3)))\n"
    )
    names = set(state(make("noisy.py:Noisy", features="conv")))
    assert {"body.noise.weight", "body.conv.weight"} < names and "body.out.weight" not in names


def test_a_layer_that_is_not_there_or_not_used_is_told(make: Make) -> None:
    with pytest.raises(
        ConfigError, match=r"has no layer 'stem\.4' for its features: did you mean 'stem\.\d'"
    ):
        make("Classifier", features="stem.4")
    with pytest.raises(ConfigError, match=r"the forward pass never came to that layer"):
        make("Classifier", features="unused")


def test_a_net_cut_short_is_copied_and_exported(make: Make) -> None:
    net = make("Classifier", features="stem.3").eval()
    x, other = images(), copy.deepcopy(net)
    before = net(x)
    load(other, {name: torch.zeros_like(tensor) for name, tensor in state(other).items()})
    assert torch.equal(net(x), before) and not other(x).any()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have its newer exporter used
        torch.onnx.export(net, (x,), file, input_names=["x"], dynamic_axes={"x": {0: "n"}}, dynamo=False)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": images(5).contiguous().numpy()})[0]
    np.testing.assert_allclose(found, net(images(5)).detach().numpy(), atol=1e-5)


# Seeds, buffers, layouts ------------------------------------------------------------------------------------


def test_the_seed_alone_decides(make: Make) -> None:
    make("Tiny")  # runs the file
    before, numpy = (torch.get_rng_state(), random.getstate()), np.random.get_state()
    first = make("Drawn")
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], numpy[1]) and np.random.get_state()[2] == numpy[2]
    random.random(), np.random.rand(), torch.rand(3)
    again, other = make("Drawn"), make("Drawn", seed=2)
    assert all(torch.equal(tensor, state(again)[name]) for name, tensor in state(first).items())
    assert torch.equal(first.body.order, again.body.order) and torch.equal(
        first.body.hidden, again.body.hidden
    )
    assert not (first.body.weight == other.body.weight).any()


def test_a_dry_run_leaves_no_trace(make: Make) -> None:
    net = make("Drawn")
    assert net.body.calls == 0 and 0 <= float(net.body.hidden) < 1
    norm = make("Classifier", features="stem.3").body.stem[1]
    assert torch.equal(norm.running_mean, torch.zeros(6)) and torch.equal(norm.running_var, torch.ones(6))


def test_counters_are_no_part_of_the_model_and_start_anew(make: Make) -> None:
    net = make("Drawn")
    assert not [name for name in state(net) if "calls" in name or "order" in name or "hidden" in name]
    first = {name: buffer.clone() for name, buffer in net.body.named_buffers()}
    for _ in range(3):
        net(images())
    assert net.body.calls == 3 and net(images()).any()
    net.restart()
    assert all(torch.equal(buffer, first[name]) for name, buffer in net.body.named_buffers())


def test_tensors_with_two_names_are_one(make: Make) -> None:
    net = make("Tied")
    names = [name for name in state(net) if name.startswith("body.")]
    assert names == [f"body.first.{name}" for name in ("weight", "bias")] + [
        f"body.norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")
    ]
    assert set(batch_norm_names(net)) == set(names[2:])
    grouped = make("Tied", batch_norm="group").body
    assert isinstance(grouped.norm, nn.GroupNorm) and grouped.norm is grouped.again


def test_a_view_sees_pixels_in_the_usual_order(make: Make) -> None:
    net = make("Flat").eval()
    x, conv, linear = images(), net.body.conv, net.body.linear
    maps = torch.nn.functional.conv2d(x, conv.weight, conv.bias, stride=4)
    torch.testing.assert_close(net.features(x), maps.flatten(1) @ linear.weight.T + linear.bias)
    assert net.body.conv.weight.is_contiguous()
    assert make("Tiny").body.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_layers_of_unknown_size_are_filled_in_by_the_seed(make: Make) -> None:
    net = make("Lazy")
    assert net.width == 7 and net.body[3].in_features == 4 * 14 * 14
    assert all(torch.equal(tensor, state(make("Lazy"))[name]) for name, tensor in state(net).items())


# BatchNorm, dropout, heads ----------------------------------------------------------------------------------


def test_batch_norm_policies(make: Make) -> None:
    assert set(batch_norm_names(make("Tiny", batch_norm="local"))) == {
        f"body.norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")
    }
    frozen = make("Tiny", batch_norm="frozen").train()
    frozen(images())
    assert torch.equal(frozen.body.norm.running_mean, torch.zeros(8))
    average = make("Tiny").train()
    average(images())
    assert average.body.norm.running_mean.any()
    assert isinstance(make("Tiny", batch_norm="group").body.norm, nn.GroupNorm)


def test_group_norm_keeps_what_batch_norm_did_not_learn_and_replaces_nothing_else(
    folder: Path, make: Make
) -> None:
    (folder / "norms.py").write_text(
        "from torch import nn\n\n\nclass Act(nn.BatchNorm2d):\n    def forward(self, x):\n"
        "        return super().forward(x).relu()\n\n\ndef act(channels):\n"
        "    return nn.Sequential(nn.Conv2d(channels, 4, 1), Act(4))\n\n\ndef plain(channels):\n"
        "    return nn.Sequential(nn.Conv2d(channels, 4, 1), nn.BatchNorm2d(4, affine=False))\n"
    )
    assert make("norms.py:plain", batch_norm="group").body[1].weight is None
    with pytest.raises(ConfigError, match=r'net\.batch_norm = "group": a Act may do more than normalise'):
        make("norms.py:act", batch_norm="group")


def test_dropout_and_head_are_ours(make: Make) -> None:
    assert make("Tiny").dropout.p == 0.0 and make("Tiny", dropout=0.3).dropout.p == 0.3
    assert make("Tiny", head="cosine")(images()).abs().max() <= 1


def test_parameters_that_were_built_to_stay_are_known(make: Make) -> None:
    assert make("Half").fixed == {"body.stem.weight", "body.stem.bias"}
    assert make("Tiny").fixed == frozenset()


# Weights ----------------------------------------------------------------------------------------------------


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("prefix", ["", "module.", "body."])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_have_the_names_of_the_own_net(prefix: str, suffix: str, folder: Path, make: Make) -> None:
    whole = make("Classifier", seed=9, features="later.out").body.state_dict()
    whole |= {"later.out.weight": torch.ones(5, 10), "stem.1.num_batches_tracked": torch.tensor(7)}
    path = folder / f"w{suffix}"
    tensors = {prefix + name: tensor.contiguous() for name, tensor in whole.items()}
    save_file(tensors, path) if suffix == ".safetensors" else torch.save({"state_dict": tensors}, path)
    net = make("Classifier", features="stem.3", weights=path.name, sha256=digest_of(path))
    own = state(net.body)
    assert own and all(torch.equal(tensor, whole[name]) for name, tensor in own.items())


def test_weights_that_do_not_fit_are_told(folder: Path, make: Make) -> None:
    path = folder / "w.safetensors"

    def saved(**tensors: Tensor) -> dict[str, Any]:
        save_file(tensors, path)
        return {"weights": path.name, "sha256": digest_of(path)}

    with pytest.raises(WeightsError, match=r"do not fit net 'mine\.py:Tiny': 'conv\.bias' is missing"):
        make("Tiny", **saved(**{"conv.weight": torch.zeros(8, 3, 3, 3)}))
    drawn = {name: tensor.clone() for name, tensor in make("Drawn").body.state_dict().items()}
    assert torch.equal(make("Drawn", **saved(**drawn)).body.weight, drawn["weight"])
    drawn["order"] = drawn["order"].flip(0)
    with pytest.raises(
        WeightsError, match=r"'order' has other values in the file than in net 'mine\.py:Drawn'"
    ):
        make("Drawn", **saved(**drawn))


# Libraries --------------------------------------------------------------------------------------------------

TIMM = """
from torch import nn


def is_model(name):
    return name in list_models()


def list_models():
    return ["resnet10", "vit_mini"]


def create_model(model_name, pretrained=False, checkpoint_path="", **kwargs):
    assert not pretrained
    return Net(**kwargs)


class Net(nn.Module):
    def __init__(self, num_classes, in_chans, drop_path_rate=0.0):
        super().__init__()
        assert num_classes == 0
        self.rate = drop_path_rate
        self.conv, self.pre = nn.Conv2d(in_chans, 6, 3), nn.Linear(6, 5)

    def forward(self, x):
        return self.pre(self.conv(x).mean((2, 3)))
"""
TORCHVISION = """
from torch import nn


def mobile(*, weights=None, progress=True, **kwargs):
    assert weights is None
    return Mobile(**kwargs)


def get_model(name, **config):
    raise AssertionError


def squeeze(*, weights=None, progress=True):
    return nn.Sequential(nn.Conv2d(3, 9, 1), nn.AvgPool2d(16), nn.Flatten())


class Mobile(nn.Module):
    def __init__(self, num_classes=1000):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Linear(14, 14))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, num_classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small packages that are called as timm and torchvision are."""
    for name in [key for key in sys.modules if key.partition(".")[0] in ("timm", "torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "stand" / "torchvision" / "models").mkdir(parents=True)
    (tmp_path / "stand" / "timm.py").write_text(TIMM)
    (tmp_path / "stand" / "torchvision" / "__init__.py").write_text("")
    (tmp_path / "stand" / "torchvision" / "models" / "__init__.py").write_text(TORCHVISION)
    monkeypatch.syspath_prepend(str(tmp_path / "stand"))
    with forgotten(tmp_path):
        yield


@pytest.mark.usefixtures("libraries")
def test_timm_by_name(make: Make) -> None:
    net = make("timm:resnet10", channels=1, drop_path_rate=0.25)
    assert net.width == 5 and net.body.rate == 0.25 and net.body.conv.in_channels == 1
    assert "body.pre.weight" in state(net)


@pytest.mark.usefixtures("libraries")
def test_torchvision_by_name_without_its_classifier(folder: Path, make: Make) -> None:
    net = make("torchvision:mobile").eval()
    assert net.width == 6 and "body.features.1.weight" in state(net)
    assert not [name for name in state(net) if "classifier" in name]
    whole = sys.modules["torchvision.models"].Mobile().state_dict()
    path = folder / "mobile.pth"
    torch.save(whole, path)
    loaded = make("torchvision:mobile", weights=path.name, sha256=digest_of(path))
    assert torch.equal(loaded.body.features[0].weight, whole["features.0.weight"])
    assert make("torchvision:squeeze", features="0").width == 9


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("timm:resnet11", {}, r"'timm:resnet11' is not a network of timm: did you mean 'timm:resnet10'\?"),
        ("timm:hf-hub:someone/net", {}, r"is not the name of a network in timm"),
        ("timm:resnet10", {"checkpoint_path": "x.pth"}, r"'net\.checkpoint_path': weights are read"),
        ("timm:resnet10", {"pretrained": True}, r"'net\.pretrained': weights are read from a local file"),
        ("timm:resnet10", {"num_classes": 3}, r"unknown key 'net\.num_classes'"),
        ("timm:resnet10", {"depth": 3}, r"cannot be built: TypeError: .*depth"),
        ("torchvision:get_model", {"name_": "x"}, r"is not a network of torchvision"),
        ("torchvision:mobil", {}, r"is not a network of torchvision: did you mean 'torchvision:mobile'\?"),
        ("torchvision:squeeze", {}, r"does not end in a linear classifier: .* one of 0, 1, 2$"),
        ("torchvision:mobile", {"channels_": 1}, r"cannot be built: TypeError"),
    ],
)  # fmt: skip
def test_what_a_library_does_not_have_is_told(name: str, keys: dict, message: str, make: Make) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **keys)


def test_a_library_that_is_not_there_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"'timm:resnet18' needs the package timm, which is not installed"):
        make("timm:resnet18")


def test_monai_by_name(make: Make) -> None:
    net = make("monai:DenseNet121", channels=1, image_size=32, init_features=8, growth_rate=4)
    assert net.body.features.conv0.weight.shape == (8, 1, 7, 7)
    assert isinstance(net.body.class_layers.out, nn.Identity) and net.width > 8
    assert make("monai:BasicUNet", out_channels=5, features="upcat_1", image_size=32).width == 32
    with pytest.raises(
        ConfigError, match=r"is not a network of monai: did you mean 'monai:(?i:densenet121)'"
    ):
        make("monai:DenseNet122")
    with pytest.raises(
        ConfigError, match=r"'monai:get_pretrained_resnet_medicalnet' is not a network of monai"
    ):
        make("monai:get_pretrained_resnet_medicalnet", resnet_depth=10)
    with pytest.raises(ConfigError, match=r"'monai:BasicUNet' does not end in a linear classifier"):
        make("monai:BasicUNet", image_size=32)


# Frozen networks of methods ---------------------------------------------------------------------------------


def test_the_frozen_network_of_a_method_may_be_ones_own(folder: Path) -> None:
    config: Config = resolve({"method": {"name": "fedmas", "target": "mine.py:Tiny"}}, folder)
    assert config.method.frozen()["target"].own and set(config.codes) == {"mine.py:Tiny"}
    assert resolve(config.table()).digest == config.digest
    net = build(
        config.net,
        classes=3,
        projector=config.method.projection(),
        frozen=config.method.frozen(),
        image_size=16,
        seed=0,
        base=folder,
    )
    assert net.projector(net.body(images())).shape == (3, 8)
    for name, message in (
        ("mine.py:Tyny", r"method\.target: 'mine\.py' has no 'Tyny'"),
        ("mine.py:built", r"method\.target: 'mine\.py:built' is a network that was built already"),
        ("resnet81", r"unknown net 'resnet81': did you mean 'resnet18'"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve({"method": {"name": "fedmas", "target": name}}, folder)

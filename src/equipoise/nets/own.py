"""Networks that are not Equipoise's: a class or function of your own, or one of timm, torchvision or MONAI.

A network turns images [N, C, H, W] into features [N, d], or into feature maps [N, d, h, w], whose average is
taken. How many features that are is found by a dry run on two black images. With `features` the output of a
named layer counts: the forward pass ends there, and layers that would come later are removed. The names of
its tensors are those of the network itself, so files of its weights fit.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MethodType, ModuleType
from typing import Any

import torch
from pydantic import ValidationInfo
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from equipoise.errors import ConfigError
from equipoise.locate import Package, named, parts_of
from equipoise.names import nearest
from equipoise.nets.net import put_back
from equipoise.nets.norm import batch_norms

CHANNELS = ("channels", "in_channels", "in_chans", "n_input_channels")
SIZES = ("image_size", "img_size")
"""parameters of a constructor that are filled in from the data"""
CLASSES = ("out_channels", "num_classes")
"""what MONAI's constructors call the number of classes"""
LOADING = ("pretrained", "checkpoint", "weights", "cache_dir")
"""how keys of a library begin that would have it fetch or open a file"""
IMAGES = 2
"""black images of a dry run: with one, a net that mixes images up would not be noticed"""
LARGER = (32, 64, 128, 224, 256, 384)
"""sizes that are tried to say how large images must be"""
WANTED = (
    "it must give one float tensor: features [N, d], or feature maps [N, d, h, w], for images [N, C, H, W]"
)


# What builds a network --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Maker:
    """What builds a network: a class or function, and the keys that Equipoise itself hands to it."""

    title: str
    """where the config names it, and what it is called: how sentences about it begin"""
    call: Callable[..., Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    channels: tuple[str, ...] = ()
    """parameters that get the image channels though the signature does not show them"""
    library: bool = False
    """whether it is from a library, and not code that the user has chosen"""
    classifier: bool = False
    """whether it ends in a classifier, which is to be removed"""

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """What the constructor takes by name."""
        try:
            return dict(inspect.signature(self.call).parameters)
        except (TypeError, ValueError):  # some that are written in C have none
            return {"options": inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)}

    @property
    def free(self) -> bool:
        """Whether it takes keys of any name, and does not say which."""
        return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in self.parameters.values())

    def takes(self, key: str) -> bool:
        """Whether a key may be given."""
        return key in self.parameters or self.free

    def check(self, options: Mapping[str, Any], ours: Iterable[str]) -> None:
        """Refuse keys that the constructor does not take, and those that it needs and are not there."""
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        keys = {name: one for name, one in self.parameters.items() if one.kind in by_name}
        valid = sorted({*ours, *keys} - set(self.fixed))
        for key, value in options.items():
            if self.library and key.startswith(LOADING):
                raise ConfigError(
                    f"'net.{key}': weights are read from a local file only: set net.weights, and leave it out"
                )
            if key in self.fixed or not (self.free or key in keys):
                guess = nearest(key, valid)
                hint = f"did you mean '{guess}'? " if guess else ""
                raise ConfigError(f"unknown key 'net.{key}': {hint}valid: {', '.join(valid)}")
            if not _plain(value):
                raise ConfigError(f"'net.{key}' must be a number, text, true or false, or lists of them")
        for key, one in keys.items():
            filled = {*options, *self.fixed, *CHANNELS, *SIZES, *(CLASSES if self.classifier else ())}
            if one.default is inspect.Parameter.empty and key not in filled:
                raise ConfigError(f"{self.title} needs '{key}': set it beside the name")

    def build(self, options: Mapping[str, Any], channels: int, size: int) -> nn.Module:
        """The network as its constructor makes it; image channels and size come from the data."""
        from_data = {**dict.fromkeys(CHANNELS, channels), **dict.fromkeys(SIZES, size)}
        if self.classifier:
            needed = (name for name, one in self.parameters.items() if one.default is one.empty)
            from_data |= dict.fromkeys(set(CLASSES) & set(needed), 1)
        filled = {key: value for key, value in from_data.items() if key in (*self.parameters, *self.channels)}
        try:
            made = self.call(**{**filled, **self.fixed, **options})
        except Exception as error:
            raise _wrong(self.title, f"cannot be built: {_cause(error)}") from error
        if not isinstance(made, nn.Module):
            raise _wrong(self.title, f"gives a {type(made).__name__}: it must build a torch.nn.Module")
        return made


def find(name: str, info: ValidationInfo) -> Maker | None:
    """What builds the network of that name; none for a name without a colon, which is one of Equipoise's."""
    if not named(name):
        return None
    parts, where = parts_of(info, name), (info.context or {}).get("where", "net.name")
    title = f"{where}: '{name}'"
    library, _, rest = name.partition(":")
    if library in LIBRARIES:
        parts.ask(Package(name, parts.base, where))
        return _from_library(title, library, rest)
    builder = parts.find(name, where)
    if isinstance(builder, nn.Module):
        raise _wrong(title, "is a network that was built already: name the class or function that builds it")
    if not callable(builder) or (isinstance(builder, type) and not issubclass(builder, nn.Module)):
        raise _wrong(title, "is neither a class of torch.nn.Module nor a function that builds one")
    return Maker(title, builder)


def _from_library(title: str, library: str, rest: str) -> Maker:
    if not re.fullmatch(r"\w[\w.-]*", rest):
        raise _wrong(title, f"is not the name of a network in {library}")
    try:
        module = LIBRARIES[library]()
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == library
        why = "is not installed" if missing else f"cannot be imported ({_cause(error)})"
        raise _wrong(title, f"needs the package {library}, which {why}") from error
    if library == "timm":
        return _from_timm(title, rest, module)
    builds = _is_builder if library == "torchvision" else _is_net
    valid = {key: value for key, value in vars(module).items() if builds(value)}
    if rest not in valid:
        raise _wrong(title, _no_such(library, rest, list(valid)))
    maker = Maker(title, valid[rest], {"weights": None}, library=True, classifier=True)
    if library == "torchvision":
        return maker
    fixed = {"pretrained": False, "spatial_dims": 2}
    return replace(maker, fixed={key: fixed[key] for key in fixed if maker.takes(key)})


def _from_timm(title: str, rest: str, timm: ModuleType) -> Maker:
    if not timm.is_model(rest):
        raise _wrong(title, _no_such("timm", rest, timm.list_models()))
    fixed = {"pretrained": False, "num_classes": 0}
    return Maker(title, partial(timm.create_model, rest), fixed, channels=("in_chans",), library=True)


def _timm() -> ModuleType:
    import timm

    result: ModuleType = timm
    return result


def _torchvision() -> ModuleType:
    from torchvision import models

    result: ModuleType = models
    return result


def _monai() -> ModuleType:
    from monai.networks import nets

    result: ModuleType = nets
    return result


LIBRARIES: dict[str, Callable[[], ModuleType]] = {"timm": _timm, "torchvision": _torchvision, "monai": _monai}
"""by the word before the colon: where networks of that name are, if it is installed"""


def _is_net(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _is_builder(value: Any) -> bool:
    """Whether it is a function of torchvision that builds a network, rather than one that finds them."""
    return inspect.isfunction(value) and "weights" in inspect.signature(value).parameters


def _no_such(library: str, rest: str, valid: list[str]) -> str:
    guess = nearest(rest, valid)
    return f"is not a network of {library}" + (f": did you mean '{library}:{guess}'?" if guess else "")


def _plain(value: Any) -> bool:
    """Whether a value is the same after it was written to TOML or JSON and read again."""
    if isinstance(value, list):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, value.values()))
    return isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


# From a constructor to a body -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A network that serves as a body."""

    body: nn.Module
    width: int
    """how many features it gives"""
    channels_last: bool
    """whether it can work on images whose channels lie side by side, which is faster"""
    removed: frozenset[str]
    """names of the tensors of the layers that were removed"""


def make(maker: Maker, options: Mapping[str, Any], features: str | None, channels: int, size: int) -> Made:
    """The network, in eval mode, as a body that gives features [N, width]."""
    body = maker.build(options, channels, size).eval()
    title, images = maker.title, _black(channels, size)
    all_names = set(body.state_dict())
    with torch.no_grad(), _undone(body):
        if features is not None:
            _end_at(body, title, features)
        channels_last = _lay_out(body, title, images)
        if features is None and maker.classifier:
            _behead(body, title, images, needed=not set(CLASSES) & set(options))
        body.register_forward_hook(partial(_pool, title))
        z = _run(body, title, images)
        if features is not None:
            _remove_unseen(body, body, _called(body, images), torch.randn_like(images))
    _check_tensors(body, title)
    if not z.isfinite().all():
        raise _wrong(title, "gives features that are not numbers (NaN or infinite) for a black image")
    return Made(body, z.shape[1], channels_last, frozenset(all_names - set(body.state_dict())))


def lay_out(net: nn.Module, format: torch.memory_format) -> None:
    """Store every kernel in this order, in place; only tensors of four dimensions have one."""
    for tensor in (*net.parameters(), *net.buffers()):
        if not is_lazy(tensor) and tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=format)


def _lay_out(body: nn.Module, title: str, images: Tensor) -> bool:
    """Find out whether the net can work with channels last; otherwise have it see images as usual."""
    lay_out(body, torch.channels_last)
    try:
        body(images)
    except Exception:  # most often a `.view` that needs the usual order of pixels
        lay_out(body, torch.contiguous_format)
        body.register_forward_pre_hook(
            lambda body, args: tuple(one.contiguous() if isinstance(one, Tensor) else one for one in args)
        )
        _run(body, title, images)
        return False
    return True


def _check_tensors(body: nn.Module, title: str) -> None:
    """Refuse what could not be trained, averaged or kept."""
    parameters = dict(body.named_parameters())
    if not parameters:
        raise _wrong(title, "has no parameters: there is nothing to train")
    for key, parameter in parameters.items():
        if is_lazy(parameter):
            raise _wrong(
                title, f"never uses its layer '{key.rpartition('.')[0]}', whose size is not known yet"
            )
        if parameter.dtype is not torch.float32:
            raise _wrong(title, f"has a parameter '{key}' of {parameter.dtype}: use torch.float32")
    for key, value in body.state_dict().items():
        if not isinstance(value, Tensor):
            raise _wrong(title, f"keeps '{key}' in its state dict, which is no tensor: leave it out")
    for layer in batch_norms(body):
        if layer.momentum is None:
            raise _wrong(
                title, "has a BatchNorm layer with momentum = None, which counts batches: give a number"
            )


def _pool(title: str, body: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
    """The forward hook of every body: features as they are, feature maps averaged, anything else refused."""
    if not torch.jit.is_tracing():
        if not isinstance(output, Tensor):
            raise _wrong(title, f'gives a {type(output).__name__}: {WANTED}; or set features = "layer.name"')
        if output.dim() not in (2, 4) or not output.is_floating_point():
            raise _wrong(title, f"gives {_form(output)} for images {_form(args[0])}: {WANTED}")
        if len(output) != len(args[0]):
            raise _wrong(title, f"gives {len(output)} rows of features for {len(args[0])} images: {WANTED}")
    pooled: Tensor = output.mean((2, 3)) if output.dim() == 4 else output
    return pooled


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {[*tensor.shape]}"


def _run(body: nn.Module, title: str, images: Tensor) -> Tensor:
    """What the net gives for the images; one sentence if it fails, and how large images must be if that is
    why."""
    try:
        output: Tensor = body(images)
    except ConfigError:
        raise
    except Exception as error:
        _, channels, size, _ = images.shape
        works = next((one for one in LARGER if one > size and _works(body, _black(channels, one))), None)
        fix = f": images of {works} pixels work, set data.image_size" if works else ""
        raise _wrong(
            title, f"fails on images of {channels} channels and {size} x {size} pixels ({_cause(error)}){fix}"
        ) from error
    return output


def _works(body: nn.Module, images: Tensor) -> bool:
    try:
        body(images)
    except Exception:
        return False
    return True


def _black(channels: int, size: int) -> Tensor:
    return torch.zeros(IMAGES, channels, size, size).contiguous(memory_format=torch.channels_last)


@contextmanager
def _undone(body: nn.Module) -> Iterator[None]:
    """Whatever a dry run does to the net's buffers is undone."""
    before = {name: buffer.clone() for name, buffer in body.named_buffers() if not is_lazy(buffer)}
    yield
    body.eval()
    put_back(body, before)


# Without its end --------------------------------------------------------------------------------------------


class Reached(Exception):
    """The named layer has given its output: the rest of the forward pass is not needed."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


def _reached(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    raise Reached(output)


def _until(body: nn.Module, *args: Any) -> Any:
    """The forward pass of a body up to its named layer."""
    try:
        type(body).forward(body, *args)
    except Reached as end:
        return end.output
    raise ConfigError("net.features: the forward pass never came to that layer: name one that is always used")


def _end_at(body: nn.Module, title: str, features: str) -> None:
    """End the forward pass at a layer."""
    layers = {key: layer for key, layer in body.named_modules() if key}
    if features not in layers:
        guess = nearest(features, layers)
        hint = f"did you mean '{guess}'? " if guess else ""
        raise _wrong(title, f"has no layer '{features}' for its features: {hint}valid: {', '.join(layers)}")
    layers[features].register_forward_hook(_reached)
    body.__dict__["forward"] = MethodType(_until, body)


def _called(body: nn.Module, images: Tensor) -> set[nn.Module]:
    """The layers that are done when the named one is reached, in use or in training."""
    done = set[nn.Module]()
    hooks = [
        layer.register_forward_hook(lambda layer, args, output: done.add(layer), prepend=True)
        for layer in body.modules()
        if layer is not body
    ]
    with _undone(body):
        for training in (True, False):
            _works(body.train(training), images)
    for hook in hooks:
        hook.remove()
    return done


def _remove_unseen(body: nn.Module, within: nn.Module, called: set[nn.Module], images: Tensor) -> None:
    """Replace layers that hold tensors and are never called, unless the net reads those tensors itself."""
    expected = body(images)
    for name, child in list(within.named_children()):
        if child in called or not child.state_dict():
            continue
        if called & set(child.modules()):
            _remove_unseen(body, child, called, images)
            continue
        setattr(within, name, nn.Identity())
        if not (_works(body, images) and torch.equal(body(images), expected)):
            setattr(within, name, child)


def _behead(body: nn.Module, title: str, images: Tensor, needed: bool) -> None:
    """Remove the linear layer that the net of a library ends with."""
    outputs: list[tuple[str, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda _, args, output, key=key: outputs.append((key, output)))
        for key, layer in body.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    end = _run(body, title, images)
    for hook in hooks:
        hook.remove()
    last = [key for key, output in outputs if output is end]
    if last:
        parent, _, leaf = last[-1].rpartition(".")
        setattr(body.get_submodule(parent), leaf, nn.Identity())
    elif needed:
        layers = ", ".join(name for name, _ in body.named_children())
        raise _wrong(
            title, f'does not end in a linear classifier: set features = "layer.name", one of {layers}'
        )


# Sentences --------------------------------------------------------------------------------------------------


def _wrong(title: str, text: str) -> ConfigError:
    return ConfigError(f"{title} {text}")


def _cause(error: BaseException) -> str:
    """An exception of the user's code in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

"""Every way we could think of in which a site's answer may be bad, by name: a change of an honest answer's
bytes, and a part of the reason it is turned away with.

`TRAIN` is about FedAvg's `train`, `COUNTED` and `SCORED` about `evaluate` by statistics and by scores.
tests/audit tries all of them on the guard and on whole small runs; `DOZEN` is tried with the ordinary tests.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from typing import Any

import torch
from tests.spoiled import KINDS, Change, W, delta, headed, put, scaled, tabled, with_leaf
from torch import Tensor

from equipoise.exchange import decode_upload, encode_upload
from equipoise.leaves import Each, Leaf, Mean, Sum

Bad = dict[str, tuple[Change, str]]
D, V = f"delta/{W}", "body.norm1.running_var"


def entry(**changes: Any) -> Change:
    """Another description of one tensor."""
    return tabled(lambda table: table[D].update(changes))


def renamed(name: str, old: str = D) -> Change:
    return tabled(lambda table: table.update({name: table.pop(old)}))


def kinds(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Other words for the kinds of the leaves."""

    def spoil(table: dict[str, Any]) -> None:
        header = json.loads(table["__metadata__"]["equipoise"])
        found = change(header["leaves"])
        header["leaves"] = header["leaves"] if found is None else found
        table["__metadata__"]["equipoise"] = json.dumps(header)

    return tabled(spoil)


def header_text(text: str) -> Change:
    return tabled(lambda table: table["__metadata__"].update(equipoise=text))


def text(change: Callable[[str], str]) -> Change:
    """The table as other text."""
    return tabled(lambda table: change(json.dumps(table)))


def sized(size: int) -> Change:
    """The table said to be so long."""
    return lambda data: struct.pack("<Q", size) + bytes(data[8:])


def dtyped(dtype: torch.dtype) -> Change:
    return delta(put(lambda x: x.to(dtype)))


def weighed(weight: Any) -> Change:
    """A weight of another shape or type."""

    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        return encode_upload({**upload, "delta": Mean(upload["delta"].value, weight)}, header)

    return spoil


def loss(value: float, weight: float = 1.0) -> Change:
    return with_leaf(loss=Mean(torch.tensor(value, dtype=torch.float64), weight))


TRAIN: Bad = {
    **KINDS,
    # Numbers
    "minus inf": (delta(put(lambda x: x - torch.inf)), "not finite"),
    "one NaN": (
        delta(put(lambda x: torch.where(torch.arange(x.numel()).view(x.shape) == 7, torch.nan, x))),
        "not finite",
    ),
    "largest float": (delta(put(lambda x: torch.full_like(x, 3e38))), "fixed-point range"),
    "NaN loss": (loss(float("nan")), "not finite"),
    "huge loss": (loss(1e300), "fixed-point range"),
    "huge loss without weight": (loss(1e300, 0.0), "norm"),
    "half": (dtyped(torch.float16), "has dtype float16"),
    "bfloat": (dtyped(torch.bfloat16), "has dtype bfloat16"),
    "bytes": (dtyped(torch.uint8), "has dtype uint8"),
    "whole numbers": (dtyped(torch.int64), "has dtype int64"),
    "truth values": (dtyped(torch.bool), "has dtype bool"),
    # Size
    "moderately huge change": (scaled(100.0), "times as large as usual"),
    "just below the norm": (
        delta(put(lambda x: torch.full_like(x, 9e4 / x.numel() ** 0.5)), lambda w: 1.0),
        "as large as usual",
    ),
    "huge without weight": (delta(put(lambda x: x + 1e4), lambda w: 0.0), "norm"),
    "negative variance": (
        delta(lambda value: value[V].sub_(2 * value[V].abs().max() + 10)),
        "makes a variance negative",
    ),
    "everything stretched": (
        delta(lambda value: value.update({n: -25 * x for n, x in value.items()})),
        "variance negative",
    ),
    # Weights
    "one image too many": (delta(lambda value: None, lambda w: w + 1), "at most"),
    "a million images": (delta(lambda value: None, lambda w: 1e6), "at most"),
    "minus inf weight": (delta(lambda value: None, lambda w: float("-inf")), "not finite"),
    "tiny negative weight": (delta(lambda value: None, lambda w: -1e-300), "negative"),
    "weight by class": (weighed(torch.ones(3)), "has a weight of shape"),
    "weight of one element": (weighed(torch.ones(1)), "has a weight of shape"),
    "empty weight": (weighed(torch.ones(0)), "has a weight of shape"),
    "no weight": (tabled(lambda table: table.pop("delta@weight") and None), "not a readable message"),
    "weight in single precision": (
        tabled(lambda t: t["delta@weight"].update(dtype="F32", shape=[2])),
        "has a weight of shape",
    ),
    "heavy loss": (loss(1.0, 1e5), "the weight of 'loss' has 100000"),
    # Shapes
    "scalar": (delta(put(lambda x: x.sum())), "has shape"),
    "flat": (delta(put(lambda x: x.flatten())), "has shape"),
    "one more axis": (delta(put(lambda x: x[None])), "has shape"),
    "no rows": (delta(put(lambda x: x[:0])), "has shape"),
    "twenty axes": (entry(shape=[1] * 17), "not a readable message"),
    # Leaves and names
    "sum for mean": (with_leaf(delta=Sum({W: torch.ones(1)})), "extra tensor|missing tensor|is a 'sum' leaf"),
    "each for mean": (kinds(lambda found: found.update(delta="each")), "belong to no leaf"),
    "unknown kind": (kinds(lambda found: found.update(delta="max")), "what kinds"),
    "kind that is a list": (kinds(lambda found: found.update(delta=["mean"])), "what kinds"),
    "kinds that are a list": (kinds(lambda found: list(found)), "what kinds"),
    "no kinds": (kinds(lambda found: {}), "belong to no leaf"),
    "a thousand leaves": (
        kinds(lambda found: found.update({f"x{i}": "sum" for i in range(300)})),
        "302 leaves",
    ),
    "leaf of another name": (kinds(lambda found: {"delto": "mean", "loss": "mean"}), "has no weight"),
    "missing leaf": (
        lambda data: encode_upload({"delta": decode_upload(data)[1]["delta"]}),
        "missing tensor 'loss'",
    ),
    "only images": (
        lambda data: encode_upload({"images": Each(torch.zeros(3, 16, 16))}),
        "extra tensor 'images'",
    ),
    "tensor and branch": (
        tabled(lambda table: table.update({D + "/x": table.pop("delta/body.conv2.weight")})),
        "is no tree",
    ),
    "empty name": (renamed(""), "belong to no leaf"),
    "slashes": (renamed("delta/" + "/" * 30), "levels deep"),
    "writing backwards": (renamed("delta/\u202e" + W), r"extra tensor 'delta/\?body"),
    "escape": (renamed("delta/\x1b[2J\x07" + W), r"extra tensor 'delta/\?\[2J\?body"),
    "half a sign": (renamed("delta/\ud800" + W), r"extra tensor 'delta/\?body"),
    "look-alike": (renamed("delta/b\u043edy.conv1.weight"), "extra tensor"),
    "long name": (renamed("delta/" + "n" * 3000), "extra tensor"),
    "path": (renamed("delta/../../../etc/passwd"), "extra tensor 'delta/../../../etc/passwd'"),
    # The table of tensors
    "name twice": (text(lambda t: t.replace('"loss":', f'"{D}":', 1)), "not readable"),
    "table of 4 GiB": (sized(2**32), "does not fit"),
    "table of all there is": (sized(2**64 - 1), "does not fit"),
    "table of no size": (sized(0), "not readable"),
    "table of an odd size": (sized(13), "does not fit"),
    "table that is a list": (text(lambda t: "[]"), "not a readable message"),
    "table that is a number": (text(lambda t: "7"), "not a readable message"),
    "table that is none": (text(lambda t: "null"), "not a readable message"),
    "table that is not text": (tabled(lambda table: b"\xff\xfe\xfd\xfc" * 20), "not readable"),
    "table nested deep": (text(lambda t: '{"a":' * 1200 + "1" + "}" * 1200), "not readable|nested"),
    "table nested without end": (text(lambda t: "[" * 5000), "not readable"),
    "table nested a little": (text(lambda t: t[:-1] + ',"x":' + "[" * 30 + "]" * 30 + "}"), "nested"),
    "number of many digits": (
        text(lambda t: t.replace("[0,", "[" + "9" * 4500 + ",", 1)),
        "not readable|whole numbers",
    ),
    "no metadata": (tabled(lambda table: table.pop("__metadata__") and None), "not a readable message"),
    "metadata that is a list": (
        tabled(lambda table: table.update(__metadata__=[])),
        "not a readable message",
    ),
    "giant shape, short body": (entry(shape=[2**40, 2**10]), "wrong number of bytes"),
    "giant shape of nothing": (entry(shape=[0, 2**47, 2**47]), "wrong number of bytes"),
    "length beyond all": (entry(shape=[2**62]), "whole numbers"),
    "negative length": (entry(shape=[-1, -1]), "whole numbers"),
    "half a length": (entry(shape=[1.5]), "whole numbers"),
    "length that is true": (entry(shape=[True]), "whole numbers"),
    "length that is text": (entry(shape=["16"]), "whole numbers"),
    "shape that is none": (entry(shape=None), "not a readable message"),
    "place beyond the end": (entry(data_offsets=[10**6, 10**6 + 4], shape=[1]), "cut short"),
    "place before the start": (entry(data_offsets=[-8, 0], shape=[2]), "whole numbers"),
    "place backwards": (entry(data_offsets=[64, 0]), "wrong number of bytes"),
    "place of three numbers": (entry(data_offsets=[0, 4, 8]), "not a readable message"),
    "places that overlap": (
        tabled(lambda t: t["loss"].update(data_offsets=t["loss@weight"]["data_offsets"])),
        "overlap",
    ),
    "gap": (tabled(lambda table: table.pop("loss@weight") and None), "not a readable message"),
    "unknown dtype": (entry(dtype="F8_E4M3"), "not a readable message"),
    "dtype that is a table": (entry(dtype={}), "not a readable message"),
    "description that is none": (tabled(lambda table: table.update({D: None})), "not a readable message"),
    "bytes behind the end": (lambda data: bytes(data) + bytes(64), "belong to no tensor"),
    # The header
    "header that is a list": (header_text("[]"), "not a table"),
    "header that is no text": (
        tabled(lambda table: table["__metadata__"].update(equipoise=5)),
        "not a readable message",
    ),
    "header nested a little": (header_text('{"leaves":' + "[" * 40 + "]" * 40 + "}"), "nested"),
    "header with NaN": (
        header_text('{"leaves": {"delta": "mean", "loss": "mean"}, "x": NaN}'),
        "not readable",
    ),
    "header that says it twice": (
        header_text('{"leaves": {}, "leaves": {"delta": "mean", "loss": "mean"}}'),
        "not readable",
    ),
    "of another site": (headed(lambda header: header.update(site="site-00")), "of another site"),
    "of another round": (headed(lambda header: header.update(round=header["round"] + 1)), "of another round"),
    "of another question": (headed(lambda header: header.update(question="evaluate")), "of another question"),
    "of a round in words": (
        headed(lambda header: header.update(round=str(header["round"]))),
        "of another round",
    ),
    "of a list of sites": (headed(lambda header: header.update(site=["site-01"])), "of another site"),
    # Other things
    "compressed": (lambda data: gzip.compress(bytes(data)), "message"),
    "a page": (lambda data: b"<html><body>502 Bad Gateway</body></html>", "message"),
    "a code object": (
        lambda data: b"\x80\x04\x95\x20\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
        "message",
    ),
    "zeros": (lambda data: bytes(len(data)), "not readable"),
    "cut by one": (lambda data: bytes(data[:-1]), "message"),
    "cut in the table": (lambda data: bytes(data[:100]), "message"),
    "only its length": (lambda data: bytes(data[:8]), "message"),
    "twice": (lambda data: bytes(data) * 2, "bytes"),
}


# Evaluation -------------------------------------------------------------------------------------------------


def statistics(
    change: Callable[[dict[str, Tensor]], Any], leaf: str = "pooled", split: str = "test"
) -> Change:
    """An answer in which the statistics of one leaf and split are changed in place."""

    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        value = {
            part: {name: {key: x.clone() for key, x in stats.items()} for name, stats in roles.items()}
            for part, roles in upload[leaf].value.items()
        }
        for stats in value[split].values():
            change(stats)
        leaves: dict[str, Leaf] = {**upload, leaf: Sum(value) if leaf == "pooled" else Each(value)}
        return encode_upload(leaves, header)

    return spoil


def cell(name: str, place: tuple[int, ...], by: int) -> Callable[[dict[str, Tensor]], None]:
    def change(stats: dict[str, Tensor]) -> None:
        stats[name][place] += by

    return change


def filled(name: str, value: int) -> Callable[[dict[str, Tensor]], None]:
    def change(stats: dict[str, Tensor]) -> None:
        stats[name].fill_(value)

    return change


def every(value: int) -> Callable[[dict[str, Tensor]], None]:
    def change(stats: dict[str, Tensor]) -> None:
        for x in stats.values():
            x.fill_(value)

    return change


COUNTED: Bad = {
    "negative decisions": (statistics(filled("confusion", -5)), "negative"),
    "negative histogram": (statistics(cell("scores", (0, 0, 0), -(10**6))), "negative"),
    "negative own histogram": (statistics(cell("scores", (0, 1, 3), -1), "own"), "negative"),
    "negative calibration": (statistics(filled("calibration", -1)), "negative"),
    "huge decisions": (statistics(filled("confusion", 2**40)), "counts more than"),
    "huge histogram": (statistics(filled("scores", 3 * 10**9)), "counts more than"),
    "huge own histogram": (statistics(filled("scores", 3 * 10**9), "own"), "counts more than"),
    "histogram of the largest numbers": (statistics(filled("scores", 2**52)), "counts more than"),
    "beyond whole numbers": (statistics(filled("scores", 2**62)), r"above 2\^52"),
    "huge calibration": (statistics(filled("calibration", 2**50)), "counts more than"),
    "validation alone": (
        statistics(cell("confusion", (0, 0), 1), split="validation"),
        "on its validation images",
    ),
    "one decision more": (statistics(cell("confusion", (1, 2), 1)), "its decisions are about"),
    "one decision of another class": (
        statistics(lambda stats: stats.update(confusion=stats["confusion"].roll(1, 0))),
        "other classes|counts more",
    ),
    "one image more in a histogram": (statistics(cell("scores", (2, 0, 9), 1)), "histograms"),
    "histograms of other classes": (
        statistics(lambda stats: stats.update(scores=stats["scores"].roll(1, 0))),
        "histograms",
    ),
    "positives for negatives": (
        statistics(lambda stats: stats.update(scores=stats["scores"].flip(1))),
        "histograms",
    ),
    "one decision more in calibration": (statistics(cell("calibration", (3, 0), 1)), "calibration"),
    "one right decision more": (statistics(cell("calibration", (3, 1), 1), "own"), "calibration"),
    "surer than possible": (statistics(cell("calibration", (3, 2), 10**6)), "confidences"),
    "nothing at all": (statistics(every(0)), "about 0 images"),
    "ones": (statistics(every(1)), "its decisions are about|histograms"),
    "real numbers": (
        statistics(lambda stats: stats.update(scores=stats["scores"].double())),
        "has dtype float64",
    ),
    "short numbers": (
        statistics(lambda stats: stats.update(scores=stats["scores"].int())),
        "has dtype int32",
    ),
    "fewer bins": (statistics(lambda stats: stats.update(scores=stats["scores"][..., :10])), "has shape"),
    "fewer classes": (statistics(lambda stats: stats.update(confusion=stats["confusion"][:2])), "has shape"),
    "more statistics": (
        statistics(lambda stats: stats.update(images=torch.zeros(2, dtype=torch.int64))),
        "extra tensor",
    ),
    "fewer statistics": (statistics(lambda stats: stats.pop("scores")), "missing tensor"),
    "pooled for each": (
        lambda data: encode_upload(
            {"pooled": Each(decode_upload(data)[1]["pooled"].value), "own": decode_upload(data)[1]["own"]}
        ),
        "is a 'each' leaf",
    ),
    "only pooled": (
        lambda data: encode_upload({"pooled": decode_upload(data)[1]["pooled"]}),
        "missing tensor",
    ),
}


def scores(change: Callable[[Tensor], Tensor], split: str = "test") -> Change:
    """An answer in which the scores of one split are others."""

    def spoil(data: bytes) -> bytes:
        header, upload = decode_upload(data)
        value = dict(upload["scores"].value)
        value[split] = {name: change(x) for name, x in value[split].items()}
        return encode_upload({"scores": Each(value)}, header)

    return spoil


SCORED: Bad = {
    "one row more": (scores(lambda x: torch.cat([x, x[:1]])), "it scores"),
    "one row less": (scores(lambda x: x[1:]), "it scores"),
    "no row": (scores(lambda x: x[:0], "validation"), "it scores 0 images"),
    "many rows": (scores(lambda x: x[:1].repeat(5000, 1)), "it scores 5,000 images"),
    "NaN scores": (scores(lambda x: x * torch.nan), "not finite"),
    "huge scores": (scores(lambda x: x + 1e20), "range|norm"),
    "fewer classes": (scores(lambda x: x[:, :1]), "has shape"),
    "scores of nothing": (scores(lambda x: x[0]), "has shape"),
}

DOZEN = (
    "largest float",
    "negative variance",
    "one image too many",
    "a million images",
    "moderately huge change",
    "just below the norm",
    "empty weight",
    "escape",
    "table nested deep",
    "giant shape, short body",
    "places that overlap",
    "header nested a little",
    "of another round",
    "a thousand leaves",
)
"""of `TRAIN`, what is tried every time"""

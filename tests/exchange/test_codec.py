"""Codec: what is packed comes back, bit for bit and in order; anything else is a CodecError and nothing
worse."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from equipoise.exchange import decode_upload, encode_upload, pack, unpack
from equipoise.exchange.codec import HEADER, CodecError, shown
from equipoise.leaves import Each, Mean, Sum
from equipoise.tree import digest, flatten, unflatten

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype and shape, scalars and empty ones too, some of them not contiguous."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    x = torch.randint(-100, 100, shape, generator=seed).to(dtype)
    if x.dim() >= 2 and draw(st.booleans()):
        x = x.transpose(0, 1)
    return x[::2] if x.dim() and draw(st.booleans()) else x


names = st.text(
    st.characters(blacklist_characters="/@", blacklist_categories=["Cs"]), min_size=1, max_size=6
).filter(lambda name: name != "__metadata__")
trees = st.recursive(
    tensors(), lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=6
)
branches = st.dictionaries(names, trees, min_size=1, max_size=4)


def same(a: Tensor, b: Tensor) -> bool:
    return digest({"x": a}) == digest({"x": b})


@given(branches)
@settings(max_examples=60, deadline=None)
def test_a_tree_comes_back_bit_for_bit_and_in_order(tree: dict[str, Any]) -> None:
    flat = flatten(tree)
    header, back = unpack(pack({"round": 3}, flat))
    assert header == {"round": 3}
    assert list(back) == list(flat)
    assert all(same(back[name], flat[name]) for name in flat)


@given(branches, st.sampled_from(["sum", "mean", "each"]), st.floats(0, 1e6))
@settings(max_examples=60, deadline=None)
def test_an_upload_comes_back_with_its_kinds(tree: dict[str, Any], kind: str, weight: float) -> None:
    leaf = {"sum": Sum(tree), "each": Each(tree), "mean": Mean(tree, weight)}[kind]
    header, back = decode_upload(encode_upload({"leaf": leaf, "one": Sum(torch.ones(2))}, {"site": "a"}))
    assert header["site"] == "a"
    assert type(back["leaf"]) is type(leaf)
    assert digest(back["leaf"].value) == digest(tree)
    assert same(back["one"].value, torch.ones(2))
    if isinstance(leaf, Mean):
        assert float(back["leaf"].weight) == weight


def test_the_order_of_a_tree_survives() -> None:
    # Predictors are listed with the one that counts first; a codec that shuffles them changes the metrics.
    wanted = [f"{c}{i}" for i in range(20) for c in "zam"]
    value = {name: torch.zeros(1) for name in wanted}
    for _ in range(5):
        assert list(decode_upload(encode_upload({"scores": Each(value)}))[1]["scores"].value) == wanted


def test_the_same_message_has_the_same_bytes() -> None:
    flat = {name: torch.full((3,), float(i)) for i, name in enumerate("zyxabc")}
    assert pack({"b": 1, "a": 2}, flat) == pack({"a": 2, "b": 1}, dict(flat))


def test_tensors_that_share_memory_are_sent_apart() -> None:
    base = torch.arange(6.0)
    _, back = unpack(pack({}, {"a": base, "b": base, "c": base[2:4], "d": base.view(2, 3)}))
    assert back["b"].tolist() == base.tolist()
    assert back["c"].tolist() == [2.0, 3.0]
    assert back["d"].shape == (2, 3)


def test_a_per_class_weight_is_kept_as_float64() -> None:
    weight = torch.tensor([0.0, 0.1, 7.0], dtype=torch.float64)
    leaf = decode_upload(encode_upload({"p": Mean(torch.zeros(3, 2), weight)}))[1]["p"]
    assert torch.equal(leaf.weight, weight)


GOOD = encode_upload(
    {"delta": Mean({"w": torch.ones(3, 2), "b": torch.zeros(2)}, 5.0), "count": Sum(torch.tensor([1, 2]))}
)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_garbage_is_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_upload(data)


@given(st.integers(0, len(GOOD) - 1))
@settings(max_examples=100, deadline=None)
def test_truncated_bytes_are_a_codec_error(length: int) -> None:
    with pytest.raises(CodecError):
        decode_upload(GOOD[:length])


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 7)), min_size=1, max_size=4))
@settings(max_examples=400, deadline=None)
def test_flipped_bits_are_a_codec_error_or_another_whole_message(flips: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for place, bit in flips:
        data[place] ^= 1 << bit
    try:
        header, upload = decode_upload(bytes(data))
    except CodecError:
        return
    assert set(upload) == set(header["leaves"])


@given(st.integers(8, 600), st.binary(min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_overwritten_bytes_never_raise_anything_else(place: int, patch: bytes) -> None:
    data = GOOD[:place] + patch + GOOD[place + len(patch) :]
    try:
        decode_upload(data)
    except CodecError:
        pass


def message(header: Any, tensors: dict[str, Tensor], listed: Any = None) -> bytes:
    """A message whose header says what we like."""
    told = {"header": header, "names": list(tensors) if listed is None else listed}
    return save(tensors, metadata={HEADER: json.dumps(told)})


X = {"x": torch.ones(2)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        save(X),
        save(X, metadata={HEADER: "no json"}),
        save(X, metadata={HEADER: "[1, 2]"}),
        save(X, metadata={HEADER: "[" * 100_000}),
        save(X, metadata={"other": "{}"}),
        message([], X),
        message({}, X),
        message({"leaves": []}, X),
        message({"leaves": {"x": "sun"}}, X),
        message({"leaves": {"x": ["sum"]}}, X),
        message({"leaves": {"x": None}}, X),
        message({"leaves": {"x": "mean"}}, X),
        message({"leaves": {}}, X),
        message({"leaves": {"x": "sum"}}, X, ["x", "x"]),
        message({"leaves": {"x": "sum"}}, X, ["y"]),
        message({"leaves": {"x": "sum"}}, X, []),
        message({"leaves": {"x": "sum"}}, X, 5),
        message({"leaves": {"x": "sum"}}, X, [["x"]]),
        message({"leaves": {"x": "sum"}}, {"x/a": torch.ones(1), "x/a/b": torch.ones(1)}),
        message({"leaves": {"x": "sum"}}, {"x/a/b": torch.ones(1), "x/a": torch.ones(1)}),
        message({"leaves": {"x": "sum"}}, {"x": torch.ones(1), "x/a": torch.ones(1)}),
    ],
)
def test_a_tampered_header_is_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_upload(data)


def table_of(head: str, body: bytes = b"") -> bytes:
    """A message whose table is this text."""
    raw = head.encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + body


ONE = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'
KINDS = json.dumps(json.dumps({"leaves": {"x": "each"}}))


@pytest.mark.parametrize(
    "data",
    [
        table_of(f'{{"__metadata__":{{"equipoise":{KINDS}}},"{"x/" * 1200}y":{{{ONE}}}}}', bytes(4)),
        table_of(f'{{"__metadata__":{{"equipoise":{KINDS}}},"x/{"/" * 40}":{{{ONE}}}}}', bytes(4)),
        table_of(f'{{"__metadata__":{{"equipoise":{KINDS}}},"x":{{{ONE}}},"x":{{{ONE}}}}}', bytes(4)),
        table_of(
            f'{{"__metadata__":{{"equipoise":{KINDS}}},'
            f'"x":{{"dtype":"F32","shape":[{"1," * 99}1],"data_offsets":[0,4]}}}}',
            bytes(4),
        ),
        save(
            X,
            metadata={
                HEADER: json.dumps({"leaves": {"x": "sum"}, "more": [[[[]]]]}).replace(
                    "[[[[]]]]", "[" * 50 + "]" * 50
                )
            },
        ),
        save(X, metadata={HEADER: '{"leaves": {"x": "sum"}, "more": NaN}'}),
        save(X, metadata={HEADER: '{"leaves": {"x": "sum"}, "leaves": {"x": "each"}}'}),
        save(X, metadata={HEADER: json.dumps({"leaves": {f"x{i}": "sum" for i in range(1000)}})}),
        save(X, metadata={HEADER: '{"leaves": {"x": "sum"}, "more": ' + "9" * 5000 + "}"}),
    ],
)
def test_what_is_deep_or_said_twice_is_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_upload(data)


def test_a_tree_may_be_as_deep_as_ours_are_and_no_deeper() -> None:
    name = "/".join(["x"] * 16)
    assert set(unflatten({name: torch.ones(1)})) == {"x"}
    with pytest.raises(ValueError, match="levels deep"):
        unflatten({name + "/x": torch.ones(1)})


def test_a_table_longer_than_asked_for_is_not_read() -> None:
    assert decode_upload(GOOD, most=1000)
    with pytest.raises(CodecError, match="at most 100 are read"):
        decode_upload(GOOD, most=100)


def test_a_name_from_elsewhere_cannot_move_the_cursor() -> None:
    assert shown("\x1b[2Jdelta\u202e\ud800") == "?[2Jdelta??"
    assert shown("n" * 10**6) == "n" * 80 + "…"


def test_a_pickle_is_only_bytes_that_are_no_message() -> None:
    # protocol-4 pickle of an object whose loading would run code; written out, so that no test needs the
    # module
    bomb = (
        b"\x80\x04\x95\x20\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94"
        b"\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94."
    )
    with pytest.raises(CodecError):
        unpack(bomb)


@given(branches)
@settings(max_examples=30, deadline=None)
def test_the_format_is_that_of_the_safetensors_library(tree: dict[str, Any]) -> None:
    flat = flatten(tree)
    theirs = load(bytes(pack({"round": 3}, flat)))
    assert {name: digest({"x": x}) for name, x in theirs.items()} == {
        name: digest({"x": x}) for name, x in flat.items()
    }
    plain = {name: x.contiguous().clone() for name, x in flat.items()}
    header, back = unpack(save(plain, metadata={HEADER: json.dumps({"round": 4})}))
    assert header == {"round": 4}
    assert {name: digest({"x": x}) for name, x in back.items()} == {
        name: digest({"x": x}) for name, x in flat.items()
    }


@pytest.mark.parametrize(
    "places",
    [
        [(0, 8), (4, 12)],
        [(0, 8), (12, 20)],
        [(8, 16), (0, 8), (8, 16)],
        [(0, 8), (8, 12)],
        [(-8, 0), (0, 8)],
        [(0, 8.0), (8, 16)],
    ],
)
def test_tensors_that_overlap_or_leave_gaps_are_refused(places: list[tuple[int, int]]) -> None:
    table = {f"x{i}": {"dtype": "F32", "shape": [2], "data_offsets": place} for i, place in enumerate(places)}
    head = json.dumps({"__metadata__": {HEADER: "{}"}, **table}).encode()
    head += b" " * (-len(head) % 8)
    with pytest.raises(CodecError):
        unpack(struct.pack("<Q", len(head)) + head + bytes(16))

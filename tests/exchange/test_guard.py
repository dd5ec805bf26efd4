"""The guard: every kind of bad answer is rejected with the site's name, and a good one passes unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from equipoise.errors import Rejected
from equipoise.exchange import ExchangeOptions, Line, check, encode_upload
from equipoise.exchange.guard import size_cap
from equipoise.exchange.ledger import Entry, entries
from equipoise.leaves import Each, Mean, Sum, Upload
from equipoise.tree import digest

LIMITS = ExchangeOptions(max_rows=50)


def good() -> Upload:
    return {
        "delta": Mean({"w": torch.ones(3, 4), "b": torch.zeros(3)}, 20.0),
        "proto": Mean(torch.ones(2, 5), torch.tensor([1.0, 0.0])),
        "votes": Mean(torch.tensor([1, 2]), 1.0),
        "loss": Sum(torch.tensor(0.5, dtype=torch.float64)),
        "count": Sum(torch.tensor([1, 2, 3])),
        "scores": Each({"test": torch.ones(6, 3)}),
    }


def line(upload: Upload) -> Line:
    """The ledger line of this answer, with a length of `scores` left open."""
    found = [
        Entry(e.leaf, e.tensor, e.kind, e.dtype, (None, 3) if e.leaf == "scores" else e.shape, e.weight)
        for e in entries(upload)
    ]
    return Line("train", 0, tuple(found), 0)


LINE = line(good())


def judge(upload: Upload) -> tuple[dict[str, Any], Upload]:
    return check("north", encode_upload(upload, {"wrote": True}), LINE, LIMITS)


def test_a_good_answer_passes_unchanged() -> None:
    header, upload = judge(good())
    assert header["wrote"] is True
    assert digest({k: v.value for k, v in upload.items()}) == digest({k: v.value for k, v in good().items()})


@pytest.mark.parametrize("rows", [0, 1, 50])
def test_an_open_length_may_vary(rows: int) -> None:
    assert (
        len(judge(good() | {"scores": Each({"test": torch.ones(rows, 3)})})[1]["scores"].value["test"])
        == rows
    )


def delta(weight: Any = 20.0, **changes: torch.Tensor) -> Upload:
    value = {"w": torch.ones(3, 4), "b": torch.zeros(3), **changes}
    return good() | {"delta": Mean(value, weight)}


def spoiled(value: float) -> torch.Tensor:
    x = torch.ones(3, 4)
    x[1, 2] = value
    return x


BAD: dict[str, tuple[Callable[[], Upload], str]] = {
    "nan": (lambda: delta(w=spoiled(float("nan"))), "leaf 'delta' has values that are not finite"),
    "inf": (lambda: delta(w=spoiled(float("inf"))), "leaf 'delta' has values that are not finite"),
    "minus inf": (lambda: delta(w=spoiled(float("-inf"))), "leaf 'delta' has values that are not finite"),
    "nan in each": (
        lambda: good() | {"scores": Each({"test": torch.full((2, 3), torch.nan)})},
        "'scores' has values that are not",
    ),
    "nan in sum": (
        lambda: good() | {"loss": Sum(torch.tensor(torch.nan, dtype=torch.float64))},
        "'loss' has values that are not",
    ),
    "shape": (lambda: delta(w=torch.ones(4, 3)), "tensor 'delta/w' has shape (4, 3), not (3, 4)"),
    "broadcastable": (lambda: delta(w=torch.ones(1, 4)), "tensor 'delta/w' has shape (1, 4), not (3, 4)"),
    "scalar for vector": (lambda: delta(b=torch.tensor(1.0)), "tensor 'delta/b' has shape (), not (3,)"),
    "more dimensions": (lambda: delta(b=torch.zeros(1, 3)), "tensor 'delta/b' has shape (1, 3), not (3,)"),
    "dtype": (
        lambda: delta(w=torch.ones(3, 4, dtype=torch.float64)),
        "tensor 'delta/w' has dtype float64, not float32",
    ),
    "whole numbers": (
        lambda: delta(w=torch.ones(3, 4, dtype=torch.int64)),
        "tensor 'delta/w' has dtype int64, not float32",
    ),
    "extra tensor": (lambda: delta(v=torch.ones(1)), "extra tensor 'delta/v'"),
    "extra leaf": (lambda: good() | {"images": Each(torch.ones(2))}, "extra tensor 'images'"),
    "missing tensor": (
        lambda: good() | {"delta": Mean({"w": torch.ones(3, 4)}, 20.0)},
        "missing tensor 'delta/b'",
    ),
    "missing leaf": (lambda: {k: v for k, v in good().items() if k != "loss"}, "missing tensor 'loss'"),
    "nothing": (lambda: {}, "missing tensor"),
    "negative weight": (lambda: delta(-1.0), "the weight of 'delta' is negative"),
    "nan weight": (lambda: delta(torch.nan), "the weight of 'delta' is not finite"),
    "inf weight": (lambda: delta(torch.inf), "the weight of 'delta' is not finite"),
    "huge weight": (lambda: delta(2e6), "the weight of 'delta' is 2e+06, larger than exchange.max_weight"),
    "weight shape": (lambda: delta(torch.ones(3)), "has a weight of shape (3,), not ()"),
    "one bad class weight": (
        lambda: good() | {"proto": Mean(torch.ones(2, 5), torch.tensor([1.0, -1.0]))},
        "the weight of 'proto' is negative",
    ),
    "kind": (
        lambda: good() | {"loss": Mean(torch.tensor(0.5, dtype=torch.float64), 1.0)},
        "tensor 'loss' is a 'mean' leaf, not 'sum'",
    ),
    "sum as each": (
        lambda: good() | {"count": Each(torch.tensor([1, 2, 3]))},
        "tensor 'count' is a 'each' leaf, not 'sum'",
    ),
    "huge norm": (lambda: delta(1.0, w=torch.full((3, 4), 1e5)), "leaf 'delta' has norm"),
    "beyond fixed point": (
        lambda: delta(1e6, w=spoiled(100.0)),
        "leaf 'delta' times its weight reaches 1e+08",
    ),
    "beyond fixed point, one class": (
        lambda: good() | {"proto": Mean(torch.full((2, 5), 100.0), torch.tensor([0.0, 1e6]))},
        "leaf 'proto' times its weight reaches 1e+08",
    ),
    "whole-number overflow": (
        lambda: good() | {"count": Sum(torch.tensor([1, 2, 2**53]))},
        "'count' has a whole number above 2^52",
    ),
    "lowest whole number": (
        lambda: good() | {"count": Sum(torch.tensor([1, 2, -(2**63)]))},
        "'count' has a whole number above 2^52",
    ),
    "whole-number mean overflow": (
        lambda: good() | {"votes": Mean(torch.tensor([2**50, 1]), 1.0)},
        "'votes' times its weight",
    ),
    "too many rows": (
        lambda: good() | {"scores": Each({"test": torch.ones(51, 3)})},
        "has shape (51, 3), not (None, 3)",
    ),
    "leaf that poses as a tensor": (
        lambda: {k: v for k, v in good().items() if k != "scores"} | {"scores/test": Each(torch.ones(6, 3))},
        "extra tensor 'scores/test'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_rejected_by_name(name: str) -> None:
    make, reason = BAD[name]
    with pytest.raises(Rejected) as caught:
        judge(make())
    assert str(caught.value).startswith("site 'north' was left out of 'train': ")
    assert reason in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"hello", encode_upload(good())[:-1], encode_upload(good())[:40]])
def test_truncated_or_foreign_bytes_are_rejected_by_name(data: bytes) -> None:
    with pytest.raises(Rejected, match=r"site 'north' was left out of 'train': .*message"):
        check("north", data, LINE, LIMITS)


def test_more_bytes_than_possible_are_not_even_parsed() -> None:
    data = bytes(size_cap(LINE, LIMITS) + 1)
    with pytest.raises(Rejected, match=r"site 'north' .* bytes, at most"):
        check("north", data, LINE, LIMITS)


def test_the_largest_honest_answer_fits_under_the_cap() -> None:
    long = {f"{'layer' * 40}.{i}": torch.zeros(2) for i in range(200)}
    upload: Upload = {"delta": Mean(long, 1.0), "scores": Each({"test": torch.ones(50, 3)})}
    check("n" * 200, encode_upload(upload, {"site": "n" * 200}), line(upload), LIMITS)


def test_a_weight_limit_beyond_the_fixed_point_is_no_option() -> None:
    with pytest.raises(ValidationError):
        ExchangeOptions(max_weight=2.0**25)


V = "norm.running_var"


@pytest.mark.parametrize(
    ("leaf", "value", "sent", "good"),
    [
        ("step", -0.5, {V: torch.ones(2)}, True),  # a change, whatever the leaf is called
        ("step", -1.5, {V: torch.ones(2)}, False),
        ("delta", -0.5, {V: torch.ones(3)}, False),  # of another shape: no change of what was sent
        ("delta", -0.5, {}, False),
        ("delta", 0.5, {}, True),
        ("delta", -0.5, None, True),  # not known what was sent
    ],
)
def test_no_variance_becomes_negative(
    leaf: str, value: float, sent: dict[str, torch.Tensor] | None, good: bool
) -> None:
    upload: Upload = {leaf: Mean({V: torch.full((2,), value), "w": torch.zeros(2)}, 1.0)}
    if good:
        check("north", encode_upload(upload), line(upload), LIMITS, sent=sent)
        return
    with pytest.raises(Rejected, match=f"tensor '{leaf}/{V}' makes a variance negative"):
        check("north", encode_upload(upload), line(upload), LIMITS, sent=sent)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_flipped_bit_passes_whole_or_is_rejected(data: st.DataObject) -> None:
    sent = bytearray(encode_upload(good()))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(sent) - 1))
        sent[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        _, upload = check("north", bytes(sent), LINE, LIMITS)
    except Rejected:
        return
    assert all(
        torch.isfinite(x).all()
        for leaf in upload.values()
        for x in ([leaf.value] if torch.is_tensor(leaf.value) else [])
    )

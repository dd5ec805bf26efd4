"""Trees: flatten and back, arithmetic, digests."""

from __future__ import annotations

import pytest
import torch

from equipoise.tree import combine, digest, flatten, plus, unflatten, zeros_like

TREE = {"model": {"b": torch.tensor([1.0]), "a.w": torch.tensor([[2.0, 3.0]])}, "step": torch.tensor(4)}


def test_flatten_joins_names_and_unflatten_parts_them() -> None:
    flat = flatten(TREE)
    assert list(flat) == ["model/b", "model/a.w", "step"]
    assert digest(unflatten(flat)) == digest(TREE)
    assert list(unflatten(flat)["model"]) == ["b", "a.w"]
    assert flatten({"x": 3}, "up/")["up/x"].item() == 3


def test_empty_branches_vanish() -> None:
    assert list(flatten({"a": {}, "b": {"c": {}}, "d": torch.ones(1)})) == ["d"]


def test_a_key_may_not_hold_a_slash() -> None:
    with pytest.raises(ValueError, match="'a/b'"):
        flatten({"a/b": torch.ones(1)})


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("x/a", "x/a/b/c")])
def test_no_name_is_a_tensor_and_a_branch(names: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="tensor"):
        unflatten({name: torch.ones(1) for name in names})


def test_plus_adds_tensor_by_tensor_in_the_first_tree_s_dtype() -> None:
    total = plus(
        TREE["model"], {"b": torch.tensor([10.0], dtype=torch.float64), "a.w": torch.ones(1, 2)}, scale=0.5
    )
    assert total["b"].tolist() == [6.0]
    assert total["b"].dtype == torch.float32
    assert total["a.w"].tolist() == [[2.5, 3.5]]
    assert TREE["model"]["b"].tolist() == [1.0]


def test_combine_and_zeros() -> None:
    assert digest(combine(lambda x, y: x - y, TREE, TREE)) == digest(zeros_like(TREE))


def test_digest_sees_names_dtypes_shapes_and_bits() -> None:
    x = torch.arange(6.0)
    others = [
        {"y": x},
        {"x": x.double()},
        {"x": x.view(2, 3)},
        {"x": x + 1e-6},
        {"x": x, "y": x},
        {"x": {"x": x}},
        {"x": torch.tensor([-0.0, 1, 2, 3, 4, 5])},
    ]
    assert len({digest(tree) for tree in [{"x": x}, *others]}) == 8


def test_digest_does_not_see_order_or_memory_layout() -> None:
    x = torch.arange(12.0).view(3, 4)
    assert digest({"a": x, "b": x}) == digest({"b": x.t().contiguous().t(), "a": x})
    assert digest({"a": torch.arange(3.0)[::5]}) == digest({"a": torch.zeros(1)})
    assert digest({"a": torch.arange(0.0)[::2]}) == digest({"a": torch.zeros(0)})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.int64])
def test_digest_takes_every_dtype(dtype: torch.dtype) -> None:
    assert digest({"x": torch.ones(3).to(dtype)}) != digest({"x": torch.zeros(3).to(dtype)})


def test_digest_of_one_element_does_not_see_its_stride() -> None:
    """One element is contiguous with any stride."""
    line = torch.arange(10.0)
    for odd in (line.as_strided((1,), (7,)), line.as_strided((1, 1), (9, 3)), line[:1].expand(1)):
        assert digest({"x": odd}) == digest({"x": odd.clone()})
    assert digest({"x": torch.zeros(0, 3)}) != digest({"x": torch.zeros(0, 2)})

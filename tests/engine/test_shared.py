"""Messages in shared memory: the same tensors, where torch would lay them, and nobody changes another's."""

from __future__ import annotations

import os

import pytest
import torch

from equipoise.engine.shared import Rooms, can_share, mapped
from equipoise.exchange.codec import ALIGNED, pack, unpack

pytestmark = pytest.mark.skipif(not can_share(), reason="needs files of memory (Linux)")


def tensors() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    sizes = {"bias": (8,), "weight": (64, 3, 7, 7), "odd": (5, 3), "none": (0, 4)}
    floats = {name: torch.randn(size, generator=draw) for name, size in sizes.items()}
    return {**floats, "count": torch.arange(7), "flag": torch.tensor([True, False])}


def test_a_mapped_message_has_the_same_bytes_and_tensors() -> None:
    rooms = Rooms()
    message = pack({"a": 1}, tensors(), rooms.room)
    assert bytes(message) == bytes(pack({"a": 1}, tensors()))
    header, found = unpack(mapped(rooms.place(message)))
    assert header == {"a": 1}
    assert list(found) == list(tensors())
    assert all(torch.equal(found[name], x) for name, x in tensors().items())
    rooms.close()


def test_every_tensor_lies_as_torch_lays_its_own_and_large_ones_are_not_copied() -> None:
    rooms = Rooms()
    whole = mapped(rooms.place(pack({}, tensors(), rooms.room)))
    found = unpack(whole)[1]
    assert all(x.data_ptr() % ALIGNED == 0 for x in found.values())
    raw = unpack(whole, views=True)[1]
    assert found["weight"].data_ptr() == raw["weight"].data_ptr()
    assert found["odd"].data_ptr() != raw["odd"].data_ptr() or raw["odd"].data_ptr() % ALIGNED == 0
    rooms.close()


def test_what_a_reader_writes_is_its_own() -> None:
    rooms = Rooms()
    place = rooms.place(pack({}, tensors(), rooms.room))
    unpack(mapped(place))[1]["weight"].zero_()
    assert torch.equal(unpack(mapped(place))[1]["weight"], tensors()["weight"])
    rooms.close()


def test_a_message_is_gone_with_the_next_but_not_for_who_has_mapped_it() -> None:
    rooms = Rooms()
    open_before = len(os.listdir("/proc/self/fd"))
    first = pack({}, tensors(), rooms.room)
    found = mapped(rooms.place(first))
    second = pack({}, {"x": torch.ones(3)}, rooms.room)
    assert not rooms.place(first)
    assert rooms.place(second)
    assert torch.equal(unpack(found)[1]["weight"], tensors()["weight"])
    rooms.close()
    assert not rooms.place(second)
    del first, second, found
    assert len(os.listdir("/proc/self/fd")) == open_before

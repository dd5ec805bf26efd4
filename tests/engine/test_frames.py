"""Frames on a pipe."""

from __future__ import annotations

import io

import pytest

from equipoise.engine import frames


def test_frames_come_back_in_order() -> None:
    pipe = io.BytesIO()
    frames.write(pipe, b"one", b"", bytes(70_000))
    pipe.seek(0)
    assert [len(frames.read(pipe)) for _ in range(3)] == [3, 0, 70_000]


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 10])
def test_a_cut_frame_is_the_end(cut: int) -> None:
    pipe = io.BytesIO()
    frames.write(pipe, b"one")
    with pytest.raises(EOFError):
        frames.read(io.BytesIO(pipe.getvalue()[:cut]))

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from equipoise.data import cache
from equipoise.data.cache import CHUNK, Decoded, decoded
from equipoise.errors import StorageError

SHAPE = (4, 4, 3)
COUNT = 4 * CHUNK + 10


def pixels(i: int) -> np.ndarray:
    return np.full(SHAPE, i % 251, np.uint8)


def straight() -> np.ndarray:
    return np.stack([pixels(i) for i in range(COUNT)])


class Maker:
    """Makes images and remembers from where to where it was asked."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.stop_at = stop_at

    def __call__(self, start: int, stop: int) -> list[np.ndarray | str]:
        if start == self.stop_at:
            raise KeyboardInterrupt
        self.asked.append((start, stop))
        return [pixels(i) for i in range(start, stop)]


def build(folder: Path, make: object = None, recipe: object = "r") -> Decoded:
    return decoded(folder, recipe, COUNT, SHAPE, make or Maker())  # type: ignore[arg-type]


def only(folder: Path, ending: str) -> Path:
    (path,) = folder.glob(f"*{ending}")
    return path


def test_is_built_once_and_shared_read_only(tmp_path: Path) -> None:
    first, second = Maker(), Maker()
    a, b = build(tmp_path, first), build(tmp_path, second)
    assert [start for start, _ in first.asked] == [0, 256, 512, 768, 1024]
    assert second.asked == []
    assert isinstance(b.images, np.memmap)
    assert not b.images.flags.writeable
    np.testing.assert_array_equal(b.images, straight())
    assert a.digest == b.digest
    assert b.broken == {}
    assert {path.suffix for path in tmp_path.iterdir()} == {".raw", ".json", ".lock"}


def test_another_recipe_is_another_cache(tmp_path: Path) -> None:
    build(tmp_path)
    make = Maker()
    build(tmp_path, make, recipe="other")
    assert make.asked
    assert len(list(tmp_path.glob("*.raw"))) == 2


def test_progress_counts_up_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    decoded(tmp_path, "r", COUNT, SHAPE, Maker(), lambda *report: seen.append(report), "drawing")
    assert seen == [("drawing", done, COUNT) for done in (0, 256, 512, 768, 1024, COUNT)]


def test_large_images_come_in_smaller_chunks(tmp_path: Path) -> None:
    shape, asked = (1024, 1024, 1), []

    def make(start: int, stop: int) -> list[np.ndarray | str]:
        asked.append((start, stop))
        return ["torn"] * (stop - start)

    decoded(tmp_path, "r", 100, shape, make)
    assert asked == [(0, 64), (64, 100)]  # 64 MB at most
    asked.clear()
    decoded(tmp_path, "r", 40, (2048, 2048, 3), make)
    assert asked == [(0, 32), (32, 40)]


def test_an_interrupted_build_goes_on_where_it_stood(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, Maker(stop_at=2 * CHUNK))
    with only(tmp_path, ".part").open("ab") as file:
        file.write(b"half a chunk that no record vouches for")
    rest = Maker()
    resumed = build(tmp_path, rest)
    assert rest.asked[0] == (2 * CHUNK, 3 * CHUNK)
    np.testing.assert_array_equal(resumed.images, straight())
    assert resumed.digest == build(tmp_path / "straight").digest


def test_a_part_shorter_than_its_record_is_begun_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, Maker(stop_at=2 * CHUNK))
    os.truncate(only(tmp_path, ".part"), 100)
    again = Maker()
    np.testing.assert_array_equal(build(tmp_path, again).images, straight())
    assert again.asked[0] == (0, CHUNK)


CHILD = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from equipoise.data.cache import decoded

folder, log, kill_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def make(start, stop):
    if start == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    with log.open("a") as file:
        file.write(f"{start}\\n")
    time.sleep(0.05)
    return [np.full((4, 4, 3), i % 251, np.uint8) for i in range(start, stop)]

found = decoded(folder, "r", int(sys.argv[4]), (4, 4, 3), make)
print(found.digest, int(found.images.sum()))
"""


Child = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def child(forked: Callable[..., list[str]]) -> Child:
    """child(cache, log, kill_at=…) → a process that builds it."""

    def start(folder: Path, log: Path, kill_at: int = -1) -> subprocess.Popen[str]:
        return subprocess.Popen(forked(CHILD, folder, log, kill_at, COUNT), stdout=subprocess.PIPE, text=True)

    return start


def test_a_killed_build_loses_at_most_a_chunk(child: Child, tmp_path: Path) -> None:
    killed = child(tmp_path / "cache", tmp_path / "log", kill_at=3 * CHUNK)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    rest = Maker()
    np.testing.assert_array_equal(build(tmp_path / "cache", rest).images, straight())
    assert rest.asked[0] == (3 * CHUNK, 4 * CHUNK)


def test_two_processes_build_it_once(child: Child, tmp_path: Path) -> None:
    children = [child(tmp_path / "cache", tmp_path / "log") for _ in range(2)]
    answers = {one.communicate(timeout=60)[0] for one in children}
    assert [one.returncode for one in children] == [0, 0]
    assert answers == {f"{build(tmp_path / 'cache').digest} {straight().sum()}\n"}
    assert (tmp_path / "log").read_text().split() == ["0", "256", "512", "768", "1024"]


@pytest.mark.parametrize(
    "damage", ["short", "long", "no header", "torn header", "strange header", "no pixels"]
)
def test_a_damaged_cache_is_built_again(tmp_path: Path, damage: str) -> None:
    build(tmp_path)
    raw, header = only(tmp_path, ".raw"), only(tmp_path, ".json")
    if damage == "short":
        os.truncate(raw, 100)
    elif damage == "long":
        raw.write_bytes(raw.read_bytes() + b"x")
    elif damage == "no header":
        header.unlink()
    elif damage == "torn header":
        header.write_bytes(header.read_bytes()[:20])
    elif damage == "strange header":
        header.write_text(json.dumps(json.loads(header.read_text()) | {"key": "another"}))
    else:
        raw.unlink()
    again = Maker()
    np.testing.assert_array_equal(build(tmp_path, again).images, straight())
    assert len(again.asked) == 5


@pytest.mark.parametrize("damage", ["a flipped bit", "zeros", "a flipped bit of the header"])
def test_changed_pixels_are_noticed_and_made_again(child: Child, tmp_path: Path, damage: str) -> None:
    """Of the same size and date, in a process that has not read them yet."""
    straight_digest = build(tmp_path).digest
    raw, header = only(tmp_path, ".raw"), only(tmp_path, ".json")
    path = header if damage.endswith("header") else raw
    before, data = path.stat(), bytearray(path.read_bytes())
    if damage == "zeros":
        data[1000:5096] = bytes(4096)
    else:
        data[len(data) // 2] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    log = tmp_path / "log"
    process = child(tmp_path, log)
    assert process.communicate(timeout=60)[0] == f"{straight_digest} {straight().sum()}\n"
    assert log.read_text().split() == ["0", "256", "512", "768", "1024"]


def test_a_cache_made_again_says_so(tmp_path: Path) -> None:
    build(tmp_path)
    raw = only(tmp_path, ".raw")
    raw.write_bytes(bytes(raw.stat().st_size))
    seen: list[str] = []
    decoded(tmp_path, "r", COUNT, SHAPE, Maker(), lambda text, done, count: seen.append(text))
    assert set(seen) == {f"decoding images anew: {raw} is damaged"}


def test_a_whole_cache_is_read_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path)
    monkeypatch.setattr(cache, "_digest", lambda *given: pytest.fail("every pixel was read again"))
    build(tmp_path)


def test_pixels_other_than_recorded_are_begun_again(tmp_path: Path) -> None:
    """What a power cut can leave: a file as long as it should be, with zeros where the disk had not yet
    written."""
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, Maker(stop_at=2 * CHUNK))
    with only(tmp_path, ".part").open("rb+") as file:
        file.seek(CHUNK * 48 + 100)
        file.write(b"\0" * 200)
    again = Maker()
    np.testing.assert_array_equal(build(tmp_path, again).images, straight())
    assert again.asked[0] == (0, CHUNK)


def test_a_build_with_broken_entries_goes_on_too(tmp_path: Path) -> None:
    torn = {3, CHUNK + 1, CHUNK + 2, 2 * CHUNK}

    def make(start: int, stop: int, until: int | None = None) -> list[np.ndarray | str]:
        if start == until:
            raise KeyboardInterrupt
        asked.append(start)
        return ["torn" if i in torn else pixels(i) for i in range(start, stop)]

    asked: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, lambda start, stop: make(start, stop, until=3 * CHUNK))
    resumed = build(tmp_path, make)
    assert asked == [0, CHUNK, 2 * CHUNK, 3 * CHUNK, 4 * CHUNK]
    np.testing.assert_array_equal(resumed.images, np.delete(straight(), sorted(torn), axis=0))


@pytest.mark.parametrize(("calls", "done"), [(1, CHUNK), (5, COUNT)])
def test_a_full_disk_is_one_sentence_and_keeps_what_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, done: int
) -> None:
    """The disk is full when the second record is written, or only when the header is."""
    write, seen = cache._write, 0

    def full(*arguments: object, **options: object) -> None:
        nonlocal seen
        seen += 1
        if seen > calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_write", full)
        with pytest.raises(
            StorageError, match=rf"No space left.*free some space.*{done} of 1034 images"
        ) as refusal:
            build(tmp_path)
    assert "\n" not in str(refusal.value)
    rest = Maker()
    np.testing.assert_array_equal(build(tmp_path, rest).images, straight())
    assert rest.asked[:1] == [(done, done + CHUNK)][: done < COUNT]


def test_what_is_finished_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, synced = os.fsync, []

    def noted(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").readlink().suffixes[0])
        sync(file)

    monkeypatch.setattr("equipoise.data.cache.os.fsync", noted)
    build(tmp_path)
    assert synced == [".part", ".json"]  # the pixels before the header that vouches for them


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="name another folder"):
        build(tmp_path / "file" / "cache")


def test_entries_that_cannot_be_made_have_no_row_but_a_reason(tmp_path: Path) -> None:
    def make(start: int, stop: int) -> list[np.ndarray | str]:
        return ["torn" if i in (1, 300) else pixels(i) for i in range(start, stop)]

    for _ in range(2):  # built, then opened
        found = build(tmp_path, make)
        assert found.broken == {1: "torn", 300: "torn"}
        np.testing.assert_array_equal(found.images, np.delete(straight(), [1, 300], axis=0))


def test_nothing_can_be_made(tmp_path: Path) -> None:
    found = decoded(tmp_path, "r", 3, SHAPE, lambda start, stop: ["torn"] * (stop - start))
    assert found.images.shape == (0, *SHAPE)
    assert len(found.broken) == 3

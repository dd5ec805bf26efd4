"""What was changed behind a run's back is named: never another result without a word."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.config import Config, resolve
from equipoise.engine import Engine
from equipoise.errors import StorageError
from equipoise.report import write_report
from equipoise.running import Result, resume, run
from equipoise.server.journal import line_hash
from equipoise.setup import cache_folder
from equipoise.use import export, load

MakeConfig = Callable[..., Config]
Once = Callable[[Config], Result]
Half = Callable[[Config, Path], Path]


class Stop(Exception):
    """The run is interrupted."""


def stop_after(round: int) -> Callable[[str, dict[str, Any]], None]:
    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == round + 1:
            raise Stop

    return watch


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Half:
    """half(config, folder): there, a run of which one round is done and committed."""
    root, known = tmp_path_factory.mktemp("halves"), set[str]()

    def make(config: Config, folder: Path) -> Path:
        name = sha256(repr(config.table()).encode()).hexdigest()
        if name not in known:
            with pytest.raises(Stop):
                run(config, root / name, watch=stop_after(1))
            known.add(name)
        return Path(shutil.copytree(root / name, folder, dirs_exist_ok=True))

    return make


def flip(path: Path, place: int = -1) -> None:
    """Change one bit, and nothing else that the system would tell of the file."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# A site's private file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [{"kind": "serial"}, {"kind": "pool", "workers": 2}])
def test_a_changed_private_file_stops_a_resume(
    engine: dict[str, Any], tiny: MakeConfig, half: Half, tmp_path: Path
) -> None:
    folder = half(tiny("fca", engine=engine), tmp_path)
    flip(folder / "sites" / "site-01" / "0.0.safetensors")
    with pytest.raises(
        StorageError, match=r"private state '0\.0' of site 'site-01' .*was changed: restore the folder"
    ):
        resume(folder)


@pytest.mark.parametrize("other", ["site-00/0.0", "site-01/1.0"])
def test_the_private_file_of_another_site_or_round_stops_a_resume(
    other: str, tiny: MakeConfig, half: Half, tmp_path: Path
) -> None:
    folder = half(tiny("fca"), tmp_path)
    path = folder / "sites" / "site-01" / "0.0.safetensors"
    path.write_bytes((folder / "sites" / f"{other}.safetensors").read_bytes())
    with pytest.raises(StorageError, match=r"private state '0\.0' of site 'site-01'"):
        resume(folder)


def test_a_changed_private_file_is_not_used_to_predict(copy: Path) -> None:
    (rounds,) = json.loads((copy / "result.json").read_text())["selected_rounds"]
    version = f"{rounds - 1}.0"
    flip(copy / "sites" / "site-01" / f"{version}.safetensors")
    load(copy, "site-00")
    with pytest.raises(StorageError, match=f"private state '{version}' of site 'site-01'"):
        load(copy, "site-01")


# The config -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"), [("lr = 0.001", "lr = 0.002"), ("seed = 0", "seed = 1"), ("rounds = 2", "rounds = 3")]
)
def test_an_edited_config_stops_a_resume(
    old: str, new: str, tiny: MakeConfig, half: Half, once: Once, tmp_path: Path
) -> None:
    folder = half(tiny("fedavg", train={"lr": 0.001, "seed": 0}), tmp_path)
    path = folder / "config.toml"
    text = path.read_text()
    place = text.index(f"\n{old}\n", text.index("[train]"))
    path.write_text(text[:place] + text[place:].replace(old, new, 1))
    with pytest.raises(
        StorageError, match=r"config\.toml .*was changed: undo the change, or start a new run"
    ):
        resume(folder)
    path.write_text(text)
    assert resume(folder).state_hash == once(tiny("fedavg")).state_hash


def test_a_config_with_a_digest_of_its_own_stops_a_resume_too(
    tiny: MakeConfig, half: Half, tmp_path: Path
) -> None:
    """As when the file of another run is put in its place."""
    folder = half(tiny("fedavg"), tmp_path / "one")
    other = half(tiny("fedavg", train={"lr": 0.1}), tmp_path / "other")
    (folder / "config.toml").write_bytes((other / "config.toml").read_bytes())
    with pytest.raises(
        StorageError, match=r"was begun with another config .*: undo the change, or start a new run"
    ):
        resume(folder)


def test_another_engine_may_go_on(tiny: MakeConfig, half: Half, once: Once, tmp_path: Path) -> None:
    config = tiny("fedavg")
    folder = half(config, tmp_path / "run")
    pooled = run(config.with_engine(kind="pool", workers=2), folder)
    assert pooled.state_hash == once(config).state_hash


# The data ---------------------------------------------------------------------------------------------------


def images(folder: Path, seed: int) -> Path:
    """Sixty images of two classes as an npz file."""
    draw = np.random.default_rng(seed)
    parts: dict[str, Any] = {}
    for part, count in (("train", 40), ("val", 10), ("test", 10)):
        parts[f"{part}_images"] = draw.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        parts[f"{part}_labels"] = np.arange(count).reshape(-1, 1) % 2
    folder.mkdir(exist_ok=True)
    np.savez(folder / "data.npz", **parts)
    return folder / "data.npz"


def on_images(path: Path, **sections: Any) -> Config:
    table = {
        "data": {"kind": "npz", "path": str(path), "image_size": 16, "classes": ["a", "b"]},
        "partition": {"kind": "iid", "sites": 2},
        "train": {"rounds": 2, "batch_size": 32},
        "engine": {"device": "cpu"},
    }
    return resolve(table | sections)


def test_replaced_data_stop_a_resume(half: Half, tmp_path: Path) -> None:
    path = images(tmp_path / "data", 0)
    folder = half(on_images(path), tmp_path / "run")
    before = {
        name: (folder / name).read_bytes() for name in ("blueprint.json", "ledger.json", "metrics.jsonl")
    }
    images(tmp_path / "data", 1)
    with pytest.raises(StorageError, match="the data are not those the run was begun with: bring those back"):
        resume(folder)
    assert before == {name: (folder / name).read_bytes() for name in before}
    images(tmp_path / "data", 0)
    assert resume(folder).state_hash == run(on_images(path), tmp_path / "straight").state_hash
    images(tmp_path / "data", 1)
    with pytest.raises(StorageError, match="the data are not those the run was begun with"):
        resume(folder)  # nor is a finished run shown with other data


def test_data_replaced_before_a_worker_reads_them_stop_the_run(tmp_path: Path) -> None:
    path = images(tmp_path / "data", 0)

    def replaced(engine: Engine) -> Engine:
        images(tmp_path / "data", 1)
        for worker in engine.workers:  # type: ignore[attr-defined]
            worker.stop()
            worker.start()
        return engine

    config = on_images(path, engine={"kind": "pool", "workers": 1, "device": "cpu"})
    with pytest.raises(StorageError, match="the data changed while the run was starting"):
        run(config, tmp_path / "run", wrap=replaced)


def test_a_damaged_cache_is_made_anew_and_journalled(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    config = tiny("fedavg", train={"rounds": 1})
    straight = run(config, tmp_path / "straight")
    (raw,) = cache_folder().glob("*.raw")
    flip(raw, 1000)
    os.utime(raw, ns=(0, 0))  # as another process sees it, which has not read it yet
    assert run(config, tmp_path / "again").state_hash == straight.state_hash
    lines = [json.loads(line) for line in (tmp_path / "again" / "journal.jsonl").read_text().splitlines()]
    said = [step for line in lines if line["event"] == "read data" for step in line["steps"]]
    assert said == [f"drawing images anew: {raw} is damaged"]


# Metrics ----------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


LOSSES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "the first lost": lambda lines: lines[1:],
    "one lost": lambda lines: [lines[0], *lines[2:]],
    "the last lost": lambda lines: lines[:-1],
    "all lost": lambda lines: [],
    "changed": lambda lines: [
        lines[0].replace(b'"balanced_accuracy": 0.', b'"balanced_accuracy": 1.'),
        *lines[1:],
    ],
    "swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "without an end": lambda lines: [*lines[:-1], lines[-1][:-1]],
}


@pytest.fixture(scope="module")
def three_of_four(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with three of four rounds."""
    folder = tmp_path_factory.mktemp("three")
    config = tiny("fedavg", train={"rounds": 4, "batch_size": 64}, evaluate={"select": "best_validation"})
    with pytest.raises(Stop):
        run(config, folder, watch=stop_after(3))
    return folder


@pytest.mark.parametrize("how", LOSSES)
def test_lost_rows_of_metrics_stop_a_resume(how: str, three_of_four: Path, tmp_path: Path) -> None:
    shutil.copytree(three_of_four, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "metrics.jsonl"
    lines = lines_of(path)[:3]  # the fourth is of a round that was not committed, and comes again
    assert LOSSES[how](lines) != lines
    path.write_bytes(b"".join(LOSSES[how](lines)))
    with pytest.raises(StorageError, match=r"metrics\.jsonl"):
        resume(tmp_path)


@pytest.fixture(scope="module")
def done(tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A finished run with its report."""
    folder = tmp_path_factory.mktemp("done")
    result = run(tiny("fca", train={"rounds": 3}, evaluate={"select": "best_validation"}), folder)
    write_report(folder)
    return result


@pytest.fixture
def copy(done: Result, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done.folder, tmp_path / "copy"))


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("use", [resume, write_report, load])
def test_lost_rows_of_metrics_are_not_reported(use: Callable[[Path], Any], how: str, copy: Path) -> None:
    path = copy / "metrics.jsonl"
    path.write_bytes(b"".join(LOSSES[how](lines_of(path))))
    with pytest.raises(StorageError, match=r"metrics\.jsonl"):
        use(copy)


# Small files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "old", "new", "use"),
    [
        ("result.json", '"selected_rounds"', '"selected_round2"', load),
        ("result.json", '"balanced_accuracy": 0.', '"balanced_accuracy": 1.', write_report),
        ("blueprint.json", '"image_size": 16', '"image_size": 17', load),
        ("data.json", '"images": ', '"images": 1', write_report),
        ("features.json", '"images": ', '"images": 1', write_report),
        ("ledger.json", '"bytes": ', '"bytes": 1', write_report),
        ("checkpoints/HEAD.json", '"round": 3', '"round": 2', resume),
        ("timing.jsonl", '"train": ', '"train": 1', write_report),
        ("sites/site-00/notes.jsonl", '"round": ', '"round": 1', write_report),
    ],
)
def test_a_changed_file_is_named(
    name: str, old: str, new: str, use: Callable[[Path], Any], copy: Path
) -> None:
    path = copy / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(StorageError) as refusal:
        use(copy)
    assert path.name in str(refusal.value) and "\n" not in str(refusal.value)


def test_an_exported_model_with_a_changed_bit_is_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    export(load(copy), path, "safetensors")
    load(path)
    flip(path)
    with pytest.raises(StorageError, match="is not a model that `equipoise export"):
        load(path)


# The journal ------------------------------------------------------------------------------------------------


def rewritten(lines: list[bytes]) -> list[bytes]:
    """The journal of a run that says something else, every hash in order."""
    found, last = list[bytes](), "0" * 64
    for raw in lines:
        line = json.loads(raw) | {"prev": last, "time": "1970-01-01T00:00:00+00:00"}
        line["hash"] = last = line_hash(line)
        found.append(json.dumps(line, sort_keys=True).encode() + b"\n")
    return found


@pytest.mark.parametrize(
    "change", [rewritten, lambda lines: lines[:-1], lambda lines: lines[:2], lambda lines: []]
)
def test_a_journal_that_was_cut_or_written_anew_is_noticed(
    change: Callable[[list[bytes]], list[bytes]], copy: Path
) -> None:
    path = copy / "journal.jsonl"
    path.write_bytes(b"".join(change(lines_of(path))))
    with pytest.raises(StorageError, match=r"journal\.jsonl has lost lines or was written anew"):
        write_report(copy)


@pytest.mark.parametrize("change", [rewritten, lambda lines: lines[:1], lambda lines: []])
def test_a_run_does_not_go_on_with_another_journal(
    change: Callable[[list[bytes]], list[bytes]], tiny: MakeConfig, half: Half, tmp_path: Path
) -> None:
    folder = half(tiny("fedavg"), tmp_path)
    path = folder / "journal.jsonl"
    path.write_bytes(b"".join(change(lines_of(path))))
    with pytest.raises(
        StorageError, match=r"journal\.jsonl has lost lines or was written anew since round 1"
    ):
        resume(folder)


def test_what_a_checkpoint_speaks_of_is_on_disk_before_it(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut would leave a folder that is refused."""
    sync, synced = os.fsync, list[str]()

    def noted(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}").removeprefix(f"{tmp_path}/"))
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    run(tiny("fedavg", train={"rounds": 1}), tmp_path)
    place = synced.index("checkpoints/round-000001.safetensors.part")
    assert synced[place - 1] == "journal.jsonl" and "metrics.jsonl" in synced[:place], synced

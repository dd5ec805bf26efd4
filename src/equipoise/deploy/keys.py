"""Keys of a federation: who the coordinator is, and which sites may speak.

    keys/ca.key, ca.crt           the federation's own authority; ca.crt goes to every site
    keys/server.key, server.crt   the coordinator, for the hosts it is reached at
    keys/sites/NAME.pub           the allow-list: a site whose key is not here is turned away
    keys/roster.json              the sites and their keys, signed: how they know each other (see `roster`)
    hand-out/NAME/                what a site is given: its key pair, ca.crt and the roster, to be deleted
    once it is there

A site that would rather make its own key (`equipoise site init` does) sends only the `.pub` file, to be put
into keys/sites.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from equipoise.errors import ConfigError, StorageError
from equipoise.keeping import write_atomic
from equipoise.opening import read_regular
from equipoise.run_folder import private_folder

SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
PEM, SSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
LOOPBACK = ("localhost", "127.0.0.1")
NEW_AUTHORITY = "ask the coordinator for the ca.crt that `equipoise keys renew` makes there"


def new_keys(folder: Path, hosts: Sequence[str], sites: Sequence[str]) -> list[Path]:
    """Make what is not there yet, and say what was made. Nothing that exists is replaced."""
    for site in sites:
        if not SITE.fullmatch(site):
            raise ConfigError(
                f"'{site}' cannot be a site's name: letters, digits, '-', '_' and '.', at most 64"
            )
    keys, made = folder / "keys", list[Path]()
    private_folder(keys / "sites")
    if not (keys / "ca.key").exists():
        made += _authority(keys)
    if not (keys / "server.key").exists():
        made += _server(keys, [*hosts, *(host for host in LOOPBACK if host not in hosts)])
    for site in sites:
        public, hand = keys / "sites" / f"{site}.pub", folder / "hand-out" / site
        if public.exists():
            continue
        private_folder(hand)
        made += new_pair(hand / "site")
        public.write_bytes((hand / "site.pub").read_bytes())
        (hand / "ca.crt").write_bytes((keys / "ca.crt").read_bytes())
        made += [public, hand / "ca.crt"]
    return made


def new_pair(path: Path) -> list[Path]:
    """A site's key pair, in the format Flower's nodes read: `path` and `path`.pub."""
    key = ec.generate_private_key(ec.SECP384R1())
    _private(path, key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()))
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(SSH, serialization.PublicFormat.OpenSSH) + b"\n")
    return [path, public]


def own_key(path: Path) -> None:
    """Refuse a private key that is not there, or that others can read."""
    try:
        mode = path.stat().st_mode
    except OSError:
        mode = 0
    if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{path} must be there and readable by its owner only: chmod 600 {path}")


def read_public(path: Path) -> bytes:
    """A public key file as Flower knows the key."""
    try:
        key = serialization.load_ssh_public_key(read_regular(path))
        return key.public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} is not a site's public key: make one with `equipoise keys new` or `site init`"
        ) from error


def listed(folder: Path) -> dict[str, Path]:
    """The allow-list: public key files by site."""
    files = {path.stem: path for path in sorted((folder / "keys" / "sites").glob("*.pub"))}
    if not files:
        raise ConfigError(f"{folder} lists no site: make keys with `equipoise keys new {folder} --site NAME`")
    for site, path in files.items():
        if not SITE.fullmatch(site):
            raise ConfigError(
                f"{path} is not named by a site: letters, digits, '-', '_' and '.', at most 64, before .pub"
            )
    return files


def check_dates(path: Path, fix: str) -> None:
    """Refuse a certificate that has expired, or is not valid yet; `fix` says what to do about it."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a certificate: {fix}") from error
    reason = outdated(certificate)
    if reason:
        raise ConfigError(f"{path} {reason}: {fix}")


def outdated(certificate: x509.Certificate) -> str:
    """What is wrong with the dates of a certificate, if anything."""
    now, first, last = _now(), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > last:
        return f"expired on {last:%Y-%m-%d}"
    if now < first:
        return f"is not valid before {first:%Y-%m-%d %H:%M} UTC (is this machine's clock right?)"
    return ""


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def renew(folder: Path, hosts: Sequence[str] = ()) -> list[Path]:
    """Sign the server's certificate anew, for the same hosts if none are given; what was made.

    The authority's is signed anew, too, if it would expire before. The keys stay the same, so a site that has
    the old ca.crt can go on with it until that expires.
    """
    keys, made = folder / "keys", list[Path]()
    authority, old = _pair(keys / "ca")
    key, server = _pair(keys / "server")
    if old.not_valid_after_utc < _now() + datetime.timedelta(days=SERVER_DAYS):
        write_atomic(keys / "ca.crt", _own_certificate(authority, old.subject).public_bytes(PEM))
        made.append(keys / "ca.crt")
    given = [*hosts, *(host for host in LOOPBACK if host not in hosts)] if hosts else _hosts(server)
    signed = _server_certificate(authority, old.subject, key, given)
    write_atomic(keys / "server.crt", signed.public_bytes(PEM))
    return [*made, keys / "server.crt"]


def signing_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The authority's key."""
    return _pair(folder / "keys" / "ca")[0]


def _pair(path: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A private key and its certificate."""
    try:
        key = serialization.load_pem_private_key(read_regular(path.with_suffix(".key")), None)
        certificate = x509.load_pem_x509_certificate(read_regular(path.with_suffix(".crt")))
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StorageError(
            f"{path}.key or .crt is missing or damaged: restore it, or make keys anew"
        ) from error
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, certificate


def _hosts(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _authority(keys: Path) -> list[Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Equipoise federation")])
    return _save(keys / "ca", key, _own_certificate(key, name))


def _own_certificate(key: ec.EllipticCurvePrivateKey, name: x509.Name) -> x509.Certificate:
    """The authority's certificate of itself."""
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _dated(x509.CertificateBuilder(), AUTHORITY_DAYS)
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _server(keys: Path, hosts: Sequence[str]) -> list[Path]:
    authority, issuer = _pair(keys / "ca")
    key = ec.generate_private_key(ec.SECP256R1())
    return _save(keys / "server", key, _server_certificate(authority, issuer.subject, key, hosts))


def _server_certificate(
    authority: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> x509.Certificate:
    """The server's certificate, signed by the authority."""
    return (
        _dated(x509.CertificateBuilder(), SERVER_DAYS)
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA256())
    )


def _dated(builder: x509.CertificateBuilder, days: int) -> x509.CertificateBuilder:
    start = _now() - datetime.timedelta(hours=1)  # clocks of sites may run behind
    serial = x509.random_serial_number()
    return (
        builder.serial_number(serial)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=days))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _save(path: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> list[Path]:
    private, public = path.with_suffix(".key"), path.with_suffix(".crt")
    _private(private, key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public.write_bytes(certificate.public_bytes(PEM))
    return [private, public]


def _private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)

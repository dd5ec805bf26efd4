"""Keys of the protocol: who a site is, what two sites alone know, and boxes that only one site can open."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from equipoise.errors import SiteError
from equipoise.seeds import derive as derive_seed

Source = Callable[[str], bytes]
"""32 random bytes for one purpose"""
SALT = b"equipoise secure aggregation 1"


class Forged(SiteError):
    """Something that is not from the site it claims to be from, or was changed on its way."""


def system(purpose: str) -> bytes:
    """Random bytes of the operating system: the source of every real site."""
    return os.urandom(32)


def seeded(seed: int, site: str) -> Source:
    """The source of a simulated site: the same bytes in every process and after every crash."""

    def source(purpose: str) -> bytes:
        return hashlib.sha256(f"{derive_seed(seed, site, 'masks', purpose)}|{purpose}".encode()).digest()

    return source


def public_of(secret: bytes) -> bytes:
    """The public key that belongs to 32 secret bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public: bytes) -> bytes:
    """What the two ends of a key agreement know and nobody else."""
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Forged("a public key is not one") from error


def derived(secret: bytes, length: int, *about: str) -> bytes:
    """A key for one use, which `about` names."""
    info = json.dumps(about).encode()
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=SALT, info=info).derive(secret)


def lock(key: bytes, data: bytes) -> bytes:
    """Data that only who has the key can read or change; a key serves one message."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), data, None)


def unlock(key: bytes, data: bytes) -> bytes:
    """The inverse of `lock`."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), data, None)
    except InvalidTag as error:
        raise Forged("a box does not open: it is not for this site, or was changed on its way") from error


@dataclass(frozen=True)
class Identity:
    """A site's own key, which signs what it advertises."""

    key: ec.EllipticCurvePrivateKey

    def sign(self, data: bytes) -> bytes:
        wide = (self.key.curve.key_size + 7) // 8
        r, s = decode_dss_signature(self.key.sign(data, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(wide, "big") + s.to_bytes(wide, "big")

    @property
    def public(self) -> bytes:
        """The public key, as a roster holds it."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.key.public_key().public_bytes(serialization.Encoding.PEM, form)


def seeded_identity(seed: int, site: str) -> Identity:
    """A simulated site's."""
    return Identity(
        ec.derive_private_key(1 + int.from_bytes(seeded(seed, site)("identity")[1:], "big"), ec.SECP256R1())
    )


class Roster:
    """The sites one may meet, by name, each with its public key (PEM). It is known before a run begins."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)

    def verify(self, site: str, data: bytes, signature: bytes) -> None:
        """Refuse what that site has not signed."""
        if site not in self._keys:
            raise Forged(f"'{site}' is not in this site's roster")
        verify(self._keys[site], data, signature, f"what '{site}' is said to advertise is not signed by it")


def verify(public: bytes, data: bytes, signature: bytes, otherwise: str) -> None:
    """Refuse, with that sentence, data that the owner of a public key (PEM) has not signed."""
    half = len(signature) // 2
    first, second = int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big")
    try:
        key = serialization.load_pem_public_key(public)
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(encode_dss_signature(first, second), data, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, AssertionError, UnsupportedAlgorithm) as error:
        raise Forged(otherwise) from error

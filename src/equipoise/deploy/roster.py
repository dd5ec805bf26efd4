"""The roster: which sites a federation has and by which keys they know each other, signed by its authority.

`equipoise keys new` writes keys/roster.json and puts it beside every hand-out; a site keeps it in its keys/.
Masks are agreed on with sites of this file only, never with whom the coordinator names during a run. The
coordinator holds the authority's key, so it could sign a false one: sites that read each other the
fingerprint, which `equipoise site check` shows, find that out.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from equipoise.deploy.keys import listed, read_public, signing_key
from equipoise.errors import ConfigError, EquipoiseError
from equipoise.exchange.codec import CodecError, read_json
from equipoise.exchange.reduction import MOST_SITES
from equipoise.exchange.secure.keys import Forged, Identity, verify
from equipoise.keeping import write_atomic
from equipoise.opening import read_regular

ROSTER = "roster.json"
MOST = 1000 * MOST_SITES
"""bytes of the longest roster"""
ASK = "ask the coordinator for the roster.json that `equipoise keys new` makes there"


def write_roster(folder: Path) -> list[Path]:
    """Sign the list of a federation's sites, where it is not what was signed; what was written."""
    path, made = folder / "keys" / ROSTER, list[Path]()
    if not any((folder / "keys" / "sites").glob("*.pub")):
        return []
    sites = {site: read_public(public).decode() for site, public in listed(folder).items()}
    if not path.exists() or json.loads(path.read_text()).get("sites") != sites:
        signature = Identity(signing_key(folder)).sign(_signed(sites))
        write_atomic(path, json.dumps({"sites": sites, "signature": signature.hex()}, indent=1).encode())
        made.append(path)
    data = path.read_bytes()
    hands = [one / ROSTER for one in sorted((folder / "hand-out").glob("*")) if one.is_dir()]
    old = [one for one in hands if not one.exists() or one.read_bytes() != data]
    for one in old:
        write_atomic(one, data)
    return made + old


def read_roster(path: Path, certificate: Path) -> dict[str, bytes]:
    """The sites of a roster and their public keys; refused unless the federation's authority has signed
    it."""
    try:
        table = read_json(read_regular(path), MOST)
        sites, signature = table["sites"], bytes.fromhex(table["signature"])
        named = all(isinstance(one, str) for pair in sites.items() for one in pair)
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}, which a masked run needs: {ASK}") from None
    except (OSError, CodecError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a roster: {ASK}") from error
    if not named:
        raise ConfigError(f"{path} is not a roster: {ASK}")
    try:
        authority = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public = authority.public_bytes(serialization.Encoding.PEM, form)
        verify(public, _signed(sites), signature, "not signed")
    except (OSError, ValueError, Forged) as error:
        raise ConfigError(f"{path} is not signed by the authority of {certificate}: {ASK}") from error
    return {site: key.encode() for site, key in sites.items()}


def fingerprint(sites: dict[str, bytes]) -> str:
    """What sites can read each other to see that they have the same roster: eight groups of four signs."""
    text = hashlib.sha256(_signed({site: key.decode() for site, key in sites.items()})).hexdigest()[:32]
    return " ".join(text[start : start + 4] for start in range(0, 32, 4))


def own_identity(key: Path) -> Identity:
    """A site's own key, as it signs with it."""
    try:
        private = serialization.load_ssh_private_key(read_regular(key), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{key} is not a site's private key: make one with `equipoise site init`"
        ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{key} is not a key that `equipoise keys new` or `site init` makes: make one")
    return Identity(private)


def same_key(sites: dict[str, bytes], name: str, identity: Identity) -> None:
    """Refuse a roster that knows this site by another key, or not at all."""
    if sites.get(name) != identity.public:
        raise EquipoiseError(f"the roster does not know '{name}' by the key it has: {ASK}")


def _signed(sites: dict[str, str]) -> bytes:
    return json.dumps(["equipoise roster 1", sorted(sites.items())]).encode()

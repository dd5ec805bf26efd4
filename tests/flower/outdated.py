"""Certificates whose dates are wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAYS = {"expired": (-800, -2), "not yet valid": (2, 800), "soon": (-800, 2)}
"""the days between which they are valid, from today"""
DATED = ("expired", "not yet valid")


def redate(keys: Path, name: str, when: str) -> str:
    """Sign a certificate of a folder of keys with other dates; what must be said of it, if anything."""
    authority = serialization.load_pem_private_key((keys / "ca.key").read_bytes(), None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    old = x509.load_pem_x509_certificate((keys / f"{name}.crt").read_bytes())
    first, last = (datetime.now(UTC) + timedelta(days=days) for days in DAYS[when])
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), old.serial_number, first, last, list(old.extensions)
    )
    signed = builder.sign(authority, hashes.SHA256())
    (keys / f"{name}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return f"expired on {last:%Y-%m-%d}" if when == "expired" else f"is not valid before {first:%Y-%m-%d}"

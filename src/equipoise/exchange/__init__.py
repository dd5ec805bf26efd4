"""What may leave a site, and how it is combined."""

from equipoise.exchange.codec import decode_upload, encode_upload, pack, seal, unpack, unseal
from equipoise.exchange.guard import ExchangeOptions, check
from equipoise.exchange.ledger import Ledger, Line
from equipoise.exchange.reduction import Answers, Reduction

__all__ = [
    "Answers",
    "ExchangeOptions",
    "Ledger",
    "Line",
    "Reduction",
    "check",
    "decode_upload",
    "encode_upload",
    "pack",
    "seal",
    "unpack",
    "unseal",
]

"""What may leave a site, and how it is combined."""

from equipoise.exchange.codec import decode_upload, encode_upload, pack, seal, unpack, unseal
from equipoise.exchange.guard import Bounds, ExchangeOptions, check, rejected
from equipoise.exchange.ledger import Ledger, Line
from equipoise.exchange.reduction import Answers, Reduction
from equipoise.exchange.sizes import Sizes, smaller

__all__ = [
    "Answers",
    "Bounds",
    "ExchangeOptions",
    "Ledger",
    "Line",
    "Reduction",
    "Sizes",
    "check",
    "decode_upload",
    "encode_upload",
    "pack",
    "rejected",
    "seal",
    "smaller",
    "unpack",
    "unseal",
]

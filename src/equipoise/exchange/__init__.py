"""What is asked of a site, what may leave it, and how it is combined."""

from equipoise.exchange.ask import Ask
from equipoise.exchange.clip import clipped, received_by, smaller
from equipoise.exchange.codec import decode_upload, encode_upload, pack, seal, unpack, unseal
from equipoise.exchange.guard import Bounds, ExchangeOptions, check, rejected
from equipoise.exchange.ledger import Ledger, Line
from equipoise.exchange.question import Call, Engine, Question
from equipoise.exchange.reduction import Answers, Reduction
from equipoise.exchange.sizes import Sizes

__all__ = [
    "Answers",
    "Ask",
    "Bounds",
    "Call",
    "Engine",
    "ExchangeOptions",
    "Ledger",
    "Line",
    "Question",
    "Reduction",
    "Sizes",
    "check",
    "clipped",
    "decode_upload",
    "encode_upload",
    "pack",
    "received_by",
    "rejected",
    "seal",
    "smaller",
    "unpack",
    "unseal",
]

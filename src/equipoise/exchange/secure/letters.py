"""What the coordinator and a site send each other beside masked answers: short JSON, checked where it
arrives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from equipoise.exchange.codec import CodecError, read_json
from equipoise.exchange.guard import MOST_MASKED
from equipoise.exchange.secure.keys import Forged
from equipoise.options import Options

MOST = 2**24
"""bytes of the longest letter: a box for each of 1,024 sites is a tenth of it"""
Name = Annotated[str, Field(min_length=1, max_length=200)]
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{2,512}$")]
ADVERTISE, SHARE, UNMASK = "advertise", "share", "unmask"
"""the steps beside the question itself"""


class Advert(Options):
    """The public half of a site's secrets for one question, signed by the site."""

    site: Name
    mask: Key
    """the key behind its pairwise masks"""
    box: Key
    """the key its boxes are locked for"""
    seed: Key
    """the hash of the seed of its own mask"""
    signature: Hex

    def signed(self, run: str) -> bytes:
        """The bytes that are signed."""
        return json.dumps(["equipoise advert 1", run, self.site, self.mask, self.box, self.seed]).encode()


class Group(Options):
    """To a site: share your secrets with these."""

    adverts: tuple[Advert, ...] = Field(max_length=MOST_MASKED)
    round: int | None = None
    question: str | None = None
    """the question this is for, where that is known: a site that has helped with it before says for whom"""


class Shared(Options):
    """From a site: a box for every other, and what it advertises for the time after."""

    deal: Key
    boxes: dict[Name, Hex] = Field(max_length=MOST_MASKED)
    next: Advert
    bound: tuple[Name, ...] | None = None
    """the sites whose sum it has helped to unmask for this round and question"""


class Order(Options):
    """To a site, with a question: mask the answer."""

    deal: Key
    sites: tuple[Name, ...] = Field(max_length=MOST_MASKED)
    boxes: dict[Name, Hex] = Field(max_length=MOST_MASKED)
    fine: tuple[str, ...] = Field(max_length=256)
    words: int = Field(ge=0, strict=True)


class Arrived(Options):
    """To a site: these answers have arrived; and share your secrets for the next question with those."""

    deal: Key
    sites: tuple[Name, ...] = Field(max_length=MOST_MASKED)
    next: Group | None = None


class Revealed(Options):
    """From a site: its shares of what unmasks the sum."""

    own: dict[Name, Hex] = Field(max_length=MOST_MASKED)
    """of the own masks of sites that answered"""
    keys: dict[Name, Hex] = Field(max_length=MOST_MASKED)
    """of the keys of sites that did not"""
    shared: Shared | None = None


Letter = TypeVar("Letter", bound=Options)


def write(letter: Options) -> bytes:
    """The bytes of a letter."""
    return letter.model_dump_json().encode()


def read(kind: type[Letter], data: bytes) -> Letter:
    """A letter of this kind; `Forged` where it is none."""
    try:
        return kind.model_validate(read_json(bytes(data), MOST))
    except (CodecError, ValidationError) as error:
        raise Forged(f"a {kind.__name__.lower()} letter is not in order") from error


def threshold(sites: int) -> int:
    """How many of so many sites must stay: more than two thirds."""
    return 2 * sites // 3 + 1


def deal_of(run: str, adverts: Sequence[Advert]) -> str:
    """The name of what a group has shared: a hash of all that its sites advertise."""
    keys = sorted((one.site, one.mask, one.box, one.seed) for one in adverts)
    return digest("deal", run, keys)


def about(
    run: str,
    round: int,
    question: str,
    broadcast: str,
    order: Mapping[str, Any],
) -> str:
    """What masks depend on: who sends other words to one site gets other masks from it, which do not
    cancel out. `broadcast` is the hash of the tensors that were sent, `order` an `Order`."""
    sites, fine = sorted(order["sites"]), sorted(order["fine"])
    return digest("question", run, order["deal"], round, question, sites, broadcast, fine, order["words"])


def digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

"""The simulated sites' ends of secure aggregation: the real protocol, with keys derived from the run's seed.

They live in the run's own process; a worker of a pool is handed the masks of one answer and nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence

from equipoise.errors import ConfigError
from equipoise.exchange.guard import ExchangeOptions
from equipoise.exchange.question import Call

RUN = "simulation"


def need_cryptography() -> None:
    """Refuse, with the fix, where the package is not installed."""
    if importlib.util.find_spec("cryptography") is None:
        raise ConfigError(
            "exchange.secure needs the package cryptography, which is not installed: pip install cryptography"
        )


class Members:
    """The ends of all simulated sites."""

    def __init__(self, sites: Sequence[str], seed: int, options: ExchangeOptions) -> None:
        need_cryptography()
        from equipoise.exchange.secure.keys import Roster, seeded, seeded_identity
        from equipoise.exchange.secure.member import Member, Memory

        identities = {site: seeded_identity(seed, site) for site in sites}
        roster = Roster({site: identity.public for site, identity in identities.items()})
        self.options = options
        self._members = {
            site: Member(site, RUN, identities[site], roster, seeded(seed, site), Memory(), options.least)
            for site in sites
        }
        self._hashed: tuple[bytes, str] | None = None

    def relay(self, step: str, letters: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        """Every site's answer to its letter."""
        for site, letter in letters.items():
            yield site, self._members[site].step(step, letter)

    def masks(self, call: Call, payload: bytes, letter: bytes) -> bytes:
        """What a site adds to its answer, as bytes for `conceal`."""
        from equipoise.exchange.secure.letters import Order, read

        order = read(Order, letter)
        member = self._members[call.site]
        return member.masks(order, call.round, call.question, self._digest(payload)).to_bytes()

    def _digest(self, payload: bytes) -> str:
        """The hash of a broadcast, made once for all sites that get the same bytes."""
        if self._hashed is None or self._hashed[0] is not payload:
            self._hashed = (payload, hashlib.sha256(payload).hexdigest())
        return self._hashed[1]


def concealed(answer: bytes, masks: bytes, options: ExchangeOptions) -> bytes:
    """A simulated site's answer, masked."""
    from equipoise.exchange.secure.masks import Masks, conceal

    return conceal(answer, Masks.from_bytes(masks), options)

"""Something of every site, made when it is asked for: what is kept does not grow with sites nobody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class ByName(Mapping[str, T], Generic[T]):
    """A mapping by site whose values are made by position; the newest `keep` of them are kept."""

    def __init__(
        self, names: Sequence[str] | Mapping[str, int], make: Callable[[int], T], keep: int = 0
    ) -> None:
        """`names` are in order, or have their places with them: such a table can be shared."""
        self.places = (
            names if isinstance(names, Mapping) else {name: place for place, name in enumerate(names)}
        )
        self._make, self._keep = make, keep
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name in self._made:
            return self._made[name]
        made = self._make(self.places[name])
        if self._keep:
            if len(self._made) >= self._keep:
                del self._made[next(iter(self._made))]
            self._made[name] = made
        return made

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

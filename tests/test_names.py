"""Did you mean: near names are found, far ones are not."""

from __future__ import annotations

import pytest

from equipoise.names import nearest, unknown

VALID = ("fedavg", "fedprox", "local", "fca")


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("fedavgg", "fedavg"),
        ("FedAvg", "fedavg"),
        ("fedporx", "fedprox"),
        ("loc", "local"),
        ("zzz", None),
        ("", None),
    ],
)
def test_nearest(word: str, found: str | None) -> None:
    assert nearest(word, VALID) == found


def test_capitals_do_not_matter() -> None:
    assert nearest("SSC", ("MEL", "SCC", "NV")) == "SCC"
    assert nearest("scc", ("MEL", "SCC", "NV")) == "SCC"


def test_the_sentence_names_the_word_the_guess_and_all_there_are() -> None:
    assert (
        unknown("method", "fcaa", VALID)
        == "unknown method 'fcaa': did you mean 'fca'? valid: fca, fedavg, fedprox, local"
    )
    assert unknown("method", "zzz", VALID) == "unknown method 'zzz': valid: fca, fedavg, fedprox, local"

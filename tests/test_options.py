"""What is said of an option stands under it, in the class or in a base of it."""

from __future__ import annotations

from pydantic import Field, create_model

from equipoise.methods import METHODS
from equipoise.options import Options, described


class First(Options):
    """A text of the class is none of an option."""

    one: int = 1
    """the first,
    over two lines"""
    two: int = Field(2, description="given in words of pydantic")
    three: int = 3
    four: int = 4
    """said once"""


class Second(First):
    four: int = 5
    five: str = ""
    """of its own"""
    one: int = 2


def test_the_text_under_an_option() -> None:
    above = {"one": "the first,\nover two lines", "two": "given in words of pydantic", "three": ""}
    assert described(First) == above | {"four": "said once"}
    assert described(Second) == above | {"four": "", "five": "of its own", "one": ""}


def test_a_class_without_source_says_nothing() -> None:
    made = create_model("Made", __base__=First, six=(int, 6))
    assert described(made) == described(First) | {"six": ""}
    made.__module__ = "nowhere"
    assert described(made) == described(First) | {"six": ""}


def test_every_option_of_every_method_says_what_it_is() -> None:
    for method in METHODS.values():
        assert all(described(method).values())

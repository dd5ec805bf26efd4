from __future__ import annotations

import pytest
from pydantic import ValidationError

from equipoise.data import KINDS, SETS, CsvData, FolderData, PhantomData, Split
from equipoise.options import described


def test_every_kind_knows_its_name() -> None:
    assert {name: options.model_fields["kind"].default for name, options in KINDS.items()} == {
        n: n for n in KINDS
    }
    assert set(KINDS) == {"csv", "folder", "npz", "stored", "phantom", "joined", "sites", *SETS}


def test_every_option_is_described() -> None:
    for options in KINDS.values():
        texts = described(options)
        assert [name for name, text in texts.items() if not text and name != "kind"] == []


def test_a_bare_split_is_a_column() -> None:
    assert Split.model_validate("fold") == Split(column="fold")
    assert CsvData(path="x", label="y", split="fold").split.column == "fold"  # type: ignore[arg-type]
    assert CsvData(path="x", label="y", split={"test": 0.3}).split == Split(test=0.3)  # type: ignore[arg-type]


def test_a_split_column_needs_a_table() -> None:
    with pytest.raises(ValidationError, match=r"split\.column is only for kind = 'csv'"):
        FolderData(path="x", split=Split(column="fold"))


def test_a_split_leaves_something_to_train_on() -> None:
    with pytest.raises(ValidationError, match="nothing to train on"):
        Split(test=0.5, validation=0.5)


def test_phantom_images_are_small_by_default() -> None:
    assert PhantomData().image_size == 32
    assert CsvData(path="x", label="y").image_size == 64

"""Which keys a table of a configuration may have."""

import pytest
from pydantic import BaseModel

from nodeplug.config.schema import allowed_keys


class Leaf(BaseModel):
    colour: str = ""


class Tree(BaseModel):
    leaves: tuple[Leaf, ...] = ()
    one: Leaf | None = None
    named: dict[str, Leaf] = {}
    text: str = ""


@pytest.mark.parametrize(
    ("location", "keys"),
    [
        (("typo",), ("leaves", "one", "named", "text")),
        (("leaves", 3, "typo"), ("colour",)),
        (("one", "typo"), ("colour",)),
        (("named", "any", "typo"), ("colour",)),
        (("text", "typo"), ()),
    ],
)
def test_keys_of_a_table_are_found_at_any_depth(location: tuple[str | int, ...], keys: tuple[str, ...]) -> None:
    assert allowed_keys(Tree, location) == keys


def test_model_without_other_models_has_keys_too() -> None:
    assert allowed_keys(Leaf, ("typo",)) == ("colour",)

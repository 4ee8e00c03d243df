"""Configurations as they are printed."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nodeplug.commands import toml

SCALARS = (
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_toml_reads_back_as_what_was_written(document: dict[str, Any]) -> None:
    assert tomllib.loads(toml(document)) == document


def test_toml_leaves_none_out() -> None:
    assert toml({"a": None, "b": {"c": None, "d": 1}}) == "[b]\nd = 1\n"


def test_a_long_list_has_a_line_per_entry() -> None:
    assert max(map(len, toml({"names": ["x" * 20] * 100}).splitlines())) < 40

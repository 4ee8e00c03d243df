"""The rules of port mappings that are made anew."""

import pytest

from nodeplug_net.portmap import messages


@pytest.mark.parametrize("name", ["any4", "near4_24_x", "near9_24", "nearx_24", "near4_"])
def test_a_set_that_is_not_of_neighbours_has_no_rule(name: str) -> None:
    assert messages.prefix_of(name) is None
    assert len(messages.rebuild([name])) == len(messages.rebuild([]))


@pytest.mark.parametrize(("version", "prefix"), [(4, 24), (6, 64)])
def test_a_set_of_neighbours_is_made_and_has_a_rule(version: int, prefix: int) -> None:
    name = f"{messages._NEAR}{version}_{prefix}"
    assert messages.prefix_of(name) == (version, prefix)
    assert len(messages.rebuild([name])) == len(messages.rebuild([])) + 2

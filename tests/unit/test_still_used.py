"""What keeps `nodeplug uninstall --unused` from removing anything."""

from typing import Any

import pytest

from nodeplug.cli.installing import still_used

NOTHING: dict[str, Any] = {"attachments": [], "volumes": [], "resources": [], "spool": 0, "unknown": {}}


def test_a_node_without_pods_is_not_used() -> None:
    staged = {"volumes": [{"targets": []}], "resources": [{"resource": "example.com/a", "allocated": 0}]}
    assert still_used(NOTHING | staged) == []


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"attachments": [{"container_id": one} for one in ("a", "b", "a")]}, "networks of 2 pods"),
        ({"volumes": [{"targets": ["/a", "/b"]}]}, "2 mounted volumes"),
        ({"resources": [{"resource": "example.com/a", "allocated": 3}]}, "3 of example.com/a"),
        ({"dra": [{"claims": [{}, {}]}]}, "2 prepared claims"),
        ({"spool": 1}, "1 DELs that wait"),
        ({"unknown": {"volumes": "the disk hangs"}}, "not known: the disk hangs"),
    ],
)
def test_each_thing_that_a_pod_has_is_told(found: dict[str, Any], told: str) -> None:
    assert still_used(NOTHING | found) == [told]

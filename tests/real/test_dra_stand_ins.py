"""The API server that is acted out for claims, compared with a real one: both refuse the same, and store the same."""

import json
from typing import Any

import pytest
from tests.node.dra.objects import REFUSED, card, slice_of
from tests.real.consumers import ControlPlane

from nodeplug import PluginError
from nodeplug.kubeapi.resources import RESOURCE_SLICES
from nodeplug.testing.dra import Refused, ResourceApi

PATH = RESOURCE_SLICES.path()
AMOUNTS = ["1024Mi", "2000", "8589934592", "1500Mi", "0", "1000Ki", "1048576", "1536Mi", "1.5Gi", "12345", "3G", "1023"]
TAINT = {"key": "nodeplug.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}
LONG = {"a" * 32: {"string": "x" * 64}, "b.example.com/c": {"version": "1.2.3-rc.1+b"}, "d": {"bool": True}}
TAKEN: dict[str, dict[str, Any]] = {
    "as many devices as there may be": slice_of(*(card(f"d{number}") for number in range(128))),
    "as many as there may be with taints": slice_of(*(card(f"d{number}", taints=[TAINT]) for number in range(64))),
    "amounts": slice_of({"name": "one", "capacity": {f"a{n}": {"value": one} for n, one in enumerate(AMOUNTS)}}),
    "attributes": slice_of(card("one", attributes=LONG)),
    "a default above the value": slice_of(
        card("one") | {"capacity": {"memory": {"value": "1Gi", "requestPolicy": {"default": "2Gi"}}}}
    ),
    "valid values": slice_of(
        card("one")
        | {
            "capacity": {
                "memory": {"value": "8Gi", "requestPolicy": {"default": "1024Mi", "validValues": ["1Gi", "2048Mi"]}}
            }
        }
    ),
    "counters": slice_of(sharedCounters=[{"name": "gpu0", "counters": {"slots": {"value": "7000"}}}]),
    "a device that consumes": slice_of(
        {"name": "one", "consumesCounters": [{"counterSet": "gpu0", "counters": {"slots": {"value": "1024Ki"}}}]}
    ),
    "no device": slice_of(),
    "a driver with capitals": slice_of(card("one"), driver="Acme.example.com"),
}


def real(control: ControlPlane, found: Any) -> Any:
    """Return what a real server would store, or None if it refuses."""
    try:
        return control.call("POST", f"{PATH}?dryRun=All", found)
    except PluginError:
        return None


def acted(found: Any) -> Any:
    with ResourceApi() as api:
        try:
            return api.create("resourceslices", found, rehearsed=True)
        except Refused:
            return None


def without_times(found: Any) -> Any:
    """Return the spec of a slice; times are those of the two servers."""
    spec = json.loads(json.dumps(found["spec"]))
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            assert taint.pop("timeAdded")
    return spec


@pytest.mark.parametrize("found", [found for found, _ in REFUSED], ids=[words for _, words in REFUSED])
def test_both_refuse(control: ControlPlane, found: Any) -> None:
    assert real(control, found) is None
    assert acted(found) is None


@pytest.mark.parametrize("found", TAKEN.values(), ids=TAKEN)
def test_both_store_the_same(control: ControlPlane, found: Any) -> None:
    there = real(control, found)
    assert there is not None
    assert without_times(acted(found)) == without_times(there)


def test_both_tell_a_conflict_from_what_changes_nothing(control: ControlPlane) -> None:
    with ResourceApi() as api:
        for create, replace, remove in (
            (
                lambda found: control.call("POST", PATH, found),
                lambda found: control.call("PUT", f"{PATH}/acme-0", found),
                lambda: control.call("DELETE", f"{PATH}/acme-0"),
            ),
            (
                lambda found: api.create("resourceslices", found),
                lambda found: api.replace("resourceslices", "acme-0", found),
                lambda: api.remove("resourceslices", "acme-0"),
            ),
        ):
            made = create(slice_of(card("one")))
            same = replace(made)
            assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
            made["spec"]["devices"].append(card("two"))
            other = replace(made)
            assert [one["metadata"]["generation"] for one in (made, other)] == [1, 2]
            with pytest.raises((PluginError, Refused), match="the object has been modified"):
                replace(made)
            with pytest.raises((PluginError, Refused), match="immutable"):
                replace(other | {"spec": other["spec"] | {"driver": "b.example.com"}})
            remove()

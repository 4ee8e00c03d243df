"""Names of drivers, pools and devices: what is legal stays, what is not becomes legal and stays distinct."""

import re

import pytest

from nodeplug.contract.values import DeviceId, ResourceName
from nodeplug.dra.names import (
    attribute_name,
    class_name,
    device_name,
    driver_name,
    pool_name,
    resource_value,
    taint_value,
)


def test_a_section_gives_the_name_of_its_driver() -> None:
    assert driver_name("gpu") == "gpu.nodeplug.io"


def test_a_driver_has_at_most_63_characters() -> None:
    assert len(driver_name("x" * 200)) == 63
    assert driver_name("x" * 200) != driver_name("x" * 201)


def test_a_pool_names_node_and_resource() -> None:
    assert pool_name("node-1", ResourceName("example.com/gpu-mem")) == "node-1/example.com/gpu-mem"


@pytest.mark.parametrize(
    ("resource", "name"),
    [("example.com/gpu", "gpu.example.com"), ("nvidia.com/mig-1g.10gb", r"mig-1g-10gb-[0-9a-f]{8}\.nvidia\.com")],
)
def test_a_resource_gives_the_name_of_its_class(resource: str, name: str) -> None:
    assert re.fullmatch(name, class_name(ResourceName(resource)))


def test_a_resource_is_an_attribute_of_at_most_64_bytes_and_stays_distinct() -> None:
    assert resource_value(ResourceName("example.com/gpu")) == "example.com/gpu"
    long = [resource_value(ResourceName(f"{'x' * 60}.example.com/{one}")) for one in ("a", "b")]
    assert (len(long[0]), len({*long})) == (64, 2)


@pytest.mark.parametrize("name", ["GPU-3f2a", "a_b", "a.b", "-a", "x" * 64, "ü", "_"])
def test_an_id_that_is_no_dns_label_becomes_one(name: str) -> None:
    made = device_name(DeviceId(name))
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", made)
    assert made != name


def test_ids_that_differ_in_case_alone_stay_distinct() -> None:
    assert device_name(DeviceId("GPU-a")) != device_name(DeviceId("gpu-a"))


def test_an_id_that_is_a_dns_label_stays() -> None:
    assert device_name(DeviceId("card-0")) == "card-0"


@pytest.mark.parametrize("name", ["memory", "numaNode", "resource.kubernetes.io/pciBusID", "a.b/c_d"])
def test_an_attribute_that_is_an_identifier_stays_with_or_without_a_domain(name: str) -> None:
    assert attribute_name(name) == name


@pytest.mark.parametrize(
    "name", ["cuda-version", "1st", "x" * 40, "", "/a", "a/", "A.b/c", "a/b/c", "a..b/c", f"{'d' * 64}/c", "a.b/c-d"]
)
def test_an_attribute_that_is_no_identifier_becomes_one(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", attribute_name(name))


@pytest.mark.parametrize(
    ("reason", "value"),
    [("XID 79: fell off the bus", "XID-79-fell-off-the-bus"), ("", "unhealthy"), ("…", "unhealthy")],
)
def test_a_reason_becomes_the_value_of_a_taint(reason: str, value: str) -> None:
    assert taint_value(reason) == value

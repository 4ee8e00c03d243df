"""The device codec alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug import (
    Device,
    DeviceId,
    DeviceMount,
    DeviceNode,
    DevicePrefer,
    Exhausted,
    Grant,
    InvalidRequest,
    NotFound,
    NotReady,
    Part,
    PluginError,
    ResourceName,
)
from nodeplug.device import codec
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb

RESOURCE = ResourceName("example.com/thing")

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=63).map(DeviceId)
nodes = st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple)
devices = st.builds(Device, id=ids, healthy=st.booleans(), reason=st.text(max_size=5), numa_nodes=nodes)
device_lists = st.lists(devices, max_size=20, unique_by=lambda device: device.id)


@given(device_lists)
def test_list_carries_every_device_in_order(listed: list[Device]) -> None:
    message = pb.ListAndWatchResponse.FromString(codec.encode_list(RESOURCE, listed).SerializeToString())
    assert [
        (entry.ID, entry.health == "Healthy", tuple(node.ID for node in entry.topology.nodes))
        for entry in message.devices
    ] == [(device.id, device.healthy, device.numa_nodes) for device in listed]


@given(device_lists)
def test_topology_is_set_only_for_devices_with_a_node(listed: list[Device]) -> None:
    message = codec.encode_list(RESOURCE, listed)
    assert [entry.HasField("topology") for entry in message.devices] == [bool(device.numa_nodes) for device in listed]


@given(device_lists)
def test_worst_case_size_is_the_size_with_every_device_unhealthy(listed: list[Device]) -> None:
    ill = [Device(device.id, healthy=False, numa_nodes=device.numa_nodes) for device in listed]
    assert codec.worst_case_size(listed) == codec.encode_list(RESOURCE, ill).ByteSize()


def test_healthy_list_that_would_overflow_when_ill_is_refused_with_the_numbers() -> None:
    listed = [Device(DeviceId(f"{number:061d}")) for number in range(14_000)]
    assert codec.encode_list(RESOURCE, listed[:10]).ByteSize() * 1400 < codec.LIST_LIMIT < codec.worst_case_size(listed)
    with pytest.raises(Exhausted, match=r"14000 devices and up to 1064000 bytes, at most 1048576"):
        codec.encode_list(RESOURCE, listed)


@pytest.mark.parametrize(
    ("listed", "text"),
    [
        ([Device(DeviceId(""))], "empty id"),
        ([Device(DeviceId("x" * 64))], "64 characters; the API allows 63"),
        ([Device(DeviceId("a")), Device(DeviceId("a"))], "'a' of example.com/thing is listed twice"),
        ([Device(DeviceId("\ud800"))], "not valid UTF-8"),
        ([Device(DeviceId("a"), numa_nodes=(-1,))], "leave numa_nodes empty"),
        ([Device(DeviceId("a"), numa_nodes=(2**63,))], "nodes count from 0"),
        ([Device(cast("DeviceId", 7))], "field of a wrong type"),
        ([Device(DeviceId("a"), numa_nodes=cast("tuple[int, ...]", ("0",)))], "field of a wrong type"),
        ([Device(DeviceId("a"), attributes=cast("Any", {"x": 1.5}))], "no usable attribute 'x': an attribute is text"),
        ([Device(DeviceId("a"), capacity={"memory": -1})], "no usable capacity 'memory'"),
        ([Device(DeviceId("a"), part=Part(DeviceId("card"), cast("Any", {"memory": "1Gi"})))], "no usable capacity"),
        ([Device(DeviceId("a"), capacity=cast("Any", 7))], "field of a wrong type"),
    ],
)
def test_list_that_kubelet_would_misread_is_refused(listed: Sequence[Device], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        codec.encode_list(RESOURCE, listed)


@pytest.mark.parametrize(
    ("hooks", "prestart", "prefer"),
    [
        (frozenset({"device_list"}), False, False),
        (frozenset({"device_list", "device_prefer"}), False, True),
        (frozenset({"device_list", "device_prestart"}), True, False),
    ],
)
def test_options_follow_from_the_hooks(hooks: frozenset[str], prestart: bool, prefer: bool) -> None:
    options = codec.encode_options(hooks)
    assert (options.pre_start_required, options.get_preferred_allocation_available) == (prestart, prefer)


def request_for(*containers: Sequence[str]) -> pb.AllocateRequest:
    return pb.AllocateRequest(
        container_requests=[pb.ContainerAllocateRequest(devices_ids=list(names)) for names in containers]
    )


KNOWN = {
    DeviceId("a"): Device(DeviceId("a")),
    DeviceId("b"): Device(DeviceId("b")),
    DeviceId("ill"): Device(DeviceId("ill"), healthy=False, reason="too hot"),
}


def test_allocate_names_the_devices_in_the_order_of_the_request() -> None:
    one, two = codec.decode_allocate(RESOURCE, request_for(["b", "a"], ["c"]), {**KNOWN, DeviceId("c"): KNOWN["a"]})  # type: ignore[index] # a plain str in a test
    assert one.ids == ("b", "a")
    assert [device.id for device in one.devices] == ["b", "a"]
    assert two.ids == ("c",)


@pytest.mark.parametrize(
    ("containers", "error", "text"),
    [
        ([], InvalidRequest, "names no container"),
        ([[]], InvalidRequest, "names no device"),
        ([["a", "a"]], InvalidRequest, "'a' twice"),
        ([["a"], ["a"]], InvalidRequest, "'a' for two containers"),
        ([["z"]], NotFound, "'z' is not among the 3 devices"),
        ([["ill"]], NotReady, "'ill' of example.com/thing is unhealthy: too hot"),
    ],
)
def test_allocate_that_cannot_be_right_is_refused(
    containers: Sequence[Sequence[str]], error: type[PluginError], text: str
) -> None:
    with pytest.raises(error, match=text):
        codec.decode_allocate(RESOURCE, request_for(*containers), KNOWN)


def test_a_device_that_is_withheld_is_allocated_to_whom_kubelet_has_chosen_it_for_before() -> None:
    ill = replace(KNOWN[DeviceId("ill")], withheld=True)
    (one,) = codec.decode_allocate(RESOURCE, request_for(["ill"]), {DeviceId("ill"): ill})
    assert one.devices == (ill,)
    assert [one.health for one in codec.encode_list(RESOURCE, [ill]).devices] == ["Unhealthy"]


paths = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20).map("/{}".format)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="=\0"), min_size=1, max_size=10)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
PERMISSIONS = st.sampled_from(["r", "rw", "rwm", "m"])
grants = st.builds(
    Grant,
    env=st.dictionaries(names, texts, max_size=3),
    nodes=st.lists(st.builds(DeviceNode, paths, paths, permissions=PERMISSIONS), max_size=3).map(tuple),
    mounts=st.lists(st.builds(DeviceMount, paths, paths, read_only=st.booleans()), max_size=3).map(tuple),
    annotations=st.dictionaries(names, texts, max_size=3),
    cdi=st.lists(st.builds("vendor.com/{}={}".format, names, names), max_size=3).map(tuple),
)


@given(st.lists(grants, max_size=3))
def test_grants_arrive_whole(given_: list[Grant]) -> None:
    message = pb.AllocateResponse.FromString(codec.encode_allocate(given_).SerializeToString())
    read = [
        Grant(
            env=dict(answer.envs),
            nodes=tuple(
                DeviceNode(node.host_path, node.container_path, permissions=node.permissions) for node in answer.devices
            ),
            mounts=tuple(
                DeviceMount(mount.host_path, mount.container_path, read_only=mount.read_only) for mount in answer.mounts
            ),
            annotations=dict(answer.annotations),
            cdi=tuple(device.name for device in answer.cdi_devices),
        )
        for answer in message.container_responses
    ]
    assert read == given_


def test_device_node_without_a_container_path_keeps_its_host_path() -> None:
    (answer,) = codec.encode_allocate([Grant(nodes=(DeviceNode("/dev/fuse"),))]).container_responses
    assert [(node.host_path, node.container_path) for node in answer.devices] == [("/dev/fuse", "/dev/fuse")]


@pytest.mark.parametrize(
    ("grant", "text"),
    [
        (Grant(nodes=(DeviceNode("dev/fuse"),)), "device path 'dev/fuse'"),
        (Grant(nodes=(DeviceNode("/dev/fuse", permissions="rx"),)), "permissions 'rx'"),
        (Grant(nodes=(DeviceNode("/dev/fuse", permissions=""),)), "permissions ''"),
        (Grant(mounts=(DeviceMount("/etc", "etc"),)), "mount path 'etc'"),
        (Grant(env={"A=B": "1"}), "env named 'A=B'"),
        (Grant(annotations={"": "1"}), "annotation named ''"),
        (Grant(cdi=("nvidia.com/gpu",)), "CDI device 'nvidia.com/gpu'"),
        (Grant(env=cast("dict[str, str]", {"A": 1})), "cannot be sent"),
        (Grant(env={"A": "\ud800"}), "cannot be sent"),
    ],
)
def test_grant_that_kubelet_cannot_use_is_the_plugins_error(grant: Grant, text: str) -> None:
    with pytest.raises(PluginError, match=text) as caught:
        codec.encode_allocate([grant])
    assert type(caught.value) is PluginError


@st.composite
def preferences(draw: Any) -> tuple[DevicePrefer, list[DeviceId]]:
    available = draw(st.lists(ids, unique=True, max_size=10))
    must = draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    request = DevicePrefer(
        resource=RESOURCE, available=tuple(available), must_include=tuple(must), size=draw(st.integers(0, 12))
    )
    answer = draw(st.lists(st.one_of(ids, st.sampled_from(available)) if available else ids, max_size=12))
    return request, answer


@given(preferences())
def test_usable_preference_is_available_unique_and_not_too_long(case: tuple[DevicePrefer, list[DeviceId]]) -> None:
    request, answer = case
    found = codec.usable_preference(request, answer).ids
    assert set(found) <= set(request.available) & set(answer)
    assert len(set(found)) == len(found) <= max(request.size, 0)
    assert list(found) == [name for name in dict.fromkeys(answer) if name in request.available][: request.size]


def test_right_preference_has_no_complaint() -> None:
    request = DevicePrefer(
        resource=RESOURCE, available=(DeviceId("a"), DeviceId("b")), must_include=(DeviceId("a"),), size=2
    )
    assert codec.usable_preference(request, [DeviceId("a"), DeviceId("b")]) == codec.Preference(("a", "b"))  # type: ignore[arg-type] # plain strings in a test


def test_wrong_preference_names_everything_that_is_wrong() -> None:
    request = DevicePrefer(
        resource=RESOURCE, available=(DeviceId("a"), DeviceId("b")), must_include=(DeviceId("a"),), size=2
    )
    complaint = codec.usable_preference(request, [DeviceId("b"), DeviceId("b"), DeviceId("z")]).complaint
    assert "such as 'z'" in complaint
    assert "named twice" in complaint
    assert "1 usable ids where 2 were asked for" in complaint
    assert "no 'a', which must be included" in complaint


def test_prefer_request_is_read_with_its_mixed_spelling() -> None:
    container = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=["a", "b"], must_include_deviceIDs=["a"], allocation_size=2
    )
    wire = pb.PreferredAllocationRequest(container_requests=[container]).SerializeToString()
    assert codec.decode_prefer(RESOURCE, pb.PreferredAllocationRequest.FromString(wire)) == (
        DevicePrefer(
            resource=RESOURCE, available=(DeviceId("a"), DeviceId("b")), must_include=(DeviceId("a"),), size=2
        ),
    )


def test_prestart_for_an_unlisted_device_passes() -> None:
    request = pb.PreStartContainerRequest(devices_ids=["gone"])
    assert codec.decode_prestart(RESOURCE, request).ids == ("gone",)

"""What hostdev gives to a container, and which devices it prefers."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug import DeviceAllocate, DeviceId, DeviceList, DevicePrefer, Grant, InvalidRequest, ResourceName
from nodeplug.hosting.call import Call
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug_hostdev import HostDev

Make = Callable[..., HostDev]
NAME = ResourceName("example.com/a")
LIST = DeviceList(resource=NAME)


def test_grant_carries_node_mounts_and_environment(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a")
    mounts = [{"host_path": str(dev), "container_path": "/etc/b", "read_only": False}]
    plugin = plugins(group(dev / "a", permissions="rwm", container_path="/dev/x"), mounts=mounts, env={"A": "1"})
    grant = plugin.device_list(LIST)[0].grant
    assert (grant.nodes[0].container_path, grant.nodes[0].permissions) == ("/dev/x", "rwm")
    assert (grant.mounts[0].container_path, grant.mounts[0].read_only, grant.env) == ("/etc/b", False, {"A": "1"})


def test_container_path_is_the_hosts_own_by_default(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a")
    assert plugins(group(dev / "a")).device_list(LIST)[0].grant.nodes[0].container_path == str(dev / "a")


def test_name_stands_for_the_nodes_own_name(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a7")
    plugin = plugins(group(dev / "a*", container_path="/dev/my-{name}"))
    assert plugin.device_list(LIST)[0].grant.nodes[0].container_path == "/dev/my-a7"


def test_companions_go_along_with_every_device(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    for name in ("a0", "a1", "tun"):
        mknod(dev / name)
    plugin = plugins(group(dev / "a*", {"path": str(dev / "tun")}, {"path": str(dev / "no"), "optional": True}))
    granted = [[Path(node.host_path).name for node in one.grant.nodes] for one in plugin.device_list(LIST)]
    assert granted == [["a0", "tun"], ["a1", "tun"]]


def allocate(plugin: HostDev, devices: Any) -> Grant:
    return plugin.device_allocate(
        DeviceAllocate(resource=NAME, ids=tuple(one.id for one in devices), devices=tuple(devices))
    )


def test_two_shares_of_one_node_are_granted_as_one_node(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a", count=2))
    assert len(allocate(plugin, plugin.device_list(LIST)).nodes) == 1


def test_two_nodes_at_one_container_path_are_refused(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a0")
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a*", container_path="/dev/x"))
    with pytest.raises(InvalidRequest, match=r"a0 and .*a1 would both be /dev/x"):
        allocate(plugin, plugin.device_list(LIST))


def prefer(plugin: HostDev, available: list[str], size: int, must: tuple[str, ...] = ()) -> list[str]:
    ids, needed = tuple(map(DeviceId, available)), tuple(map(DeviceId, must))
    return list(plugin.device_prefer(DevicePrefer(resource=NAME, available=ids, must_include=needed, size=size)))


def test_shares_of_different_nodes_are_preferred(group: Any, plugins: Make, dev: Path) -> None:
    assert prefer(plugins(group(dev / "a")), ["a", "a::1", "b"], 2) == ["a", "b"]


def test_node_with_the_most_free_shares_is_preferred(group: Any, plugins: Make, dev: Path) -> None:
    assert prefer(plugins(group(dev / "a")), ["a", "b", "b::1"], 1) == ["b"]


def test_devices_that_must_be_included_count(group: Any, plugins: Make, dev: Path) -> None:
    assert prefer(plugins(group(dev / "a")), ["a", "a::1", "b"], 2, must=("a",)) == ["a", "b"]


def test_size_beyond_what_is_available_gives_what_there_is(group: Any, plugins: Make, dev: Path) -> None:
    assert prefer(plugins(group(dev / "a")), ["a"], 3) == ["a"]


def test_choosing_among_tens_of_thousands_of_shares_keeps_the_deadline(group: Any, plugins: Make, dev: Path) -> None:
    plugin = plugins(group(dev / "a"))
    registry = Registry()
    registry.load("hostdev", plugin, "tests")
    shares = tuple(DeviceId(f"a{node}::{share}") for node in range(16) for share in range(1000))
    request = DevicePrefer(resource=NAME, available=shares, must_include=(), size=64)

    async def ask() -> Any:
        route = registry.route("device", NAME)
        return await Runner().call(
            route, "device_prefer", Call("GetPreferredAllocation", "", NAME), {"request": request}
        )

    assert len(set(asyncio.run(ask()))) == 64

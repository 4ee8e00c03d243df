"""Which device nodes hostdev lists, and how they are called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Device, DeviceList, ResourceName
from nodeplug.hosting.registry import Registry
from nodeplug_hostdev import HostDev
from nodeplug_hostdev.nodes import device_id, matches, numa_nodes

Make = Callable[..., HostDev]
NAME = ResourceName("example.com/a")
LIST = DeviceList(resource=NAME)


def test_each_matching_node_is_a_healthy_device(mknod: Any, group: Any, health: Any, plugins: Make, dev: Path) -> None:
    for name in ("a0", "a1", "b0"):
        mknod(dev / name)
    assert health(plugins(group(dev / "a*")).device_list(LIST)) == {"a0": True, "a1": True}


def test_files_and_folders_that_match_are_passed_over(
    mknod: Any, group: Any, health: Any, plugins: Make, dev: Path
) -> None:
    mknod(dev / "a0")
    (dev / "a1").touch()
    (dev / "a2").mkdir()
    (dev / "a3").symlink_to("nowhere")
    assert health(plugins(group(dev / "a*")).device_list(LIST)) == {"a0": True}


def test_symlink_to_a_node_is_a_device_under_its_own_name(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "real")
    (dev / "by-id").mkdir()
    (dev / "by-id/stable").symlink_to("../real")
    (device,) = plugins(group(dev / "by-id/*")).device_list(LIST)
    assert (device.healthy, device.grant.nodes[0].host_path) == (True, str(dev / "by-id/stable"))


def test_a_device_says_which_path_it_is(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    """A claim of Dynamic Resource Allocation can choose by it."""
    for name in ("a0", "a1"):
        mknod(dev / name)
    found = plugins(group(dev / "a*", count=2)).device_list(LIST)
    assert [one.attributes for one in found] == [{"path": str(dev / name)} for name in ("a0", "a0", "a1", "a1")]


def test_node_that_was_never_there_is_not_listed(group: Any, plugins: Make, dev: Path) -> None:
    assert plugins(group(dev / "absent")).device_list(LIST) == []


def test_wildcards_work_at_every_level(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    for bus in ("001", "002"):
        (dev / bus).mkdir()
        mknod(dev / bus / "a")
    assert len(plugins(group(dev / "*/a")).device_list(LIST)) == 2


def test_limit_takes_the_first_in_natural_order(mknod: Any, group: Any, health: Any, plugins: Make, dev: Path) -> None:
    for number in (10, 2, 1):
        mknod(dev / f"a{number}")
    assert list(health(plugins(group(dev / "a*", limit=2)).device_list(LIST))) == ["a1", "a2"]


def test_path_in_two_groups_belongs_to_the_first(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a0")
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a0", permissions="r"), group(dev / "a*"))
    assert [device.grant.nodes[0].permissions for device in plugin.device_list(LIST)] == [
        "r",
        "rw",
    ]


def test_shares_of_one_node_are_devices_with_one_grant(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a")
    devices = plugins(group(dev / "a", count=3)).device_list(LIST)
    assert len({device.id for device in devices}) == 3
    assert len({device.grant.nodes for device in devices}) == 1


def test_raising_the_count_keeps_the_ids_that_are_held(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a")
    one = {device.id for device in plugins(group(dev / "a")).device_list(LIST)}
    three = {device.id for device in plugins(group(dev / "a", count=3)).device_list(LIST)}
    assert one < three


def test_registry_takes_the_plugin(group: Any, plugins: Make, dev: Path) -> None:
    loaded = Registry().load("hostdev", plugins(group(dev / "a")), "nodeplug")
    assert [str(claim) for claim in loaded.claims] == [f"device:{NAME}"]


def test_id_of_a_plain_node_is_its_name() -> None:
    assert (device_id("/dev/ttyUSB0"), device_id("/dev/dri/card0", 2)) == ("ttyUSB0", "dri-card0::2")


@pytest.mark.parametrize(("one", "other"), [("/dev/a/b", "/dev/a-b"), ("/dev/a b", "/dev/a-b"), ("/dev/a", "/x/dev/a")])
def test_paths_that_read_alike_have_different_ids(one: str, other: str) -> None:
    assert device_id(one) != device_id(other)


def test_id_of_a_long_path_stays_within_kubelets_limit() -> None:
    ids = {device_id(f"/dev/{'x' * 80}{number}", 999) for number in range(20)}
    assert len(ids) == 20
    assert max(map(len, ids)) <= 63


def test_nodes_sort_as_people_count(mknod: Any, dev: Path) -> None:
    for name in ("a10", "a9", "a"):
        mknod(dev / name)
    assert [Path(path).name for path in matches(f"{dev}/*")] == ["a", "a9", "a10"]


def test_node_without_a_bus_has_no_numa_node() -> None:
    assert numa_nodes("/dev/null") == ()


def test_device_is_a_value_that_compares(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    first: Device = plugin.device_list(LIST)[0]
    assert plugin.device_list(LIST)[0] == first

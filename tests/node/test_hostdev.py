"""hostdev over real device nodes, made by mknod in a folder of the test."""

import asyncio
import errno
import logging
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asyncinotify import Inotify, Mask

from nodeplug import (
    Device,
    DeviceAllocate,
    DeviceId,
    DevicePrefer,
    DeviceReleased,
    Grant,
    Host,
    InvalidRequest,
    Journal,
    ResourceName,
)
from nodeplug.call import Call
from nodeplug.device.codec import encode_list
from nodeplug.registry import Registry
from nodeplug.runner import Runner
from nodeplug_hostdev import HostDev
from nodeplug_hostdev.nodes import device_id, fault, matches, numa_nodes, refusal

NAME = ResourceName("example.com/a")
NULL = (1, 3)
NOBODY = (240, 77)  # a major for local use, without a driver: open answers ENXIO


class Refreshed:
    """Remembers what was asked to be listed anew."""

    def __init__(self) -> None:
        self.resources: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, resource: str) -> None:
        with self._changed:
            self.resources.append(resource)
            self._changed.notify_all()

    def wait_for(self, resource: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: resource in self.resources, 20)


@pytest.fixture
def refreshed() -> Refreshed:
    return Refreshed()


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


def mknod(path: Path, device: tuple[int, int] = NULL, kind: int = stat.S_IFCHR) -> None:
    os.mknod(path, kind | 0o600, os.makedev(*device))


@pytest.fixture
def host(tmp_path: Path, refreshed: Refreshed) -> Host:
    log = logging.LoggerAdapter(logging.getLogger("hostdev"))

    def no_delegate(request: Any, plugin_type: str, config: Any) -> None:
        raise AssertionError

    return Host("hostdev", "node", "boot", log, Journal(tmp_path / "j"), tmp_path, tmp_path, refreshed, no_delegate)


class Plugins:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.made: list[HostDev] = []

    def __call__(self, *groups: dict[str, Any], watch: bool = False, **resource: Any) -> HostDev:
        entry = {"resource": NAME, "groups": groups, **resource}
        config = HostDev.Config.model_validate({"resources": [entry], "watch": watch})
        plugin = HostDev(config, self.host)
        plugin.start()
        self.made.append(plugin)
        return plugin


@pytest.fixture
def plugins(host: Host) -> Iterator[Plugins]:
    made = Plugins(host)
    yield made
    for plugin in made.made:
        plugin.stop()


def group(path: Path | str, *companions: dict[str, Any], **more: Any) -> dict[str, Any]:
    node = {key: more.pop(key) for key in ("permissions", "probe", "container_path") if key in more}
    return {"nodes": [{"path": str(path), **node}, *companions], **more}


def health(devices: Any) -> dict[str, bool]:
    return {Path(device.grant.nodes[0].host_path).name: device.healthy for device in devices}


def test_each_matching_node_is_a_healthy_device(plugins: Plugins, dev: Path) -> None:
    for name in ("a0", "a1", "b0"):
        mknod(dev / name)
    assert health(plugins(group(dev / "a*")).device_list(NAME)) == {"a0": True, "a1": True}


def test_files_and_folders_that_match_are_passed_over(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a0")
    (dev / "a1").touch()
    (dev / "a2").mkdir()
    (dev / "a3").symlink_to("nowhere")
    assert health(plugins(group(dev / "a*")).device_list(NAME)) == {"a0": True}


def test_symlink_to_a_node_is_a_device_under_its_own_name(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "real")
    (dev / "by-id").mkdir()
    (dev / "by-id/stable").symlink_to("../real")
    (device,) = plugins(group(dev / "by-id/*")).device_list(NAME)
    assert (device.healthy, device.grant.nodes[0].host_path) == (True, str(dev / "by-id/stable"))


def test_node_that_was_never_there_is_not_listed(plugins: Plugins, dev: Path) -> None:
    assert plugins(group(dev / "absent")).device_list(NAME) == []


def test_wildcards_work_at_every_level(plugins: Plugins, dev: Path) -> None:
    for bus in ("001", "002"):
        (dev / bus).mkdir()
        mknod(dev / bus / "a")
    assert len(plugins(group(dev / "*/a")).device_list(NAME)) == 2


def test_limit_takes_the_first_in_natural_order(plugins: Plugins, dev: Path) -> None:
    for number in (10, 2, 1):
        mknod(dev / f"a{number}")
    assert list(health(plugins(group(dev / "a*", limit=2)).device_list(NAME))) == ["a1", "a2"]


def test_path_in_two_groups_belongs_to_the_first(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a0")
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a0", permissions="r"), group(dev / "a*"))
    assert [device.grant.nodes[0].permissions for device in plugin.device_list(NAME)] == ["r", "rw"]


def test_shares_of_one_node_are_devices_with_one_grant(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a")
    devices = plugins(group(dev / "a", count=3)).device_list(NAME)
    assert len({device.id for device in devices}) == 3
    assert len({device.grant.nodes for device in devices}) == 1


def test_raising_the_count_keeps_the_ids_that_are_held(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a")
    one = {device.id for device in plugins(group(dev / "a")).device_list(NAME)}
    three = {device.id for device in plugins(group(dev / "a", count=3)).device_list(NAME)}
    assert one < three


def test_grant_carries_node_mounts_and_environment(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a")
    mounts = [{"host_path": "/etc/a", "container_path": "/etc/b", "read_only": False}]
    plugin = plugins(group(dev / "a", permissions="rwm", container_path="/dev/x"), mounts=mounts, env={"A": "1"})
    grant = plugin.device_list(NAME)[0].grant
    assert (grant.nodes[0].container_path, grant.nodes[0].permissions) == ("/dev/x", "rwm")
    assert (grant.mounts[0].container_path, grant.mounts[0].read_only, grant.env) == ("/etc/b", False, {"A": "1"})


def test_container_path_is_the_hosts_own_by_default(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a")
    assert plugins(group(dev / "a")).device_list(NAME)[0].grant.nodes[0].container_path == str(dev / "a")


def test_name_stands_for_the_nodes_own_name(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a7")
    plugin = plugins(group(dev / "a*", container_path="/dev/my-{name}"))
    assert plugin.device_list(NAME)[0].grant.nodes[0].container_path == "/dev/my-a7"


def test_companions_go_along_with_every_device(plugins: Plugins, dev: Path) -> None:
    for name in ("a0", "a1", "tun"):
        mknod(dev / name)
    plugin = plugins(group(dev / "a*", {"path": str(dev / "tun")}, {"path": str(dev / "no"), "optional": True}))
    granted = [[Path(node.host_path).name for node in one.grant.nodes] for one in plugin.device_list(NAME)]
    assert granted == [["a0", "tun"], ["a1", "tun"]]


def test_missing_companion_makes_the_device_unhealthy_with_a_reason(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a")
    (device,) = plugins(group(dev / "a", {"path": str(dev / "tun")})).device_list(NAME)
    assert not device.healthy
    assert "tun, which goes along with" in device.reason


def test_node_without_a_driver_is_unhealthy_with_the_kernels_reason(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a", NOBODY)
    (device,) = plugins(group(dev / "a")).device_list(NAME)
    assert not device.healthy
    assert "No such device or address" in device.reason


def test_node_that_is_not_to_be_opened_is_healthy_by_being_there(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a", NOBODY)
    assert plugins(group(dev / "a", probe="exists")).device_list(NAME)[0].healthy


@pytest.mark.parametrize("device", [(10, 130), (4, 64), (5, 0)], ids=["watchdog", "serial", "tty"])
def test_node_whose_opening_acts_is_never_opened(dev: Path, device: tuple[int, int]) -> None:
    mknod(dev / "a", device)
    assert (fault(str(dev / "a"), "rw", "open"), opened(dev / "a")) == ("", False)


def opened(path: Path) -> bool:
    """Probe a node and return whether the kernel saw it opened."""
    with Inotify(sync_timeout=0) as inotify:
        inotify.add_watch(path, Mask.OPEN)
        fault(str(path), "rw", "open")
        return inotify.sync_get() is not None


def test_ordinary_node_is_opened(dev: Path) -> None:
    mknod(dev / "a")
    assert opened(dev / "a")


def test_block_device_is_opened_without_writing(dev: Path) -> None:
    # 7:0 is a loop device without a file: reading opens it, and udev sees no writer leave.
    mknod(dev / "a", (7, 0), stat.S_IFBLK)
    assert fault(str(dev / "a"), "rw", "open") == ""


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EAGAIN])
def test_node_that_another_process_holds_is_healthy(code: int) -> None:
    assert refusal("/dev/a", code) == ""


def test_node_that_the_daemon_may_not_open_says_what_to_do() -> None:
    assert "probe = 'exists'" in refusal("/dev/a", errno.EPERM)


def test_vanished_node_stays_listed_as_unhealthy(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a0")
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a*"))
    plugin.device_list(NAME)
    (dev / "a0").unlink()
    assert health(plugin.device_list(NAME)) == {"a1": True, "a0": False}
    assert "was there and is gone" in plugin.device_list(NAME)[1].reason


def test_nodes_that_never_have_the_same_name_twice_do_not_fill_the_list(plugins: Plugins, dev: Path) -> None:
    plugin = plugins(group(dev / "a*", count=1000))
    for number in range(40):
        mknod(dev / f"a{number}")
        plugin.device_list(NAME)
        (dev / f"a{number}").unlink()
    mknod(dev / "a99")
    devices = plugin.device_list(NAME)
    encode_list(NAME, devices)  # refuses what exceeds the limit of a list
    assert health(devices)["a99"] is True
    assert health(devices)["a39"] is False


def test_node_that_comes_back_is_healthy_again(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    first = plugin.device_list(NAME)
    (dev / "a").unlink()
    plugin.device_list(NAME)
    mknod(dev / "a")
    assert plugin.device_list(NAME) == first


def release(plugin: HostDev, devices: Any) -> None:
    ids = tuple(device.id for device in devices)
    plugin.device_released(DeviceReleased(NAME, ids, "default", "pod", "main"))


def test_vanished_node_is_forgotten_once_released(plugins: Plugins, dev: Path, refreshed: Refreshed) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    plugin.device_list(NAME)
    (dev / "a").unlink()
    release(plugin, plugin.device_list(NAME))
    assert plugin.device_list(NAME) == []
    assert refreshed.resources == [NAME]


def test_release_that_is_seen_before_the_loss_forgets_too(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    devices = plugin.device_list(NAME)
    (dev / "a").unlink()
    release(plugin, devices)
    assert plugin.device_list(NAME) == []


def test_release_of_a_present_node_changes_nothing(plugins: Plugins, dev: Path, refreshed: Refreshed) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    devices = plugin.device_list(NAME)
    release(plugin, devices)
    assert plugin.device_list(NAME) == devices
    assert refreshed.resources == []


def test_vanished_node_does_not_count_towards_the_limit(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a0")
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a*", limit=1))
    plugin.device_list(NAME)
    (dev / "a0").unlink()
    assert health(plugin.device_list(NAME)) == {"a1": True, "a0": False}


def test_node_pushed_beyond_the_limit_says_so(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a*", limit=1))
    plugin.device_list(NAME)
    mknod(dev / "a0")
    assert "beyond the limit" in plugin.device_list(NAME)[1].reason


def allocate(plugin: HostDev, devices: Any) -> Grant:
    return plugin.device_allocate(DeviceAllocate(NAME, tuple(one.id for one in devices), tuple(devices)))


def test_two_shares_of_one_node_are_granted_as_one_node(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a", count=2))
    assert len(allocate(plugin, plugin.device_list(NAME)).nodes) == 1


def test_two_nodes_at_one_container_path_are_refused(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a0")
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a*", container_path="/dev/x"))
    with pytest.raises(InvalidRequest, match=r"a0 and .*a1 would both be /dev/x"):
        allocate(plugin, plugin.device_list(NAME))


def prefer(plugin: HostDev, available: list[str], size: int, must: tuple[str, ...] = ()) -> list[str]:
    ids, needed = tuple(map(DeviceId, available)), tuple(map(DeviceId, must))
    return list(plugin.device_prefer(DevicePrefer(NAME, ids, needed, size)))


def test_shares_of_different_nodes_are_preferred(plugins: Plugins, dev: Path) -> None:
    assert prefer(plugins(group(dev / "a")), ["a", "a::1", "b"], 2) == ["a", "b"]


def test_node_with_the_most_free_shares_is_preferred(plugins: Plugins, dev: Path) -> None:
    assert prefer(plugins(group(dev / "a")), ["a", "b", "b::1"], 1) == ["b"]


def test_devices_that_must_be_included_count(plugins: Plugins, dev: Path) -> None:
    assert prefer(plugins(group(dev / "a")), ["a", "a::1", "b"], 2, must=("a",)) == ["a", "b"]


def test_size_beyond_what_is_available_gives_what_there_is(plugins: Plugins, dev: Path) -> None:
    assert prefer(plugins(group(dev / "a")), ["a"], 3) == ["a"]


def test_choosing_among_tens_of_thousands_of_shares_keeps_the_deadline(plugins: Plugins, dev: Path) -> None:
    plugin = plugins(group(dev / "a"))
    registry = Registry()
    registry.load("hostdev", plugin, "tests")
    shares = tuple(DeviceId(f"a{node}::{share}") for node in range(16) for share in range(1000))
    request = DevicePrefer(NAME, shares, (), 64)

    async def ask() -> Any:
        route = registry.route("device", NAME)
        return await Runner().call(
            route, "device_prefer", Call("GetPreferredAllocation", "", NAME), {"request": request}
        )

    assert len(set(asyncio.run(ask()))) == 64


def test_new_node_asks_for_a_listing(plugins: Plugins, dev: Path, refreshed: Refreshed) -> None:
    plugins(group(dev / "a*"), watch=True)
    mknod(dev / "a0")
    assert refreshed.wait_for(NAME)


def test_removed_node_asks_for_a_listing(plugins: Plugins, dev: Path, refreshed: Refreshed) -> None:
    mknod(dev / "a0")
    plugins(group(dev / "a*"), watch=True)
    (dev / "a0").unlink()
    assert refreshed.wait_for(NAME)


def test_node_in_a_folder_that_comes_later_asks_for_a_listing(
    plugins: Plugins, dev: Path, refreshed: Refreshed
) -> None:
    plugins(group(dev / "bus/*/a*"), watch=True)
    (dev / "bus").mkdir()
    assert refreshed.wait_for(NAME)
    (dev / "bus/001").mkdir()
    refreshed.resources.clear()
    mknod(dev / "bus/001/a0")
    assert refreshed.wait_for(NAME)


def test_names_that_cannot_match_ask_for_nothing(plugins: Plugins, dev: Path, refreshed: Refreshed) -> None:
    plugins(group(dev / "a*"), watch=True)
    (dev / "other").touch()
    mknod(dev / "a0")
    assert refreshed.wait_for(NAME)
    assert refreshed.resources == [NAME]


def test_stop_ends_the_watching_thread(plugins: Plugins, dev: Path) -> None:
    plugin = plugins(group(dev / "a*"), watch=True)
    plugin.stop()
    assert [thread for thread in threading.enumerate() if thread.name == "hostdev:inotify"] == []


def test_stop_twice_and_without_a_watch_succeeds(plugins: Plugins, dev: Path) -> None:
    plugin = plugins(group(dev / "a"))
    plugin.stop()
    plugin.stop()


def test_registry_takes_the_plugin(plugins: Plugins, dev: Path) -> None:
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


def test_nodes_sort_as_people_count(dev: Path) -> None:
    for name in ("a10", "a9", "a"):
        mknod(dev / name)
    assert [Path(path).name for path in matches(f"{dev}/*")] == ["a", "a9", "a10"]


def test_node_without_a_bus_has_no_numa_node() -> None:
    assert numa_nodes("/dev/null") == ()


def test_device_is_a_value_that_compares(plugins: Plugins, dev: Path) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    first: Device = plugin.device_list(NAME)[0]
    assert plugin.device_list(NAME)[0] == first

"""When a device node of hostdev is healthy, and what becomes of one that vanishes."""

import errno
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asyncinotify import Inotify, Mask

from nodeplug import DeviceList, DeviceReleased, ResourceName
from nodeplug.device.codec import encode_list
from nodeplug_hostdev import HostDev
from nodeplug_hostdev.nodes import fault, refusal

Make = Callable[..., HostDev]
NAME = ResourceName("example.com/a")
LIST = DeviceList(resource=NAME)
NOBODY = (240, 77)  # a major for local use, without a driver: open answers ENXIO


def test_missing_companion_makes_the_device_unhealthy_with_a_reason(
    mknod: Any, group: Any, plugins: Make, dev: Path
) -> None:
    mknod(dev / "a")
    (device,) = plugins(group(dev / "a", {"path": str(dev / "tun")})).device_list(LIST)
    assert not device.healthy
    assert "tun, which goes along with" in device.reason


def test_device_is_unhealthy_until_what_its_containers_mount_is_there(
    mknod: Any, group: Any, plugins: Make, dev: Path, tmp_path: Path
) -> None:
    mknod(dev / "a")
    firmware = tmp_path / "firmware"
    plugin = plugins(group(dev / "a"), mounts=[{"host_path": str(firmware), "container_path": "/firmware"}])
    (device,) = plugin.device_list(LIST)
    assert not device.healthy
    assert device.reason == f"{firmware}: No such file or directory; each container of {NAME} gets it as a mount"
    firmware.mkdir()
    assert plugin.device_list(LIST)[0].healthy


def test_node_without_a_driver_is_unhealthy_with_the_kernels_reason(
    mknod: Any, group: Any, plugins: Make, dev: Path
) -> None:
    mknod(dev / "a", NOBODY)
    (device,) = plugins(group(dev / "a")).device_list(LIST)
    assert not device.healthy
    assert "No such device or address" in device.reason


def test_node_that_is_not_to_be_opened_is_healthy_by_being_there(
    mknod: Any, group: Any, plugins: Make, dev: Path
) -> None:
    mknod(dev / "a", NOBODY)
    assert plugins(group(dev / "a", probe="exists")).device_list(LIST)[0].healthy


@pytest.mark.parametrize("device", [(10, 130), (4, 64), (5, 0)], ids=["watchdog", "serial", "tty"])
def test_node_whose_opening_acts_is_never_opened(mknod: Any, dev: Path, device: tuple[int, int]) -> None:
    mknod(dev / "a", device)
    assert (fault(str(dev / "a"), "rw", "open"), opened(dev / "a")) == ("", False)


def opened(path: Path) -> bool:
    """Probe a node and return whether the kernel saw it opened."""
    with Inotify(sync_timeout=0) as inotify:
        inotify.add_watch(path, Mask.OPEN)
        fault(str(path), "rw", "open")
        return inotify.sync_get() is not None


def test_ordinary_node_is_opened(mknod: Any, dev: Path) -> None:
    mknod(dev / "a")
    assert opened(dev / "a")


def test_block_device_is_opened_without_writing(mknod: Any, dev: Path) -> None:
    # 7:0 is a loop device without a file: reading opens it, and udev sees no writer leave.
    mknod(dev / "a", (7, 0), stat.S_IFBLK)
    assert fault(str(dev / "a"), "rw", "open") == ""


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EAGAIN])
def test_node_that_another_process_holds_is_healthy(code: int) -> None:
    assert refusal("/dev/a", code) == ""


def test_node_that_the_daemon_may_not_open_says_what_to_do() -> None:
    assert "probe = 'exists'" in refusal("/dev/a", errno.EPERM)


def test_vanished_node_stays_listed_as_unhealthy(mknod: Any, group: Any, health: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a0")
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a*"))
    plugin.device_list(LIST)
    (dev / "a0").unlink()
    assert health(plugin.device_list(LIST)) == {"a1": True, "a0": False}
    assert "was there and is gone" in plugin.device_list(LIST)[1].reason


@pytest.mark.whole
def test_nodes_that_never_have_the_same_name_twice_do_not_fill_the_list(
    mknod: Any, group: Any, health: Any, plugins: Make, dev: Path
) -> None:
    plugin = plugins(group(dev / "a*", count=1000))
    for number in range(40):
        mknod(dev / f"a{number}")
        plugin.device_list(LIST)
        (dev / f"a{number}").unlink()
    mknod(dev / "a99")
    devices = plugin.device_list(LIST)
    encode_list(NAME, devices)  # refuses what exceeds the limit of a list
    assert health(devices)["a99"] is True
    assert health(devices)["a39"] is False


def test_node_that_comes_back_is_healthy_again(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    first = plugin.device_list(LIST)
    (dev / "a").unlink()
    plugin.device_list(LIST)
    mknod(dev / "a")
    assert plugin.device_list(LIST) == first


def release(plugin: HostDev, devices: Any) -> None:
    ids = tuple(device.id for device in devices)
    plugin.device_released(DeviceReleased(resource=NAME, ids=ids, namespace="default", pod="pod", container="main"))


def test_vanished_node_is_forgotten_once_released(
    mknod: Any, group: Any, plugins: Make, dev: Path, refreshed: Any
) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    plugin.device_list(LIST)
    (dev / "a").unlink()
    release(plugin, plugin.device_list(LIST))
    assert plugin.device_list(LIST) == []
    assert refreshed.resources == [NAME]


def test_release_that_is_seen_before_the_loss_forgets_too(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    devices = plugin.device_list(LIST)
    (dev / "a").unlink()
    release(plugin, devices)
    assert plugin.device_list(LIST) == []


def test_release_of_a_present_node_changes_nothing(
    mknod: Any, group: Any, plugins: Make, dev: Path, refreshed: Any
) -> None:
    mknod(dev / "a")
    plugin = plugins(group(dev / "a"))
    devices = plugin.device_list(LIST)
    release(plugin, devices)
    assert plugin.device_list(LIST) == devices
    assert refreshed.resources == []


def test_vanished_node_does_not_count_towards_the_limit(
    mknod: Any, group: Any, health: Any, plugins: Make, dev: Path
) -> None:
    mknod(dev / "a0")
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a*", limit=1))
    plugin.device_list(LIST)
    (dev / "a0").unlink()
    assert health(plugin.device_list(LIST)) == {"a1": True, "a0": False}


def test_node_pushed_beyond_the_limit_says_so(mknod: Any, group: Any, plugins: Make, dev: Path) -> None:
    mknod(dev / "a1")
    plugin = plugins(group(dev / "a*", limit=1))
    plugin.device_list(LIST)
    mknod(dev / "a0")
    assert "beyond the limit" in plugin.device_list(LIST)[1].reason

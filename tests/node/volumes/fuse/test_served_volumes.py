"""Pods read and write what real programs serve through the FlexVolume front."""

import os
import resource
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.fuse.lab import DRIVER, ended, pid_of, status_of, volumes
from tests.own_descriptors import open_descriptors

from nodeplug import NotFound, TryAgain, VolumeId, VolumeStage, VolumeStatsRequest, VolumeUnstage, mounted_at
from nodeplug.testing.waiting import until
from nodeplug_volumes.fuse.plugin import Fuse

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]


def test_a_pod_reads_and_writes_what_a_program_serves(node: Any, target: Path, source: Path) -> None:
    assert node.mount(DRIVER, target, {}) == {"status": "Success"}
    assert (target / "hello").read_text() == "world"
    (target / "new").write_text("written")
    assert (source / "data" / "new").read_text() == "written"
    found = mounted_at(str(target))
    assert found is not None
    assert found.fs_type == "fuse.files"
    assert {"nosuid", "nodev"} <= set(found.options)


def test_an_unmount_of_the_last_pod_ends_the_program_and_leaves_nothing(
    node: Any, plugin: Fuse, target: Path, area: Path
) -> None:
    other = node.target("b")
    node.mount(DRIVER, target, {})
    node.mount(DRIVER, other, {})
    (volume,) = volumes(plugin)
    assert volume["pods"] == 2
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert (other / "hello").read_text() == "world"
    assert node.unmount(DRIVER, other) == {"status": "Success"}
    assert (node.mounted, node.records, volumes(plugin)) == ([], [], [])
    assert not Path(f"/proc/{volume['pid']}").exists()
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []


def test_a_program_has_a_user_of_its_own_and_no_rights(node: Any, plugin: Fuse, target: Path) -> None:
    node.mount(DRIVER, target, {})
    node.mount(DRIVER, node.target("b"), {"program": "files"})
    users = {status_of(volume["pid"])["Uid"].split()[0] for volume in volumes(plugin)}
    assert len(users) == 2
    assert min(map(int, users)) >= 2_000_000_000
    status = status_of(volumes(plugin)[0]["pid"])
    assert (status["CapEff"], status["CapPrm"], status["NoNewPrivs"], status["Groups"]) == ("0" * 16, "0" * 16, "1", "")


def test_a_program_has_the_user_and_the_limits_that_its_administrator_gives(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs | {"user": "daemon", "memory": "512Mi", "tasks": 64})
    node = make_node(fuse=plugin)
    assert node.mount(DRIVER, node.target("a"), {}) == {"status": "Success"}
    limits = Path(f"/proc/{pid_of(plugin)}/limits").read_text()
    assert status_of(pid_of(plugin))["Uid"].split()[0] == "1"
    assert " ".join(limits.partition("Max data size")[2].split()[:2]) == f"{512 << 20} {512 << 20}"
    assert " ".join(limits.partition("Max processes")[2].split()[:2]) == "64 64"


def test_a_pod_that_may_only_read_cannot_write(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, {"kubernetes.io/readwrite": "ro"})
    with pytest.raises(OSError, match="Read-only file system"):
        (target / "new").write_text("")


def test_a_volume_that_a_pod_still_has_is_not_ended(node: Any, plugin: Fuse, target: Path) -> None:
    node.mount(DRIVER, target, {})
    (volume,) = volumes(plugin)
    request = VolumeUnstage(driver=DRIVER, volume_id=VolumeId(volume["volume"]), staging_path=str(node.area / "none"))
    with pytest.raises(TryAgain, match="still have it"):
        plugin.volume_unstage(request)
    assert (target / "hello").read_text() == "world"
    assert pid_of(plugin) == volume["pid"]


def test_a_watch_that_is_closed_while_the_plugin_stops_is_asked_nothing(node: Any, plugin: Fuse, target: Path) -> None:
    assert node.mount(DRIVER, target, {}) == {"status": "Success"}
    (watched,) = plugin._volumes.values()
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    watched.ask_to_leave()
    watched.leave()
    watched.close()


def test_a_daemon_with_more_descriptors_than_select_knows_serves_volumes(node: Any, plugin: Fuse, target: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1100):
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert node.mount(DRIVER, target, {}) == {"status": "Success"}
        ended(plugin)
        assert (target / "hello").read_text() == "world"
        assert node.unmount(DRIVER, target) == {"status": "Success"}
        assert node.mounted == []


def test_volumes_that_come_and_go_leave_no_descriptor_and_no_thread_open(node: Any, target: Path) -> None:
    def watches() -> int:
        return sum(thread.name.startswith("fuse:") for thread in threading.enumerate())

    assert node.mount(DRIVER, target, {}) == {"status": "Success"}
    node.unmount(DRIVER, target)
    before = len(open_descriptors()), watches()
    for _ in range(3):
        node.mount(DRIVER, target, {})
        node.unmount(DRIVER, target)
        node.mount(DRIVER, target, {"folder": "none"})
    until(lambda: len(open_descriptors()) <= before[0])  # other threads have some for a moment
    assert watches() == before[1]


def test_a_volume_that_is_not_staged_is_not_found(plugin: Fuse) -> None:
    with pytest.raises(NotFound, match="is not staged on this node"):
        plugin.volume_stats(VolumeStatsRequest(driver=DRIVER, volume_id=VolumeId("x"), mount_path="/anywhere"))
    assert volumes(plugin) == []


def test_a_volume_may_be_staged_anywhere_on_the_node(plugin: Fuse, area: Path) -> None:
    """Also where what the program needs itself lies below the same folder."""
    staging = area / "staged"
    staging.mkdir()
    plugin.volume_stage(VolumeStage(driver=DRIVER, volume_id=VolumeId("x"), staging_path=str(staging)))
    assert (staging / "hello").read_text() == "world"
    plugin.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=VolumeId("x"), staging_path=str(staging)))
    assert mounted_at(str(staging)) is None

"""A daemon that ends leaves its programs and volumes to the next one."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.node.killing import every_step
from tests.node.volumes.fuse.lab import DRIVER, PATIENCE, condition_of, pid_of, run_dir, seen, volumes

from nodeplug import VolumeId, VolumeUnstage, mounts
from nodeplug.testing.waiting import until
from nodeplug_volumes.fuse.plugin import Fuse

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]


def test_the_next_daemon_adopts_a_program_and_its_pods_notice_nothing(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs)
    node = make_node(fuse=plugin)
    target = node.target("a")
    node.mount(DRIVER, target, {})
    with (target / "hello").open() as held:
        pid = pid_of(plugin)
        plugin.stop()
        successor = make_plugin(files=bindfs)
        assert pid_of(successor) == pid
        assert held.read() == "world"
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_of(successor) not in {0, pid} and not condition_of(successor), PATIENCE)
    assert (target / "hello").read_text() == "world"
    assert make_node(fuse=successor).unmount(DRIVER, target) == {"status": "Success"}
    assert volumes(successor) == []


def test_a_program_that_ended_without_a_daemon_is_started_again_by_the_next_one(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs)
    target = make_node(fuse=plugin).target("a")
    make_node(fuse=plugin).mount(DRIVER, target, {})
    pid = pid_of(plugin)
    plugin.stop()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    successor = make_plugin(files=bindfs)
    until(lambda: pid_of(successor) not in {0, pid} and not condition_of(successor), PATIENCE)
    assert (target / "hello").read_text() == "world"
    assert make_node(fuse=successor).unmount(DRIVER, target) == {"status": "Success"}


@pytest.mark.whole
def test_a_daemon_that_is_killed_at_any_step_of_a_start_leaves_nothing_after_the_next_ones_unstage(
    area: Path, make_plugin: Any, source: Path, make_host: Any
) -> None:
    folder, staging = make_host("fuse").state_dir.parent, area / "staged"

    def assert_nothing_is_left() -> None:
        plugin = make_plugin(files={"command": ["bindfs", "-f", str(source / "data"), "{mountpoint}"]})
        plugin.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=VolumeId("x"), staging_path=str(staging)))
        assert [one.target for one in mounts() if Path(one.target).is_relative_to(area)] == []
        assert list(folder.glob("*/volumes/*")) == []
        until(lambda: not any(str(folder).encode() in seen(one) for one in Path("/proc").glob("[0-9]*/environ")))
        staging.rmdir()

    words = [str(folder), str(source / "data"), str(staging)]
    for _ in every_step("tests.node.volumes.fuse.killed_fuse", words, least=10, prepare=staging.mkdir):
        assert_nothing_is_left()
    assert_nothing_is_left()  # nor after the one that was not killed


KILLED_WHILE_IT_CUTS = """
import os, signal, sys
from pathlib import Path
from nodeplug_volumes import responding
from nodeplug_volumes.fuse.room import Record, Room
from nodeplug_volumes.fuse.server import Server
responding._CONNECTIONS = "/no/such/folder"
responding._abort = lambda connection: os.kill(os.getpid(), signal.SIGKILL)
room = Room.of(Path(sys.argv[1]), sys.argv[2])
Server(room, "files").end(room.read(), at_once=True)
"""


@pytest.mark.usefixtures("target", "hung")
def test_a_daemon_that_is_killed_while_it_cuts_a_connection_leaves_no_mount_for_the_next_one(
    node: Any, plugin: Fuse, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin.stop()
    command = [sys.executable, "-c", KILLED_WHILE_IT_CUTS, str(run_dir(plugin)), volumes(plugin)[0]["volume"]]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert "fusectl" in [one.fs_type for one in mounts() if Path(one.target).is_relative_to(node.area)]
    make_plugin(files=bindfs)
    assert "fusectl" not in [one.fs_type for one in mounts() if Path(one.target).is_relative_to(node.area)]
    assert list(run_dir(plugin).glob("connections/*")) == []

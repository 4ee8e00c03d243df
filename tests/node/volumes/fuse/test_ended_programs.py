"""A program that ends is started again, and its pods have their files again."""

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.fuse.lab import DRIVER, PATIENCE, PRIVATE, SLAVE, condition_of, ended, pid_of, volumes

from nodeplug.testing.waiting import until
from nodeplug_volumes.fuse.plugin import Fuse
from nodeplug_volumes.fuse.room import Record, Room
from nodeplug_volumes.fuse.server import Server

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]


def test_a_program_that_dies_is_started_again_and_each_pod_has_its_files_again(
    node: Any, plugin: Fuse, target: Path
) -> None:
    reader = node.target("b")
    node.mount(DRIVER, target, {})
    node.mount(DRIVER, reader, {"kubernetes.io/readwrite": "ro"})
    for _ in range(2):
        ended(plugin)
        assert (target / "hello").read_text() == "world"
        assert (reader / "hello").read_text() == "world"
        (target / "written").write_text("again")
        with pytest.raises(OSError, match="Read-only file system"):
            (reader / "new").write_text("")
    for path in (target, reader):
        assert node.unmount(DRIVER, path) == {"status": "Success"}
    assert (node.mounted, volumes(plugin)) == ([], [])


def test_a_program_that_ends_again_and_again_is_started_after_longer_and_longer_pauses(
    node: Any, plugin: Fuse, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    wait = threading.Event.wait

    def recorded(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is not None and threading.current_thread().name.startswith("fuse:"):
            pauses.append(timeout)
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", recorded)
    monkeypatch.setattr("nodeplug_volumes.fuse.volume.MIN_BACKOFF", 0.05)
    node.mount(DRIVER, target, {})
    for _ in range(3):
        ended(plugin)
    assert pauses == [0.05, 0.1, 0.2]


@pytest.mark.whole
@pytest.mark.programs("mount")
def test_a_container_that_asks_for_propagation_has_its_files_again_and_another_one_is_told_about(
    start_container: Any, make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs)
    node = make_node(fuse=plugin)
    target, other = node.target("a"), node.target("b")
    node.mount(DRIVER, target, {})
    node.mount(DRIVER, other, {})
    follows = start_container(target, SLAVE)
    assert follows() == "world"
    ended(plugin)
    assert follows() == "world"
    ended(plugin)
    assert follows() == "world"
    stays = start_container(other, PRIVATE)
    assert stays() == "world"
    former = pid_of(plugin)
    os.kill(former, signal.SIGKILL)
    until(lambda: "one container still see" in condition_of(plugin), PATIENCE)
    assert "start these containers again" in condition_of(plugin)
    assert stays() == "Transport endpoint is not connected"
    assert follows() == "world"
    assert pid_of(plugin) != former


def test_a_program_without_a_pid_has_no_last_words_and_the_daemons_other_children_stay_its_own(area: Path) -> None:
    child = subprocess.Popen(["sh", "-c", "exit 3"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    room = Room.of(area, "x")
    assert Server(room, "files").last_words(Record("x", "files", {}, "/anywhere", 1, 1)) == ""
    assert child.wait() == 3

"""A program that hangs holds nobody up, and is ended only where its administrator says so."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.fuse.lab import DRIVER, PATIENCE, PRIVATE, condition_of, pid_of, run_dir, stats_of, volumes

from nodeplug.testing.waiting import until
from nodeplug_volumes.fuse.plugin import Fuse
from nodeplug_volumes.fuse.room import Room
from nodeplug_volumes.fuse.server import strays

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]


@pytest.mark.usefixtures("hung")
def test_a_program_that_hangs_holds_no_call_and_its_condition_says_so(node: Any, plugin: Fuse) -> None:
    assert stats_of(plugin).condition == "program 'files' does not answer"
    assert stats_of(plugin).total > 0
    answer = node.mount(DRIVER, node.target("b"), {})
    assert "program 'files' does not answer" in answer["message"]
    assert [path for path in node.mounted if path.endswith("/b")] == []


def test_a_pod_ends_although_the_program_of_its_volume_hangs(
    node: Any, plugin: Fuse, target: Path, hung: int, area: Path
) -> None:
    waiting = subprocess.Popen(["cat", target / "hello"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert (node.mounted, node.records, volumes(plugin)) == ([], [], [])
    assert not Path(f"/proc/{hung}").exists()
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []
    assert waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode != 0


def test_a_program_that_answers_again_is_served_on(node: Any, plugin: Fuse, target: Path, hung: int) -> None:
    os.kill(hung, signal.SIGCONT)
    until(lambda: condition_of(plugin) == "", PATIENCE)
    assert pid_of(plugin) == hung
    assert (target / "hello").read_text() == "world"
    assert node.mount(DRIVER, node.target("b"), {}) == {"status": "Success"}


@pytest.mark.usefixtures("impatient")
def test_a_program_that_hangs_is_replaced_where_its_administrator_says_so(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs | {"restart_after_hang": "100ms"})
    target = make_node(fuse=plugin).target("a")
    make_node(fuse=plugin).mount(DRIVER, target, {})
    former = pid_of(plugin)
    os.kill(former, signal.SIGSTOP)
    until(lambda: pid_of(plugin) not in {0, former} and not condition_of(plugin), PATIENCE)
    assert (target / "hello").read_text() == "world"
    assert not Path(f"/proc/{former}").exists()


@pytest.mark.programs("mount")
def test_containers_that_see_a_former_program_keep_no_pod_out_and_the_present_one_may_save_what_it_holds(
    start_container: Any, make_node: Any, make_plugin: Any, source: Path
) -> None:
    script = f'bindfs -f {source}/data "$1"; sleep 1; echo saved > {source}/data/saved'
    plugin = make_plugin(files={"command": ["sh", "-c", script, "sh", "{mountpoint}"]})
    node = make_node(fuse=plugin)
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, {})
    start_container(one, PRIVATE)
    os.kill(pid_of(plugin), signal.SIGKILL)
    until(lambda: "one container still see" in condition_of(plugin), PATIENCE)
    assert node.mount(DRIVER, two, {}) == {"status": "Success"}
    for path in (one, two):
        assert node.unmount(DRIVER, path) == {"status": "Success"}
    assert (source / "data" / "saved").read_text() == "saved\n"


@pytest.mark.usefixtures("impatient")
def test_a_program_that_answers_again_may_save_what_it_holds_although_nobody_has_looked_since(
    make_node: Any, make_plugin: Any, source: Path
) -> None:
    script = f'bindfs -f {source}/data "$1"; sleep 1; echo saved > {source}/data/saved'
    plugin = make_plugin(files={"command": ["sh", "-c", script, "sh", "{mountpoint}"]})
    node = make_node(fuse=plugin)
    node.mount(DRIVER, node.target("a"), {})
    room = Room.of(run_dir(plugin), volumes(plugin)[0]["volume"])
    record = room.read()
    assert record is not None
    (own,) = [pid for pid in strays(room, record.user) if pid != pid_of(plugin)]
    os.kill(own, signal.SIGSTOP)
    until(lambda: "does not answer" in condition_of(plugin), PATIENCE)
    plugin.stop()
    os.kill(own, signal.SIGCONT)
    assert node.unmount(DRIVER, node.target("a")) == {"status": "Success"}
    assert (source / "data" / "saved").read_text() == "saved\n"

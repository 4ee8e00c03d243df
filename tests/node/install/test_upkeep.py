"""Installed entrypoints that somebody damages, removes or replaces: seen, said, and mended if they were ours."""

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pytest

from nodeplug import PluginError
from nodeplug.install.deployment import deploy, inspect
from nodeplug.install.keeper import Keeper
from nodeplug.install.upkeep import read_record
from nodeplug.testing.scratch_node import ScratchNode
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged

PLUGINS = """
[plugins.bridge]
isolation = "thread"
[plugins.tmpfs]
[plugins.loopback.config]
names = ["nodeplug-loopback"]
where_absent = ["loopback"]
"""
FOREIGN = "#!/bin/sh\necho foreign\n"


class Node:
    """A node with entrypoints, and the keeper of a daemon that does not install by itself."""

    def __init__(self, folder: Path) -> None:
        self.scratch = ScratchNode(folder, PLUGINS)
        self.paths = self.scratch.paths
        self.registry = inspect(self.scratch.configuration)
        self.keeper = Keeper(self.registry, self.scratch.configuration.supervisor)

    @property
    def bridge(self) -> Path:
        return self.paths.cni_bin / "nodeplug-bridge"

    @property
    def loopback(self) -> Path:
        return self.paths.cni_bin / "loopback"

    @property
    def driver(self) -> Path:
        return self.paths.flexvolume / "nodeplug~tmpfs"

    def install(self) -> None:
        deploy(self.registry, self.paths, native=False)

    def look(self, times: int = 1) -> str:
        for _ in range(times):
            asyncio.run(self.keeper.look())
        return self.keeper.problem


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def put_foreign(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FOREIGN)
    path.chmod(0o755)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\nraise SystemExit\n")


def forbid(path: Path) -> None:
    path.chmod(0o644)


@pytest.mark.parametrize("damage", [remove, empty, tear, change, forbid])
@pytest.mark.parametrize("name", ["bridge", "driver"])
def test_what_was_ours_is_said_at_the_first_look_and_mended_at_the_second(
    node: Node, name: str, damage: Callable[[Path], None]
) -> None:
    node.install()
    path = node.bridge if name == "bridge" else node.driver / "tmpfs"
    before = path.read_bytes()
    assert node.look() == ""
    damage(path)
    assert f"{path} is {'missing' if damage is remove else 'damaged'}" in node.look()
    assert node.look() == ""
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (before, 0o755)


@pytest.mark.usefixtures("has_compiler")
def test_a_program_that_entrypoints_start_is_mended_too(node: Node) -> None:
    deploy(node.registry, node.paths)
    programs = list(node.paths.cni_bin.glob(".nodeplug.*"))
    programs[0].unlink()
    assert f"{programs[0]} is missing" in node.look()
    assert node.look() == ""
    assert subprocess.run([node.bridge], env={"CNI_COMMAND": "VERSION"}, capture_output=True, check=True).stdout


def test_the_answer_of_a_driver_is_mended_too(node: Node) -> None:
    node.install()
    (node.driver / "capabilities.json").write_bytes(b"{")
    assert node.look(2) == ""
    assert json.loads((node.driver / "capabilities.json").read_bytes())["status"] == "Success"


def test_a_foreign_program_in_our_place_is_said_and_stays(node: Node) -> None:
    node.install()
    put_foreign(node.bridge)
    assert f"{node.bridge} was replaced by a program that is not nodeplug's" in node.look(3)
    assert node.bridge.read_text() == FOREIGN


def test_a_name_that_changes_hands_while_it_is_recorded_stays_in_the_record(node: Node) -> None:
    node.install()
    ours, others, gone = node.bridge.read_bytes(), FOREIGN.encode(), threading.Event()

    def change_hands() -> None:
        new = node.paths.cni_bin.parent / "new"
        for data in cycle([others, ours]):
            new.write_bytes(data)
            new.chmod(0o755)
            new.replace(node.bridge)
            if gone.is_set():
                return

    another = threading.Thread(target=change_hands)
    recorded = read_record(node.paths)
    another.start()
    try:
        for _ in range(50):
            with suppress(PluginError):  # it was ours at the first look and is another's at the last
                deploy(node.registry, node.paths, native=False, only_present=True)
            assert read_record(node.paths) == recorded
    finally:
        gone.set()
        another.join()


def test_force_takes_a_name_back_that_was_ours(node: Node) -> None:
    node.install()
    put_foreign(node.bridge)
    done = node.scratch.run("install", "--script")
    assert (done.returncode, node.bridge.read_text()) == (1, FOREIGN)
    assert "--force" in done.stderr
    assert node.scratch.run("install", "--script", "--force").returncode == 0
    assert node.look() == ""


def test_force_takes_no_name_that_never_was_ours(node: Node) -> None:
    put_foreign(node.bridge)
    assert node.scratch.run("install", "--script", "--force").returncode == 1
    assert node.bridge.read_text() == FOREIGN


def test_a_name_that_no_plugin_claims_any_more_may_go(node: Node) -> None:
    node.install()
    node.registry.exchange(["bridge"], ())
    node.bridge.unlink()
    assert node.look(2) == ""
    assert not node.bridge.exists()


def test_what_was_installed_before_there_was_a_record_is_looked_after(node: Node) -> None:
    node.install()
    (node.paths.state / "installed.json").unlink()
    assert node.look() == ""
    node.bridge.unlink()
    assert "is missing" in node.look()
    node.look()
    assert os.access(node.bridge, os.X_OK)


def test_a_record_of_another_version_is_made_anew(node: Node) -> None:
    node.install()
    record = node.paths.state / "installed.json"
    written = record.read_bytes()
    record.write_text(json.dumps(json.loads(written) | {"version": 2}))
    assert read_record(node.paths) is None
    node.look()
    assert record.read_bytes() == written


def test_nothing_is_installed_where_nothing_was(node: Node) -> None:
    assert node.look(3) == ""
    assert not node.paths.cni_bin.exists()


def test_uninstall_ends_the_looking_after(node: Node) -> None:
    node.install()
    node.look()
    assert node.scratch.run("uninstall").returncode == 0
    assert node.look(3) == ""
    assert not node.bridge.exists()


# --- a name that gives way ----------------------------------------------------------------------------------------


def test_a_loopback_is_installed_where_none_is(node: Node) -> None:
    node.install()
    assert os.access(node.loopback, os.X_OK)


def test_a_loopback_of_somebody_else_keeps_its_name(node: Node) -> None:
    put_foreign(node.loopback)
    done = node.scratch.run("install", "--script")
    assert (done.returncode, node.loopback.read_text()) == (0, FOREIGN)
    assert f"{node.loopback} is another program's, and stays" in done.stdout


def test_a_loopback_that_is_copied_over_ours_is_no_problem_and_ours_comes_back_when_it_goes(node: Node) -> None:
    node.install()
    put_foreign(node.loopback)
    node.install()
    assert (node.look(2), node.loopback.read_text()) == ("", FOREIGN)
    node.loopback.unlink()
    node.install()
    assert os.access(node.loopback, os.X_OK)


# --- the whole daemon ---------------------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScratchNode]:
    node = ScratchNode(tmp_path, PLUGINS, fork=True)
    assert node.run("install", "--script").returncode == 0
    node.start()
    yield node
    node.stop()


@pytest.mark.whole
def test_a_running_daemon_mends_what_was_ours_and_is_not_ready_for_what_is_foreign(daemon: ScratchNode) -> None:
    bridge, loopback = (daemon.paths.cni_bin / f"nodeplug-{name}" for name in ("bridge", "loopback"))
    bridge.unlink()
    until(bridge.exists)
    put_foreign(loopback)
    # The bridge's is back before the daemon says so, and what is replaced is seen at the next look.
    until(lambda: "nodeplug-loopback was replaced" in daemon.status()["reasons"].get("entrypoints", ""))
    status = daemon.status()
    assert (status["ready"], list(status["reasons"])) == (False, ["entrypoints"])
    loopback.unlink()
    until(lambda: bool(daemon.status()["ready"]))

"""Compilers and folders that are not as they should be: the reason is told, and the daemon serves with what works."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ended import has_ended

from nodeplug import PluginError, bind, unmount
from nodeplug.install import native
from nodeplug.install.deployment import deploy, inspect
from nodeplug.install.drivers import reprobe
from nodeplug.install.native import compile_one
from nodeplug.install.ownership import installed_kind
from nodeplug.testing.scratch_node import ScratchNode
from nodeplug.testing.waiting import until

PLUGINS = '[plugins.bridge]\nisolation = "thread"\n[plugins.tmpfs]\n'


class Hanging:
    """A compiler that starts another program, which hangs and holds its pipes open."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cc"
        self._pid, self._ended = folder / "pid", folder / "ended"
        self.path.write_text(
            f"#!/bin/sh\n[ -e {self._ended} ] && exit 1\nsleep 300 &\necho $! > {self._pid}\nwait\nexit 1\n"
        )
        self.path.chmod(0o755)

    @property
    def hangs(self) -> bool:
        said = self._pid.read_text().strip() if self._pid.exists() else ""
        return bool(said) and not has_ended(int(said))

    def end(self) -> None:
        """Let it fail, now and at every later call."""
        self._ended.touch()
        if self.hangs:
            os.kill(int(self._pid.read_text()), 9)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    compiler = Hanging(tmp_path)
    yield compiler
    compiler.end()


def test_a_compiler_that_hangs_is_ended_with_all_that_it_started(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(hanging.path))
    monkeypatch.setattr(native, "_TIMEOUT", 0.5)
    with pytest.raises(PluginError, match=r"cannot be run: .*timed out"):
        compile_one(flex=False, socket="/s", spool="/p")
    until(lambda: not hanging.hangs)  # a signal is sent and not waited for, and its sender is no parent


@pytest.mark.whole
def test_the_daemon_serves_while_a_compiler_hangs(hanging: Hanging, tmp_path: Path) -> None:
    node = ScratchNode(
        tmp_path / "node", PLUGINS, supervisor='listen = ""\ninstall = true', env={"CC": str(hanging.path)}, fork=True
    )
    with node:
        assert hanging.hangs
        assert node.run("status").returncode == 0
        hanging.end()


@pytest.mark.parametrize("command", ["'", "cc '-O2"])
def test_a_cc_that_is_no_command_is_quoted_and_scripts_are_installed(tmp_path: Path, command: str) -> None:
    node = ScratchNode(tmp_path, PLUGINS, env={"CC": command})
    done = node.run("install")
    assert done.returncode == 0
    assert f"CC is {command!r}, which is not a command" in done.stderr


@pytest.mark.usefixtures("has_compiler")
def test_without_a_temporary_folder_scripts_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = ScratchNode(tmp_path, PLUGINS)
    registry = inspect(node.configuration)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    done = deploy(registry, node.paths)
    assert (done.kind, "installed instead" in done.warnings[0]) == ("script", True)
    assert "No such file" in done.reason


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[ScratchNode]:
    """A node whose folder of drivers is part of a read-only image."""
    node = ScratchNode(tmp_path, PLUGINS)
    assert node.run("install", "--script").returncode == 0
    folder = str(node.paths.flexvolume)
    bind(folder, folder, read_only=True)
    yield node
    unmount(folder)


def test_drivers_of_a_read_only_image_are_left_to_kubelet(read_only: ScratchNode) -> None:
    reprobe(read_only.paths.flexvolume, ["nodeplug/tmpfs"])


@pytest.fixture
def unreadable(tmp_path: Path) -> Iterator[ScratchNode]:
    """A node whose disk answers with an error: so does the memory of a process that has ended (proc(5))."""
    node = ScratchNode(tmp_path, PLUGINS)
    script = node.paths.cni_bin / "nodeplug-bridge"
    script.parent.mkdir(parents=True)
    script.touch()
    with subprocess.Popen(["sleep", "60"]) as process:
        bind(f"/proc/{process.pid}/mem", str(script))
        process.kill()
    yield node
    unmount(str(script))


def test_an_entrypoint_that_cannot_be_read_is_told(unreadable: ScratchNode) -> None:
    registry = inspect(unreadable.configuration)
    with pytest.raises(PluginError, match=r"cannot examine .*nodeplug-bridge: No such process"):
        deploy(registry, unreadable.paths, native=False)
    assert installed_kind(unreadable.paths) == "unreadable"


HUGE = 1 << 40
"""Bytes of a file without blocks: more than any node has memory."""


def put_huge(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(HUGE)
    path.chmod(0o755)


def put_pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


@pytest.mark.whole
@pytest.mark.parametrize("put", [put_huge, put_pipe])
def test_files_of_others_that_have_no_end_hold_up_no_installation(tmp_path: Path, put: Callable[[Path], None]) -> None:
    node = ScratchNode(tmp_path, PLUGINS)
    paths = node.paths
    odd = [
        paths.cni_bin / "other",
        paths.cni_conf / "00-other.conflist",
        paths.flexvolume / "other~half" / "capabilities.json",
        paths.flexvolume / "other~driver" / "driver",
    ]
    for path in odd:
        put(path)
    for command in (["install", "--script"], ["install", "--script"], ["uninstall"]):
        done = subprocess.run(node.command(*command), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert all(path.exists() for path in odd)


@pytest.mark.parametrize("put", [put_huge, pytest.param(put_pipe, marks=pytest.mark.whole)])
def test_a_name_that_is_taken_by_a_file_without_end_is_refused(tmp_path: Path, put: Callable[[Path], None]) -> None:
    node = ScratchNode(tmp_path, PLUGINS)
    put(node.paths.cni_bin / "nodeplug-bridge")
    done = subprocess.run(node.command("install", "--script"), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "not installed by nodeplug and in the way" in done.stderr) == (1, True)


@pytest.mark.parametrize("put", [pytest.param(put_huge, marks=pytest.mark.whole), put_pipe])
def test_a_daemon_serves_beside_files_of_others_that_have_no_end(tmp_path: Path, put: Callable[[Path], None]) -> None:
    supervisor = 'listen = ""\ninstall = true\nnative_entrypoints = false'
    node = ScratchNode(tmp_path / "node", PLUGINS, supervisor=supervisor, fork=True)
    put(node.paths.cni_conf / "00-other.conflist")
    put(node.paths.cni_bin / "other")
    with node:
        until(lambda: node.status()["entrypoints"]["kind"])
        (node.paths.cni_bin / "nodeplug-bridge").unlink()
        put(node.paths.cni_bin / "nodeplug-bridge")
        until(lambda: "was replaced by a program" in node.status()["reasons"].get("entrypoints", ""))

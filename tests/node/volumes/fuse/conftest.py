"""Plugins whose program is bindfs, and nodes that have one."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fuse_programs import end_strays, shared_folder
from tests.node.volumes.fuse.lab import DRIVER, PATIENCE, condition_of, pid_of

from nodeplug.testing.waiting import until
from nodeplug_volumes.fuse import volume
from nodeplug_volumes.fuse.config import FuseConfig
from nodeplug_volumes.fuse.plugin import Fuse

CONTAINER = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
target, place, flag = sys.argv[1:]
def call(result):
    if result: raise OSError(ctypes.get_errno(), "mount")
call(libc.unshare(0x20000))
call(libc.mount(b"", b"/", b"", ctypes.c_ulong(16384 | (1 << 19)), None))
call(libc.mount(target.encode(), place.encode(), b"", ctypes.c_ulong(4096 | 16384), None))
call(libc.mount(b"", place.encode(), b"", ctypes.c_ulong(16384 | (1 << int(flag))), None))
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(open(place + "/hello").read(), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.fixture
def source() -> Iterator[Path]:
    with shared_folder() as folder:
        (folder / "data").mkdir()
        (folder / "data").chmod(0o777)
        (folder / "hello").rename(folder / "data" / "hello")
        yield folder


@pytest.fixture
def bindfs(source: Path) -> dict[str, Any]:
    return {
        "command": ["bindfs", "-f", f"{source}/{{folder}}", "{mountpoint}"],
        "options": {"folder": {"pattern": "[a-z]+", "default": "data"}},
    }


@pytest.fixture
def make_plugin(make_host: Any, area: Path) -> Iterator[Callable[..., Fuse]]:
    """Make a plugin; the same programs again act as a restart of the daemon."""
    started: list[Fuse] = []

    def make(**programs: dict[str, Any]) -> Fuse:
        config = FuseConfig.model_validate({"programs": programs, "check_interval": "100ms"})
        plugin = Fuse(config, make_host("fuse"))
        plugin.start()
        started.append(plugin)
        return plugin

    yield make
    for plugin in started:
        plugin.stop()
    end_strays(area / "hosts" / "fuse")


@pytest.fixture
def plugin(make_plugin: Any, bindfs: dict[str, Any]) -> Fuse:
    made: Fuse = make_plugin(files=bindfs)
    return made


@pytest.fixture
def node(make_node: Any, plugin: Fuse) -> Any:
    return make_node(fuse=plugin)


@pytest.fixture
def target(node: Any) -> Path:
    path: Path = node.target("a")
    return path


@pytest.fixture
def start_container(area: Path) -> Iterator[Callable[[Path, str], Callable[[], str]]]:
    """Start what a runtime makes of a volume: a mount namespace with a copy of the pod's mount; ask it for a file."""
    started: list[subprocess.Popen[str]] = []
    subprocess.run(["mount", "--bind", area, area], check=True)
    subprocess.run(["mount", "--make-shared", area], check=True)

    def start(target: Path, propagation: str) -> Callable[[], str]:
        place = area / f"container-{len(started)}"
        place.mkdir()
        command = [sys.executable, "-c", CONTAINER, str(target), str(place), propagation]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        to_it, from_it = child.stdin, child.stdout
        assert to_it is not None
        assert from_it is not None
        assert from_it.readline() == "ready\n"

        def ask() -> str:
            to_it.write("read\n")
            to_it.flush()
            return from_it.readline().strip()

        return ask

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a program for hung that does not answer within one second, instead of five."""
    monkeypatch.setattr(volume, "LOOK_TIMEOUT", 1.0)


@pytest.fixture
def hung(impatient: None, node: Any, plugin: Fuse, target: Path) -> int:
    """The pid of a program that does not answer any more, and is known not to."""
    node.mount(DRIVER, target, {})
    pid = pid_of(plugin)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: "does not answer" in condition_of(plugin), PATIENCE)
    return pid

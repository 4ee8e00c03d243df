"""The sockets of a registration: their names, owners, limits and remains."""

import os
import socket
import stat
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

from nodeplug import InvalidRequest, PluginError
from nodeplug.device.kubelet import KubeletFolders
from nodeplug.device.resource import ResourceTask
from nodeplug.device.sockets import remove_dead_sockets, socket_path
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.process.lane import Lane
from nodeplug.process.private_socket import PATH_LIMIT, Bound, check_socket_path, serve
from nodeplug.testing.devices import serve_devices
from nodeplug.testing.kubelet import Kubelet
from nodeplug.testing.waiting import until

if TYPE_CHECKING:
    from tests.node.device.conftest import Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"


def own_sockets(folder: Path) -> list[Path]:
    return sorted(folder.glob("nodeplug-*.sock"))


def test_sockets_of_a_killed_daemon_are_removed(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        kubelet = Kubelet(root)
        kubelet.device_plugins.mkdir()
        stale = socket_path(kubelet.device_plugins, RESOURCE)
        foreign = kubelet.device_plugins / "nvidia-gpu.sock"
        passing = kubelet.device_plugins / ".4711.0"  # that of a daemon killed before it had moved it to its path
        for path in (stale, foreign, passing):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        async with serve_devices(minimal, kubelet, root):
            await kubelet.until(lambda: not stale.exists() and not passing.exists())
            assert foreign.exists()

    run(story())


def test_socket_on_which_somebody_listens_is_left_alone(root: Path) -> None:
    path = socket_path(root, RESOURCE)
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        remove_dead_sockets(root)
        assert path.exists()


def test_socket_belongs_to_its_owner_alone(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            (path,) = own_sockets(kubelet.device_plugins)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    run(story())


def test_binding_leaves_the_umask_of_other_threads_alone(minimal: "Minimal", root: Path, run: Run) -> None:
    modes: set[int] = set()
    done = threading.Event()

    def make_folders() -> None:
        for number in range(100_000):
            if done.is_set():
                return
            (root / f"f{number}").mkdir()
            modes.add(stat.S_IMODE((root / f"f{number}").stat().st_mode))
            (root / f"f{number}").rmdir()

    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            for count in range(1, 15):
                await kubelet.until(lambda count=count: len(kubelet.registrations) == count)  # type: ignore[misc] # mypy cannot infer the default
                await kubelet.until_allocatable(RESOURCE, 4)
                await kubelet.recreate_socket()

    before = os.umask(0o022)
    thread = threading.Thread(target=make_folders)
    thread.start()
    try:
        run(story())
    finally:
        done.set()
        thread.join()
        os.umask(before)
    assert modes == {0o755}


@pytest.mark.parametrize("size", [PATH_LIMIT, PATH_LIMIT + 1])
def test_path_limit_is_the_one_of_the_kernel(root: Path, size: int) -> None:
    path = root / ("x" * (size - len(str(root)) - 1))
    with socket.socket(socket.AF_UNIX) as probe:
        if size <= PATH_LIMIT:
            check_socket_path(path)
            probe.bind(str(path))
        else:
            with pytest.raises(InvalidRequest, match="108 bytes"):
                check_socket_path(path)
            with pytest.raises(OSError, match="too long"):
                probe.bind(str(path))


def test_folder_too_deep_for_any_socket_is_refused_at_construction(minimal: "Minimal", root: Path) -> None:
    registry = Registry()
    registry.load("minimal", minimal, "the test")
    deep = root / ("x" * 100)
    with pytest.raises(InvalidRequest, match="the kernel takes 107"):
        ResourceTask(registry.route("device", RESOURCE), Runner(), KubeletFolders(deep, deep))


def test_socket_names_never_repeat(root: Path) -> None:
    assert len({socket_path(root, RESOURCE) for _ in range(1000)}) == 1000


def test_longest_resource_name_fits_kubelets_folder() -> None:
    check_socket_path(socket_path(KubeletFolders().device_plugins, "a" * 244 + "/" + "b" * 63))


def test_a_server_that_cannot_be_moved_to_its_path_keeps_no_listener(root: Path, run: Run) -> None:
    async def story() -> None:
        (root / "taken").mkdir()
        server = grpc.aio.server()
        with pytest.raises(PluginError, match="cannot listen on"):
            await serve(server, Lane("the folder"), lambda: Bound.at(root / "taken", server))
        # The kernel tells the name of a socket for as long as somebody has it open.
        until(lambda: str(root) not in Path("/proc/net/unix").read_text())

    run(story())
    assert [path.name for path in root.iterdir()] == ["taken"]

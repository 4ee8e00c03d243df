"""The daemon's descriptors: none is kept for a caller who sends odd ones, and none being left ends nothing."""

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeplug.exec.frame import Frame, Reply

Make = Callable[..., Any]
STDIN = b'{"cniVersion": "1.0.0", "name": "net", "type": "faulty"}'
LOOKING_OFTEN = (
    'listen = ""\ninstall = true\nnative_entrypoints = false\ndevice_poll = "100ms"\npodresources_poll = "100ms"'
)


def converse(node: Any, frame: Frame, fds: tuple[int, ...] = ()) -> Reply:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(node.scratch.paths.exec_socket))
        socket.send_fds(peer, [frame.encode()], fds)
        return Reply.decode(b"".join(iter(lambda: peer.recv(1 << 16), b"")))


@contextmanager
def opened(*ways: tuple[str | Path, int]) -> Iterator[tuple[int, ...]]:
    with ExitStack() as stack:
        fds = tuple(os.open(path, flags | os.O_CLOEXEC) for path, flags in ways)
        for fd in fds:
            stack.callback(os.close, fd)
        yield fds


ODD = {
    "the caller's namespace by path alone": (("/proc/self/ns/net", os.O_PATH), (None, os.O_RDONLY)),
    "the container's namespace by path alone": (("/proc/self/ns/net", os.O_RDONLY), (None, os.O_PATH)),
    "both by path alone": (("/proc/self/ns/net", os.O_PATH), (None, os.O_PATH)),
    "a file for the caller's namespace": (("/proc/self/status", os.O_RDONLY), (None, os.O_RDONLY)),
    "another kind of namespace": (("/proc/self/ns/mnt", os.O_RDONLY), (None, os.O_RDONLY)),
}


@pytest.fixture(scope="module")
def node(make_shared_node: Make) -> Any:
    """A daemon for the calls with odd descriptors, of which it keeps none."""
    return make_shared_node()


@pytest.mark.parametrize("ways", ODD.values(), ids=ODD)
@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_odd_descriptors_of_a_caller_are_closed(node: Any, ways: Any, verb: str) -> None:
    (own, how), (_, inner) = ways
    frame = Frame("cni", "faulty", (), node.env(verb), STDIN)

    def play(count: int) -> None:
        with opened((own, how), (node.netns, inner)) as fds:
            for _ in range(count):
                converse(node, frame, fds)

    play(3)
    before = node.descriptors()
    play(30)
    node.until(lambda: node.descriptors() <= before + 2)


def test_a_del_whose_namespace_came_by_path_alone_succeeds(node: Any) -> None:
    with opened(("/proc/self/ns/net", os.O_RDONLY), (node.netns, os.O_PATH)) as fds:
        assert converse(node, Frame("cni", "faulty", (), node.env("DEL"), STDIN), fds).exit == 0


def test_an_add_whose_own_namespace_came_by_path_alone_is_refused_with_a_sentence(node: Any) -> None:
    with opened(("/proc/self/ns/net", os.O_PATH), (node.netns, os.O_RDONLY)) as fds:
        reply = converse(node, Frame("cni", "faulty", (), node.env("ADD"), STDIN), fds)
    assert reply.exit == 1
    assert b"not a network namespace, or was opened with O_PATH" in reply.stdout


@pytest.mark.parametrize("kubelet", ["absent", "killed"])
def test_a_daemon_without_a_descriptor_left_outlives_that(make_node: Make, kubelet: str) -> None:
    node = make_node(run=False, supervisor=LOOKING_OFTEN, board={"kind": "device"}, faulty={})
    folders = node.scratch.paths.device_plugins, node.scratch.paths.podresources_socket.parent
    if kubelet == "killed":
        for folder in folders:
            folder.mkdir(parents=True)
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(folder / "kubelet.sock"))
    node.start()
    limits = resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE)
    for spare in range(5):
        resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE, (node.descriptors() + spare, limits[1]))
        time.sleep(0.5)  # several looks at kubelet
        assert node.scratch.running, (spare, node.scratch.log[-2000:])
    resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE, limits)
    assert node.cni().status == 0


def test_a_lack_of_descriptors_is_said_once_when_it_begins_and_once_when_it_has_passed(make_node: Make) -> None:
    node = make_node()
    limits = resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.cni)
        node.until(lambda: "cannot accept on" in node.scratch.log)
        time.sleep(1)  # ten further tries
        resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE, limits)
        assert waiting.result().status == 0
    node.until(lambda: "callers are accepted" in node.scratch.log)
    said = [line for line in node.scratch.log.splitlines() if "accept" in line]
    assert len(said) == 2, said


@pytest.mark.programs("mount")
def test_what_ends_something_is_done_while_a_plugin_has_opened_all_descriptors(make_node: Make) -> None:
    node = make_node(faulty={}, drive={"kind": "volume"})
    target = node.scratch.root / "target"
    target.mkdir()
    assert node.flex("mount", str(target), "{}").document["status"] == "Success"
    assert node.cni("ADD", "c1").status == 0
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(node.cni, "ADD", "c2", do="open")
        node.until(lambda: "are kept for what ends something" in node.scratch.log)
        unmounted = node.flex("unmount", str(target)).document
        deleted = node.cni("DEL", "c1")
        refused = node.cni("ADD", "c3")
        reasons = node.scratch.status()["reasons"]
        (node.notes() / "go-c2").touch()
        assert opening.result().status == 0
    assert (unmounted["status"], deleted.status) == ("Success", 0)
    assert refused.code == 11
    assert "the daemon has no descriptors for more" in refused.text
    assert "restart the daemon if that does not pass" in reasons["descriptors"]
    node.until(lambda: "has descriptors again" in node.scratch.log)
    assert node.cni("ADD", "c3").status == 0
    assert "descriptors" not in node.scratch.status()["reasons"]


def test_a_limit_that_somebody_else_has_set_stays(make_node: Make) -> None:
    node = make_node()
    limits = resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE)
    low = (node.descriptors(), limits[1])
    resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE, low)
    time.sleep(0.5)  # several looks
    assert resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE, limits) == low

"""What systemd is told while a daemon is replaced by another one."""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.node.handover.replaced import beside, replace, running, serving

from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket `notify` on which systemd is told, see sd_notify(3)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        one.bind(str(tmp_path / "notify"))
        one.settimeout(30)
        yield one


def test_it_is_told_which_process_is_the_main_one(short_path: Path, tmp_path: Path, systemd: socket.socket) -> None:
    with running(short_path, tmp_path, NOTIFY_SOCKET=f"{tmp_path}/notify") as node:
        assert systemd.recv(4096) == b"READY=1"
        successor = replace(node)
        assert systemd.recv(4096) == f"MAINPID={successor}".encode()
        assert systemd.recv(4096) == b"READY=1"


@pytest.mark.whole
def test_it_is_told_of_the_main_process_again_if_its_queue_is_full(
    short_path: Path, tmp_path: Path, systemd: socket.socket
) -> None:
    """It would take the end of the process that it knows for the end of the service, and end the successor."""
    with running(short_path, tmp_path, NOTIFY_SOCKET=f"{tmp_path}/notify") as node:
        assert systemd.recv(4096) == b"READY=1"
        fill(tmp_path / "notify")
        with beside(lambda: node.run("replace")) as asked:
            until(lambda: "has taken over" in node.log or "systemd takes no message" in node.log)
            said = [systemd.recv(4096)]
            while not said[-1].startswith(b"MAINPID="):
                said.append(systemd.recv(4096))
            assert asked().returncode == 0
        assert said[-1] == f"MAINPID={serving(node)}".encode()


def fill(path: Path) -> None:
    """Send to a socket until its queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender, suppress(BlockingIOError):
        while True:
            sender.sendto(b"X", str(path))


@pytest.mark.whole
def test_its_watchdog_is_fed_until_the_next_daemon_serves(
    short_path: Path, tmp_path: Path, systemd: socket.socket
) -> None:
    with running(short_path, tmp_path, NOTIFY_SOCKET=f"{tmp_path}/notify", WATCHDOG_USEC="1000000") as node:
        before = serving(node)
        (tmp_path / "hold start").touch()
        with beside(lambda: node.run("replace")) as asked:
            until((tmp_path / "in start").exists)
            signs_of_life(systemd)
            until(lambda: before in signs_of_life(systemd))
            (tmp_path / "hold start").unlink()
            assert asked().returncode == 0
        successor = serving(node)
        until(lambda: successor in signs_of_life(systemd))


def signs_of_life(systemd: socket.socket) -> set[int]:
    """Read what has come, and return the process ids of those that said that they live."""
    systemd.setblocking(False)
    alive = set[int]()
    with suppress(BlockingIOError):
        while True:
            data, more, _, _ = systemd.recvmsg(4096, 64)
            if data == b"WATCHDOG=1":
                alive.add(struct.unpack("3i", more[0][2])[0])
    return alive

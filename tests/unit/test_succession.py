"""What one daemon leaves to the next, over the socket between the two."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from nodeplug.contract.errors import TryAgain
from nodeplug.process.succession import Kept, Predecessor, Successor, asks
from nodeplug.testing.waiting import until

MANY = 150


def test_a_daemon_leaves_more_connections_than_fit_into_one_message() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        successor, predecessor, kept = (
            Successor(os.getpid(), ours, os.pidfd_open(os.getpid())),
            Predecessor(theirs.detach()),
            Kept(),
        )
        pairs = [socket.socketpair() for _ in range(MANY)]
        successor.bequeath([left.fileno() for left, _ in pairs])
        ours.close()
        assert await predecessor.end(kept)
        for left, _ in pairs:
            left.close()
        assert len(kept.descriptors) == MANY
        assert all(is_open(right) for _, right in pairs)
        for _, right in pairs:
            right.close()
        await until_empty(kept)

    asyncio.run(scenario())


def is_open(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return bool(end.recv(1))
    except BlockingIOError:
        return True


async def until_empty(kept: Kept) -> None:
    async with asyncio.timeout(60):
        while kept.descriptors:
            await asyncio.sleep(0.01)


def test_what_comes_in_several_messages_is_kept_to_the_last() -> None:
    """The loop tells of a message until it is read, so it may tell once more of one that is."""

    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        predecessor, kept = Predecessor(theirs.detach()), Kept()
        ending = asyncio.create_task(predecessor.end(kept))
        pairs = [socket.socketpair() for _ in range(3)]
        for left, _ in pairs:
            socket.send_fds(ours, [b"{}"], [left.fileno()])
            await asyncio.sleep(0.05)
        ours.close()
        assert await ending
        assert len(kept.descriptors) == 3
        for left, right in pairs:
            left.close()
            right.close()
        await until_empty(kept)

    asyncio.run(scenario())


def test_sockets_for_which_there_is_no_room_are_not_adopted() -> None:
    """The kernel leaves out the descriptors that a process may not have (unix(7))."""

    async def scenario() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        adopted: list[tuple[str, str]] = []

        def adopt(section: str, name: str, descriptor: int) -> None:
            os.close(descriptor)
            adopted.append((section, name))

        names = [["one", "first"], ["one", "second"]]
        with ours, socket.socket() as kept, socket.socket() as listener:
            socket.send_fds(ours, [json.dumps({"word": "sockets", "names": names}).encode()], [kept.fileno()])
            socket.send_fds(ours, [json.dumps({"word": "yours"}).encode()], [listener.fileno()])
            predecessor = Predecessor(theirs.detach())
            (await predecessor.succeed(adopt)).close()
            ours.shutdown(socket.SHUT_WR)
            await predecessor.end(Kept())
        assert adopted == [("one", "first")]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def frame(kind: int, size: int = 0) -> bytes:
    """Return a frame of HTTP/2 without flags, on stream 1."""
    return size.to_bytes(3, "big") + bytes([kind, 0]) + (1).to_bytes(4, "big") + b"x" * size


SETTINGS, PING, WINDOW_UPDATE, HEADERS, DATA = frame(4), frame(6, 8), frame(8, 4), frame(1, 40), frame(0, 5)


def test_what_http_says_of_itself_is_no_request() -> None:
    assert not asks(SETTINGS + PING + WINDOW_UPDATE)


@pytest.mark.parametrize("data", [HEADERS + DATA, PING + HEADERS, b"no frame", PING + b"\0"])
def test_a_request_and_what_cannot_be_understood_are_told(data: bytes) -> None:
    assert asks(data)


def test_a_connection_on_which_something_is_asked_is_closed_because_nobody_can_answer() -> None:
    async def scenario() -> None:
        kept, pairs = Kept(), [socket.socketpair() for _ in range(2)]
        for left, _ in pairs:
            kept.keep(left.detach())
        (_, asking), (_, quiet) = pairs
        quiet.sendall(PING)
        asking.sendall(HEADERS)
        async with asyncio.timeout(60):
            while len(kept.descriptors) != 1:
                await asyncio.sleep(0.01)
        assert is_open(quiet)
        assert asking.recv(1) == b""
        quiet.close()
        asking.close()
        await until_empty(kept)

    asyncio.run(scenario())


def opened() -> list[str]:
    """Return the descriptors of this thread, and one that looks for them."""
    return sorted(one.name for one in Path("/proc/thread-self/fd").iterdir())


@pytest.mark.own_descriptors
def test_a_starter_that_fails_is_told_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def scenario() -> None:
        before = opened()
        with pytest.raises(TryAgain, match="no successor can be started: its starter has failed") as kept:
            await Successor.start(["serve"])
        assert opened() == before, kept  # the error keeps alive what the call did not close

    asyncio.run(scenario())


def test_a_starter_that_hangs_ends_the_succession_and_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "python"
    hanging.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 3600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))

    async def scenario() -> None:
        with pytest.raises(TryAgain, match=r"has not started within 0\.5 s"):
            await Successor.start(["serve"], patience=0.5)

    asyncio.run(scenario())
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not Path(f"/proc/{pid}").exists())

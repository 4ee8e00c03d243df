"""Sockets that plugins keep in the daemon, and that one daemon leaves to the next."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeplug.contract.errors import Exhausted
from nodeplug.contract.sockets import KeptSockets
from nodeplug.hosting.kept_sockets import SocketsBySection
from nodeplug.process.succession import Kept, Predecessor, Successor
from nodeplug.testing import host
from nodeplug.worker.answering import answer
from nodeplug.worker.wire import Broken, Message

MANY = 300


closes_all = pytest.mark.own_descriptors(closes_all=True)


@closes_all
def test_a_kept_socket_is_open_until_it_is_dropped() -> None:
    kept = KeptSockets()
    left, right = socket.socketpair()
    with left:
        kept.keep("end", right)
        right.close()
        left.sendall(b"a")
        kept.drop("end")
        with pytest.raises(BrokenPipeError):
            left.sendall(b"b")


@closes_all
def test_a_name_has_the_last_socket_alone() -> None:
    kept = KeptSockets()
    first, second = socket.socketpair(), socket.socketpair()
    for left, right in (first, second):
        kept.keep("end", right)
        right.close()
        left.settimeout(60)
    assert first[0].recv(1) == b""
    second[0].sendall(b"a")
    kept.drop("end")
    first[0].close()
    second[0].close()


@closes_all
def test_one_plugin_keeps_no_more_than_its_share_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))
    kept = KeptSockets()
    with socket.socket() as one:
        kept.keep("a", one)
        kept.keep("b", one)
        kept.keep("b", one)
        with pytest.raises(Exhausted, match="at most 2 sockets are kept for a plugin"):
            kept.keep("c", one)
    assert kept.names() == ["a", "b"]
    for name in kept.names():
        kept.drop(name)


@closes_all
def test_what_is_no_socket_is_refused_to_a_process(tmp_path: Path) -> None:
    file = os.open(tmp_path, os.O_RDONLY)
    message = Message({"op": "sockets", "do": "keep", "name": "file"}, b"", [file])
    with pytest.raises(Broken, match="it keeps what is no socket"):
        answer(host(tmp_path), message)


@closes_all
def test_sockets_of_sections_that_are_gone_are_closed() -> None:
    sockets = SocketsBySection()
    with socket.socket() as one:
        sockets.of("here").keep("a", one)
        sockets.of("gone").keep("a", one)
    sockets.forget_others(["here"])
    assert (sockets.of("here").names(), sockets.of("gone").names()) == (["a"], [])
    sockets.forget_others([])


def test_an_earlier_instance_leaves_its_sockets_to_the_next_in_a_unit_test(tmp_path: Path) -> None:
    before = host(tmp_path)
    with socket.socket() as one:
        before.sockets.keep("a", one)
    assert host(tmp_path, sockets=before.sockets).sockets.names() == ["a"]
    assert host(tmp_path).sockets.names() == []
    before.sockets.drop("a")


def inode(one: socket.socket) -> int:
    with one:
        return os.fstat(one.fileno()).st_ino


@asynccontextmanager
async def between() -> AsyncIterator[tuple[Successor, Predecessor]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    process, predecessor = os.pidfd_open(os.getpid()), Predecessor(theirs.detach())
    yield Successor(os.getpid(), ours, process), predecessor
    ours.close()
    await predecessor.end(Kept())
    os.close(process)


def test_a_daemon_leaves_sockets_with_their_sections_and_names_before_the_node() -> None:
    async def scenario() -> None:
        before, after, given = SocketsBySection(), SocketsBySection(), {}
        for number in range(MANY):  # more than fit into the buffer between the two
            section, name = f"plugin {number % 3}", f"{number} " + "\u20ac" * 150
            one = socket.socket()
            before.of(section).keep(name, one)
            given[section, name] = inode(one)
        async with between() as (successor, predecessor):
            listener = socket.socket()
            following = asyncio.create_task(predecessor.succeed(after.adopt))
            assert (await successor.word("ready", 60))["sockets"] is True
            await successor.leave(before.lend())
            await successor.hand_over(listener)
            assert inode(await following) == inode(listener)
        assert {(section, name): inode(one) for section, name, one in after.lend()} == given

    asyncio.run(scenario())


def test_sockets_that_cannot_be_left_do_not_keep_the_node_from_its_successor(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        adopted: list[str] = []

        def adopt(_: str, name: str, descriptor: int) -> None:
            adopted.append(name)
            os.close(descriptor)

        async with between() as (successor, predecessor):
            listener = socket.socket()
            names = [f"{number}" for number in range(5000)]
            await successor.leave([("plugin", name, socket.socket()) for name in names], patience=0.2)
            following = asyncio.create_task(predecessor.succeed(adopt))
            await successor.hand_over(listener)
            assert inode(await following) == inode(listener)
            assert names[: len(adopted)] == adopted != names

    asyncio.run(scenario())
    assert "gets not all sockets that plugins keep: it takes too long" in caplog.text

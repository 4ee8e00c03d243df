"""The wire between the daemon and a worker, on real sockets."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.own_descriptors import no_room_for_descriptors

from nodeplug.worker import incomplete
from nodeplug.worker.wire import Broken, Channel, Closed, Control, Message, NoDescriptorLeft

LONG = Message({"op": "hook"}, b'"' + b"x" * (4 << 20) + b'"')


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = (Channel(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_a_message_that_has_left_needs_nobody_at_the_other_end(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send_at_once(Message({"op": "hook"}))
    other.close()  # it has what it needs
    one.flush()


def test_what_does_not_fit_is_sent_when_somebody_waits(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    assert not one.send_at_once(LONG)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(other.receive, first=True)
        one.flush()
        assert reading.result().body == LONG.body


def test_who_reads_nothing_is_told_apart_without_waiting(ends: tuple[Channel, Channel]) -> None:
    one, _ = ends
    one.send_at_once(LONG)
    with pytest.raises(Broken, match="it answers requests that it has not read"):
        one.send_at_once(LONG)


def test_the_rest_of_a_message_is_not_sent_to_nobody(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send_at_once(LONG)
    other.close()
    with pytest.raises(Closed):
        one.flush()


def test_who_waits_long_for_a_message_sleeps(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    used: list[float] = []

    def wait() -> None:
        began = time.thread_time()
        one.receive()
        used.append(time.thread_time() - began)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)
    other.send(Message({"op": "late"}))
    waiting.join()
    assert used[0] < 0.1  # of half a second


def test_an_announced_message_is_read_as_any_other(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    for body in (b"1", b"2"):
        one.announce()
        one.announce()  # by somebody else, before the call
        one.send(Message({"op": "hook"}, body), first=True)
        assert other.receive(first=True).body == body


def test_who_has_heard_of_a_message_waits_for_it(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.announce()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(other.receive, first=True)
        time.sleep(0.1)
        assert not reading.done()
        one.send(Message({"op": "hook"}, b"1"), first=True)
        assert reading.result().body == b"1"


def test_an_announced_message_may_bring_descriptors(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.announce()
    reader, writer = os.pipe()
    one.send(Message({"op": "hook"}, descriptors=[writer]), first=True)
    os.close(writer)
    message = other.receive(first=True)
    os.write(message.descriptors[0], b"x")
    message.close()
    assert os.read(reader, 2) == b"x"
    os.close(reader)


def test_that_nobody_is_there_is_told_to_the_call_alone(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    other.close()
    one.announce()
    with pytest.raises(Closed):
        one.send(Message({"op": "hook"}), first=True)


Ends = Callable[[socket.socket], Channel | Control]


@pytest.mark.own_descriptors(closes_all=True)
@pytest.mark.parametrize(("kind", "end"), [(socket.SOCK_STREAM, Channel), (socket.SOCK_SEQPACKET, Control)])
def test_more_descriptors_than_a_message_may_bring_break_the_wire_and_are_closed(kind: int, end: Ends) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, kind)
    with here, there:
        socket.send_fds(here, [b'{"op": "call"}'], [here.fileno()] * 100)
        with pytest.raises(Broken, match="more than 64 descriptors come with its message"):
            end(there).receive()


@pytest.mark.own_descriptors(closes_all=True)
@pytest.mark.parametrize(("kind", "end"), [(socket.SOCK_STREAM, Channel), (socket.SOCK_SEQPACKET, Control)])
def test_a_message_is_lost_when_this_process_may_open_no_more_files(kind: int, end: Ends) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, kind)
    with here, there:
        socket.send_fds(here, [b'{"op": "call"}'], [here.fileno()])
        with no_room_for_descriptors(), pytest.raises(NoDescriptorLeft, match="no file descriptor was free"):
            end(there).receive()


def test_messages_that_never_end_have_one_bound_for_all_channels_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incomplete, "MOST", 3000)
    shared, begun = incomplete.Incomplete(), struct.pack("<III", 0, 10, 1 << 20) + b"x" * 1488
    pairs = [socket.socketpair() for _ in range(3)]
    channels = [Channel(here, incomplete=shared) for here, _ in pairs]
    for channel, (_, there) in zip(channels[:2], pairs[:2], strict=True):
        there.send(begun)
        assert channel.look() is None
    pairs[2][1].send(b"x")
    with pytest.raises(Broken, match="it has begun more messages at once than are kept"):
        channels[2].look()
    channels[0].close()
    pairs[2][1].send(b"x")
    assert channels[2].look() is None
    for channel, (_, there) in zip(channels, pairs, strict=True):
        channel.close()
        there.close()

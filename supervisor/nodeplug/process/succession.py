"""One daemon takes the place of another on a running node, and nobody finds it empty.

Owns: both ends of the socket between the two, and the start of the successor. They say nine words:

    starter        started   which process the successor is; it has ended by then
    successor      loaded    what it can load of the configuration
    predecessor    register  that is enough
    successor      ready     kubelet knows its sockets, and it takes those that plugins keep
    predecessor    sockets   those, with their sections and names, as many words as it takes
    predecessor    yours     with the listening socket, when nothing of it writes any more
    successor      serving   it answers callers, kubelet at these sockets, and the predecessor may go
    predecessor    gone      with the connections on which kubelet still listens to it, which must not end
    predecessor    refused   at any time before "yours", to one that somebody else has started: it goes on by itself

The end of a process is the end of its socket, so that each learns of the other's without a wait.
Refuses: what has to be done before a word is said, and what becomes of a succession that fails (the daemon).
"""

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from nodeplug.contract.errors import PluginError, TryAgain, clip
from nodeplug.descriptors import receive
from nodeplug.process.aside import aside
from nodeplug.process.environment import copy_environment
from nodeplug.process.execution import DESCRIPTOR, execute, refusal

OPTION: Final = "--succeed"
LOG: Final = logging.getLogger(__name__)
STARTED: Final = 30.0
"""Seconds in which Python starts and executes another one, on a node whose disks do not hang."""
TAKEN: Final = 10.0
"""Seconds in which a successor takes the sockets that plugins keep."""
_LIMIT: Final = 64 << 10
_REASON: Final = 500
_AT_ONCE: Final = 64
_FRAME: Final = 9
_HEADERS: Final = 1
_NAMED: Final = 16
"""Sockets in one word: their names, escaped, are far below the limit."""
_ITS_OWN: Final = frozenset({"WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"})
"""Variables that hold for one process (sd_notify(3), sd_watchdog_enabled(3))."""


@dataclass(slots=True)
class Successor:
    """The process that is to take over, as the one before sees it. Used only from the event loop."""

    pid: int
    _end: socket.socket
    _process: int
    started_here: bool = True

    @property
    def process(self) -> int:
        """Its descriptor (pidfd_open(2))."""
        return self._process

    def check(self) -> None:
        """Look whether the process is still there.

        Raises:
            TryAgain: it is not.
        """
        try:
            ended = not self._end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            ended = False
        except OSError:
            ended = True
        if ended:
            raise TryAgain(f"its successor, process {self.pid}, has ended; the log says why")

    @classmethod
    async def start(cls, arguments: Sequence[str], patience: float = STARTED) -> Self:
        """Execute `nodeplug` with these arguments and the option of a successor, from the code that is installed now.

        It is no child of this process (`process/adoption`).

        Raises:
            TryAgain: no process can be started, or its starter does not end within `patience` seconds.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            python = [sys.executable, "-P", "-m"]
            command = [*python, "nodeplug.process.adoption", *python, "nodeplug", *arguments, OPTION, str(DESCRIPTOR)]
            environment = {name: value for name, value in copy_environment().items() if name not in _ITS_OWN}
            starter = execute(command, environment, theirs.fileno())
            theirs.close()
            await _ended(starter, patience)
            data, descriptors, _ = receive(ours, _LIMIT, 1)
            if not data or len(descriptors) != 1:
                raise OSError(errno.EAGAIN, "its starter has failed")
            return cls(json.loads(data)["pid"], ours, descriptors[0])
        except OSError as error:
            ours.close()
            raise TryAgain(f"no successor can be started: {refusal(error)}") from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    @classmethod
    def beside(cls, pid: int, descriptor: int) -> Self:
        """Take a process that was started elsewhere and has asked for this one's place, by its end of a socket.

        Raises:
            TryAgain: it has ended.
        """
        end = socket.socket(fileno=descriptor)
        end.setblocking(False)
        try:
            return cls(pid, end, os.pidfd_open(pid), started_here=False)
        except OSError as error:
            end.close()
            raise TryAgain(f"process {pid}, which asks for this one's place: {refusal(error)}") from error

    async def word(self, expected: str, seconds: float) -> Mapping[str, Any]:
        """Wait for a word of the successor, and return what comes with it.

        Raises:
            TryAgain: it has ended, says something else, or says nothing for so long.
        """
        try:
            async with asyncio.timeout(seconds):
                data = await asyncio.get_running_loop().sock_recv(self._end, _LIMIT)
        except TimeoutError:
            raise TryAgain(f"its successor, process {self.pid}, is not {expected} after {seconds:g} s") from None
        except OSError:
            data = b""
        if not data:
            raise TryAgain(f"its successor, process {self.pid}, ended before it was {expected}; the log says why")
        said = json.loads(data)
        if said.get("word") != expected:
            raise TryAgain(f"its successor, process {self.pid}, is not {expected}: it says {said.get('word')!r}")
        return dict(said)

    def let_register(self) -> None:
        """Say that it may show itself to kubelet: from then on its end would disturb that."""
        with suppress(OSError):
            self._end.send(_said("register"))

    async def leave(self, sockets: Sequence[tuple[str, str, socket.socket]], patience: float = TAKEN) -> None:
        """Give it sockets that plugins keep, each with its section and name, and close them here.

        What cannot be given is logged: the plugins of the successor make new ones.
        """
        try:
            async with asyncio.timeout(patience):
                for first in range(0, len(sockets), _NAMED):
                    some = sockets[first : first + _NAMED]
                    word = _said("sockets", names=[[section, name] for section, name, _ in some])
                    await _send_when_possible(self._end, word, [one.fileno() for _, _, one in some])
        except (OSError, TimeoutError) as error:
            LOG.error(
                "process %d gets not all sockets that plugins keep: %s", self.pid, str(error) or "it takes too long"
            )
        finally:
            for _, _, one in sockets:
                one.close()

    async def hand_over(self, listener: socket.socket) -> None:
        """Say that the node is its own now, and give it the socket on which callers wait.

        Raises:
            TryAgain: it has ended, or reads nothing.
        """
        try:
            async with asyncio.timeout(TAKEN):
                await _send_when_possible(self._end, _said("yours"), [listener.fileno()])
        except TimeoutError:
            raise TryAgain(f"its successor, process {self.pid}, reads nothing") from None
        except OSError as error:
            raise TryAgain(f"its successor, process {self.pid}, has ended: {error.strerror}") from error

    def bequeath(self, connections: Sequence[int]) -> None:
        """Say that this process ends, and give it connections to keep open."""
        with suppress(OSError):
            for first in range(0, max(len(connections), 1), _AT_ONCE):
                socket.send_fds(self._end, [_said("gone")], connections[first : first + _AT_ONCE])

    def dismiss(self, why: str) -> None:
        """Let it end: kill it, or tell one that somebody else has started why it is not needed, for its own log."""
        if self.started_here:
            self.kill()
            return
        with suppress(OSError):
            self._end.send(_said("refused", why=clip(why, _REASON)))
        self._end.close()
        os.close(self._process)

    def kill(self) -> None:
        """End it, if it still runs, and forget it. Does not wait: it may hang in the kernel."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self._end.close()
        os.close(self._process)


async def _ended(starter: int, patience: float) -> None:
    """Wait for the end of a starter; one that hangs is killed, and TryAgain says so."""
    waiting = aside(lambda: os.waitpid(starter, 0), f"end of process {starter}")
    await asyncio.wait([waiting], timeout=patience)
    if not waiting.done():
        os.kill(starter, signal.SIGKILL)  # the thread reaps it, so the number is still its own
        raise TryAgain(
            f"a successor has not started within {patience:g} s: process {starter}, which starts it, hangs; "
            "check the disk with Python and nodeplug"
        )
    await waiting


class Predecessor:
    """The process whose place is to be taken, as its successor sees it. Used only from the event loop."""

    def __init__(self, descriptor: int) -> None:
        self._end = socket.socket(fileno=descriptor)
        self._end.setblocking(False)
        os.set_inheritable(descriptor, False)

    async def loaded(self, refused: Mapping[str, str]) -> None:
        """Say what this process cannot load, and wait until it may register beside the predecessor.

        Args:
            refused: by section name, why a plugin cannot be loaded.

        Raises:
            PluginError: the predecessor has ended, or keeps the node.
        """
        await self._say("loaded", refused={name: clip(why, _REASON) for name, why in refused.items()})
        await self._answer()

    async def succeed(self, adopt: Callable[[str, str, int], None]) -> socket.socket:
        """Say that this process is ready, and wait until the node is its own; return the listening socket.

        Args:
            adopt: takes a section, a name and the descriptor of a socket that the section's plugin keeps.

        Raises:
            PluginError: the predecessor has ended, or keeps the node.
        """
        await self._say("ready", sockets=True)
        said, descriptors = await self._answer()
        while said["word"] == "sockets":
            for (section, name), descriptor in zip(said["names"], descriptors, strict=False):  # or there is no room
                adopt(section, name, descriptor)
            said, descriptors = await self._answer()
        listener = socket.socket(fileno=descriptors[0])
        listener.setblocking(False)
        return listener

    async def _say(self, word: str, **more: Any) -> None:
        with suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._end, _said(word, **more))

    async def _answer(self) -> tuple[Mapping[str, Any], list[int]]:
        """Wait for a word, and return it with the descriptors that come with it."""
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        loop.add_reader(self._end, readable.set_result, None)
        try:
            await readable
        finally:
            loop.remove_reader(self._end)
        try:
            data, descriptors, _ = receive(self._end, _LIMIT, _NAMED)
        except OSError:
            data, descriptors = b"", []
        said = json.loads(data) if data else {}
        if not said or (said["word"] == "yours" and len(descriptors) != 1):
            raise PluginError("the daemon whose place was to be taken has ended, or goes on by itself")
        if said["word"] == "refused":
            raise PluginError(f"the daemon that serves keeps its place: {said['why']}")
        return said, descriptors

    def say_serving(self, devices: Mapping[str, str]) -> None:
        """Say that callers are answered here, and kubelet at these sockets, by resource."""
        with suppress(OSError):
            self._end.send(_said("serving", devices=dict(devices)))

    async def end(self, kept: "Kept") -> bool:
        """Wait until the predecessor has ended, and keep the connections that it leaves.

        Returns:
            Whether it said that it goes; one that was killed has told nobody who follows.
        """
        loop, more, told = asyncio.get_running_loop(), asyncio.Event(), False
        loop.add_reader(self._end, more.set)
        try:
            while await more.wait():
                more.clear()
                try:
                    data, descriptors, _ = receive(self._end, _LIMIT, _AT_ONCE)
                except BlockingIOError:  # the loop has told twice of what is read
                    continue
                for descriptor in descriptors:
                    kept.keep(descriptor)
                if not data:
                    break
                told = True
        except OSError:
            pass  # it was killed
        finally:
            loop.remove_reader(self._end)
            self._end.close()
        return told


class Kept:
    """Connections that earlier daemons have left, open until the other end closes them. Used from the event loop.

    One on which there is another request is closed: nobody is left to answer it, and kubelet would wait for ever.
    """

    def __init__(self) -> None:
        self._connections: set[socket.socket] = set()

    @property
    def descriptors(self) -> list[int]:
        """Return their descriptors."""
        return [one.fileno() for one in self._connections]

    def keep(self, descriptor: int) -> None:
        """Keep one, and read what nobody answers."""
        one = socket.socket(fileno=descriptor)
        one.setblocking(False)
        self._connections.add(one)
        asyncio.get_running_loop().add_reader(one, self._drain, one)

    def _drain(self, one: socket.socket) -> None:
        try:
            if (data := one.recv(_LIMIT)) and not asks(data):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        asyncio.get_running_loop().remove_reader(one)
        self._connections.discard(one)
        one.close()


def asks(data: bytes) -> bool:
    """Whether these frames of HTTP/2 (RFC 9113, section 4.1) begin a request, or are none."""
    while len(data) >= _FRAME:
        size, kind = int.from_bytes(data[:3], "big"), data[3]
        if kind == _HEADERS:
            return True
        data = data[_FRAME + size :]
    return bool(data)


def accepted(names: Iterable[Path]) -> list[int]:
    """Return the descriptors of this process that are connections to its own sockets that were bound with these."""
    wanted, found = {str(name) for name in names}, []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError, ValueError):
            other = socket.socket(fileno=os.dup(int(entry.name)))
            with other:
                if other.family == socket.AF_UNIX and other.getsockname() in wanted and other.getpeername() is not None:
                    found.append(int(entry.name))
    return found


async def _send_when_possible(end: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Send a word with descriptors; wait while the other end has not read those before."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            socket.send_fds(end, [data], descriptors)
        except BlockingIOError:
            writable = loop.create_future()
            loop.add_writer(end, writable.set_result, None)
            try:
                await writable
            finally:
                loop.remove_writer(end)
        else:
            return


def _said(word: str, **more: Any) -> bytes:
    return json.dumps({"word": word, **more}).encode()

"""The unix socket behind the entrypoint scripts: frames and file descriptors in, replies out.

Owns: the listening socket, who may connect, the limits on idle time, size and number, and one task per
connection. A caller's error is returned to it and logged in one line; it never ends the daemon. Every connection is
accepted at once; if too many have not sent their request, the oldest idle one is dropped. An entrypoint sends its
request as it connects, so it is never idle.
Refuses: protocol knowledge beyond the form of an error in each style, and file access on the event loop: a thread does
that.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import Ending, NotSupported, PluginError, TryAgain
from nodeplug.contract.netns import Netns
from nodeplug.exec.arrival import Arrival
from nodeplug.exec.doorway import Doorway
from nodeplug.exec.frame import ALIVE, SUCCESSION, Frame, Reply
from nodeplug.exec.listening import Identity, listen
from nodeplug.exec.refusal import refusal
from nodeplug.hosting.call import has_hung_up, new_request_id, set_caller
from nodeplug.process.aside import aside
from nodeplug.process.lane import Lane, Unanswered
from nodeplug.process.turns import ThreadTask, TurnLoop, on_the_loop

LOG: Final = logging.getLogger(__name__)
Handler = Callable[[Frame, tuple[Netns, ...]], Awaitable[Reply]]
"""Answers one frame; takes ownership of the namespaces and always closes them."""

READING: Final = 1024
"""Connections at a time whose request is incomplete."""
CALLS: Final = 1024
"""Requests that are served at a time; others get "try again"."""
_LOOK: Final = 0.5
"""Seconds between two checks that the socket is still at its path (one stat(2))."""
_SILENCE: Final = 10.0
_GRACE: Final = 2.0


class ExecServer:
    """Accepts executions of the scripts and hands them to the handler of their style.

    Args:
        path: where to listen; the folder is created if it is missing.
        handlers: by style ("cni", "flex", "control").
        in_threads: styles whose handlers begin in the thread of a connection, and go on on the loop before they wait.
        silence: seconds after which a caller that has not sent its whole frame is dropped.

    Attributes:
        succession: answers a daemon that asks for this one's place: told its socket, which it owns, and its process id.
    """

    def __init__(
        self,
        path: Path,
        handlers: Mapping[str, Handler],
        *,
        in_threads: Collection[str] = (),
        silence: float = _SILENCE,
    ) -> None:
        self.path = path
        self._handlers = handlers
        self._in_threads = in_threads
        self._silence = silence
        self.succession: Callable[[int, int], Awaitable[Reply]] | None = None
        self._listener: socket.socket | None = None
        self._identity: Identity = (0, 0)
        self._folder = Lane("the folder of the exec socket")
        self._doorway: Doorway | None = None
        self._stopped = asyncio.Event()
        self._connections: dict[Arrival, ThreadTask] = {}
        self._reading: dict[Arrival, ThreadTask] = {}
        self._calls = 0
        self._refused: set[int] = set()
        self._trouble = ""

    async def start(self) -> None:
        """Listen; the socket of a killed daemon is replaced.

        Raises:
            PluginError: another daemon listens there, or the path cannot be used.
        """
        # However long this takes: no call can be served before.
        self._listener, self._identity = await aside(lambda: listen(self.path), "exec: listen")

    def adopt(self, listener: socket.socket) -> None:
        """Go on with the socket of a predecessor, which has stopped to accept; callers have waited in its backlog.

        Raises:
            PluginError: the socket is not at its path.
        """
        try:
            status = self.path.stat()
        except OSError as error:
            listener.close()
            raise PluginError(f"the predecessor's socket is not at {self.path}: {error.strerror}") from error
        self._listener, self._identity = listener, (status.st_dev, status.st_ino)

    async def pause(self, seconds: float) -> bool:
        """Accept nobody until `resume`: callers wait in the backlog. Return whether all others have their answers.

        The caller of the request in whose task this is called does not count; it gets its answer later.
        """
        if self._doorway is not None:
            self._doorway.shut()
        others = {task.ended for task in self._connections.values() if not task.is_current}
        if others:
            await asyncio.wait(others, timeout=seconds)
        silent = {arrival for arrival in self._reading if arrival.silent}
        return all(task.is_current or arrival in silent for arrival, task in self._connections.items())

    def resume(self) -> None:
        """Accept again."""
        if self._doorway is not None:
            self._doorway.open()

    async def release(self, grace: float) -> socket.socket | None:
        """Give up the socket to a successor without closing it, after `grace` seconds for answers on their way."""
        listener, self._listener = self._listener, None
        self._stopped.set()
        while self._evict():
            pass
        await self._ended(grace)
        return listener

    async def keep_listening(self) -> None:
        """Recreate the socket when it disappears from its path, until cancelled: a task of the daemon.

        Otherwise callers would fail until the next restart after somebody cleaned up the folder.
        """
        told = ""
        while True:
            await asyncio.sleep(_LOOK)
            try:
                if self._listener is not None and not await self._folder.run(self._is_in_place):
                    made = await self._folder.run(lambda: listen(self.path), lambda late: late[0].close())
                    self._replace_listener(*made)
                    LOG.warning("the socket at %s was gone and has been recreated", self.path)
                told = ""
            except Unanswered as error:
                if not told:  # log it once, however long it lasts
                    LOG.error("cannot check whether the socket at %s still exists: %s", self.path, error)
                told = told or str(error)
            except (PluginError, OSError) as error:
                if told != str(error):
                    LOG.error("the socket at %s is gone and cannot be recreated: %s", self.path, error)
                told = str(error)

    def _is_in_place(self) -> bool:
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def _remove(self) -> None:
        if self._is_in_place():
            self.path.unlink()

    def _replace_listener(self, listener: socket.socket, identity: Identity) -> None:
        former = self._listener
        if former is None:  # stopped meanwhile
            listener.close()
            return
        self._listener, self._identity = listener, identity
        former.close()
        if self._doorway is not None:
            self._doorway.look_again()

    async def serve(self) -> None:
        """Accept until cancelled, or until `stop`; on a loop that lends its turns.

        Raises:
            TypeError: the running loop does not.
        """
        loop = asyncio.get_running_loop()
        if not isinstance(loop, TurnLoop):
            raise TypeError("calls are served on a nodeplug.process.turns.TurnLoop")
        self._doorway = Doorway(loop, self._listening, lambda: self._accept(loop))
        try:
            await self._stopped.wait()
        finally:
            self._doorway.close()
            self._doorway = None

    def _listening(self) -> int:
        listener = self._listener
        return -1 if listener is None else listener.fileno()

    def _evict(self) -> bool:
        """Drop the connection that is least likely to be a call; return whether there was one."""
        if not self._reading:
            return False
        # First refused ones, which have their reply; then silent ones; the oldest first.
        arrival = min(self._reading, key=lambda arrival: (not arrival.refused, not arrival.silent))
        self._cancel(arrival, self._reading.pop(arrival))
        return True

    def _cancel(self, arrival: Arrival, task: ThreadTask) -> None:
        task.cancel()
        if task.ended.done():  # it had not begun
            self._forget(arrival)

    def _forget(self, arrival: Arrival) -> None:
        self._reading.pop(arrival, None)
        self._connections.pop(arrival, None)
        arrival.end()

    async def _ended(self, grace: float) -> bool:
        """Wait for the connections, for so many seconds; return whether none is left."""
        if self._connections:
            await asyncio.wait({task.ended for task in self._connections.values()}, timeout=grace)
        return not self._connections

    def _accept(self, loop: TurnLoop) -> ThreadTask | None:
        """Accept one caller; None if there is none. Raises OSError while that fails."""
        if self._listener is None:
            return None
        try:
            peer = self._listener.accept()[0]
        except BlockingIOError:
            self._tell_accepting("")
            return None
        except OSError as error:
            self._tell_accepting(error.strerror or str(error))
            raise
        if len(self._reading) >= READING:
            self._evict()
        arrival = Arrival(peer)
        task = ThreadTask(loop, self._connection(arrival))
        self._reading[arrival] = self._connections[arrival] = task
        return task

    def _tell_accepting(self, trouble: str) -> None:
        """Log once that callers cannot be accepted, and once that they are again."""
        if trouble and not self._trouble:
            LOG.warning("cannot accept on %s: %s; callers wait until that is over", self.path, trouble)
        elif self._trouble and not trouble:
            LOG.warning("callers are accepted on %s again", self.path)
        self._trouble = trouble

    async def stop(self, grace: float = 5.0) -> None:
        """Stop accepting, give calls in progress `grace` seconds, and remove the socket if it is still ours."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with suppress(OSError, Unanswered):
            await self._folder.run(self._remove)
        self._stopped.set()
        listener.close()
        while self._evict():
            pass
        if not await self._ended(grace):
            for arrival, task in list(self._connections.items()):
                self._cancel(arrival, task)
            await self._ended(grace)

    async def _connection(self, arrival: Arrival) -> None:
        try:
            await self._serve_one(arrival)
        except Exception:
            LOG.exception("a connection on %s failed", self.path)
        finally:
            self._forget(arrival)

    async def _serve_one(self, arrival: Arrival) -> None:
        peer = arrival.peer
        uid = arrival.credentials()[1]
        try:
            if uid not in {0, os.geteuid()}:
                raise self._stranger(uid)
            frame = await self._frame(arrival)
            if frame is None or _has_left(peer, frame):
                return
            set_caller(peer)
            self._reading.pop(arrival, None)
            reply = await self._call(frame, arrival)
        except TimeoutError:
            LOG.warning("request %s: no whole request came within %g s", new_request_id(), self._silence)
            return
        except Ending:  # the caller has a way to keep its request
            return
        except PluginError as error:
            await self._refuse(arrival, error, quiet=uid in self._refused)
            return
        finally:
            arrival.close()
        await _send(peer, reply)

    async def _frame(self, arrival: Arrival) -> Frame | None:
        if arrival.is_whole:
            return await arrival.frame()
        await on_the_loop()
        async with asyncio.timeout(self._silence):
            return await arrival.frame()

    async def _call(self, frame: Frame, arrival: Arrival) -> Reply:
        # Requests to the daemon itself are short, and show what all others wait for.
        if self._calls >= CALLS and frame.style not in {"control", ALIVE}:
            raise TryAgain(f"{self._calls} requests are in progress; see `nodeplug status` for the slow ones")
        self._calls += 1
        try:
            return await self._answer(frame, arrival)
        finally:
            self._calls -= 1

    def _stranger(self, uid: int) -> PluginError:
        if uid not in self._refused:
            LOG.warning(
                "refused request %s of user %d on %s; further tries of this user are not logged",
                new_request_id(),
                uid,
                self.path,
            )
        self._refused.add(uid)
        return PluginError(f"only root may call nodeplug; the caller has user id {uid}")

    async def _refuse(self, arrival: Arrival, error: PluginError, *, quiet: bool) -> None:
        """Answer an incomplete frame; discard what still arrives, so that the caller can read the reply."""
        await on_the_loop()
        arrival.refused = True
        request = "" if quiet else new_request_id()
        if not quiet:
            LOG.warning("refused request %s: %s", request, error)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                style = await arrival.style()
                await _send(arrival.peer, refusal(style, error, request))
                with suppress(OSError):
                    arrival.peer.shutdown(socket.SHUT_WR)
                await arrival.drain()

    async def _answer(self, frame: Frame, arrival: Arrival) -> Reply:
        if frame.style == ALIVE:
            return Reply()
        if frame.style not in self._in_threads:
            await on_the_loop()
        try:
            if frame.style == SUCCESSION and self.succession is not None:
                return await self.succession(arrival.descriptor(), arrival.credentials()[0])
            handler = self._handlers.get(frame.style)
            if handler is None:
                known = ", ".join(sorted(self._handlers))
                raise NotSupported(f"this daemon does not know the style {frame.style!r}; it knows: {known}")
            namespaces = arrival.namespaces(frame)
            return await handler(frame, namespaces)
        except Ending:
            raise
        except PluginError as error:
            request = new_request_id()
            LOG.warning("refused request %s: %s", request, error)
            return refusal(frame.style, error, request)
        except Exception as error:
            request = new_request_id()
            LOG.exception("the handler for %r failed (request %s)", frame.style, request)
            text = f"the daemon failed: {type(error).__name__} (request {request}; the daemon's log has the traceback)"
            return refusal(frame.style, PluginError(text))


def _has_left(peer: socket.socket, frame: Frame) -> bool:
    """Whether the caller has already gone, as after a wait in the backlog of a stopped daemon.

    It has reported a failure, or spooled the DEL: nothing would undo an ADD that ran now.
    """
    if not has_hung_up(peer):
        return False
    verb = frame.env.get("CNI_COMMAND", "a call")
    LOG.warning("%s of %r is not served: its caller ended before it was read", verb, frame.name)
    return True


async def _send(peer: socket.socket, reply: Reply) -> None:
    # A caller that was killed, or does not read, costs only this line.
    data = reply.encode()
    try:
        with suppress(BlockingIOError, InterruptedError):
            data = data[peer.send(data, socket.MSG_DONTWAIT) :]
        if data:
            await on_the_loop()
            peer.setblocking(False)
            async with asyncio.timeout(_SILENCE):
                await asyncio.get_running_loop().sock_sendall(peer, data)
    except (OSError, TimeoutError) as error:
        LOG.info("the caller did not read the answer: %s", error or type(error).__name__)

"""The unix socket behind the entrypoint scripts: frames and file descriptors in, answers out.

Owns: the listening socket and its mode, who may speak to it, the bounds on silence and size, and one task per
connection. An error that concerns a caller is answered to that caller and logged in one line; none of them ends the
daemon.
Refuses: protocol knowledge beyond the form of an error in each style, and threads: everything runs on the event loop.
"""

import asyncio
import errno
import json
import logging
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeplug.call import has_hung_up, new_request_id, set_caller
from nodeplug.errors import InvalidNetns, NotSupported, PluginError, TryAgain, Undecodable, clip, wire
from nodeplug.frame import HEADER, LIMIT, Frame, Reply, body_size
from nodeplug.netns import Netns

LOG: Final = logging.getLogger(__name__)
Handler = Callable[[Frame, tuple[Netns, ...]], Awaitable[Reply]]
"""Answers one frame. It takes over the namespaces and sees them closed, whatever happens."""

BACKLOG: Final = 1024
"""Connections that the kernel keeps until they are accepted (and at most net.core.somaxconn)."""
CONNECTIONS: Final = 1024
"""Connections that are served at once; the next ones stay in the backlog."""
ALIVE: Final = "alive"
"""The style that is answered at once, by no handler: how an entrypoint tells a daemon at work from a stopped one."""
_LOOK: Final = 0.5
"""Seconds between two looks at whether the socket is still at its path: one stat(2)."""
_SILENCE: Final = 10.0
_GRACE: Final = 2.0
_DESCRIPTORS: Final = 2
_CREDENTIALS: Final = struct.Struct("3i")
_CHUNK: Final = 1 << 18


def refusal(style: str, error: PluginError, request: str = "") -> Reply:
    """Say an error in the form of a style: CNI error JSON, FlexVolume status JSON, or text on stderr."""
    text = clip(str(error))
    if request and request not in text:
        text += f" (request {request})"
    if style == "cni":
        return Reply(1, json.dumps({"code": wire(error).cni, "msg": text}).encode() + b"\n")
    if style == "flex":
        return Reply(0, json.dumps({"status": wire(error).flex, "message": text}).encode() + b"\n")
    return Reply(1, b"", f"{text}\n".encode(errors="replace"))


class ExecServer:
    """Accepts executions of the scripts and hands them to the handler of their style.

    Args:
        path: where to listen; the folder is made when it is missing.
        handlers: by style ("cni", "flex", "control").
        silence: seconds after which a caller that has not sent its whole frame is dropped.
    """

    def __init__(self, path: Path, handlers: Mapping[str, Handler], *, silence: float = _SILENCE) -> None:
        self.path = path
        self._handlers = handlers
        self._silence = silence
        self._listener: socket.socket | None = None
        self._identity = (0, 0)
        self._idle: asyncio.Future[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._refused: set[int] = set()

    async def start(self) -> None:
        """Listen. A socket that a killed daemon left is replaced.

        Raises:
            PluginError: another daemon listens there, or the path cannot be used.
        """
        self._listener = self._listen()

    def _listen(self) -> socket.socket:
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise PluginError(f"cannot make the folder {self.path.parent}: {error.strerror}") from error
        _clear_stale(self.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        # The mode is right from the first instant: a chmod after bind would leave a gap for others to connect.
        before = os.umask(0o177)
        try:
            listener.bind(str(self.path))
            listener.listen(BACKLOG)
            status = self.path.stat()
        except OSError as error:
            listener.close()
            raise PluginError(f"cannot listen on {self.path}: {error.strerror or error}") from error
        finally:
            os.umask(before)
        self._identity = status.st_dev, status.st_ino
        return listener

    async def keep_listening(self) -> None:
        """Listen anew when the socket is gone from its path: a task of the daemon, ended by cancelling it.

        Without it callers would fail until the next restart, because somebody tidied up a folder.
        """
        told = ""
        while True:
            await asyncio.sleep(_LOOK)
            if self._listener is None or self._is_in_place():
                continue
            try:
                self._replace_listener(self._listen())
            except (PluginError, OSError) as error:
                if told != str(error):
                    LOG.error("the socket at %s is gone, and cannot be made anew: %s", self.path, error)
                told = str(error)
            else:
                LOG.warning("the socket at %s was gone; it is made anew", self.path)
                told = ""

    def _is_in_place(self) -> bool:
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def _replace_listener(self, listener: socket.socket) -> None:
        former, self._listener = self._listener, listener
        if former is not None:
            self._close(former)

    def _close(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def serve(self) -> None:
        """Accept until cancelled, or until `stop`."""
        while self._listener is not None:
            await self._room.acquire()
            peer = None
            try:
                peer = await self._accept()
            finally:
                if peer is None:
                    self._room.release()
            if peer is not None:
                task = asyncio.create_task(self._connection(peer), name="exec-connection")
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

    async def _accept(self) -> socket.socket | None:
        while (listener := self._listener) is not None:
            try:
                return listener.accept()[0]
            except BlockingIOError:
                self._idle = asyncio.get_running_loop().create_future()
                await _readable(listener, self._idle)
            except OSError as error:  # such as EMFILE: it passes
                LOG.warning("cannot accept on %s: %s", self.path, error.strerror)
                await asyncio.sleep(0.1)
        return None

    async def stop(self, grace: float = 5.0) -> None:
        """Stop accepting, give calls in flight `grace` seconds, and remove the socket if it is still ours."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        if self._is_in_place():
            with suppress(OSError):
                self.path.unlink()
        self._close(listener)
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _connection(self, peer: socket.socket) -> None:
        try:
            peer.setblocking(False)
            with peer:
                await self._serve_one(peer)
        except Exception:
            LOG.exception("a connection on %s failed", self.path)
        finally:
            self._room.release()

    async def _serve_one(self, peer: socket.socket) -> None:
        arrival = _Arrival(peer)
        uid = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
        try:
            if uid not in {0, os.geteuid()}:
                raise self._stranger(uid)
            async with asyncio.timeout(self._silence):
                frame = await arrival.frame()
            if frame is None or _has_left(peer, frame):
                return
            set_caller(peer)
            reply = await self._answer(frame, arrival)
        except TimeoutError:
            LOG.warning("request %s: no whole request came within %g s", new_request_id(), self._silence)
            return
        except PluginError as error:
            await self._refuse(arrival, error, quiet=uid in self._refused)
            return
        finally:
            arrival.close()
        await _send(peer, reply)

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

    async def _refuse(self, arrival: "_Arrival", error: PluginError, *, quiet: bool) -> None:
        """Answer a frame that is not read to its end; what it still sends is thrown away, so that it can read."""
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

    async def _answer(self, frame: Frame, arrival: "_Arrival") -> Reply:
        if frame.style == ALIVE:
            return Reply()
        try:
            handler = self._handlers.get(frame.style)
            if handler is None:
                known = ", ".join(sorted(self._handlers))
                raise NotSupported(f"this daemon does not speak {frame.style!r}; it speaks: {known}")
            namespaces = arrival.namespaces(frame)
            return await handler(frame, namespaces)
        except PluginError as error:
            request = new_request_id()
            LOG.warning("refused request %s: %s", request, error)
            return refusal(frame.style, error, request)
        except Exception as error:
            request = new_request_id()
            LOG.exception("the handler for %r failed (request %s)", frame.style, request)
            text = f"the daemon failed: {type(error).__name__} (request {request}; the daemon's log has the traceback)"
            return refusal(frame.style, PluginError(text))


class _Arrival:
    """What one caller has sent so far. Descriptors that nobody took over are closed."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self._data = bytearray()
        self._descriptors: list[int] = []

    async def frame(self) -> Frame | None:
        """Read one frame; None when the caller closed before its first byte.

        Raises:
            Undecodable: not a frame, too large, or cut off.
        """
        total = HEADER.size
        while len(self._data) < total:
            if not await self._more():
                if not self._data:
                    return None
                raise Undecodable(f"the request ends after {len(self._data)} bytes; {total} were announced")
            if len(self._data) >= HEADER.size:
                total = HEADER.size + body_size(bytes(self._data[: HEADER.size]))
        return Frame.decode(bytes(self._data))

    async def style(self) -> str:
        """Read far enough to know the style; empty when the bytes are no frame."""
        while b"\0" not in self._data[HEADER.size :] and len(self._data) < HEADER.size + 16 and await self._more():
            pass
        return bytes(self._data[HEADER.size :]).partition(b"\0")[0].decode("ascii", "replace")

    async def drain(self) -> None:
        """Throw away what is still coming, up to a few times the limit."""
        seen = 0
        while seen < 4 * LIMIT and await self._more():
            seen += len(self._data)
            self._data.clear()

    def namespaces(self, frame: Frame) -> tuple[Netns, ...]:
        """Hand over the caller's namespace, and CNI_NETNS if what was opened there is a namespace.

        Raises:
            InvalidNetns: the first descriptor is no network namespace.
        """
        found: list[Netns] = []
        for path in ("/proc/self/ns/net", frame.env.get("CNI_NETNS", ""))[: len(self._descriptors)]:
            # Taken one by one, and closed when it is refused: whatever happens, `close` finds those that are left.
            fd = self._descriptors.pop(0)
            try:
                found.append(Netns.adopt(fd, path))
            except InvalidNetns:
                # A CNI_NETNS that is no namespace is the verb's business: DEL must succeed without one.
                if not found:
                    raise
        return tuple(found)

    def close(self) -> None:
        """Close what was not handed over."""
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []

    async def _more(self) -> bool:
        while True:
            try:
                # Of more descriptors than there is room for, the kernel drops the rest.
                data, fds, flags, _ = socket.recv_fds(self.peer, _CHUNK, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                await _readable(self.peer)
                continue
            except ConnectionError:
                return False
            room = _DESCRIPTORS - len(self._descriptors)
            self._descriptors += fds[:room]
            for fd in fds[room:]:
                os.close(fd)
            self._data += data
            if flags & socket.MSG_CTRUNC and len(fds) < _DESCRIPTORS:
                # The call would be served in the daemon's own namespace, or as if the container's were gone.
                raise TryAgain("the daemon has no file descriptor left for this call; raise its limit (LimitNOFILE)")
            return bool(data)


async def _readable(peer: socket.socket, ready: "asyncio.Future[None] | None" = None) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future() if ready is None else ready

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(peer, resolve)
    try:
        await future
    finally:
        if peer.fileno() >= 0:
            loop.remove_reader(peer)


def _has_left(peer: socket.socket, frame: Frame) -> bool:
    """Whether a frame outlived its caller, as in the backlog of a daemon that was stopped for a while.

    Its caller has told that it failed, or keeps the DEL in the spool: an ADD that is done now would never be undone.
    """
    if not has_hung_up(peer):
        return False
    verb = frame.env.get("CNI_COMMAND", "a call")
    LOG.warning("%s of %r is not served: its caller ended before it was read", verb, frame.name)
    return True


async def _send(peer: socket.socket, reply: Reply) -> None:
    # A caller that was killed meanwhile, or does not read, costs nothing but this line.
    try:
        async with asyncio.timeout(_SILENCE):
            await asyncio.get_running_loop().sock_sendall(peer, reply.encode())
    except (OSError, TimeoutError) as error:
        LOG.info("an answer was not taken: %s", error or type(error).__name__)


def _clear_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise PluginError(f"{path} exists and is no socket; remove it, or configure another exec_socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        code = probe.connect_ex(str(path))
    if code in {0, errno.EAGAIN}:
        raise PluginError(f"another daemon listens on {path}; stop it first, or configure another exec_socket")
    if code == errno.ECONNREFUSED:
        path.unlink()
    elif code != errno.ENOENT:
        raise PluginError(f"cannot tell whether a daemon listens on {path}: {os.strerror(code)}")

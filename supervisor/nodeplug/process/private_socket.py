"""Unix sockets on which gRPC serves, and which only their owner can use.

Owns: the limit of their paths, binding without a moment of open permissions, and removing only what is its own.
Refuses: names, and serving: each front has rules of its own.

When its server stops, gRPC removes the path that it has bound, in whatever thread comes by, often that of the event
loop: the path may be another server's by then, and a frozen filesystem holds the thread. So it binds a name that is
gone a moment later, and the path is a second name for the same socket. Kubelet skips names that begin with a dot.
"""

import logging
import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, Self

import grpc.aio

from nodeplug.contract.errors import InvalidRequest, PluginError
from nodeplug.process.lane import Lane, Unanswered
from nodeplug.process.umask import with_umask

LOG: Final = logging.getLogger(__name__)
PATH_LIMIT: Final = 107
"""Bytes of a unix socket's path (unix(7): sun_path holds 108 with the final NUL)."""
_UMASK: Final = 0o177
_NUMBERS: Final = count()
_STOP_GRACE: Final = 1.0
_last_number = 0
_PASSING: Final = re.compile(r"\.[0-9]+\.[0-9]+")


def check_socket_path(path: Path) -> None:
    """Raise InvalidRequest for a path of more than PATH_LIMIT bytes."""
    size = len(os.fsencode(path))
    if size > PATH_LIMIT:
        raise InvalidRequest(
            f"the socket path {path} has {size} bytes, the kernel takes {PATH_LIMIT}; shorten the folder"
        )


def is_passing_name(name: str) -> bool:
    """Whether a name is one that a socket has until it is moved to its path: that of a daemon killed meanwhile."""
    return _PASSING.fullmatch(name) is not None


def remove_if_dead(path: Path) -> bool:
    """Remove a socket behind which nobody listens; one that somebody listens on, or that cannot be asked, stays.

    Returns:
        Whether it was removed.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            with suppress(OSError):  # a directory refuses, too: a mount of a socket that was gone has made it
                path.unlink(missing_ok=True)
                return True
        except OSError as error:
            LOG.debug("left %s alone: %s", path, error.strerror)
    return False


def fresh_number() -> int:
    """Return a number that no socket of this node had since boot: milliseconds, or one more than the last."""
    global _last_number  # noqa: PLW0603 - one counter for the process: two sockets within a millisecond
    _last_number = max(_last_number + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)
    return _last_number


@dataclass(frozen=True, slots=True)
class Bound:
    """A path, and the socket that was put there. Every method may block.

    Attributes:
        name: that it was bound with, which the kernel tells of it and of all its connections (getsockname(2)).
    """

    path: Path
    inode: int
    name: Path

    @classmethod
    def at(cls, path: Path, server: grpc.aio.Server) -> Self:
        """Bind a server, readable and writable only for its owner, in place of whatever had the path.

        Raises:
            InvalidRequest: the path is too long.
            PluginError: the folder is missing or not writable.
        """
        fresh = path.with_name(f".{os.getpid()}.{next(_NUMBERS)}")
        check_socket_path(path)
        try:
            fresh.unlink(missing_ok=True)
            _bind(server, fresh)
            inode = fresh.stat().st_ino
            fresh.rename(path)
        except (RuntimeError, OSError) as error:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise PluginError(f"cannot listen on {path}: {error}; is the folder there and writable?") from error
        return cls(path, inode, fresh)

    @classmethod
    def in_folder(cls, path: Path, server: grpc.aio.Server) -> Self:
        """Bind a server in a folder that kubelet may not have made yet; raises as `at` does."""
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise PluginError(f"cannot make {path.parent}: {error}") from error
        return cls.at(path, server)

    def is_there(self) -> bool:
        """Whether the path still leads to this socket."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the path, unless another socket has it by now."""
        with suppress(OSError):
            if self.is_there():
                self.path.unlink()


def _bind(server: grpc.aio.Server, path: Path) -> None:
    """Bind a server so that nobody else can use the path, which nobody knows yet."""

    def bind() -> None:
        server.add_insecure_port(f"unix:{path}")

    try:
        with_umask(_UMASK, bind, f"bind {path.name}")
    except PermissionError:  # a container whose seccomp profile refuses unshare(2)
        bind()
        path.chmod(0o777 & ~_UMASK)


async def serve(server: grpc.aio.Server, lane: Lane, bind: Callable[[], Bound]) -> Bound:
    """Bind a server in a lane, and start it.

    Raises:
        PluginError: it cannot be bound.
        Unanswered: the folder does not answer.
    """
    try:
        bound = await lane.run(bind, lambda late: late.remove())
    except Unanswered:
        raise  # a thread is still to bind it, and for ever at it once the server was started
    except PluginError:
        await server.start()  # only one that was started lets go of what it has bound
        await server.stop(None)
        raise
    await server.start()
    return bound


async def stop(server: grpc.aio.Server | None) -> None:
    """Stop a server, if there is one; calls in progress get a moment."""
    if server is not None:
        await server.stop(_STOP_GRACE)

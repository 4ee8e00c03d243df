"""A socket whose path stays the same for ever, whoever serves it.

Owns: binding beside the path and moving it there, so that the path is never missing, and removing only what is its own.
Refuses: serving.

gRPC removes the path that it has bound when its server stops, which by then may be another server's: so it binds a name
that nobody looks at, and the path is a second name for the same socket. Kubelet skips names that begin with a dot.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

import grpc.aio

from nodeplug.contract.errors import PluginError
from nodeplug.process.private_socket import bind_private, check_socket_path

_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Bound:
    """A path, and the socket that was put there. Every method may block."""

    path: Path
    inode: int

    @classmethod
    def at(cls, path: Path, server: grpc.aio.Server) -> Self:
        """Bind a server, readable and writable only for its owner, in place of whatever had the path.

        Raises:
            PluginError: the folder is not writable, or the path is too long.
        """
        fresh = path.with_name(f".{os.getpid()}.{next(_NUMBERS)}")
        check_socket_path(path)
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh.unlink(missing_ok=True)
            bind_private(server, fresh)
            inode = fresh.stat().st_ino
            fresh.rename(path)
        except (RuntimeError, OSError) as error:
            fresh.unlink(missing_ok=True)
            raise PluginError(f"cannot listen on {path}: {error}; is the folder there and writable?") from error
        return cls(path, inode)

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

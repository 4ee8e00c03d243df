"""Network namespaces as values.

Owns: the one place that calls setns(2). Python 3.11 has no `os.setns`, so libc is called through ctypes.
Refuses: to create or name namespaces, and to fork: pyroute2's `netns=` arguments and `NetNS()` start a child for
each use. setns(2) moves only the calling *thread*, so a namespace is entered in the call's own thread and left in
`finally`.
"""

import ctypes
import fcntl
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import InvalidNetns, PluginError
from nodeplug.contract.mounts import mounts

__all__ = ["Netns"]

_CLONE_NEWNET: Final = 0x40000000
_CAP_SYS_PTRACE: Final = 19
"""As in linux/capability.h."""
_NS_GET_NSTYPE: Final = 0xB703
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _is_network_namespace(fd: int) -> bool:
    """Ask the descriptor itself: the name of a bind-mounted namespace says nothing (ioctl_ns(2)).

    One that was opened with O_PATH refuses this ioctl, as it would refuse setns(2).
    """
    try:
        if os.fstat(fd).st_dev != os.stat("/proc/thread-self/ns/net").st_dev:  # noqa: PTH116 - one call, both in os
            return False
        return fcntl.ioctl(fd, _NS_GET_NSTYPE) == _CLONE_NEWNET
    except OSError:
        return False


def _setns(fd: int) -> None:
    if _LIBC.setns(fd, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


class _Here(threading.local):
    """The descriptor of the namespace that the calling thread has entered, while that is open; -1 if it has not.

    A call enters two namespaces, and each look at /proc for the way back takes longer than both ways.
    """

    fd = -1


_HERE: Final = _Here()


@dataclass(frozen=True, slots=True)
class Netns:
    """An open network namespace.

    Attributes:
        fd: a descriptor of the namespace. It belongs to the call that carries it and is closed when that call's
            thread ends; `os.dup` it to keep it longer.
        path: the path as the caller spelled it (results repeat it as `sandbox`); it may not exist in this process's
            mount namespace.

    What was never opened has no descriptor (-1), and refuses to be entered: see `unopened`.
    """

    fd: int
    path: str

    @classmethod
    def open(cls, path: str) -> "Netns":
        """Open a namespace by path.

        Raises:
            InvalidNetns: the path is not a network namespace, or cannot be opened.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hang the caller
        except (OSError, ValueError) as error:
            raise InvalidNetns(f"cannot open network namespace {path!r}: {error}") from error
        return cls.adopt(fd, path)

    @classmethod
    def adopt(cls, fd: int, path: str) -> "Netns":
        """Take over a descriptor, such as one that arrived with a request; it is closed if it is refused.

        Raises:
            InvalidNetns: the descriptor is not a network namespace.
        """
        if not _is_network_namespace(fd):
            os.close(fd)
            raise InvalidNetns(
                f"{path!r} is not a network namespace, or was opened with O_PATH; "
                "give the path of one, such as /run/netns/NAME"
            )
        return cls(fd, path)

    @classmethod
    def unopened(cls, path: str) -> "Netns":
        """Carry CNI_NETNS as a text, for a plugin whose claim says that it uses no namespace."""
        return cls(-1, path)

    @classmethod
    def current(cls) -> "Netns":
        """Open the calling thread's namespace."""
        return cls.open("/proc/thread-self/ns/net")

    @classmethod
    def every(cls) -> "Iterator[Netns]":
        """Open each namespace of this node once, and close it afterwards: those that are mounted, and of processes.

        One that only a descriptor holds is not found.

        Raises:
            PluginError: this process lacks CAP_SYS_PTRACE, so that it sees only some (ptrace_may_access in
                kernel/ptrace.c; one that is hidden from root too, as by a security module, is passed over).
        """
        for path in _paths():
            with suppress(InvalidNetns):  # gone meanwhile
                netns = cls.open(path)
                try:
                    yield netns
                finally:
                    netns.close()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """Cross to another process as a descriptor, which is checked on arrival."""
        from nodeplug.contract.crossing import by_descriptor  # noqa: PLC0415 - only pydantic asks, so it is there

        def take(fd: int, path: str) -> "Netns":
            if fd != -1 and not _is_network_namespace(fd):
                raise ValueError("a network namespace is expected")
            return cls(fd, path)

        return by_descriptor(take)

    @property
    def is_open(self) -> bool:
        """Whether there is a namespace behind the path."""
        return self.fd >= 0

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: two descriptors of one namespace compare equal; (0, 0) if it was never opened."""
        if not self.is_open:
            return 0, 0
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread into the namespace, and back.

        Sockets opened inside stay in the namespace afterwards. `/proc/sys/net` follows the thread too.

        Raises:
            InvalidNetns: it was never opened.
        """
        self._need()
        known = _HERE.fd
        home = known if known >= 0 else os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(self.fd)
            _HERE.fd = self.fd
            try:
                yield
            finally:
                _setns(home)
                _HERE.fd = known
        finally:
            if home != known:
                os.close(home)

    def enter(self) -> None:
        """Move the calling thread into the namespace for good; only for a thread that ends with its call."""
        self._need()
        _setns(self.fd)
        _HERE.fd = self.fd

    def close(self) -> None:
        """Close the descriptor."""
        if self.is_open:
            if _HERE.fd == self.fd:
                _HERE.fd = -1
            os.close(self.fd)

    def _need(self) -> None:
        if not self.is_open:
            raise InvalidNetns(
                f"{self.path!r} was not opened as a network namespace",
                details="the claim of this plugin says uses_netns=False; leave that out of it",
            )


def _paths() -> Iterator[str]:
    """List a path of each namespace once."""
    mounted = [mount.target for mount in mounts() if mount.fs_type == "nsfs"]
    processes = [str(path / "ns/net") for path in Path("/proc").iterdir() if path.name.isdigit()]
    seen: set[tuple[int, int]] = set()
    for path in [*mounted, *processes]:
        try:
            status = Path(path).stat()
        except (FileNotFoundError, ProcessLookupError):  # gone meanwhile
            continue
        except PermissionError as error:
            if _may_look():
                continue
            text = f"cannot look into network namespace {path}: {error.strerror}; run this as root on the node"
            raise PluginError(text) from error
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            yield path


def _may_look() -> bool:
    (effective,) = re.findall(r"^CapEff:\s+(\w+)", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return bool(int(effective, 16) >> _CAP_SYS_PTRACE & 1)

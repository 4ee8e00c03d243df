"""Whether a network namespace still exists, according to the kernel.

Owns: two facts that together identify a namespace within one boot. The id that a host's namespace has for a container's
(rtnetlink, RTM_GETNSID) is released only when the kernel destroys the container's namespace, whether a process, a mount
in any mount namespace, a descriptor or a socket held it last. The cookie (SO_NETNS_COOKIE, Linux 5.14) is never reused;
ids and inode numbers are reused at once.
Refuses: paths, mounts and processes, because this process may see other ones than a runtime does; guesses where the
kernel does not say; the event loop.
"""

import errno
import os
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from nodeplug.contract.journal import read_boot_id
from nodeplug.contract.netns import Netns

_SO_NETNS_COOKIE: Final = 71
_COOKIE: Final = struct.Struct("=Q")
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HHi")
_FAMILY: Final = bytes(4)
_ERROR: Final = 2
_REQUEST, _ACK = 1, 4
_NEW, _GET = 88, 90
_NSID, _FD = 1, 3
_ANY: Final = -1
"""In a request: assign an id. In a reply: none is assigned (NETNSA_NSID_NOT_ASSIGNED)."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the kernel said about a container's namespace while it existed.

    Attributes:
        host: the cookie of the host's namespace.
        cookie: that of the container's.
        nsid: the host's id for the container's.
        moment: CLOCK_MONOTONIC in seconds at which it certainly had that id.
        boot_id: nothing here is valid in another boot.
    """

    host: int
    cookie: int
    nsid: int
    moment: float
    boot_id: str

    def encode(self) -> list[Any]:
        """Return it as JSON values."""
        return [self.host, self.cookie, self.nsid, self.moment, self.boot_id]

    @classmethod
    def decode(cls, document: Any) -> "Sighting | None":
        """Read what `encode` returned, or None; TypeError or ValueError if damaged."""
        if document is None:
            return None
        host, cookie, nsid, moment, boot_id = document
        return cls(int(host), int(cookie), int(nsid), float(moment), str(boot_id))


@cache
def boot_id() -> str:
    """Return the id of this boot."""
    return read_boot_id()


def sight(netns: Netns) -> Sighting | None:
    """Identify a namespace from a thread in the host's, assigning an id if it has none.

    None if the kernel does not say: it is older than 5.14, or the thread lacks the permission; or if nobody opened it.
    """
    if not netns.is_open:
        return None
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as peer:
            nsid = _id_of(peer, netns.fd)
            host = _cookie(peer)
        with netns.entered(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as inside:
            cookie = _cookie(inside)
        return Sighting(host, cookie, nsid, time.monotonic(), boot_id())
    except OSError:
        return None


def shows(sighting: Sighting, netns: Netns) -> bool:
    """Whether an open namespace is the one that was seen; False if the kernel does not say."""
    try:
        with netns.entered(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as inside:
            return (sighting.cookie, sighting.boot_id) == (_cookie(inside), boot_id())
    except OSError:
        return False


def gone(sightings: Iterable[Sighting]) -> set[Sighting]:
    """Return the sightings, all from one host namespace, whose namespace no longer exists.

    Call it in a thread in that host namespace. What is uncertain, or was seen from another host namespace or in another
    boot, does not count as gone. OSError if the kernel does not say.
    """
    here = boot_id()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as peer:
        host = _cookie(peer)
        mine = {one for one in sightings if (one.host, one.boot_id) == (host, here)}
        newest = {one.nsid: one for one in sorted(mine, key=lambda one: one.moment)}
        free = {nsid for nsid in newest if not _is_given(peer, nsid)}
    # The id is free, or has since been seen on another namespace.
    return {one for one in mine if one.nsid in free or newest[one.nsid].cookie != one.cookie}


def _cookie(peer: socket.socket) -> int:
    found: int = _COOKIE.unpack(peer.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, _COOKIE.size))[0]
    return found


def _id_of(peer: socket.socket, fd: int) -> int:
    nsid = _ask(peer, _GET, _REQUEST, (_FD, fd))
    if nsid != _ANY:
        return nsid
    with suppress(FileExistsError):  # another process was faster
        _ask(peer, _NEW, _REQUEST | _ACK, (_NSID, _ANY), (_FD, fd))
    return _ask(peer, _GET, _REQUEST, (_FD, fd))


def _is_given(peer: socket.socket, nsid: int) -> bool:
    """Query a single id: a dump can miss entries while others are removed."""
    try:
        _ask(peer, _GET, _REQUEST, (_NSID, nsid))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True


def _ask(peer: socket.socket, kind: int, flags: int, *attributes: tuple[int, int]) -> int:
    """Send one request; return the id in the reply, or 0 for an acknowledgement. OSError if the kernel refuses."""
    body = _FAMILY + b"".join(_ATTRIBUTE.pack(_ATTRIBUTE.size, name, value) for name, value in attributes)
    peer.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
    answer = peer.recv(1 << 16)
    try:
        answered = _HEADER.unpack_from(answer)[1]
        if answered == _ERROR:
            code = -struct.unpack_from("=i", answer, _HEADER.size)[0]
            if code:
                raise OSError(code, os.strerror(code))
            return 0
        return _nsid_in(answer[_HEADER.size + len(_FAMILY) :])
    except struct.error as error:
        raise OSError(errno.EBADMSG, f"rtnetlink answered {len(answer)} bytes that are not an id: {error}") from None


def _nsid_in(attributes: bytes) -> int:
    while attributes:
        size, name, value = _ATTRIBUTE.unpack_from(attributes)
        if name == _NSID:
            return int(value)
        attributes = attributes[max(size + 3 & ~3, _ATTRIBUTE.size) :]
    raise OSError(errno.EBADMSG, "rtnetlink answered without an id")

"""Ports of the host that are reserved for containers: a bound socket each, which the daemon keeps.

Owns: those sockets, by attachment, and the text that says who has a port that cannot be bound.
Refuses: to serve them. Packets to a port that leads to a container never come here; nothing is accepted or read, and
what comes all the same, as conditions of a mapping or a lost rule may let it, finds a closed port, or is dropped (UDP).

The host keeps them, so that nobody gets a port while the plugin or the daemon is exchanged: there is one socket all the
time. To bind a second one beside it would need SO_REUSEPORT, and any program of root could then do so, too.
A socket belongs to the network namespace of the caller's host, which it keeps alive. SCTP is reserved where the kernel
has it: where it has not, nobody can take the port.
"""

import errno
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import takewhile
from pathlib import Path
from typing import Final

from nodeplug import KeptSockets, TryAgain
from nodeplug_net.nftables.sockets import Identity
from nodeplug_net.portmap.config import Forward, port_name

_TYPES: Final = {6: socket.SOCK_STREAM, 17: socket.SOCK_DGRAM, 132: socket.SOCK_STREAM}
_TABLES: Final = {6: "tcp", 17: "udp"}
_SERVING: Final = {6: "0A", 17: "07"}
"""States of sockets in /proc/net: TCP_LISTEN, and TCP_CLOSE of a UDP socket that is not connected."""
_IP_FREEBIND: Final = 15
_SO_ATTACH_FILTER: Final = 26
_NO_PROTOCOL: Final = frozenset({errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EAFNOSUPPORT})
_SEARCH: Final = 1.0
"""Seconds in which the process that has a port is looked for."""
_INODE: Final = re.compile(r"socket:\[(\d+)\]")
Owner = tuple[Identity, str]


@dataclass(frozen=True, slots=True)
class Port:
    """One port of the host.

    Attributes:
        version: of IP.
        protocol: its number.
        address: of the host; None for each.
        number: of the port.
    """

    version: int
    protocol: int
    address: IPv4Address | IPv6Address | None
    number: int

    @classmethod
    def of(cls, forward: Forward) -> "Port":
        """Return the port that a forward needs."""
        return cls(forward.version, forward.protocol, forward.host_ip, forward.host_port)

    def overlaps(self, other: "Port") -> bool:
        """Whether nobody can have both."""
        if (self.version, self.protocol, self.number) != (other.version, other.protocol, other.number):
            return False
        return None in {self.address, other.address} or self.address == other.address

    def __str__(self) -> str:
        return port_name(self.protocol, self.address, self.number)


@dataclass(slots=True)
class Reservations:
    """The reserved ports. Any thread may call it; sockets are bound in the namespace that the thread is in.

    Attributes:
        sockets: what the host keeps, by namespace and port.
        binds: whether there are sockets; without them only attachments are kept from each other's ports.
    """

    sockets: KeptSockets
    binds: bool = True
    _held: dict[Owner, dict[Port, str]] = field(default_factory=dict)
    """The names of the sockets; without one, a port that could not be bound yet."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, namespace: Identity, label: str, ports: Iterable[Port]) -> None:
        """Reserve the ports of an attachment: all or none; those that it had and no longer needs are released.

        Args:
            namespace: where the calling thread is.
            label: of the attachment.
            ports: all that it needs.

        Raises:
            TryAgain: somebody has one of them; the message says who.
            OSError: the kernel refuses.
        """
        asked = list(dict.fromkeys(ports))
        whole = {(one.version, one.protocol, one.number) for one in asked if one.address is None}
        wanted = [one for one in asked if one.address is None or (one.version, one.protocol, one.number) not in whole]
        owner = (namespace, label)
        with self._lock:
            held = self._held.get(owner, {})
            known, taken, made = set(self.sockets.names()), dict[Port, str](), list[str]()
            try:
                for port in wanted:
                    if not held.get(port):
                        self._refuse_taken(owner, port)
                        name = taken[port] = _name(namespace, port)
                        if name not in known:
                            taken[port] = self._keep(name, port)
                            made.append(taken[port])
            except BaseException:
                self._drop(made)
                raise
            self._drop(held[port] for port in held if port not in wanted)
            self._held[owner] = {port: taken.get(port) or held.get(port, "") for port in wanted}

    def _keep(self, name: str, port: Port) -> str:
        made = _bind(port) if self.binds else None
        if made is None:
            return ""
        with made:
            self.sockets.keep(name, made)
        return name

    def _drop(self, names: Iterable[str]) -> None:
        for name in filter(None, names):
            self.sockets.drop(name)

    def _refuse_taken(self, owner: Owner, port: Port) -> None:
        for (namespace, label), held in self._held.items():
            if namespace == owner[0] and label != owner[1] and any(port.overlaps(one) for one in held):
                raise TryAgain(f"host port {port} belongs to {label!r}")

    def has(self, namespace: Identity, label: str) -> bool:
        """Whether ports of an attachment are reserved."""
        return (namespace, label) in self._held

    def release(self, namespace: Identity, label: str) -> None:
        """Release the ports of an attachment."""
        with self._lock:
            self._drop(self._held.pop((namespace, label), {}).values())

    def release_unknown(self, owners: Collection[Owner]) -> None:
        """Release the ports of all attachments but these."""
        for namespace, label in [one for one in self._held if one not in owners]:
            self.release(namespace, label)

    def release_others(self, needed: Iterable[tuple[Identity, Port]]) -> None:
        """Release what earlier instances of the plugin have left, except for these ports."""
        names = {_name(namespace, port) for namespace, port in needed} if self.binds else set()
        self._drop(name for name in self.sockets.names() if name not in names)


def _name(namespace: Identity, port: Port) -> str:
    """Name a socket, which keeps its namespace alive: nobody else gets that identity."""
    device, inode = namespace
    return f"{device}:{inode} IPv{port.version} {port}"


def _bind(port: Port) -> socket.socket | None:
    """Bind a socket; None where the kernel has no such protocol, or only a connection has the port for now.

    Raises:
        TryAgain: another program has the port.
        OSError: the kernel refuses.
    """
    try:
        return _bound(port, again=False)
    except OSError as error:
        if error.errno in _NO_PROTOCOL:
            return None
        if error.errno != errno.EADDRINUSE:
            raise OSError(error.errno, f"cannot reserve host port {port}: {error.strerror}") from error
    if port.protocol == 6:  # ended connections of a program that is gone keep it for a minute
        with suppress(OSError):
            return _bound(port, again=True)
    if port.protocol in _SERVING and not any(_inodes(port)):  # a connection of the host began there: nobody serves
        return None
    raise TryAgain(f"host port {port} is used by {_user_of(port)} on this host; end it or choose another hostPort")


def _bound(port: Port, *, again: bool) -> socket.socket:
    family = socket.AF_INET if port.version == 4 else socket.AF_INET6
    made = socket.socket(family, _TYPES[port.protocol] | socket.SOCK_CLOEXEC, port.protocol)
    try:
        if port.version == 6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)  # the address may come later
        if port.protocol == 17:
            _drop_all(made)
        if again:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        any_address = "0.0.0.0" if port.version == 4 else "::"  # noqa: S104 - reserved, never served
        made.bind((any_address if port.address is None else str(port.address), port.number))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except BaseException:
        made.close()
        raise
    return made


def _drop_all(made: socket.socket) -> None:
    """Let the kernel drop datagrams: nobody reads them (socket(7), SO_ATTACH_FILTER with one instruction, `ret #0`)."""
    import ctypes  # noqa: PLC0415 - the address of a program is needed here alone

    program = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))
    made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program)))


def _user_of(port: Port) -> str:
    """Name the process that has a port, if this PID namespace shows it and a second is enough to find it.

    A process may have a million descriptors, and other calls wait meanwhile.
    """
    inodes, end = set(_inodes(port)), time.monotonic() + _SEARCH
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        with suppress(OSError):  # it has ended
            if not inodes.isdisjoint(takewhile(lambda _: time.monotonic() < end, _sockets_of(process))):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return "another program"


def _sockets_of(process: Path) -> Iterator[str]:
    """Yield the inodes of a process's sockets. It may close any of its descriptors meanwhile."""
    for link in (process / "fd").iterdir():
        with suppress(OSError):
            if (found := _INODE.fullmatch(os.readlink(link))) is not None:
                yield found[1]


def _inodes(port: Port) -> Iterator[str]:
    """Find the sockets that serve a port (proc(5), /proc/net/tcp: local address, peer, state, ..., inode)."""
    tables = _TABLES.get(port.protocol)
    for suffix in ("", "6") if tables else ():
        with suppress(OSError):
            for line in Path(f"/proc/thread-self/net/{tables}{suffix}").read_text().splitlines()[1:]:
                words = line.split()
                address, _, number = words[1].partition(":")
                serves = words[3] == _SERVING[port.protocol]
                if serves and int(number, 16) == port.number and _is_at(address, port):
                    yield words[9]


def _is_at(text: str, port: Port) -> bool:
    """Whether an address of /proc/net, in words of the machine's byte order, is in the way of a port."""
    packed = b"".join(struct.pack("=I", int(text[place : place + 8], 16)) for place in range(0, len(text), 8))
    found = ip_address(packed)
    return found.is_unspecified or port.address is None or found == port.address

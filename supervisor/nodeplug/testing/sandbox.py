"""A pod sandbox's network: a namespace at a path, as runtimes create it before ADD.

Owns: creating it in a thread of its own (no fork, no `ip` executable), listing its links, and a ping from inside.
Refuses: plugins. Attach something to it with `CniRuntime`.
"""

import ctypes
import os
import socket
import struct
import threading
import time
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final, Self

from nodeplug.contract.errors import PluginError
from nodeplug.contract.mounts import bind, unmount
from nodeplug.contract.netns import Netns

_CLONE_NEWNET: Final = 0x40000000
_ECHO: Final = {4: (8, 0), 6: (128, 129)}
_PROTOCOL: Final = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}


class Sandbox:
    """A network namespace at a path until it is closed.

    Args:
        path: a file that is created for it, in an existing folder.

    Raises:
        PluginError: the kernel refused, for example without CAP_SYS_ADMIN.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        failures: list[BaseException] = []

        def unshare() -> None:
            try:
                if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
                    raise PluginError(f"cannot make a network namespace: {os.strerror(ctypes.get_errno())}")
                bind("/proc/thread-self/ns/net", str(path))
            except BaseException as error:
                failures.append(error)

        # unshare(2) moves only the calling thread; it ends right after, and the bind mount keeps the namespace.
        thread = threading.Thread(target=unshare, name=f"sandbox {path.name}")
        thread.start()
        thread.join()
        if failures:
            path.unlink()
            raise failures[0]
        self.netns = Netns.open(str(path))

    def links(self) -> tuple[str, ...]:
        """Return the names of its links."""
        with self.netns.entered():
            lines = Path("/proc/thread-self/net/dev").read_text(encoding="utf-8").splitlines()[2:]
        return tuple(sorted(line.partition(":")[0].strip() for line in lines))

    def ping(self, address: IPv4Address | IPv6Address, *, timeout: float = 2.0) -> float:
        """Send ICMP echoes from inside until one is answered.

        Args:
            address: the destination.
            timeout: seconds for all attempts.

        Returns:
            The round-trip time in milliseconds.

        Raises:
            PluginError: no reply in time, or no route.
        """
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with self.netns.entered():  # a socket keeps its namespace after the thread has left
            peer = socket.socket(family, socket.SOCK_RAW, _PROTOCOL[address.version])
        with peer:
            end = time.monotonic() + timeout
            sequence = 0
            while time.monotonic() < end:
                sequence += 1
                answered = _echo(peer, address, sequence)
                if answered is not None:
                    return answered
        raise PluginError(f"{address} did not answer {sequence} echoes from {self.path.name} within {timeout:g} s")

    def close(self) -> None:
        """Remove the namespace with what is still attached."""
        self.netns.close()
        unmount(str(self.path), lazy=True)
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _echo(peer: socket.socket, address: IPv4Address | IPv6Address, sequence: int) -> float | None:
    """Send one echo and wait a tenth of a second for the reply; None if there is none or it could not be sent."""
    request, reply = _ECHO[address.version]
    identity = os.getpid() & 0xFFFF
    packet = struct.pack("!BBHHH", request, 0, 0, identity, sequence) + b"nodeplug"
    if address.version == 4:  # for ICMPv6 the kernel fills it in
        packet = packet[:2] + struct.pack("!H", _checksum(packet)) + packet[4:]
    peer.settimeout(0.1)
    started = time.perf_counter()
    try:
        peer.sendto(packet, (str(address), 0))
        while True:
            data = peer.recv(2048)
            body = data[(data[0] & 0xF) * 4 :] if address.version == 4 else data
            if body[0] == reply and struct.unpack("!HH", body[4:8]) == (identity, sequence):
                return (time.perf_counter() - started) * 1e3
    except TimeoutError:
        return None
    except OSError:  # no route yet: a bridge port comes up shortly after ADD
        time.sleep(0.02)
        return None


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    folded: int = total + (total >> 16)
    return ~folded & 0xFFFF

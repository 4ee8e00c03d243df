"""Telling systemd how the daemon stands (sd_notify(3)).

Owns: one datagram per message to the socket that NOTIFY_SOCKET names, in the filesystem or in the abstract namespace;
the signs of life that a watchdog wants, which the event loop itself gives.
Refuses: to fail. Without systemd, or with a socket that does not take the message, nothing happens.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Final

LOG: Final = logging.getLogger(__name__)
_INSISTENCE: Final = 30.0
_PAUSE: Final = 0.5
_SIGNS: Final = 4
"""Signs of life within the time of the watchdog: one that comes late on a busy node is no reason to be killed."""


def supervised() -> bool:
    """Whether a supervisor listens, which knows one main process and starts another when that ends."""
    return os.environ.get("NOTIFY_SOCKET", "").startswith(("/", "@"))


def send(*assignments: str) -> bool:
    """Send assignments such as "READY=1"; return whether they were accepted."""
    if not supervised():
        return False
    address = os.environ["NOTIFY_SOCKET"]
    target = os.fsencode(address)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as peer:
            peer.sendto("\n".join(assignments).encode(), b"\0" + target[1:] if address.startswith("@") else target)
    except OSError:
        return False
    return True


async def insist(*assignments: str) -> bool:
    """Send assignments again until they are accepted, for a while; return whether they were, or nobody listens.

    For what must not be lost: a busy supervisor's queue is full for some time (sd_notify(3)).
    """
    end = time.monotonic() + _INSISTENCE
    while supervised() and not send(*assignments):
        if time.monotonic() > end:
            return False
        LOG.warning("systemd takes no message at present: %s", assignments[0])
        await asyncio.sleep(_PAUSE)
    return True


def ready() -> bool:
    """Tell systemd that the daemon serves: after its start and after each reload."""
    return send("READY=1")


def reloading() -> bool:
    """Tell systemd that a reload has begun; `Type=notify-reload` needs the clock."""
    return send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")


def stopping() -> bool:
    """Tell systemd that the daemon is ending."""
    return send("STOPPING=1")


def watchdog_interval() -> float:
    """Return the seconds between two signs of life (sd_watchdog_enabled(3)); 0 if there is no watchdog."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or os.environ.get("WATCHDOG_PID") not in {None, "", str(os.getpid())}:
        return 0.0
    return int(microseconds) / 1e6 / _SIGNS


async def keep_alive(trouble: Callable[[], str] = str) -> None:
    """Give signs of life for as long as the event loop turns: a task of the daemon, ended by cancelling it.

    Systemd replaces a daemon whose loop is frozen. That a plugin, a disk or the network hangs stops no sign.

    Args:
        trouble: returns why only a restart can mend the daemon, which then gives no sign; empty if nothing is wrong.
    """
    interval = watchdog_interval()
    while interval:
        if not trouble():
            send("WATCHDOG=1")
        await asyncio.sleep(interval)

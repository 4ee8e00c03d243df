"""From bits a second to what the kernel is told of a token bucket.

Owns: the arithmetic: bytes, ticks of the packet scheduler, and how much may wait.
Refuses: messages (see `netlink.traffic_control`) and the kernel, but for the length of its tick.

`limit` and `buffer` are the reference's, so that each plugin's CHECK accepts what the other wrote; where they differ,
the reference's wraps at 32 bits or has no room for a packet. What really waits is bounded apart: see `queue_of`.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from nodeplug_net.bandwidth.config import Limit
from nodeplug_net.netlink.traffic_control import Rate

_SECOND: Final = 1_000_000
"""Microseconds, TIME_UNITS_PER_SEC."""
_LATENCY: Final = 0.025
"""Seconds that a packet waits for tokens at most, with the burst used up: the reference's."""
_U32: Final = 0xFFFFFFFF
_HEADER: Final = 14
"""Of Ethernet, which the kernel counts."""
_GSO: Final = 65536
"""The largest packet that a virtual link hands over at once, before it is cut."""
_TARGET: Final = 5_000
_INTERVAL: Final = 100_000
"""Microseconds, fq_codel's own."""


@cache
def ticks_per_microsecond() -> float:
    """Return how the kernel counts time of its packet scheduler (/proc/net/psched)."""
    to_us, from_us, resolution = (int(one, 16) for one in Path("/proc/net/psched").read_text().split()[:3])
    return to_us / from_us * (resolution / _SECOND)


def rate_of(limit: Limit, mtu: int) -> Rate:
    """Compute the token bucket of a limit.

    Args:
        limit: as asked for.
        mtu: bytes; a bucket that holds no such packet would never let one pass.
    """
    speed = max(limit.rate // 8, 1)
    burst = max(limit.burst // 8, mtu + _HEADER)
    return Rate(speed, min(_ticks(speed, burst), _U32), min(int(speed * _LATENCY) + burst, _U32))


def references(limit: Limit) -> Rate:
    """Compute what the reference writes, wrapped as it wraps."""
    speed, burst = max(limit.rate // 8, 1), limit.burst // 8
    microseconds = int(burst * _SECOND / speed) & _U32
    return Rate(speed, int(microseconds * ticks_per_microsecond()) & _U32, (int(speed * _LATENCY) + burst) & _U32)


def _ticks(speed: int, size: int) -> int:
    """Return the ticks that so many bytes take; the reference counts whole microseconds."""
    return int(int(size * _SECOND / speed) * ticks_per_microsecond())


def queue_of(rate: Rate) -> int:
    """Return the bytes that may wait for a limit.

    A limit that has the burst in it lets hundreds of megabytes wait: runtimes set the largest burst that there is.
    """
    return min(rate.limit, int(rate.speed * _LATENCY) + _GSO)


def fair_times(rate: Rate, mtu: int) -> tuple[int, int]:
    """Return fq_codel's target and interval, in microseconds: the target is never shorter than one packet takes."""
    packet = int(1.5 * (mtu + _HEADER) * _SECOND / rate.speed)
    target = min(max(_TARGET, packet), _U32)
    return target, min(max(_INTERVAL, 2 * target), _U32)


def same(one: Rate, other: Rate) -> bool:
    """Whether two buckets are one to the kernel, which keeps the time of a burst in 32 bits of nanoseconds (tbf)."""
    most = int(_U32 / 1000 * ticks_per_microsecond())
    return replace(one, buffer=min(one.buffer, most)) == replace(other, buffer=min(other.buffer, most))

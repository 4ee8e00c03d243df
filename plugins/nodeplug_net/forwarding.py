"""Forwarding of packets by the host, which every gateway needs.

Owns: the two settings of the namespace that the calling thread is in.
Refuses: to switch them off: others may need them.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from nodeplug_net.netlink.links import get_sysctl, set_sysctl

_FORWARDING: Final[Mapping[int, str]] = {4: "ipv4/ip_forward", 6: "ipv6/conf/all/forwarding"}


def not_forwarding(versions: Iterable[int]) -> list[str]:
    """Return the settings, below /proc/sys/net, that keep the host from forwarding these versions of IP."""
    return [_FORWARDING[version] for version in sorted(set(versions)) if get_sysctl(_FORWARDING[version]) != "1"]


def ensure_forwarding(versions: Iterable[int]) -> None:
    """Let the host forward these versions of IP.

    Raises:
        OSError: the kernel refuses.
    """
    for setting in not_forwarding(versions):
        set_sysctl(setting, "1")

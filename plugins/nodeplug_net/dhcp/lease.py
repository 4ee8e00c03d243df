"""A lease: an address for some time, and what came with it.

Owns: reading a lease out of an ACK, its three moments, the result of the plugin, and its form in a record.
Refuses: clocks. All moments are those of CLOCK_BOOTTIME in seconds, which counts on while the machine sleeps, and no
administrator sets.

Source: plugins/ipam/dhcp/lease.go of the CNI plugins (commit, IPNet, Gateway, Routes).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any, Final

from nodeplug import CniIp, CniResult, CniRoute, PluginError
from nodeplug_net.dhcp import message as dhcp
from nodeplug_net.dhcp.config import ALLOCATE
from nodeplug_net.dhcp.message import Message

_USUAL_TIME: Final = 3600
"""Seconds, if a server names none."""
_SCOPE_LINK: Final = 253
_DEFAULT: Final = IPv4Network("0.0.0.0/0")

Route = tuple[IPv4Network, IPv4Address]


@dataclass(frozen=True, slots=True)
class Lease:
    """What a server has granted.

    Attributes:
        address: with its prefix.
        server: the identifier of the server.
        server_mac: the hardware address of who sent the ACK: the server, or the relay before it.
        gateway: the first router, if there is one.
        routes: with the router of each; 0.0.0.0 for what is on the link.
        renew_at: T1, from when the server is asked.
        rebind_at: T2, from when every server is asked.
        expires: when the address must not be used any more.
    """

    address: IPv4Interface
    server: IPv4Address
    server_mac: bytes
    gateway: IPv4Address | None
    routes: tuple[Route, ...]
    renew_at: float
    rebind_at: float
    expires: float

    def result(self, priority: int = 0) -> CniResult:
        """Return it as the result of an IPAM plugin."""
        metric = priority or None
        routes = tuple(
            CniRoute(dst, gw=gw, priority=metric, scope=None if int(gw) else _SCOPE_LINK) for dst, gw in self.routes
        )
        return CniResult(ips=(CniIp(self.address, gateway=self.gateway),), routes=routes)

    def encode(self) -> Mapping[str, Any]:
        """Return it for a record."""
        return {
            "address": str(self.address),
            "server": str(self.server),
            "server_mac": self.server_mac.hex(),
            "gateway": None if self.gateway is None else str(self.gateway),
            "routes": [[str(dst), str(gw)] for dst, gw in self.routes],
            "moments": [self.renew_at, self.rebind_at, self.expires],
        }

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> "Lease":
        """Read it from a record.

        Raises:
            ValueError: something is none of what it should be.
            KeyError: something is missing.
            TypeError: something has another form.
        """
        renew_at, rebind_at, expires = map(float, data["moments"])
        gateway = data["gateway"]
        return cls(
            IPv4Interface(data["address"]),
            IPv4Address(data["server"]),
            bytes.fromhex(data["server_mac"]),
            None if gateway is None else IPv4Address(gateway),
            tuple((IPv4Network(dst), IPv4Address(gw)) for dst, gw in data["routes"]),
            renew_at,
            rebind_at,
            expires,
        )


def granted(ack: Message, server: IPv4Address, server_mac: bytes, since: float, held: Lease | None = None) -> Lease:
    """Read an ACK.

    Args:
        ack: what was received.
        server: its sender's identifier.
        server_mac: and hardware address.
        since: when it was asked for: the time of a lease counts from there (RFC 2131, section 4.4.1).
        held: the lease that is prolonged; servers may leave the mask out then.

    Raises:
        PluginError: it has no subnet mask.
    """
    mask = ack.options.get(dhcp.SUBNET_MASK, b"")
    ones = f"{int.from_bytes(mask, 'big'):032b}".rstrip("0") if len(mask) == 4 else "0"
    prefix = held.address.network.prefixlen if held is not None else len(ones)
    if "0" in ones and held is None:
        raise PluginError(
            f"{ALLOCATE}DHCP option Subnet Mask not found in DHCPACK",
            details=f"server {server} granted {ack.yiaddr} with mask {mask.hex() or 'none'}; let it send option 1",
        )
    time = max(1, ack.seconds(dhcp.LEASE_TIME) or _USUAL_TIME)
    rebind = ack.seconds(dhcp.REBINDING_TIME) or 0
    if not 0 < rebind < time:
        rebind = time * 85 // 100
    renew = ack.seconds(dhcp.RENEWAL_TIME) or 0
    if not 0 < renew <= rebind:
        renew = min(time // 2, rebind)
    address = IPv4Interface((ack.yiaddr, prefix))
    gateway = ack.address(dhcp.ROUTER)
    routes = tuple(_routes(ack, gateway))
    return Lease(address, server, server_mac, gateway, routes, since + renew, since + rebind, since + time)


def _routes(ack: Message, gateway: IPv4Address | None) -> Iterator[Route]:
    """List the routes: classless ones take the place of all others (RFC 3442)."""
    for code in (dhcp.CLASSLESS_ROUTES, dhcp.MICROSOFT_ROUTES):
        if classless := dhcp.classless_routes(ack.options.get(code, b"")):
            yield from classless
            return
    yield from dhcp.classful_routes(ack.options.get(dhcp.STATIC_ROUTES, b""))
    if gateway is not None:
        yield _DEFAULT, gateway

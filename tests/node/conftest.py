"""Scratch namespaces, plugins in them, and eyes that are not the plugins' own."""

import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.node.outside import lay_cable

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.plugin import Bridge, BridgeConfig
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.nftables.masquerade import Masquerade

Config = dict[str, Any]


@pytest.fixture
def free_port() -> int:
    """A port of this machine that nothing listens on.

    It is below those that the kernel gives to anybody who does not name one: an ordinary user shares all ports.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    while True:
        port = random.randrange(first // 2, first)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[ScratchCni]:
    with ScratchCni(tmp_path) as made:
        yield made


@pytest.fixture
def outside(scratch: ScratchCni) -> Netns:
    """Somebody beyond the host who knows no way to containers."""
    return lay_cable(scratch)


@pytest.fixture
def bridge(scratch: ScratchCni) -> Iterator[Bridge]:
    plugin = Bridge(BridgeConfig(data_dir=scratch.folder / "networks"), scratch.host)
    plugin.start()
    yield plugin
    plugin.stop()


@pytest.fixture
def config() -> Callable[..., Config]:
    """Make a network configuration: dual stack with a default gateway unless told otherwise."""

    def make(*subnets: str, **keys: Any) -> Config:
        ranges = [[{"subnet": subnet}] for subnet in subnets or ("10.88.0.0/24", "fd00:88::/64")]
        return {
            "cniVersion": "1.0.0",
            "name": "net",
            "type": "nodeplug-bridge",
            "bridge": "br0",
            "isDefaultGateway": True,
            "ipam": {"type": "host-local", "ranges": ranges},
            **keys,
        }

    return make


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a namespace contains, as pyroute2 dumps it."""

    links: frozenset[str]
    addresses: frozenset[str]
    routes: frozenset[str]


def _attributes(message: Any) -> dict[str, Any]:
    return dict(message["attrs"])


def _look() -> Snapshot:
    from pyroute2 import IPRoute  # noqa: PLC0415  only the tests that look pay for it

    with IPRoute() as route:
        links = {link["index"]: _attributes(link)["IFLA_IFNAME"] for link in route.get_links()}
        addresses = set()
        for address in route.get_addr():
            own = _attributes(address)
            text = own.get("IFA_LOCAL") or own["IFA_ADDRESS"]
            if not text.startswith("fe80"):
                addresses.add(f"{links[address['index']]} {text}/{address['prefixlen']}")
        routes = set()
        for family in (socket.AF_INET, socket.AF_INET6):
            for one in route.get_routes(family=family, table=254):
                own = _attributes(one)
                target = own.get("RTA_DST", "default")
                if not target.startswith(("fe80", "ff00")):
                    routes.add(f"{target}/{one['dst_len']} via {own.get('RTA_GATEWAY')} dev {links[own['RTA_OIF']]}")
    return Snapshot(frozenset(links.values()), frozenset(addresses), frozenset(routes))


@pytest.fixture
def look() -> Callable[[Netns], Snapshot]:
    """Take a snapshot of a namespace."""
    return lambda netns: run_in(netns, _look)


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def _ping(address: str) -> bool:
    version = 6 if ":" in address else 4
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    protocol = socket.IPPROTO_ICMPV6 if version == 6 else socket.IPPROTO_ICMP
    request, reply = (128, 129) if version == 6 else (8, 0)
    body = struct.pack("!HH", 0x4E50, 1) + b"nodeplug"
    packet = struct.pack("!BBH", request, 0, 0) + body
    if version == 4:  # the kernel fills in the checksum of ICMPv6
        packet = struct.pack("!BBH", request, 0, _checksum(packet)) + body
    with socket.socket(family, socket.SOCK_RAW, protocol) as raw:
        raw.settimeout(0.5)
        for _ in range(30):  # under load, and with IPv6, the first neighbours need seconds
            raw.sendto(packet, (address, 0))
            with suppress(TimeoutError):
                while True:
                    data, (sender, *_) = raw.recvfrom(2048)
                    icmp = data if version == 6 else data[(data[0] & 0xF) * 4 :]
                    if sender == address and icmp[0] == reply and icmp[4:] == body:
                        return True
    return False


@pytest.fixture
def ping() -> Callable[[Netns, str], bool]:
    """Send echo requests out of a namespace; whether an answer came."""
    return lambda netns, address: run_in(netns, lambda: _ping(address))


@pytest.fixture
def clean(scratch: ScratchCni, look: Callable[[Netns], Any]) -> Callable[[Netns, set[str]], None]:
    """Check that neither namespace, nor the address folder, nor the table has anything of container c1."""

    def check(netns: Netns, inside: set[str]) -> None:
        def masqueraded() -> list[Any]:
            with Netlink(12) as netlink:
                return Masquerade(netlink).entries("nodeplug net c1 ")

        assert look(netns).links == inside
        assert Attachment("net", "c1", "eth0").host_veth not in look(scratch.host_netns).links
        folder = scratch.folder / "networks" / "net"
        held = [path.name for path in folder.glob("*") if path.name[0].isdigit() or ":" in path.name]
        assert [name for name in held if (folder / name).read_text().startswith("c1")] == []
        assert scratch.on_host(masqueraded) == []

    return check

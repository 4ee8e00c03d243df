"""A host with the bridge and the port mappings of this build."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import ip_interface
from typing import Any

import pytest
from tests.node.portmap.lab import OUTSIDE, SERVERS, Lab

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig


@pytest.fixture(autouse=True)
def _servers_end() -> Iterator[None]:
    yield
    while SERVERS:
        ended = SERVERS.pop()
        with suppress(OSError):
            ended.shutdown(socket.SHUT_RDWR)
        ended.close()


@pytest.fixture
def outside(scratch: ScratchCni) -> Netns:
    """Somebody beyond the host who knows no way to containers."""
    netns = scratch.container()

    def connect() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only these tests build a second network

        with IPRoute() as route:
            route.link("add", ifname="up0", kind="veth", peer={"ifname": "down0", "net_ns_fd": netns.fd})
        configure("up0", 0)
        configure("lo", None)

    def configure(name: str, side: int | None) -> None:
        with Netlink() as netlink:
            links = Links(netlink)
            link = links.get(name)
            assert link is not None
            links.set_up(link)
            for pair in OUTSIDE.values() if side is not None else ():
                links.add_address(link, ip_interface(pair[side or 0]))

    scratch.on_host(connect)
    run_in(netns, lambda: configure("down0", 1))
    return netns


@pytest.fixture
def portmap(scratch: ScratchCni) -> Iterator[Portmap]:
    plugin = Portmap(PortmapConfig(), scratch.host)
    scratch.on_host(plugin.start)
    yield plugin
    plugin.stop()


@pytest.fixture
def lab(
    scratch: ScratchCni, bridge: Bridge, config: Callable[..., dict[str, Any]], portmap: Portmap, outside: Netns
) -> Lab:
    return Lab(scratch, bridge, config(), portmap, outside)

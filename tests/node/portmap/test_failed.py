"""An ADD of which any step fails: a running container has the ports that it had, and no others, and a new one none."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.node.failing import every_failure
from tests.node.portmap.killed import RESULT
from tests.node.portmap.lab import NETFILTER, mapping

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.portmap import host_ports
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig
from nodeplug_net.portmap.table import PortTable

LABEL = "nodeplug net c1 eth0"
FORMER = [mapping(8080), mapping(8081, protocol="udp")]
LATER = [mapping(8080, 81), mapping(8082)]
MORE = ((host_ports, "set_sysctl"), (socket.socket, "bind"))


def config(ports: list[dict[str, Any]]) -> dict[str, Any]:
    """Mappings, those of IPv6 with a condition: rules instead of elements of a map."""
    keys = {"runtimeConfig": {"portMappings": ports}, "conditionsV6": ["-i", "up0"]}
    return {"cniVersion": "1.1.0", "name": "net", **keys}


def forwarded(scratch: ScratchCni) -> tuple[Any, ...]:
    """What the kernel has for c1, and which of the ports are reserved."""

    def read() -> tuple[Any, ...]:
        with Netlink(NETFILTER) as netlink:
            table = PortTable(netlink)
            return sorted(map(str, table.owned(LABEL))), table.labels("nodeplug "), table.lacking()

    return *scratch.on_host(read), *scratch.on_host(lambda: [_is_taken(port) for port in (8080, 8082)])


def _is_taken(port: int) -> bool:
    with socket.socket() as made:
        try:
            made.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


def records(scratch: ScratchCni) -> list[Any]:
    found = [json.loads(path.read_text()) for path in (scratch.host.run_dir / "ports").glob("*.json")]
    return [(record["phase"], record["data"]) for record in found]


@pytest.fixture
def portmap(scratch: ScratchCni) -> Iterator[Portmap]:
    plugin = Portmap(PortmapConfig(), scratch.host)
    scratch.on_host(plugin.start)
    yield plugin
    plugin.stop()


def test_the_ports_of_the_former_add_come_back(scratch: ScratchCni, portmap: Portmap) -> None:
    def add(ports: list[dict[str, Any]]) -> None:
        scratch.add(portmap, config(ports), "c1", scratch.host_netns, prev_result=RESULT)

    def state() -> tuple[Any, ...]:
        scratch.on_host(portmap.health)
        return forwarded(scratch), records(scratch)

    add(LATER)
    later = state()
    add(FORMER)
    former = state()
    seen = set()
    for failed in every_failure(lambda: add(LATER), *MORE, least=10):
        seen.add(failed)
        assert state() == (former if failed else later)
        add(FORMER)
        assert state() == former
    assert True in seen


def test_a_first_add_leaves_nothing(scratch: ScratchCni, portmap: Portmap) -> None:
    for failed in every_failure(
        lambda: scratch.add(portmap, config(FORMER), "c1", scratch.host_netns, prev_result=RESULT), *MORE, least=10
    ):
        if not failed:
            scratch.delete(portmap, config(FORMER), "c1")
        owned, labels, _, taken, _ = forwarded(scratch)
        assert (owned, labels, taken, records(scratch)) == ([], set(), False, [])

"""Connections that the kernel goes on to send where they went: ended when a port changes its owner."""

import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from tests.node.outside import HOST
from tests.node.portmap.lab import DATAGRAM, STREAM, Lab, mapping, serve

from nodeplug.testing import Sandbox
from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.nftables.sockets import open_nft
from nodeplug_net.portmap import conntrack
from nodeplug_net.portmap.config import Forward

FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}


@pytest.fixture(autouse=True)
def _tracking(lab: Lab) -> None:
    """The kernel knows of connections as soon as one port of the host leads to a container."""
    lab.add("c0", mapping(9999))


@pytest.fixture(params=[4, 6])
def client(lab: Lab, request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """Somebody outside who sends from one port by UDP to port 8080 of the host, whatever the answer."""
    with run_in(lab.outside, lambda: socket.socket(FAMILY[request.param], DATAGRAM)) as made:
        made.settimeout(8)
        made.bind(("", 5000))
        made.connect((HOST[request.param], 8080))
        yield made


def said(client: socket.socket) -> str:
    """Ask until somebody answers; a closed port is an answer of the last question."""
    for _ in range(20):
        try:
            client.send(b"who")
            return client.recv(100).decode().split()[0]
        except ConnectionRefusedError:
            continue
    return ""


def refused(client: socket.socket) -> None:
    """Send until the host says that nobody is there, which it does of a connection that it then knows."""
    for _ in range(20):
        try:
            client.send(b"who")
            client.recv(100)
        except ConnectionRefusedError:
            return
    raise AssertionError("somebody answered")


def test_who_sent_before_there_was_a_container_is_heard_by_it(lab: Lab, client: socket.socket) -> None:
    refused(client)
    lab.add("c1", mapping(8080, protocol="udp"))
    lab.serve("c1", kind=DATAGRAM)
    assert said(client) == "c1"


def test_who_sent_to_a_container_that_ended_is_heard_by_the_next(lab: Lab, client: socket.socket) -> None:
    for container in ("c1", "c2"):
        lab.add(container, mapping(8080, protocol="udp"))
        lab.serve(container, kind=DATAGRAM)
        assert said(client) == container
        lab.delete(container, mapping(8080, protocol="udp"))


def test_who_sent_to_a_container_that_ended_untold_is_heard_by_the_next(
    lab: Lab, client: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rules are gone, the connection is not: as when the daemon is killed in the middle of a DEL."""
    lab.add("c1", mapping(8080, protocol="udp"))
    lab.serve("c1", kind=DATAGRAM)
    assert said(client) == "c1"
    with monkeypatch.context() as patch:
        patch.setattr(conntrack, "forget_after", lambda *_: 0)
        lab.delete("c1", mapping(8080, protocol="udp"))
    lab.add("c2", mapping(8080, protocol="udp"))
    lab.serve("c2", kind=DATAGRAM)
    assert said(client) == "c2"


def test_a_connection_to_another_host_by_the_same_port_goes_on(lab: Lab) -> None:
    """The host asks a server of its own, as resolvers do; the answer that is under way must still arrive."""
    serve(lab.outside, 8080, DATAGRAM, b"outside")
    lab.scratch.on_host(lambda: lab.keep_connection(("192.0.2.2", 8080)))
    before = lab.connections("dport=8080")
    assert before
    lab.add("c1", mapping(8080, protocol="udp"))
    assert lab.connections("dport=8080") == before


def test_a_connection_of_a_container_that_ends_is_ended(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"
    assert lab.connections("dport=8080")
    lab.delete("c1", mapping(8080))
    until(lambda: lab.connections("dport=8080") == [])


def test_connections_of_other_ports_stay_when_a_container_ends(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.add("c2", mapping(8081))
    lab.serve("c1")
    lab.serve("c2")
    assert lab.ask(lab.outside, 8081, kind=STREAM) == "c2 192.0.2.2"
    assert lab.ask(lab.outside, 8080, kind=STREAM) == "c1 192.0.2.2"
    before = lab.connections("dport=8081")
    lab.delete("c1", mapping(8080))
    until(lambda: lab.connections("dport=8080") == [])
    assert lab.connections("dport=8081") == before != []


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ports whose connections were looked for."""
    found: list[str] = []
    look = conntrack._connections

    def noted(netlink: Netlink, forward: Forward) -> list[conntrack.Connection]:
        found.append(forward.name)
        return look(netlink, forward)

    monkeypatch.setattr(conntrack, "_connections", noted)
    return found


def test_the_table_is_walked_where_somebody_is_connected(lab: Lab, client: socket.socket, walks: list[str]) -> None:
    lab.add("c1", mapping(8080, protocol="udp"))
    lab.serve("c1", kind=DATAGRAM)
    assert said(client) == "c1"
    walks.clear()
    lab.delete("c1", mapping(8080, protocol="udp"))
    until(lambda: walks)


def test_the_table_is_not_walked_for_a_namespace_without_connections(short_path: Path, walks: list[str]) -> None:
    forward = Forward(17, None, 8099, ip_address("10.88.0.2"), 80)

    def forget() -> int:
        with open_nft() as netlink:
            return conntrack.forget_after(netlink, [forward])

    with Sandbox(short_path / "quiet") as quiet:
        assert run_in(quiet.netns, forget) == 0
    assert forward.name not in walks  # those of containers that have just ended may still be looked for

"""Host ports of SCTP, which this machine's kernel may lack: nothing can be sent, so rules are compared as it has them.

Those of a port of SCTP are those of the same port of TCP but for the protocol, with the reference and with ours.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.real.twins import Side, node_with, prepare, twins

from nodeplug.testing import ScratchNode

PLUGINS = ("bridge", "host-local", "portmap")
IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}
BRIDGE = {"type": "bridge", "bridge": "br0", "isGateway": True, "ipam": IPAM}


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    with node_with(*PLUGINS) as made:
        yield made


def rules(side: Side, protocol: str, backend: str) -> list[str]:
    """The lines of the kernel's rules about the container while it is attached; none after."""
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}, "backend": backend}
    plugins = [BRIDGE, portmap]
    runtime = side.runtime({"cniVersion": "1.0.0", "name": "sctp", "plugins": plugins})
    ports = [
        {"hostPort": 18080, "containerPort": 80, "protocol": protocol},
        {"hostPort": 18081, "containerPort": 81, "protocol": protocol, "hostIP": "192.0.2.1"},
    ]
    side.add(runtime, {"portMappings": ports})
    found = lines(side)
    side.check(runtime)
    side.delete(runtime)
    assert lines(side) == []
    return found


def lines(side: Side) -> list[str]:
    ruleset = side.run(side.host, "nft", "-n", "list", "ruleset").splitlines()
    return [re.sub(r"10\.77\.0\.\d+|fd77::\w*", "ADDRESS", line).strip() for line in ruleset if "1808" in line]


def forwarded(found: list[str]) -> set[tuple[str, ...]]:
    """Read address of the host, protocol, port, and port of the container, of the reference's rules or our elements."""
    theirs = r"(?:ip daddr (\S+) )?(tcp|sctp) dport (\d+) .*dnat to \[?ADDRESS\]?:(\d+)"
    ours = r"\{ (?:(\S+) \. )?(6|132) \. (\d+) .*: ADDRESS \. (\d+) \}"
    matches = [re.search(pattern, line) for line in found for pattern in (theirs, ours)]
    names = {"6": "tcp", "132": "sctp"}
    return {(one[1] or "any", names.get(one[2], one[2]), one[3], one[4]) for one in matches if one is not None}


@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_ports_of_sctp_lead_where_those_of_tcp_do(
    short_path: Path, node: ScratchNode, consumer: Callable[[str], Path], backend: str
) -> None:
    with twins(short_path, consumer("cni"), node.paths.cni_bin, kinds=((), PLUGINS)) as sides:
        leads = []
        for side in sides:
            prepare(side)
            tcp, sctp = (rules(side, protocol, backend) for protocol in ("tcp", "sctp"))
            as_tcp = [line.replace(" . 132 . ", " . 6 . ").replace("{ 132 ", "{ 6 ") for line in sctp]
            as_tcp = [line.replace("sctp dport", "tcp dport").replace("meta l4proto 132 ", "") for line in as_tcp]
            assert as_tcp == [line.replace("meta l4proto 6 ", "") for line in tcp]
            leads.append(forwarded(sctp))
        assert leads[0] == leads[1] == {("any", "sctp", "18080", "80"), ("192.0.2.1", "sctp", "18081", "81")}

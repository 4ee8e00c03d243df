"""A host between two bridges and somebody outside, who sends what to whom, and what the host's iptables(8) shows."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.node.outside import HOST, NEIGHBOUR

from nodeplug import CniResult, Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.firewall.plugin import Firewall

BRIDGES = {"net": ("br0", "10.88.0", "fd00:88:"), "other": ("br1", "10.89.0", "fd00:89:")}
JUDGED, MARK = b"judged", b"mark"
_PORT, _PATIENCE = 9000, 60.0


def network(name: str) -> dict[str, Any]:
    bridge, four, six = BRIDGES[name]
    return {
        "cniVersion": "1.0.0",
        "name": name,
        "type": "nodeplug-bridge",
        "bridge": bridge,
        "isDefaultGateway": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": f"{four}.0/24"}], [{"subnet": f"{six}:/64"}]]},
    }


@dataclass
class Lab:
    """The host. `firewall` is the plugin of this build; without `add` a container has no rules."""

    scratch: ScratchCni
    bridge: Bridge
    firewall: Firewall
    outside: Netns
    results: dict[str, CniResult] = field(default_factory=dict)
    pods: dict[str, Netns] = field(default_factory=dict)

    def config(self, name: str = "net", **keys: Any) -> dict[str, Any]:
        return {"cniVersion": "1.1.0", "name": name, "type": "nodeplug-firewall", **keys}

    def attach(self, container: str, name: str = "net") -> CniResult:
        """Attach a container to a bridge, once."""
        if container not in self.results:
            self.pods[container] = self.scratch.container()
            self.results[container] = self.scratch.add(self.bridge, network(name), container, self.pods[container])
        return self.results[container]

    def add(self, container: str, name: str = "net", **keys: Any) -> CniResult:
        before = self.attach(container, name)
        config = self.config(name, **keys)
        return self.scratch.add(self.firewall, config, container, self.pods[container], prev_result=before)

    def check(self, container: str, name: str = "net", **keys: Any) -> None:
        config = self.config(name, **keys)
        self.scratch.check(self.firewall, config, container, self.pods[container], self.results[container])

    def delete(self, container: str, name: str = "net", **keys: Any) -> None:
        """DEL without a namespace and without a result, which is the least that a runtime knows."""
        self.scratch.delete(self.firewall, self.config(name, **keys), container)

    def address(self, container: str, version: int = 4) -> str:
        return str(next(one.address.ip for one in self.results[container].ips if one.address.version == version))

    def run(self, *command: str) -> str:
        """Execute something in the host's namespace."""
        done = self.scratch.on_host(lambda: subprocess.run(command, capture_output=True, text=True, check=True))
        return done.stdout

    def rules(self, chain: str = "", version: int = 4) -> list[str]:
        """What iptables(8) shows of table `filter`."""
        return self.run("iptables" if version == 4 else "ip6tables", "-S", *([chain] if chain else [])).splitlines()

    def ruleset(self) -> str:
        return self.run("nft", "list", "ruleset")

    def drop_forwarded(self) -> None:
        """What Docker and ufw do to a host."""
        self.run("iptables", "-P", "FORWARD", "DROP")
        self.run("ip6tables", "-P", "FORWARD", "DROP")

    def gateway(self, sender: str, version: int = 4) -> str:
        """The host as a sender sees it."""
        if sender == "outside":
            return HOST[version]
        name = self.address(sender, version)
        return f"{name.rpartition('.')[0]}.1" if version == 4 else f"{name.rpartition(':')[0]}:1"

    def namespace(self, who: str) -> Netns:
        return self.outside if who == "outside" else self.pods[who]

    def place(self, who: str, version: int = 4) -> str:
        return NEIGHBOUR[version] if who == "outside" else self.address(who, version)

    def arrives(self, sender: str, receiver: str, version: int = 4) -> bool:
        """Send a datagram from one to another; whether it came before what was sent after it, and must come.

        The sender first finds its way to the host. What it sends to the host afterwards comes behind the judged
        datagram, and what the host sends to the receiver then comes behind it, too, if the host let it pass.
        """
        with (
            _socket(self.scratch.host_netns, version, bound=True) as host,
            _socket(self.namespace(receiver), version, bound=True) as target,
            _socket(self.namespace(sender), version) as source,
        ):
            _until_it_comes(source, self.gateway(sender, version), host)
            source.sendto(JUDGED, (self.place(receiver, version), _PORT))
            _until_it_comes(source, self.gateway(sender, version), host)
            return JUDGED in _until_it_comes(host, self.place(receiver, version), target)

    def answers(self, sender: str, receiver: str, version: int = 4) -> bool:
        """Send datagrams until one of its answers comes back; whether one did."""
        with (
            _socket(self.namespace(receiver), version, bound=True) as target,
            _socket(self.namespace(sender), version) as source,
        ):
            target.setblocking(False)
            source.settimeout(0.2)
            end = time.monotonic() + _PATIENCE
            while time.monotonic() < end:
                source.sendto(JUDGED, (self.place(receiver, version), _PORT))
                for one in (target, source):
                    try:
                        data, peer = _next(one)
                    except OSError:
                        break
                    if one is source:
                        return True
                    target.sendto(data, peer)
        return False


def _next(one: socket.socket) -> tuple[bytes, Any]:
    if one.gettimeout() == 0:
        one.settimeout(0.2)
    return one.recvfrom(100)


@contextmanager
def _socket(netns: Netns, version: int, *, bound: bool = False) -> Iterator[socket.socket]:
    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
        if bound:
            made.bind(("", _PORT))
        return made

    with run_in(netns, make) as made:
        yield made


def _until_it_comes(source: socket.socket, address: str, target: socket.socket) -> list[bytes]:
    """Send a mark again and again until it comes; everything that came before it."""
    mark = MARK + str(time.monotonic_ns()).encode()
    came: list[bytes] = []
    target.settimeout(0.2)
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        source.sendto(mark, (address, _PORT))
        try:
            while mark not in came:
                came.append(target.recv(100))
        except TimeoutError:
            continue
        return came
    raise AssertionError(f"nothing sent to {address} comes there")


def tell_the_way(outside: Netns) -> None:
    """Let who is outside know where the containers are."""

    def know() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only these tests build a second network

        with IPRoute() as route:
            for _, four, six in BRIDGES.values():
                route.route("add", dst=f"{four}.0/24", gateway=HOST[4])
                route.route("add", dst=f"{six}:/64", gateway=HOST[6])

    run_in(outside, know)


def records(scratch: ScratchCni) -> list[Mapping[str, Any]]:
    """What the plugin has on disk."""
    folder = Path(scratch.host.run_dir) / "firewall"
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def needs_bridge_netfilter() -> None:
    if not Path("/proc/sys/net/bridge/bridge-nf-call-iptables").exists():
        pytest.skip("the kernel shows no frames of bridges to iptables: br_netfilter is not loaded")

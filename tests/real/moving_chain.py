"""A host whose containers a whole chain attaches, the reference's or ours, and what is seen of it from outside."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.node.outside import HOST, NEIGHBOUR, connect
from tests.node.portmap.lab import DATAGRAM, STREAM, ask, mapping, serve
from tests.real.moving import DUAL, PATH, Mover

from nodeplug.testing import CniRuntime, Sandbox
from nodeplug.testing.scratch_cni import run_in

THEIRS, OURS = "", "nodeplug-"
OF_HOST = [mapping(8082, 80, hostIP=HOST[4]), mapping(8083, 81, hostIP=HOST[4])]
PORTS = [mapping(8080), mapping(8081, 80, "udp"), *OF_HOST]
MANY = [mapping(9000 + number, 80) for number in range(16)]
"""More than one rule of iptables takes. ip6tables-legacy -C takes the rule of one port for that of another (1.8.9), so
that the reference, which asks it, adds but one for each protocol.
"""
RATES = {"ingressRate": 10**9, "ingressBurst": 10**7, "egressRate": 10**9, "egressBurst": 10**7}
MINE = re.compile(r"CNI-(DN-|SN-|[0-9a-f]{24})|\b10\.77\.0\.[2-9]|fd77::[2-9]|nodeplug")


@dataclass
class Chain(Mover):
    """The network with all that a chain has; `kind` is what the names of its plugins begin with."""

    def runtime(self, kind: str, **keys: Any) -> CniRuntime:
        ipam = {"type": f"{kind}host-local", "dataDir": str(self.folder / "addresses"), "ranges": DUAL}
        bridge = {"type": "bridge", "bridge": "br0", "isDefaultGateway": True, "hairpinMode": True, "ipMasq": True}
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}, **keys}
        if self.keeper == "nftables":
            bridge["ipMasqBackend"] = portmap["backend"] = "nftables"
        tuning = {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}, "mtu": 1400}
        plugins: list[dict[str, Any]] = [
            {**bridge, "ipam": ipam},
            portmap,
            {"type": "bandwidth", "capabilities": {"bandwidth": True}},
            {**tuning, "dataDir": str(self.folder / "tuning")},
            {"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"},
        ]
        named = [{**plugin, "type": f"{kind}{plugin['type']}"} for plugin in plugins]
        conflist = {"cniVersion": "1.0.0", "name": "moving", "plugins": named}
        folders = [self.node.paths.cni_bin] if kind else [self.reference]
        env = {"PATH": f"{self.folder / 'bin'}:{PATH}"}
        return CniRuntime(conflist, folders, env=env, cache_dir=self.folder / "cache")

    def check(self, kind: str, container: str) -> None:
        with self.host.netns.entered():
            self.runtime(kind).check(container)

    def mend(self) -> None:
        """Let the daemon restore what it knows of, as at STATUS."""
        runtime = self.runtime(OURS)
        runtime.conflist = {**runtime.conflist, "cniVersion": "1.1.0"}
        with self.host.netns.entered():
            runtime.status()

    def rules(self) -> list[str]:
        return [line for line in self.everything() if MINE.search(line)]

    def everything(self) -> list[str]:
        lines = self.run("nft", "list", "ruleset").splitlines()
        for program in ("iptables-legacy-save", "ip6tables-legacy-save"):
            lines += self.run(program).splitlines()
        return [re.sub(r"counter packets \d+ bytes \d+", "counter", line.strip()) for line in lines]

    def records(self) -> list[Path]:
        """The files in which the daemon keeps what it is to restore."""
        run = self.node.paths.run / "plugins"
        return [path for name in ("ports", "firewall") for path in run.glob(f"*/{name}/*.json")]

    def left(self) -> list[Any]:
        """All that an ended container could have left."""
        links = [name for name in self.links() if name.startswith(("veth", "bwp"))]
        return [*self.rules(), *self.addresses(), *links, *self.records(), *(self.folder / "tuning").glob("*")]

    def links(self) -> list[str]:
        return [line.split()[0] for line in self.run("ip", "-brief", "link").splitlines()]

    def can_bind(self, port: int) -> bool:
        def bind() -> bool:
            with socket.socket() as made:
                try:
                    made.bind(("0.0.0.0", port))
                except OSError:
                    return False
                return True

        return run_in(self.host.netns, bind)


@dataclass
class Moving:
    """A container of a chain, somebody outside, and a connection between them that began before anything moved."""

    chain: Chain
    outside: Sandbox
    pod: Sandbox

    @property
    def last(self) -> Mapping[str, Any]:
        """The last port that is like others of its protocol."""
        return next(one for one in reversed(self.chain.asked["portMappings"]) if one["containerPort"] == 80)

    def open(self) -> tuple[socket.socket, socket.socket]:
        """Begin a connection from outside to a port of the host; its ends."""
        listener = run_in(self.pod.netns, lambda: socket.create_server(("", 81)))
        caller = run_in(self.outside.netns, lambda: socket.create_connection((HOST[4], 8083), timeout=8))
        listener.settimeout(8)
        ends = caller, listener.accept()[0]
        for one in (listener, *ends):
            self.chain.stack.enter_context(one)
        return ends

    def reach(self) -> Mapping[str, str]:
        """Ask for ports of the host from outside and from the host, and for somebody outside from the container."""
        host, outside, pod = self.chain.host.netns, self.outside.netns, self.pod.netns
        return {
            "tcp": run_in(outside, lambda: ask(HOST[4], 8080, STREAM)),
            "tcp6": run_in(outside, lambda: ask(HOST[6], 8080, STREAM)),
            "udp": run_in(outside, lambda: ask(HOST[4], 8081, DATAGRAM)),
            "hostIP": run_in(outside, lambda: ask(HOST[4], 8082, STREAM)),
            "last": run_in(outside, lambda: ask(HOST[4], self.last["hostPort"], STREAM)),
            "localhost": run_in(host, lambda: ask("127.0.0.1", 8080, STREAM)),
            "itself": run_in(pod, lambda: ask(HOST[4], 8080, STREAM)),
            "out": run_in(pod, lambda: ask(NEIGHBOUR[4], 70, STREAM)),
            "out6": run_in(pod, lambda: ask(NEIGHBOUR[6], 70, STREAM)),
        }


REACHED = {
    "tcp": f"pod {NEIGHBOUR[4]}",
    "tcp6": f"pod {NEIGHBOUR[6]}",
    "udp": f"pod {NEIGHBOUR[4]}",
    "hostIP": f"pod {NEIGHBOUR[4]}",
    "last": f"pod {NEIGHBOUR[4]}",
    "localhost": "pod 10.77.0.1",
    "itself": "pod 10.77.0.1",
    "out": f"outside {HOST[4]}",
    "out6": f"outside {HOST[6]}",
}


def attach(chain: Chain, kind: str) -> Moving:
    """Attach a container that answers at port 80, on a host that drops what it forwards unless somebody accepts it."""
    outside = chain.stack.enter_context(Sandbox(chain.folder / "outside"))
    connect(chain.host.netns, outside.netns)
    pod = chain.add(kind, "c0")
    program = "iptables" if chain.keeper == "nftables" else chain.keeper
    for family, subnet in ((program, "10.77.0.0/24"), (program.replace("iptables", "ip6tables"), "fd77::/64")):
        chain.run(family, "-P", "FORWARD", "DROP")
        chain.run(family, "-A", "FORWARD", "-d", subnet, "-j", "ACCEPT")  # what comes in is the administrator's affair
    for kind_of in (STREAM, DATAGRAM):
        serve(pod.netns, 80, kind_of, b"pod")
    serve(outside.netns, 70, STREAM, b"outside")
    return Moving(chain, outside, pod)


def goes_on(connection: tuple[socket.socket, socket.socket]) -> bool:
    """Whether a connection that began earlier carries something in both directions."""
    for sender, receiver in (connection, connection[::-1]):
        receiver.settimeout(8)
        sender.send(b"still here")
        if receiver.recv(100) != b"still here":
            return False
    return True

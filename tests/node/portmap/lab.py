"""A host between containers and somebody outside, what answers at its ends, and who asks."""

import re
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.node.outside import HOST
from tests.programs import need

from nodeplug import CniResult, Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig
from nodeplug_net.portmap.table import PortTable

STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
NETFILTER = 12


def mapping(host_port: int, container_port: int = 80, protocol: str = "tcp", **more: Any) -> dict[str, Any]:
    return {"hostPort": host_port, "containerPort": container_port, "protocol": protocol, **more}


@dataclass
class Lab:
    """A host with the bridge and the port mappings of this build."""

    scratch: ScratchCni
    bridge: Bridge
    network: Mapping[str, Any]
    portmap: Portmap
    outside: Netns
    results: dict[str, CniResult] = field(default_factory=dict)
    pods: dict[str, Netns] = field(default_factory=dict)

    def config(self, *mappings: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
        runtime = {"runtimeConfig": {"portMappings": list(mappings)}} if mappings else {}
        return {"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-portmap", **runtime, **keys}

    def attach(self, container: str) -> CniResult:
        """Attach a container to the bridge, once."""
        if container not in self.results:
            self.pods[container] = self.scratch.container()
            self.results[container] = self.scratch.add(self.bridge, self.network, container, self.pods[container])
        return self.results[container]

    def add(self, container: str, *mappings: Mapping[str, Any], **keys: Any) -> CniResult:
        before = self.attach(container)
        config = self.config(*mappings, **keys)
        return self.scratch.add(self.portmap, config, container, self.pods[container], prev_result=before)

    def check(self, container: str, *mappings: Mapping[str, Any], **keys: Any) -> None:
        config = self.config(*mappings, **keys)
        self.scratch.check(self.portmap, config, container, self.pods[container], self.results[container])

    def delete(self, container: str, *mappings: Mapping[str, Any]) -> None:
        self.scratch.delete(self.portmap, self.config(*mappings), container)

    def serve(self, container: str, port: int = 80, kind: int = STREAM, *, name: bytes | None = None) -> None:
        """Answer each client at a port of a container with the container's name and the client's address."""
        serve(self.pods[container], port, kind, container.encode() if name is None else name)

    def ports(self) -> set[str]:
        """List whose ports the kernel forwards."""

        def read() -> set[str]:
            with Netlink(NETFILTER) as netlink:
                return PortTable(netlink).labels("nodeplug ")

        return self.scratch.on_host(read)

    def connections(self, needle: str) -> list[str]:
        """List what the host's kernel knows of connections, without what changes by itself."""
        lines = self.scratch.on_host(lambda: Path("/proc/thread-self/net/nf_conntrack").read_text()).splitlines()
        return sorted(re.sub(r"^.*?(?=src=)", "", line) for line in lines if needle in line)

    def keep_connection(self, address: tuple[str, int]) -> None:
        """Send a datagram and hear the answer."""
        with socket.socket(socket.AF_INET, DATAGRAM) as client:
            client.settimeout(8)
            client.connect(address)
            client.send(b"who")
            assert client.recv(100)

    def ask(self, where: Netns | None, port: int, address: str = "", kind: int = STREAM) -> str:
        """Connect from somewhere to a port of the host; the answer, or nothing."""
        return run_in(self.scratch.host_netns if where is None else where, lambda: ask(address or HOST[4], port, kind))


def ask(address: str, port: int, kind: int) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as client:
        client.settimeout(8)  # IPv6 needs seconds to find its first neighbours
        try:
            client.connect((address, port))
            client.send(b"who")
            return client.recv(100).decode()
        except OSError:
            return ""


def serve(netns: Netns, port: int, kind: int, name: bytes) -> None:
    """Serve in a namespace until the test process ends; IPv4 and IPv6."""

    def listen() -> socket.socket:
        made = socket.socket(socket.AF_INET6, kind)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("::", port))
        if kind == STREAM:
            made.listen()
        return made

    listener = run_in(netns, listen)
    SERVERS.append(listener)
    threading.Thread(target=_answer, args=(listener, kind, name), daemon=True).start()


SERVERS: list[socket.socket] = []


def end_servers() -> None:
    """Let those of a test end."""
    while SERVERS:
        ended = SERVERS.pop()
        with suppress(OSError):
            ended.shutdown(socket.SHUT_RDWR)
        ended.close()


def _answer(listener: socket.socket, kind: int, name: bytes) -> None:
    with suppress(OSError):
        while True:
            if kind == DATAGRAM:
                _, peer = listener.recvfrom(100)
                if peer is None or not peer[1]:  # shut down
                    return
                listener.sendto(name + b" " + peer[0].removeprefix("::ffff:").encode(), peer)
                continue
            connection, peer = listener.accept()
            with connection, suppress(OSError):
                connection.recv(100)
                connection.send(name + b" " + peer[0].removeprefix("::ffff:").encode())


def nft(lab: Lab, *words: str) -> str:
    need("nft", "nsenter")
    command = ["nsenter", f"--net={lab.scratch.host_netns.path}", "nft", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def listening(lab: Lab, port: int, kind: int = STREAM) -> Iterator[socket.socket]:
    def bind() -> socket.socket:
        made = socket.socket(socket.AF_INET, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(("0.0.0.0", port))
            if kind == STREAM:
                made.listen()
        except BaseException:
            made.close()
            raise
        return made

    with lab.scratch.on_host(bind) as made:
        yield made


@contextmanager
def restarted(lab: Lab) -> Iterator[Portmap]:
    """The plugin of the next daemon on the same host."""
    again = Portmap(PortmapConfig(), lab.scratch.host)
    lab.scratch.on_host(again.start)
    yield again
    again.stop()

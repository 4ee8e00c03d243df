"""A network of a bridge, a namespace in which a DHCP server may run, and a server that does what a test wants."""

import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_interface
from pathlib import Path
from typing import Any

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug.testing.waiting import until
from nodeplug_net.dhcp import message as dhcp
from nodeplug_net.dhcp.message import Message, decode
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links

SERVER = IPv4Address("10.99.0.1")
FIRST = IPv4Address("10.99.0.10")


def wire(scratch: ScratchCni, netns: Netns, ifname: str, host_end: str) -> None:
    """Connect a namespace to the host's bridge br0, which is made when it is not there; the inner end stays down."""

    def connect() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only these tests build a second network

        with IPRoute() as route:
            if not route.link_lookup(ifname="br0"):
                route.link("add", ifname="br0", kind="bridge")
                route.link("set", index=route.link_lookup(ifname="br0")[0], state="up")
            route.link("add", ifname=host_end, kind="veth", peer={"ifname": ifname, "net_ns_fd": netns.fd})
            bridge, outer = (route.link_lookup(ifname=name)[0] for name in ("br0", host_end))
            route.link("set", index=outer, master=bridge, state="up")

    scratch.on_host(connect)


def set_up(netns: Netns, ifname: str, address: str) -> None:
    def change() -> None:
        with Netlink() as netlink:
            links = Links(netlink)
            link = links.get(ifname)
            assert link is not None
            links.set_up(link)
            links.add_address(link, ip_interface(address))

    run_in(netns, change)


@dataclass
class Place:
    """Where a server may run: `srv0` of a namespace of its own, 10.99.0.1/24."""

    scratch: ScratchCni
    netns: Netns = field(init=False)

    def __post_init__(self) -> None:
        self.netns = self.scratch.container()
        wire(self.scratch, self.netns, "srv0", "vsrv")
        set_up(self.netns, "srv0", f"{SERVER}/24")

    @contextmanager
    def dnsmasq(self, *options: str, lease: str = "2m") -> Iterator["Dnsmasq"]:
        served = Dnsmasq(self.scratch.folder / "dnsmasq")
        served.folder.mkdir(exist_ok=True)
        words = ["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--interface=srv0", "--bind-interfaces"]
        words += ["--user=root", "--pid-file=", "--no-ping", "--log-dhcp", "--dhcp-authoritative"]
        words += [f"--dhcp-range={FIRST},10.99.0.13,255.255.255.0,{lease}", f"--dhcp-leasefile={served.folder}/leases"]
        words += [f"--log-facility={served.folder}/log", *options]
        command = ["nsenter", f"--net={self.netns.path}", "dnsmasq", *words]
        with subprocess.Popen(command) as process:
            try:
                until(lambda: "DHCP, sockets bound" in served.log() or process.poll() is not None, found=served.log)
                yield served
            finally:
                process.terminate()


@dataclass
class Dnsmasq:
    """A real server."""

    folder: Path

    def log(self) -> str:
        with suppress(FileNotFoundError):
            return (self.folder / "log").read_text()
        return ""

    def leases(self) -> list[str]:
        """List the addresses that are leased."""
        with suppress(FileNotFoundError):
            return sorted(line.split()[2] for line in (self.folder / "leases").read_text().splitlines())
        return []

    def said(self, kind: str) -> int:
        return len(re.findall(rf"{kind}\(srv0\)", self.log()))


Answer = Callable[["Server", Message], Message | bytes | None]


def reply(request: Message, kind: int, **more: Any) -> Message:
    """Answer a message, with a lease of the first address."""
    seconds = int(more.pop("seconds", 600)).to_bytes(4, "big")
    options = {dhcp.MESSAGE_TYPE: bytes((kind,)), dhcp.SERVER_ID: SERVER.packed}
    if kind != dhcp.NAK:
        options |= {dhcp.LEASE_TIME: seconds, dhcp.SUBNET_MASK: b"\xff\xff\xff\0", dhcp.ROUTER: SERVER.packed}
    options |= more.pop("options", {})
    options = {code: value for code, value in options.items() if value is not None}
    fields: dict[str, Any] = {"yiaddr": dhcp.ANY if kind == dhcp.NAK else FIRST, "xid": request.xid}
    fields |= more
    return Message(dhcp.BOOTREPLY, chaddr=request.chaddr, flags=request.flags, options=options, **fields)


def granting(**more: Any) -> Answer:
    def answer(_: "Server", request: Message) -> Message | None:
        kinds = {dhcp.DISCOVER: dhcp.OFFER, dhcp.REQUEST: dhcp.ACK}
        return reply(request, kinds[request.type], **more) if request.type in kinds else None

    return answer


@dataclass
class Server:
    """Answers as a test says; what it heard can be asked for.

    Attributes:
        answer: what each message is answered with; may be exchanged.
        heard: in order.
    """

    netns: Netns
    answer: Answer
    heard: list[Message] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def kinds(self) -> list[int]:
        return [one.type for one in self.heard]

    def run(self, ready: threading.Event, ending: threading.Event) -> None:
        self.netns.enter()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"srv0")
            sock.bind(("0.0.0.0", 67))
            sock.settimeout(0.05)
            ready.set()
            while not ending.is_set():
                with suppress(TimeoutError):
                    data, source = sock.recvfrom(2000)
                    message = decode(data)
                    self.heard.append(message)
                    self.sources.append(source[0])
                    answer = self.answer(self, message)
                    if answer is not None:
                        self.send(sock, answer)

    def send(self, sock: socket.socket, answer: Message | bytes) -> None:
        data = answer if isinstance(answer, bytes) else answer.encode()
        sock.sendto(data, ("255.255.255.255", 68))


@contextmanager
def serving(place: Place, answer: Answer, kind: type[Server] = Server) -> Iterator[Server]:
    server = kind(place.netns, answer)
    ready, ending = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.run, args=(ready, ending), name="dhcp-server", daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        ending.set()
        thread.join()

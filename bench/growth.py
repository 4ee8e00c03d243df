"""What grows with a node, of our default entrypoint: attachments one after another, attachments at once, addresses.

A thousand attachments of one pair of namespaces, each ended before the next, show what a daemon keeps of those that are
gone. A thousand at once are ports of one bridge, whose other ends share one namespace: the kernel brings what each of
them sends to all others, for seconds after an ADD and with all links locked, and takes longer with each. How long is
measured too, by the same messages at the same pace, without entrypoint, daemon and addresses' files; a bridge has 1023
ports at most.
Owns: these configurations, calls and series.
Refuses: the other implementation, and gates.
"""

import ipaddress
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.chain import Chain
from bench.cni import Engine
from bench.measure import Summary
from nodeplug import Netns
from nodeplug.testing import Sandbox
from nodeplug.testing.scratch_cni import run_in
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import Netlink, Request
from nodeplug_net.netlink.links import OPER_UP, Link, Links, address_request, links_in, up_request
from nodeplug_net.netlink.messages import u32
from nodeplug_net.sysctl import set_sysctl

HELD: Final = 10_000
ATTACHMENTS: Final = 1000
_EDGE: Final = 100
_PAUSE: Final = 0.0001
_GATEWAYS: Final = (ipaddress.ip_interface("10.162.0.1/16"), ipaddress.ip_interface("fd00:162::1/64"))
_FIRST: Final = ((ipaddress.ip_address("10.162.0.2"), 16), (ipaddress.ip_address("fd00:162::2"), 64))
Figures = dict[str, float]


def measure(engine: Engine, netns: Path, *, quick: bool) -> Figures:
    """Measure all of it in one container's namespace."""
    count, edge = (20, 5) if quick else (ATTACHMENTS, _EDGE)
    chain = Chain.of(engine, 160)
    config = chain.config("bridge", 0) | {"isDefaultGateway": False, "isGateway": True, "ipMasq": False}
    figures = _edges("lives", _lives(chain, netns, config, count), edge)
    at_once = _at_once(chain, netns, config, count)
    figures |= _edges("attachments", at_once, edge)
    figures |= _edges("kernel", _kernel_alone(netns.parent, at_once), edge)
    return figures | _held(Chain(chain.kind, chain.folder, 161, chain.data.with_name("held")), netns, edge)


def _edges(name: str, seconds: list[float], edge: int) -> Figures:
    first, last = Summary.of(seconds[:edge]), Summary.of(seconds[-edge:])
    return {
        f"{name}_first_p50_ms": first.p50,
        f"{name}_last_p50_ms": last.p50,
        f"{name}_growth": last.p50 / first.p50,
    }


def _lives(chain: Chain, netns: Path, config: dict[str, object], count: int) -> list[float]:
    seconds = []
    for number in range(count):
        seconds.append(chain.execute("bridge", "ADD", f"l{number}", netns, config).seconds)
        chain.execute("bridge", "DEL", f"l{number}", netns, config)
    return seconds


def _at_once(chain: Chain, netns: Path, config: dict[str, object], count: int) -> list[float]:
    names = [f"n{number}" for number in range(count)]
    seconds = [chain.execute("bridge", "ADD", name, netns, config, name).seconds for name in names]
    for name in names:
        chain.execute("bridge", "DEL", name, netns, config, name)
    return seconds


def _kernel_alone(folder: Path, pace: Sequence[float]) -> list[float]:
    """Make pairs between two namespaces of their own, which take them along when they end; each begins after a time."""
    with Sandbox(folder / "kernel-host") as host, Sandbox(folder / "kernel-container") as container:

        def made() -> list[float]:
            with Netlink() as netlink, links_in(container.netns) as inner:
                links, seconds = Links(netlink), []
                links.create_bridge("bench", 0)
                bridge = links.get("bench")
                assert bridge is not None
                for gateway in _GATEWAYS:
                    links.add_address(bridge, gateway)
                for number, interval in enumerate(pace):
                    seconds.append(_pair(links, inner, bridge, container.netns, number))
                    time.sleep(max(interval - seconds[-1], 0.0))
                return seconds

        def settle() -> None:  # as ADD does for each interface
            set_sysctl("ipv4/conf/default/arp_notify", "1")
            set_sysctl("ipv6/conf/default/accept_dad", "0")

        run_in(container.netns, settle)
        return run_in(host.netns, made)


def _pair(links: Links, inner: Links, bridge: Link, netns: Netns, number: int) -> float:
    started = time.perf_counter()
    outside, inside = f"p{number}", f"k{number}"
    template = messages.create_veth(mtu=False, mac=False)
    names = {"name": outside.encode(), "peer": inside.encode()}
    data = template.fill(**names, netns=u32(netns.fd), master=u32(bridge.index))
    links.netlink.ask(Request(data, f"create {outside}"))
    link = inner.get(inside)
    assert link is not None
    four, six = (ipaddress.ip_interface(f"{one + number}/{bits}") for one, bits in _FIRST)
    requests = [address_request(link.index, inside, four), up_request(link.index, inside)]
    inner.netlink.ask(*requests, address_request(link.index, inside, six))
    while (port := links.get(outside)) is not None and port.state != OPER_UP:
        time.sleep(_PAUSE)
    return time.perf_counter() - started


def _held(chain: Chain, netns: Path, times: int) -> Figures:
    config = chain.config("bridge", 0) | {"ipMasq": False}
    config["ipam"]["ranges"] = config["ipam"]["ranges"][:1]
    folder = chain.data / str(config["name"])
    folder.mkdir(parents=True)
    start = ipaddress.ip_address(f"10.{chain.number}.0.2")
    for number in range(HELD):
        (folder / str(start + number)).write_text(f"held{number}\r\neth0")
    (folder / "last_reserved_ip.0").write_text(str(start + HELD - 1))
    added, asked = [], []
    for number in range(times):
        added.append(chain.execute("bridge", "ADD", f"h{number}", netns, config).seconds)
        chain.execute("bridge", "DEL", f"h{number}", netns, config)
        asked.append(chain.execute("bridge", "STATUS", "", netns, config | {"cniVersion": "1.1.0"}).seconds)
    return {"held_add_p50_ms": Summary.of(added).p50, "held_status_p50_ms": Summary.of(asked).p50}

"""A container with interfaces in two networks, and sbr for one of them: what ip(8) says of its rules and routes."""

import json
import subprocess
from ipaddress import ip_address, ip_interface
from typing import Any

from nodeplug import CniInterface, CniIp, CniResult, Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.sbr.plugin import Sbr

FOUR, SIX = "10.9.0.2/24", "fd09::2/64"
GATEWAYS = {"10.9.0.2/24": "10.9.0.1", "fd09::2/64": "fd09::1", "10.9.0.3/24": "10.9.0.1", "10.8.0.2/24": "10.8.0.1"}


def conf(**keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-sbr", **keys}


def result(*addresses: str, gateway: bool = True) -> CniResult:
    def one(address: str) -> CniIp:
        return CniIp(ip_interface(address), gateway=ip_address(GATEWAYS[address]) if gateway else None, interface=1)

    return CniResult(
        interfaces=(CniInterface("br0"), CniInterface("net1", sandbox="/x")), ips=tuple(map(one, addresses))
    )


class Pod:
    """The calls about the interface net1, which has the addresses of a result."""

    def __init__(self, scratch: ScratchCni, sbr: Sbr, netns: Netns, *addresses: str) -> None:
        self.scratch, self.sbr, self.netns = scratch, sbr, netns
        self.before = result(*addresses)

    def run(self, *words: str) -> str:
        """Run ip(8) in the container."""

        def execute() -> str:
            return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout

        return run_in(self.netns, execute)

    def give(self, name: str, *addresses: str) -> None:
        """Make a pair with addresses."""
        self.run("link", "add", name, "type", "veth", "peer", "name", f"{name}-peer")
        self.run("link", "set", f"{name}-peer", "up")
        self.run("link", "set", name, "up")
        for address in addresses:
            self.run("address", "add", address, "dev", name, *(("nodad",) if ":" in address else ()))

    def make_interface(self) -> None:
        """Make net1 with the routes that another plugin gave it."""
        self.give("net1", FOUR, SIX)
        self.run("route", "add", "192.0.2.0/24", "via", "10.9.0.9", "dev", "net1", "mtu", "1300")
        self.run("route", "add", "198.51.100.0/24", "dev", "net1")

    def add(self, before: CniResult | None = None, **keys: Any) -> CniResult:
        before = before or self.before
        return self.scratch.add(self.sbr, conf(**keys), "c1", self.netns, ifname="net1", prev_result=before)

    def check(self, **keys: Any) -> None:
        self.scratch.check(self.sbr, conf(**keys), "c1", self.netns, self.before, ifname="net1")

    def delete(self, **keys: Any) -> None:
        self.scratch.delete(self.sbr, conf(**keys), "c1", self.netns, ifname="net1")

    def rules(self) -> dict[str, str]:
        """The table by source address."""
        found = [one for family in ("-4", "-6") for one in json.loads(self.run(family, "-j", "rule", "show"))]
        return {one["src"]: one["table"] for one in found if one["src"] != "all"}

    def routes(self, table: str = "main") -> list[str]:
        """Destination, gateway and interface of the routes of a table, link-local ones left out."""
        lines = []
        for family in ("-4", "-6"):
            said = json.loads(self.run(family, "-j", "route", "show", "table", "all") or "[]")
            for one in said:
                wanted = str(one.get("table", "main")) == table
                if wanted and one.get("type", "unicast") == "unicast" and not str(one["dst"]).startswith("fe80"):
                    lines.append(f"{one['dst']} {one.get('gateway', '-')} {one['dev']}")
        return sorted(lines)

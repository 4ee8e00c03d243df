"""A container with two interfaces, and vrf for them: what ip(8) says of VRFs, addresses and routes."""

import json
import subprocess
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from nodeplug import CniInterface, CniIp, CniResult, CniRoute, Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.vrf.plugin import Vrf

ADDRESSES = {"net1": ("10.9.0.2/24", "fd09::2/64"), "net2": ("10.9.0.3/24", "fd09::3/64")}


def conf(**keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-vrf", "vrfname": "blue", **keys}


def result(ifname: str) -> CniResult:
    four, six = ADDRESSES[ifname]
    return CniResult(
        interfaces=(CniInterface("br0"), CniInterface(ifname, sandbox="/x")),
        ips=(
            CniIp(ip_interface(four), gateway=ip_address("10.9.0.1"), interface=1),
            CniIp(ip_interface(six), gateway=ip_address("fd09::1"), interface=1),
        ),
        routes=(CniRoute(ip_network("192.0.2.0/24"), gw=ip_address("10.9.0.9")),),
    )


class Pod:
    """The calls about one container."""

    def __init__(self, scratch: ScratchCni, vrf: Vrf, netns: Netns) -> None:
        self.scratch, self.vrf, self.netns = scratch, vrf, netns

    def run(self, *words: str) -> str:
        """Run ip(8) in the container."""
        return run_in(
            self.netns, lambda: subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
        )

    def make(self, name: str) -> None:
        """Make an interface with its addresses and routes."""
        self.run("link", "add", name, "type", "veth", "peer", "name", f"{name}-peer")
        self.run("link", "set", f"{name}-peer", "up")
        self.run("link", "set", name, "up")
        four, six = ADDRESSES[name]
        self.run("address", "add", four, "dev", name)
        self.run("address", "add", six, "dev", name, "nodad")
        self.run("route", "add", "198.51.100.0/24", "dev", name, "metric", f"5{name[-1]}")
        self.run("route", "add", "192.0.2.0/24", "via", "10.9.0.9", "dev", name, "mtu", "1300", "metric", name[-1])
        self.run("route", "add", "2001:db8::/32", "via", "fd09::9", "dev", name, "metric", name[-1])

    def add(self, ifname: str = "net1", **keys: Any) -> CniResult:
        return self.scratch.add(self.vrf, conf(**keys), "c1", self.netns, ifname=ifname, prev_result=result(ifname))

    def check(self, ifname: str = "net1", **keys: Any) -> None:
        self.scratch.check(self.vrf, conf(**keys), "c1", self.netns, result(ifname), ifname=ifname)

    def delete(self, ifname: str = "net1", **keys: Any) -> None:
        self.scratch.delete(self.vrf, conf(**keys), "c1", self.netns, ifname=ifname)

    def vrfs(self) -> dict[str, int]:
        """The tables by name."""
        found = json.loads(self.run("-j", "-d", "link", "show", "type", "vrf") or "[]")
        return {one["ifname"]: one["linkinfo"]["info_data"]["table"] for one in found if one}

    def inside(self, vrf: str = "blue") -> list[str]:
        found = json.loads(self.run("-j", "link", "show", "master", vrf) or "[]")
        return sorted(one["ifname"] for one in found if one)

    def addresses(self, name: str = "net1") -> list[str]:
        (found,) = json.loads(self.run("-j", "address", "show", "dev", name, "scope", "global"))
        return sorted(f"{one['local']}/{one['prefixlen']}" for one in found["addr_info"] if one)

    def routes(self, table: str, name: str = "net1") -> list[str]:
        """Destination, gateway and MTU of the routes through an interface, link-local ones left out."""
        lines = []
        for family in ("-4", "-6"):
            said = json.loads(self.run(family, "-j", "route", "show", "table", table, "dev", name) or "[]")
            for one in said:
                mtu = [metric["mtu"] for metric in one.get("metrics", []) if "mtu" in metric]
                if one.get("type", "unicast") == "unicast" and not str(one["dst"]).startswith(("fe80", "ff00")):
                    lines.append(" ".join(map(str, (one["dst"], one.get("gateway", "-"), *mtu))))
        return sorted(lines)

"""A container whose pair another plugin made, and bandwidth for it: what tc(8) and ip(8) say of both ends."""

import json
import subprocess
from typing import Any

from nodeplug import CniInterface, CniResult, Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.bandwidth.plugin import Bandwidth

MEGABIT = 1_000_000
INGRESS: dict[str, Any] = {"ingressRate": 8 * MEGABIT, "ingressBurst": 800_000}
EGRESS: dict[str, Any] = {"egressRate": 16 * MEGABIT, "egressBurst": 400_000}
BOTH: dict[str, Any] = {**INGRESS, **EGRESS}


def conf(**keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-bandwidth", **keys}


def before(netns: Netns, *, host: str = "host0", ifname: str = "eth0") -> CniResult:
    return CniResult(interfaces=(CniInterface("br0"), CniInterface(host), CniInterface(ifname, sandbox=netns.path)))


class Pod:
    """The calls about one container, and what its host has of them."""

    def __init__(self, scratch: ScratchCni, bandwidth: Bandwidth, netns: Netns) -> None:
        self.scratch, self.bandwidth, self.netns = scratch, bandwidth, netns

    def pair(self, host: str, ifname: str) -> None:
        """Make a pair as another plugin would."""

        def make() -> None:
            from pyroute2 import IPRoute  # noqa: PLC0415  only what stands beside the plugin needs it

            with IPRoute() as ip:
                ip.link(
                    "add", ifname=host, kind="veth", state="up", peer={"ifname": ifname, "net_ns_fd": self.netns.fd}
                )

        run_in(self.scratch.host_netns, make)

    def add(self, *, container: str = "c1", ifname: str = "eth0", host: str = "host0", **keys: Any) -> CniResult:
        result = before(self.netns, host=host, ifname=ifname)
        return self.scratch.add(self.bandwidth, conf(**keys), container, self.netns, ifname=ifname, prev_result=result)

    def check(self, *, container: str = "c1", **keys: Any) -> None:
        self.scratch.check(self.bandwidth, conf(**keys), container, self.netns, before(self.netns))

    def delete(self, *, container: str = "c1", ifname: str = "eth0", **keys: Any) -> None:
        self.scratch.delete(self.bandwidth, conf(**keys), container, self.netns, ifname=ifname)

    def run(self, *words: str) -> str:
        """Run a program on the host."""
        return run_in(
            self.scratch.host_netns,
            lambda: subprocess.run(words, check=True, capture_output=True, text=True).stdout,
        )

    def look(self) -> None:
        """Compare, as the daemon has it done."""
        self.scratch.on_host(self.bandwidth.health)

    def limits(self, name: str = "host0") -> list[Any]:
        """What tc(8) says of a link's qdiscs: kind, and bytes a second and bytes of a token bucket."""
        found = json.loads(self.run("tc", "-j", "qdisc", "show", "dev", name))
        return [(one["kind"], one["options"].get("rate"), one["options"].get("burst")) for one in found]

    def queue(self, name: str = "host0") -> int:
        """How many bytes may wait on a link; 0 where fq_codel sees to it by time."""
        found = json.loads(self.run("tc", "-j", "qdisc", "show", "dev", name))
        if any(one["kind"] == "fq_codel" for one in found):
            return 0
        (limit,) = [one["options"]["limit"] for one in found if one["kind"] == "bfifo"]
        return int(limit.removesuffix("b")) if isinstance(limit, str) else int(limit)

    def ifbs(self) -> list[str]:
        found = json.loads(self.run("ip", "-j", "link", "show", "type", "ifb") or "[]")
        return sorted(one["ifname"] for one in found if one)

"""A container whose interface is tuned: what is asked, what the interface has, and what it was is kept where."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeplug import CniInterface, CniResult, Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links
from nodeplug_net.tuning.plugin import Tuning
from nodeplug_net.tuning.settings import Settings, look

NEW = Settings("02:00:00:00:00:05", True, 1300, True, 77)
KEYS: dict[str, Any] = {"mac": NEW.mac, "promisc": True, "mtu": 1300, "allmulti": True, "txQLen": 77}
SYSCTL = "net.ipv4.conf.IFNAME.arp_filter"
FILE = "ipv4/conf/eth0/arp_filter"


def run_ip(netns: Netns, work: Callable[[Any], Any]) -> None:
    def change() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only what stands beside the plugin needs it

        with IPRoute() as route:
            work(route)

    run_in(netns, change)


def make_pod(scratch: ScratchCni) -> Netns:
    """Make a container whose interface eth0 another plugin made."""
    netns = scratch.container()
    run_ip(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="peer0", address="02:00:00:00:00:01"))
    return netns


def conf(**keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-tuning", **keys}


def before(netns: Netns, **more: Any) -> CniResult:
    own = CniInterface("eth0", mac="02:00:00:00:00:01", sandbox=netns.path, **more)
    return CniResult(interfaces=(CniInterface("eth0", mac="02:00:00:00:00:09"), own))


def settings(netns: Netns, name: str = "eth0") -> Settings:
    def read() -> Settings:
        with Netlink() as netlink:
            link = look(Links(netlink), name)
            assert link is not None
            return link.settings

    return run_in(netns, read)


def sysctl(netns: Netns, path: str = FILE) -> str:
    return run_in(netns, lambda: Path("/proc/sys/net", path).read_text().strip())


def backups(scratch: ScratchCni) -> list[str]:
    return sorted(path.name for path in (scratch.folder / "tuning").glob("*"))


class Pod:
    """The calls about one container."""

    def __init__(self, scratch: ScratchCni, tuning: Tuning, netns: Netns) -> None:
        self.scratch, self.tuning, self.netns = scratch, tuning, netns

    def add(self, *, container: str = "c1", env: Any = None, **keys: Any) -> CniResult:
        more = {"args": env} if env else {}
        return self.scratch.add(
            self.tuning, conf(**keys), container, self.netns, prev_result=before(self.netns), **more
        )

    def check(self, **keys: Any) -> None:
        self.scratch.check(self.tuning, conf(**keys), "c1", self.netns, before(self.netns))

    def delete(self, **keys: Any) -> None:
        self.scratch.delete(self.tuning, conf(**keys), "c1", self.netns)

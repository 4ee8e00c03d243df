"""The veth pairs of running containers, and those whose host end somebody deleted.

Owns: the comparison with the host's interfaces, and what a repeated ADD is to keep.
Refuses: to repeat an ADD unless the administrator chose so.
"""

from dataclasses import dataclass, replace

from nodeplug import CniAdd, CniResult
from nodeplug_net.level.containers import ANEW, Container, Containers
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links


@dataclass(slots=True)
class Pairs(Containers):
    """The pairs of one plugin by label. Any thread may call it."""

    def look(self) -> dict[str, list[str]]:
        """Name the pairs that are gone, by label; the calling thread is in the daemon's own namespace.

        Raises:
            OSError: the kernel refuses.
        """
        known = self.running()
        if not known:
            return {}
        with Netlink() as netlink:
            there = {link.alias for link in Links(netlink).all()}
        return {label: [_sentence(one)] for label, one in known.items() if label not in there}

    def _kept(self, request: CniAdd, result: CniResult) -> CniAdd:
        """Return the ADD that gives the container the hardware address that it has, which its neighbours know."""
        mac = next((one.mac for one in result.interfaces if one.sandbox and one.name == request.ifname), "")
        runtime = {**(request.config.get("runtimeConfig") or {}), **({"mac": mac} if mac else {})}
        return replace(request, config={**request.config, "runtimeConfig": runtime})


def _sentence(pair: Container) -> str:
    one = pair.attachment
    return (
        f"interface {one.ifname} of container {one.container_id} in network {one.network} is gone, "
        f"as its host end {one.host_veth} was deleted: {ANEW}"
    )

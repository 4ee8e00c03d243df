"""Requests for addresses of host-local."""

from typing import Any

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.ipam.host_local import HostLocal


def network(*subnets: str, **ipam: Any) -> dict[str, Any]:
    ranges = [[{"subnet": subnet}] for subnet in subnets or ("10.1.2.0/24",)]
    return {"cniVersion": "1.0.0", "name": "net", "ipam": {"type": "host-local", "ranges": ranges, **ipam}}


def add(scratch: ScratchCni, plugin: HostLocal, config: dict[str, Any], who: str, **more: Any) -> list[str]:
    result = scratch.add(plugin, config, who, scratch.host_netns, **more)
    return [str(ip.address) for ip in result.ips]

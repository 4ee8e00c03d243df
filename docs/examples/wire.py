"""A small CNI plugin: a veth pair between container and host, with addresses from the network's IPAM plugin."""

from errno import ENODEV
from hashlib import sha256

from pydantic import BaseModel
from pyroute2 import IPRoute, NetlinkError

from nodeplug import CniAdd, CniClaim, CniDel, CniInterface, CniIp, CniResult, Host, hookimpl


class Ipam(BaseModel):
    type: str


class Network(BaseModel):
    """The keys of a network's configuration that this plugin reads."""

    ipam: Ipam


def host_end(request: CniAdd | CniDel) -> str:
    """A computed name, so that a repeated ADD, and a DEL without namespace or result, find the same link."""
    key = f"{request.network} {request.container_id} {request.ifname}"
    return f"wire{sha256(key.encode()).hexdigest()[:8]}"


def remove(link: str) -> None:
    """Remove a link by its name; succeed if it is gone, perhaps just now with its container."""
    with IPRoute() as outside:
        try:
            outside.link("del", ifname=link)
        except NetlinkError as error:
            if error.code != ENODEV:
                raise


class Wire:
    def __init__(self, config: object, host: Host) -> None:
        self.host = host

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("example-wire")]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        addresses = self.host.delegate(request, request.parse(Network).ipam.type)
        with IPRoute() as outside:  # the thread starts in the caller's network namespace
            if not outside.link_lookup(ifname=host_end(request)):
                peer = {"ifname": request.ifname, "net_ns_fd": request.netns.fd}
                outside.link("add", ifname=host_end(request), kind="veth", peer=peer)
            outside.link("set", ifname=host_end(request), state="up")
        with request.netns.entered(), IPRoute() as inside:  # and here it is in the container's
            index = inside.link("get", ifname=request.ifname)[0]["index"]
            for ip in addresses.ips:
                inside.addr("replace", index=index, address=str(ip.address.ip), prefixlen=ip.address.network.prefixlen)
            inside.link("set", index=index, state="up")
        link = CniInterface(request.ifname, sandbox=request.netns.path)
        return CniResult(
            interfaces=(link,), ips=tuple(CniIp(ip.address, gateway=ip.gateway, interface=0) for ip in addresses.ips)
        )

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        remove(host_end(request))
        self.host.delegate(request, request.parse(Network).ipam.type)

"""The IPAM of an interface: in this process, or delegated.

Owns: the choice between the two, and the record of what another IPAM plugin than host-local returned, so that a
repeated ADD returns the same (the reference's host-local refuses a second ADD of one attachment), and what others
flush can be restored.
Refuses: to interpret addresses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface, ip_network
from typing import Any, Final

from nodeplug import (
    CniAdd,
    CniAttachmentRequest,
    CniCheck,
    CniDel,
    CniDns,
    CniGc,
    CniIp,
    CniRequest,
    CniResult,
    CniRoute,
    CniStatus,
    Host,
    InvalidRequest,
)
from nodeplug_net.attachment import Attachment, network_label
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.ipam.config import STATIC, has_ranges, parse_config
from nodeplug_net.ipam.static_config import check_static, parse_static
from nodeplug_net.undo import Undo

IN_PROCESS: Final = frozenset({"host-local", "nodeplug-host-local"})
"""Types whose addresses are reserved in a folder by this process."""
BEFORE_INTERFACES: Final = IN_PROCESS | STATIC
"""Types that are asked before anything is made; others, such as dhcp, need the interface."""
MISSING: Final = "IPAM plugin returned missing IP config"
Address = IPv4Address | IPv6Address
_NUMBERS: Final = ("mtu", "advmss", "priority", "table", "scope")


@dataclass(slots=True)
class Addressing:
    """Where the addresses of a network come from."""

    ipam: Ipam
    host: Host

    def recover(self) -> None:
        """Release addresses that an earlier boot left, and forget what foreign plugins returned then."""
        self.ipam.recover()
        for entry in self.host.journal.entries():
            if entry.phase == "ipam" and self.host.journal.is_stale(entry):
                self.host.journal.remove(entry.key)

    def add(self, request: CniAdd, plugin_type: str, undo: Undo) -> CniResult:
        """Get addresses; `undo` releases what this call reserved.

        Raises:
            InvalidRequest: IPAM returned no address.
        """
        if plugin_type in IN_PROCESS:
            allocation = self.ipam.allocate(request)
            if allocation.fresh:
                undo.push("release addresses", lambda: self.ipam.release(request, allocation.fresh))
            return allocation.result
        known = self.host.journal.read(_key(request))
        if known is not None and not self.host.journal.is_stale(known):
            return _decode(known.data)
        if plugin_type in STATIC:
            result = parse_static(request)
        else:
            undo.push(f"run DEL of {plugin_type}", lambda: self.host.delegate(_deletion(request), plugin_type))
            result = self.host.delegate(request, plugin_type)
        if not result.ips:
            raise InvalidRequest(MISSING, details=f"check the configuration of {plugin_type}")
        self.host.journal.write(_key(request), phase="ipam", data=_encode(result))
        undo.push("forget the result of IPAM", lambda: self.host.journal.remove(_key(request)))
        return result

    def delete(self, request: CniDel, plugin_type: str) -> None:
        """Release addresses."""
        if plugin_type in IN_PROCESS:
            self.ipam.release(request)
        elif plugin_type:
            if plugin_type not in STATIC:
                self.host.delegate(request, plugin_type)
            self.host.journal.remove(_key(request))

    def check(self, request: CniCheck, plugin_type: str) -> None:
        """Confirm addresses."""
        if plugin_type in IN_PROCESS:
            self.ipam.check(request)
        elif plugin_type in STATIC:
            check_static(request)
        elif plugin_type:
            self.host.delegate(request, plugin_type)

    def collect(self, request: CniGc, plugin_type: str) -> None:
        """Release addresses of attachments that are gone."""
        if plugin_type in IN_PROCESS:
            self.ipam.collect(request)
        elif plugin_type:
            self._forget_invalid(request)
            if plugin_type not in STATIC:
                self.host.delegate(request, plugin_type)

    def _forget_invalid(self, request: CniGc) -> None:
        """Forget the results of attachments that are gone: others may get their addresses."""
        if request.valid is None:
            return
        kept = {f"ipam {Attachment(request.network, one.container_id, one.ifname).label}" for one in request.valid}
        for entry in self.host.journal.entries():
            if entry.key.startswith(f"ipam {network_label(request.network)}") and entry.key not in kept:
                self.host.journal.remove(entry.key)

    def owners(self, request: CniRequest, plugin_type: str) -> list[tuple[str, Address]]:
        """List who holds which address of a network, by label; an old file names no interface, and so its label.

        What ends an attachment asks here: mistakes in keys that it does not need must not keep it.
        """
        if plugin_type not in IN_PROCESS:
            return [(label, address.ip) for label, address in self.leases(request, plugin_type)]
        return [(Attachment(request.network, *owner).label, one) for owner, one in self.ipam.owners(request)]

    def leases(self, request: CniRequest, plugin_type: str) -> list[tuple[str, IPv4Interface | IPv6Interface]]:
        """List the known addresses of a network's attachments, by label."""
        if plugin_type in IN_PROCESS:
            found = self.ipam.leases(request) if has_ranges(request) else []
            return [(Attachment(request.network, *owner).label, address) for owner, address in found]
        return [(label, ip.address) for label, ip in self._results(request)]

    def _results(self, request: CniRequest) -> list[tuple[str, CniIp]]:
        """List what other IPAM plugins returned for a network's attachments, by label."""
        prefix = f"ipam {network_label(request.network)}"
        entries = [entry for entry in self.host.journal.entries() if entry.key.startswith(prefix)]
        return [
            (entry.key.removeprefix("ipam "), ip)
            for entry in entries
            if not self.host.journal.is_stale(entry)
            for ip in _decode(entry.data).ips
        ]

    def gateways(self, request: CniRequest, plugin_type: str) -> list[list[IPv4Interface | IPv6Interface]]:
        """List the gateways of a network with their prefixes: sets of which one address is enough."""
        if plugin_type in IN_PROCESS:
            sets = parse_config(request, self.ipam.data_dir).ranges if has_ranges(request) else ()
            return [[ip_interface((one.address(one.gateway), one.network.prefixlen)) for one in s.ranges] for s in sets]
        found = {gateway_of(ip): None for _, ip in self._results(request)}
        return [[ip_interface((gateway, prefix))] for gateway, prefix in found]

    def status(self, request: CniStatus, plugin_type: str) -> None:
        """Raise NotReady if there is no free address."""
        if plugin_type in IN_PROCESS:
            self.ipam.status(request)
        elif plugin_type and plugin_type not in STATIC:
            self.host.delegate(request, plugin_type)


def gateway_of(ip: CniIp) -> tuple[Address, int]:
    """Return the gateway of an address and its prefix: the first of the subnet, if IPAM names none."""
    return ip.gateway or ip.address.network.network_address + 1, ip.address.network.prefixlen


def _key(request: CniAttachmentRequest) -> str:
    return f"ipam {Attachment.of(request).label}"


def _deletion(request: CniAdd) -> CniDel:
    """Make the DEL that belongs to an ADD; its configuration is passed on whole, as the IPAM plugin expects it."""
    return CniDel(
        id=request.id,
        deadline=request.deadline,
        claim=request.claim,
        network=request.network,
        version=request.version,
        config=request.config,
        path=request.path,
        host_netns=request.host_netns,
        container_id=request.container_id,
        ifname=request.ifname,
        args=request.args,
        args_text=request.args_text,
        netns=request.netns,
    )


def _encode(result: CniResult) -> Mapping[str, Any]:
    dns = result.dns
    return {
        "ips": [[str(ip.address), None if ip.gateway is None else str(ip.gateway)] for ip in result.ips],
        "routes": [
            [str(route.dst), None if route.gw is None else str(route.gw), *(getattr(route, key) for key in _NUMBERS)]
            for route in result.routes
        ],
        "dns": [list(dns.nameservers), dns.domain, list(dns.search), list(dns.options)],
    }


def _decode(data: Mapping[str, Any]) -> CniResult:
    nameservers, domain, search, options = data["dns"]
    return CniResult(
        ips=tuple(CniIp(ip_interface(own), gateway=None if gw is None else ip_address(gw)) for own, gw in data["ips"]),
        routes=tuple(
            CniRoute(
                ip_network(dst), gw=None if gw is None else ip_address(gw), **dict(zip(_NUMBERS, numbers, strict=True))
            )
            for dst, gw, *numbers in data["routes"]
        ),
        dns=CniDns(nameservers=tuple(nameservers), domain=domain, search=tuple(search), options=tuple(options)),
    )

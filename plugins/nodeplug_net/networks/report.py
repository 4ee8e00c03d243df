"""The network status of a pod: one element for each interface.

Owns: from results to the elements of `k8s.v1.cni.cncf.io/network-status`.
Refuses: to write it.

Source: Kubernetes Network Custom Resource Definition De-facto Standard 1.3, section 5.2.
"""

from typing import Any

from nodeplug import CniInterface, CniResult
from nodeplug_net.networks.plan import Planned
from nodeplug_net.networks.records import Record


def elements(record: Record) -> list[dict[str, Any]]:
    """Return the network status of a pod whose networks are all attached."""
    pairs = zip(record.plans, record.results, strict=False)
    return [
        _element(planned, result, default=index == 0)
        for index, (planned, result) in enumerate(pairs)
        if result is not None
    ]


def _element(planned: Planned, result: CniResult, *, default: bool) -> dict[str, Any]:
    link = _link(planned, result)
    dns = {
        "nameservers": list(result.dns.nameservers),
        "domain": result.dns.domain,
        "search": list(result.dns.search),
        "options": list(result.dns.options),
    }
    about: dict[str, Any] = {"name": planned.network, "interface": link.name if link is not None else planned.ifname}
    about |= {"ips": [str(one.address.ip) for one in result.ips]} if result.ips else {}
    about |= {"mac": link.mac} if link is not None and link.mac else {}
    about |= {"mtu": link.mtu} if link is not None and link.mtu else {}
    about |= {"default": True} if default else {}
    about |= {"gateway": list(planned.gateways)} if planned.gateways else {}
    return {**about, "dns": {key: value for key, value in dns.items() if value}}


def _link(planned: Planned, result: CniResult) -> CniInterface | None:
    inside = [one for one in result.interfaces if one.sandbox]
    return next((one for one in inside if one.name == planned.ifname), inside[0] if inside else None)

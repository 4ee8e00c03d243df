"""The verbs of an interface that is in the container's namespace alone, whatever brings it there.

Owns: the order of the steps of ADD and DEL around addresses, and what CHECK compares of any such interface.
Refuses: making, moving and deleting interfaces: the plugin says how.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniInterface, CniIp, CniResult
from nodeplug_net.comparison import inside_differences
from nodeplug_net.container_interface import configure, enable_ipv6
from nodeplug_net.interface_config import DelegationConf
from nodeplug_net.ipam.addressing import BEFORE_INTERFACES, IN_PROCESS, Addressing
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.sysctl import set_sysctl
from nodeplug_net.undo import Errors, Undo

Log = logging.LoggerAdapter[logging.Logger]
Ensure = Callable[[Undo], None]
"""Brings the interface into the container under its name, or finds it there; pushes the step back."""
ARP_NOTIFY = "ipv4/conf/{}/arp_notify"
NDISC_NOTIFY = "ipv6/conf/{}/ndisc_notify"


def planned(
    request: CniAdd,
    ipam: str,
    addressing: Addressing,
    undo: Undo,
    ensure: Ensure,
    given: CniResult | None = None,
) -> CniResult:
    """Get the interface and its addresses, in the order that suits the IPAM plugin.

    Args:
        request: with the namespace.
        ipam: the IPAM plugin, or empty.
        addressing: of the plugin.
        undo: of this ADD.
        ensure: makes or brings the interface.
        given: the addresses if there is no IPAM plugin, maybe of the plugin before.

    Raises:
        PluginError: IPAM has no address, or there is no such interface.
        OSError: the kernel refuses.
    """
    early = ipam in BEFORE_INTERFACES
    found = addressing.add(request, ipam, undo) if early else given or CniResult()
    ensure(undo)
    if ipam and not early:
        found = addressing.add(request, ipam, undo)
    return replace(found, ips=tuple(CniIp(ip.address, gateway=ip.gateway, interface=0) for ip in found.ips))


def addressed(
    request: CniAdd, plan: CniResult, *, sysctls: tuple[str, ...] = (), waits_for_duplicates: bool = True
) -> CniResult:
    """Give the interface its addresses, bring it up, and return the result.

    Args:
        request: names the interface, which exists.
        plan: addresses and routes.
        sysctls: paths below `/proc/sys/net` that are set to 1, `{}` for the interface.
        waits_for_duplicates: whether to wait until no neighbour has the IPv6 addresses.

    Raises:
        PluginError: the interface is gone, or a neighbour has one of the addresses.
        OSError: the kernel refuses.
    """

    def prepare() -> None:
        for path in sysctls:
            set_sysctl(path.format(request.ifname), "1")
        if any(ip.address.version == 6 for ip in plan.ips):
            enable_ipv6(request.ifname)

    inside = configure(request, plan, prepare=prepare, dad=True, waits=waits_for_duplicates)
    return replace(plan, interfaces=(CniInterface(inside.name, mac=inside.mac, sandbox=request.netns.path),))


def detach(request: CniDel, addressing: Addressing, end: Callable[[], None]) -> None:
    """Serve DEL: remove everything that can be removed, then report the first failure.

    Args:
        request: maybe without the namespace.
        addressing: of the plugin.
        end: ends the interface; succeeds when there is none.

    Raises:
        PluginError: something is left; the runtime will repeat DEL.
        OSError: the kernel refuses.
    """
    ipam, errors, gone = request.parse(DelegationConf).ipam.type, Errors(), False
    if ipam not in IN_PROCESS:  # before the link, as a dhcp lease is returned through the interface
        with errors.kept():
            addressing.delete(request, ipam)
    with errors.kept():
        end()
        gone = True
    if ipam in IN_PROCESS and gone:
        with errors.kept():
            addressing.delete(request, ipam)
    errors.raise_all()


def collect(request: CniGc, addressing: Addressing) -> None:
    """Release the addresses of attachments that are not valid.

    Raises:
        PluginError: the folder of addresses cannot be used.
    """
    addressing.collect(request, request.parse(DelegationConf).ipam.type)


def differences(
    request: CniCheck, inner: Links, inside: Link | None, kind: str = "", *, may_be_down: bool = False
) -> Iterator[str]:
    """Compare the interface with the result.

    Args:
        request: with the result.
        inner: the links of the container's namespace.
        inside: the interface of that name.
        kind: what it must be, as the kernel names it; empty if that does not matter.
        may_be_down: whether that is no difference.
    """
    if inside is None:
        yield f"interface {request.ifname} does not exist in {request.netns.path}"
        return
    if kind and inside.kind != kind:
        yield f"interface {request.ifname} is {inside.kind or 'a device'}, not {kind}"
        return
    interfaces = request.prev_result.interfaces
    expected = next((one for one in interfaces if one.name == request.ifname and one.sandbox), None)
    if expected is None:
        yield f"the result has no interface {request.ifname} with a sandbox"
        return
    yield from inside_differences(request, inner, inside, expected, may_be_down=may_be_down)

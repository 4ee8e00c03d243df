"""Networks, in the terms of the CNI specification 1.1.0.

Owns: the result, one value per verb, and case folding of the JSON that callers spell as they like.
Refuses: JSON and versions (the codec converts both).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any

from nodeplug.contract.netns import Netns


@dataclass(frozen=True, slots=True)
class CniInterface:
    """An interface of a result; `sandbox` is CNI_NETNS as received, or empty for a host interface."""

    name: str
    mac: str = ""
    sandbox: str = ""
    mtu: int = 0
    socket_path: str = ""
    pci_id: str = ""


@dataclass(frozen=True, slots=True)
class CniIp:
    """An address of a result; `interface` is an index into the result's interfaces (None in an IPAM result)."""

    address: IPv4Interface | IPv6Interface
    gateway: IPv4Address | IPv6Address | None = None
    interface: int | None = None


@dataclass(frozen=True, slots=True)
class CniRoute:
    """A route of a result; the numbers are None when not set (specification 1.1.0)."""

    dst: IPv4Network | IPv6Network
    gw: IPv4Address | IPv6Address | None = None
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


@dataclass(frozen=True, slots=True)
class CniDns:
    """Name resolution as a result carries it."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CniResult:
    """What ADD answers, in the newest form; the host converts it to the version of the request."""

    interfaces: tuple[CniInterface, ...] = ()
    ips: tuple[CniIp, ...] = ()
    routes: tuple[CniRoute, ...] = ()
    dns: CniDns = CniDns()


@dataclass(frozen=True, slots=True, kw_only=True)
class CniRequest:
    """What every CNI verb carries.

    Attributes:
        claim: the name under which the plugin was executed.
        network: `name` of the configuration.
        version: `cniVersion` of the configuration.
        config: the whole plugin object from stdin, unknown keys included. Use `nodeplug.fold` for keys that runtimes
            spell with capitals.
        path: CNI_PATH, split.
        host_netns: the *caller's* namespace, where host-side work belongs. The call's thread starts inside it.
    """

    claim: str
    network: str
    version: str
    config: Mapping[str, Any]
    path: tuple[str, ...] = ()
    host_netns: Netns


@dataclass(frozen=True, slots=True, kw_only=True)
class CniAttachmentRequest(CniRequest):
    """What the verbs about one attachment carry: its key is (network, container_id, ifname).

    Attributes:
        args: CNI_ARGS, in the order received.
        prev_result: of the plugin before in the list on ADD, the final result on CHECK and DEL.
    """

    container_id: str
    ifname: str
    args: Mapping[str, str] = field(default_factory=dict)
    prev_result: CniResult | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CniAdd(CniAttachmentRequest):
    """ADD: attach `ifname` in `netns`; a repeated ADD of one attachment answers the same result."""

    netns: Netns


@dataclass(frozen=True, slots=True, kw_only=True)
class CniDel(CniAttachmentRequest):
    """DEL: must succeed when repeated, without a namespace, and after an ADD that failed half-way."""

    netns: Netns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CniCheck(CniAttachmentRequest):
    """CHECK: raise when the attachment is not as `prev_result` says; extra routes are allowed."""

    netns: Netns
    prev_result: CniResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidAttachment:
    """One attachment that GC must keep."""

    container_id: str
    ifname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CniGc(CniRequest):
    """GC: `valid` is None when the caller said nothing (then destroy nothing), and empty when nothing is attached."""

    valid: tuple[ValidAttachment, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CniStatus(CniRequest):
    """STATUS: raise NotReady or LimitedConnectivity when an ADD would fail."""


def fold(value: Any) -> Any:
    """Copy decoded JSON with every object key in lower case.

    Go matches keys without regard to case and the callers use that: containerd sends `HostPort` where podman sends
    `hostPort`. Of two keys that fold to one, the later wins.
    """
    if isinstance(value, Mapping):
        return {str(key).lower(): fold(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fold(item) for item in value]
    return value

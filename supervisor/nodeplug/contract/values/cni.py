"""Networks, in the terms of the CNI specification 1.1.0.

Owns: the result, one value per verb, and case folding of JSON keys, which callers spell differently.
Refuses: JSON and versions (the codec converts both).
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nodeplug.contract import cni_args
from nodeplug.contract.netns import Netns
from nodeplug.contract.values.requests import Request

__all__ = [
    "CniAdd",
    "CniAttachment",
    "CniAttachmentRequest",
    "CniCheck",
    "CniDel",
    "CniDifference",
    "CniDns",
    "CniGc",
    "CniInterface",
    "CniIp",
    "CniRecord",
    "CniRepair",
    "CniRequest",
    "CniResult",
    "CniRoute",
    "CniStatus",
    "ValidAttachment",
    "fold",
]

if TYPE_CHECKING:
    from pydantic import BaseModel

_M = TypeVar("_M", bound="BaseModel")


@dataclass(frozen=True, slots=True)
class CniInterface:
    """An interface of a result.

    Attributes:
        name: as the kernel has it, at most 15 bytes.
        mac: `aa:bb:cc:dd:ee:ff`; empty when it has none.
        sandbox: CNI_NETNS as received, or empty for an interface of the host.
        mtu: bytes; 0 is not given (specification 1.1.0).
        socket_path: of a vhost-user interface, absolute (1.1.0).
        pci_id: of a passed-through function, `0000:3b:00.1` (1.1.0).
    """

    name: str
    _: KW_ONLY
    mac: str = ""
    sandbox: str = ""
    mtu: int = 0
    socket_path: str = ""
    pci_id: str = ""


@dataclass(frozen=True, slots=True)
class CniIp:
    """An address of a result.

    Attributes:
        address: with its prefix length.
        gateway: of the subnet; None if there is none.
        interface: the index of its interface in the result; None in the result of an IPAM plugin.
    """

    address: IPv4Interface | IPv6Interface
    _: KW_ONLY
    gateway: IPv4Address | IPv6Address | None = None
    interface: int | None = None


@dataclass(frozen=True, slots=True)
class CniRoute:
    """A route of a result; the numbers are None when not set (specification 1.1.0).

    Attributes:
        dst: where it leads; `0.0.0.0/0` and `::/0` are default routes.
        gw: the next hop; None means the gateway of the address.
        mtu: bytes, along the path.
        advmss: bytes, the segment size advertised to peers.
        priority: its metric; the lower wins.
        table: the number of the routing table.
        scope: as rtnetlink(7) numbers it: 0 global, 253 link, 254 host.
    """

    dst: IPv4Network | IPv6Network
    _: KW_ONLY
    gw: IPv4Address | IPv6Address | None = None
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CniDns:
    """Name resolution as a result carries it, in the terms of resolv.conf(5).

    Attributes:
        nameservers: addresses, the first asked first.
        domain: the local domain.
        search: domains that are appended to short names.
        options: such as `ndots:2`.
    """

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CniResult:
    """What ADD returns, in the newest form; the host converts it to the version of the request.

    Attributes:
        interfaces: those of the container and of the host that ADD made; empty from an IPAM plugin.
        ips: addresses of the attachment.
        routes: routes of the attachment; a main plugin sets them in the container.
        dns: for the runtime; kubelet ignores it.
    """

    interfaces: tuple[CniInterface, ...] = ()
    ips: tuple[CniIp, ...] = ()
    routes: tuple[CniRoute, ...] = ()
    dns: CniDns = CniDns()


@dataclass(frozen=True, slots=True, kw_only=True)
class CniRequest(Request):
    """What every CNI verb carries (specification 1.1.0, section 2).

    Attributes:
        claim: the name under which the plugin was executed.
        network: `name` of the configuration.
        version: `cniVersion` of the configuration.
        config: the whole plugin object from stdin, unknown keys included; `parse` reads it into a model.
        path: CNI_PATH, split.
        host_netns: the *caller's* namespace, where host-side work belongs. The call's thread starts inside it.
    """

    claim: str
    network: str
    version: str
    config: Mapping[str, Any]
    path: tuple[str, ...] = ()
    host_netns: Netns

    def parse(self, model: "type[_M]") -> "_M":
        """Read the configuration into a pydantic model, whatever the letter case of its keys; null counts as absent.

        Args:
            model: with the keys that the plugin reads, as names or aliases. `extra="forbid"` refuses all others but
                those that the specification gives to runtimes. A frozen one is shared by all requests with the same
                keys, and read once.

        Raises:
            InvalidRequest: every mistake with its key, what is expected and what was found.
        """
        from nodeplug.contract.network_config import parse  # noqa: PLC0415 - pydantic is slow to import, and not every caller reads

        return parse(self.config, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class CniAttachmentRequest(CniRequest):
    """What the verbs about one attachment carry: its key is (network, container_id, ifname).

    Attributes:
        container_id: CNI_CONTAINERID.
        ifname: CNI_IFNAME.
        args: the well-formed pairs of CNI_ARGS, in the order received.
        args_text: CNI_ARGS as received; empty in a request that a test made, and in one that the host itself makes.
        prev_result: of the plugin before in the list on ADD, the final result on CHECK and DEL.
    """

    container_id: str
    ifname: str
    args: Mapping[str, str] = field(default_factory=dict)
    args_text: str = ""
    prev_result: CniResult | None = None

    def read_args(self, *known: str) -> Mapping[str, str]:
        """Read CNI_ARGS as Go plugins do, which accept no others than those that they know.

        Args:
            known: the keys that the plugin reads.

        Raises:
            InvalidEnvironment: a pair is not K=V, or a key is not known and `IgnoreUnknown=1` is not there.
        """
        return cni_args.read(self.args_as_text(), known)

    def args_as_text(self) -> str:
        """Return CNI_ARGS for another plugin."""
        return self.args_text or ";".join(f"{key}={value}" for key, value in self.args.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class CniAdd(CniAttachmentRequest):
    """ADD: attach `ifname` in `netns`; a repeated ADD of one attachment returns the same result.

    Attributes:
        netns: the container's namespace, open for the length of the call; for a claim with `uses_netns=False`, it may
            be the path alone.
    """

    netns: Netns


@dataclass(frozen=True, slots=True, kw_only=True)
class CniDel(CniAttachmentRequest):
    """DEL: must succeed when repeated, without a namespace, and after an ADD that failed half-way.

    Attributes:
        netns: the container's namespace; None when it is gone, or the caller does not know it.
    """

    netns: Netns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CniCheck(CniAttachmentRequest):
    """CHECK: raise when the attachment is not as `prev_result` says; extra routes are allowed.

    Attributes:
        netns: the container's namespace.
        prev_result: what the whole list returned for ADD.
    """

    netns: Netns
    prev_result: CniResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidAttachment:
    """One attachment that GC must keep.

    Attributes:
        container_id: CNI_CONTAINERID.
        ifname: CNI_IFNAME.
    """

    container_id: str
    ifname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CniGc(CniRequest):
    """GC: release what belongs to no valid attachment.

    Attributes:
        valid: `cni.dev/valid-attachments`; None if the caller gave none (then destroy nothing), empty if nothing is
            attached.
    """

    valid: tuple[ValidAttachment, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CniStatus(CniRequest):
    """STATUS: raise NotReady or LimitedConnectivity when an ADD would fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CniRecord:
    """An attachment that has not ended, as the daemon has recorded it: what was asked, and what ADD returned.

    Attributes:
        claim: the name under which the plugin was executed.
        network: `name` of the configuration.
        version: `cniVersion` of the configuration.
        config: the plugin object from stdin, without `prevResult`.
        path: CNI_PATH, split.
        container_id: CNI_CONTAINERID.
        ifname: CNI_IFNAME.
        args: the pairs of CNI_ARGS.
        netns: CNI_NETNS as the caller spelled it.
        namespace: device and inode of what is there, which is the namespace that was attached.
        host: device and inode of the caller's namespace.
        result: what the plugin returned.
    """

    claim: str
    network: str
    version: str
    config: Mapping[str, Any]
    path: tuple[str, ...] = ()
    container_id: str
    ifname: str
    args: Mapping[str, str] = field(default_factory=dict)
    netns: str
    namespace: tuple[int, int]
    host: tuple[int, int]
    result: CniResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CniAttachment:
    """One attachment as ADD created it.

    Attributes:
        container_id: CNI_CONTAINERID.
        ifname: CNI_IFNAME.
        netns: the container's namespace; None when it cannot be opened.
        result: what ADD returned.
    """

    container_id: str
    ifname: str
    netns: Netns | None
    result: CniResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CniRepair(CniRequest):
    """Restore a network to what its attachments say. Reserved.

    Attributes:
        attachments: all that are recorded and have not ended: the desired state, with the configuration.
        repair: change what differs; otherwise only report it.
    """

    attachments: tuple[CniAttachment, ...]
    repair: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CniDifference:
    """One way in which the node is not as the attachments of a network say.

    Attributes:
        what: the object, such as `link br0` or `route 10.0.0.0/24 in container 4f00aa01`.
        expected: what should be there.
        found: what is there; empty when nothing is.
        repaired: it has been repaired.
    """

    what: str
    expected: str
    found: str = ""
    repaired: bool = False


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
"""Types of values in which no key is; asking an abstract class of each costs more than the rest of the copy."""


def fold(value: Any) -> Any:
    """Copy decoded JSON with every object key in lower case.

    Go matches keys without regard to case and the callers use that: containerd sends `HostPort` where podman sends
    `hostPort`. Of two keys that fold to one, the later wins.
    """
    if isinstance(value, dict) or (type(value) not in _PLAIN and isinstance(value, Mapping)):
        items = value.items()
        return {str(key).lower(): item if type(item) in _PLAIN else fold(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [item if type(item) in _PLAIN else fold(item) for item in value]
    return value

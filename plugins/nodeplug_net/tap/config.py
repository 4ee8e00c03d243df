"""The network configuration of tap: the keys of the reference plugin, read into values.

Owns: defaults, types, the reference's order and words, and the precedence of the places where a MAC can be requested.
Refuses: the interface itself (see `device`). Keys match without regard to case, as Go matches them.
"""

from dataclasses import dataclass, field

from pydantic import Field

from nodeplug import CniAdd, CniDns, CniRequest, InvalidRequest
from nodeplug_net.interface_config import Conf, DelegationConf
from nodeplug_net.ipam.config import DnsConf, known_args
from nodeplug_net.mac_address import ethernet_address


class _RuntimeConf(Conf):
    mac: str = ""


class NetConf(DelegationConf):
    """The keys of the reference plugin, under its names."""

    multi_queue: bool = False
    mtu: int = 0
    mac: str = ""
    owner: int | None = Field(None, ge=0, lt=1 << 32)
    group: int | None = Field(None, ge=0, lt=1 << 32)
    selinux_context: str = ""
    bridge: str = ""
    dns: DnsConf = DnsConf()
    runtime_config: _RuntimeConf = _RuntimeConf()


@dataclass(frozen=True, slots=True)
class TapConfig:
    """One network of the tap plugin.

    Attributes:
        multi_queue: whether programs may open several queues.
        mtu: bytes; 0 leaves it to the kernel.
        mac: `aa:bb:cc:dd:ee:ff`, or empty.
        owner: the user who may open it; None for those who may administer networks.
        group: likewise.
        context: of SELinux, that the interface gets; or empty.
        bridge: of the container, whose port it becomes; or empty.
        dns: instead of IPAM's.
        ipam: the IPAM plugin, or empty for a network without addresses.
    """

    multi_queue: bool = False
    mtu: int = 0
    mac: str = ""
    owner: int | None = None
    group: int | None = None
    context: str = ""
    bridge: str = ""
    dns: CniDns = field(default_factory=CniDns)
    ipam: str = ""


def parse_tap(request: CniRequest) -> TapConfig:
    """Read the configuration of a request; an ADD reads CNI_ARGS, too.

    Raises:
        InvalidRequest: a key is wrong.
        InvalidEnvironment: CNI_ARGS is malformed.
    """
    try:
        conf = request.parse(NetConf)
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to load netconf: {error}") from error
    mac = conf.mac
    if isinstance(request, CniAdd):
        mac = request.read_args(*known_args(conf.ipam.type)).get("MAC") or mac
    return TapConfig(
        multi_queue=conf.multi_queue,
        mtu=conf.mtu,
        mac=ethernet_address(conf.runtime_config.mac or mac),
        owner=conf.owner,
        group=conf.group,
        context=conf.selinux_context,
        bridge=conf.bridge,
        dns=conf.dns.value(),
        ipam=conf.ipam.type,
    )

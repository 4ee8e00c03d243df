"""The network configuration of vlan: the keys of the reference plugin, read into values.

Owns: defaults, types, and the reference's order and words.
Refuses: what depends on the interface below. Keys match without regard to case, as Go matches them.
"""

from dataclasses import dataclass, field
from typing import Final

from nodeplug import CniDns, CniRequest, InvalidRequest
from nodeplug_net.interface_config import DelegationConf
from nodeplug_net.ipam.config import DnsConf

_LIMIT: Final = 4094


class NetConf(DelegationConf):
    """The keys of the reference plugin, under its names."""

    master: str = ""
    vlan_id: int = 0
    mtu: int = 0
    link_in_container: bool = False
    dns: DnsConf = DnsConf()


@dataclass(frozen=True, slots=True)
class VlanConfig:
    """One network of the vlan plugin.

    Attributes:
        master: the interface below.
        number: of the VLAN.
        inside: the interface below is in the container.
        mtu: 0 takes that of the interface below.
        dns: instead of IPAM's.
        ipam: the IPAM plugin.
    """

    master: str
    number: int = 0
    inside: bool = False
    mtu: int = 0
    dns: CniDns = field(default_factory=CniDns)
    ipam: str = ""


def parse_vlan(request: CniRequest) -> VlanConfig:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: a key is wrong.
    """
    try:
        conf = request.parse(NetConf)
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to load netconf: {error}") from error
    if not conf.master:
        raise InvalidRequest('"master" field is required. It specifies the host interface name to create the VLAN for')
    if not 0 <= conf.vlan_id <= _LIMIT:
        raise InvalidRequest(f"invalid VLAN ID {conf.vlan_id} (must be between 0 and 4095 inclusive)")
    return VlanConfig(
        master=conf.master,
        number=conf.vlan_id,
        inside=conf.link_in_container,
        mtu=conf.mtu,
        dns=conf.dns.value(),
        ipam=conf.ipam.type,
    )

"""The network configuration of ptp: the keys of the reference plugin, read into values.

Owns: defaults and types.
Refuses: addresses (see `ipam.config`). Keys match without regard to case, as Go matches them.
"""

from dataclasses import dataclass

from pydantic import Field

from nodeplug import CniDns, CniRequest, InvalidRequest
from nodeplug_net.interface_config import DelegationConf
from nodeplug_net.ipam.config import DnsConf
from nodeplug_net.masquerade_config import MasqueradeConf
from nodeplug_net.nftables.masquerade import NOTHING, Masquerading


class NetConf(DelegationConf, MasqueradeConf):
    """The keys of the reference plugin, under its names."""

    mtu: int = Field(0, ge=0, lt=1 << 31)
    dns: DnsConf = DnsConf()


@dataclass(frozen=True, slots=True)
class PtpConfig:
    """One network of the ptp plugin.

    Attributes:
        ipam: the IPAM plugin; empty if there is none, which ADD and CHECK refuse.
        masquerading: what is masqueraded, if anything is.
        mtu: of both ends; 0 leaves it to the kernel.
        dns: instead of IPAM's, or None.
    """

    ipam: str = ""
    masquerading: Masquerading = NOTHING
    mtu: int = 0
    dns: CniDns | None = None

    @property
    def bridge(self) -> str:
        """Nothing: each container has a link of its own to the host."""
        return ""

    @property
    def is_gateway(self) -> bool:
        """Always: the host is the gateway."""
        return True


def parse_ptp(request: CniRequest) -> PtpConfig:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: a key is wrong, or there is no IPAM plugin.
    """
    conf = request.parse(NetConf)
    if not conf.ipam.type:
        raise InvalidRequest("no plugin name provided", details="name an IPAM plugin in the key 'ipam.type'")
    conf.check_backend()
    return PtpConfig(conf.ipam.type, conf.masquerading, conf.mtu, conf.dns.value() if conf.dns.is_given else None)

"""The network configuration of ptp: the keys of the reference plugin, read into values.

Owns: defaults and types.
Refuses: addresses (see `ipam.config`). Keys match without regard to case, as Go matches them.
"""

from dataclasses import dataclass

from pydantic import Field

from nodeplug import CniDns, CniRequest, InvalidRequest
from nodeplug_net.interface_config import DelegationConf, check_backend
from nodeplug_net.ipam.config import DnsConf


class NetConf(DelegationConf):
    """The keys of the reference plugin, under its names."""

    ip_masq: bool = False
    ip_masq_backend: str = ""
    mtu: int = Field(0, ge=0, lt=1 << 31)
    dns: DnsConf = DnsConf()


@dataclass(frozen=True, slots=True)
class PtpConfig:
    """One network of the ptp plugin.

    Attributes:
        ipam: the IPAM plugin; empty if there is none, which ADD and CHECK refuse.
        ip_masq: traffic that leaves the subnet is masqueraded.
        mtu: of both ends; 0 leaves it to the kernel.
        dns: instead of IPAM's, or None.
    """

    ipam: str = ""
    ip_masq: bool = False
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
    if conf.ip_masq:
        check_backend(conf.ip_masq_backend)
    return PtpConfig(conf.ipam.type, conf.ip_masq, conf.mtu, conf.dns.value() if conf.dns.is_given else None)

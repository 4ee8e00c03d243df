"""The network configuration of ipvlan: the keys of the reference plugin, read into values.

Owns: defaults, types, the reference's order and words, and what the plugin before in a list decides.
Refuses: what depends on the interface below. Keys match without regard to case, as Go matches them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeplug import CniAdd, CniDns, CniRequest, InvalidRequest
from nodeplug_net.interface_config import DelegationConf
from nodeplug_net.ipam.config import DnsConf

MODES: Final[Mapping[str, int]] = {"l2": 0, "l3": 1, "l3s": 2}
"""IFLA_IPVLAN_MODE (linux/if_link.h)."""


class NetConf(DelegationConf):
    """The keys of the reference plugin, under its names."""

    master: str = ""
    mode: str = ""
    mtu: int = 0
    link_in_container: bool = False
    dns: DnsConf = DnsConf()


@dataclass(frozen=True, slots=True)
class IpvlanConfig:
    """One network of the ipvlan plugin.

    Attributes:
        master: the interface below; empty for the one of the default route.
        inside: that interface is in the container.
        mode: of `MODES`, maybe none of them.
        mtu: 0 takes that of the interface below.
        dns: instead of IPAM's.
        ipam: the IPAM plugin; empty where the plugin before has the addresses.
    """

    master: str = ""
    inside: bool = False
    mode: str = "l2"
    mtu: int = 0
    dns: CniDns = field(default_factory=CniDns)
    ipam: str = ""

    @property
    def mode_number(self) -> int:
        """The mode as the kernel numbers it.

        Raises:
            InvalidRequest: there is no such mode.
        """
        if self.mode not in MODES:
            raise InvalidRequest(f'unknown ipvlan mode: "{self.mode}"', details=f"known are {', '.join(MODES)}")
        return MODES[self.mode]


def parse_ipvlan(request: CniRequest) -> IpvlanConfig:
    """Read the configuration of a request; that of an ADD takes its interface below from the plugin before, if it must.

    Raises:
        InvalidRequest: a key is wrong.
    """
    try:
        conf = request.parse(NetConf)
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to load netconf: {error}") from error
    master = conf.master
    if not master and isinstance(request, CniAdd) and request.prev_result is not None:
        names = [one.name for one in request.prev_result.interfaces]
        if len(names) != 1 or not names[0]:
            raise InvalidRequest(
                "chained master failure. PrevResult lacks a single named interface",
                details="name the interface below in key 'master'",
            )
        master = names[0]
    return IpvlanConfig(
        master=master,
        inside=conf.link_in_container,
        mode=conf.mode or "l2",
        mtu=conf.mtu,
        dns=conf.dns.value(),
        ipam=conf.ipam.type,
    )

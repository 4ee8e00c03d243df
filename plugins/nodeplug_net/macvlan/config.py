"""The network configuration of macvlan: the keys of the reference plugin, read into values.

Owns: defaults, types, the reference's order and words, and the precedence of the places where a MAC can be requested.
Refuses: what depends on the interface below (see `macvlan_add`). Keys match without regard to case, as Go matches them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from nodeplug import CniAdd, CniDns, CniRequest, InvalidRequest
from nodeplug_net.interface_config import Conf, DelegationConf
from nodeplug_net.ipam.config import DnsConf, known_args
from nodeplug_net.mac_address import ethernet_address

MODES: Final[Mapping[str, int]] = {"private": 1, "vepa": 2, "bridge": 4, "passthru": 8}
"""IFLA_MACVLAN_MODE (linux/if_link.h)."""


class _RuntimeConf(Conf):
    mac: str = ""


class NetConf(DelegationConf):
    """The keys of the reference plugin, under its names."""

    master: str = ""
    mode: str = ""
    mtu: int = 0
    mac: str = ""
    link_in_container: bool = False
    bcqueuelen: int = Field(0, ge=0, lt=1 << 32)
    dns: DnsConf = DnsConf()
    runtime_config: _RuntimeConf = _RuntimeConf()


@dataclass(frozen=True, slots=True)
class MacvlanConfig:
    """One network of the macvlan plugin.

    Attributes:
        master: the interface below; empty for the one of the default route.
        inside: that interface is in the container.
        mode: of `MODES`, maybe none of them.
        mtu: 0 takes that of the interface below.
        mac: as requested, maybe no hardware address; or empty.
        queue: how many broadcast frames may wait; 0 leaves it to the kernel.
        dns: instead of IPAM's.
        ipam: the IPAM plugin, or empty for a network without addresses.
    """

    master: str = ""
    inside: bool = False
    mode: str = "bridge"
    mtu: int = 0
    mac: str = ""
    queue: int = 0
    dns: CniDns = field(default_factory=CniDns)
    ipam: str = ""

    @property
    def mode_number(self) -> int:
        """The mode as the kernel numbers it.

        Raises:
            InvalidRequest: there is no such mode.
        """
        if self.mode not in MODES:
            raise InvalidRequest(f'unknown macvlan mode: "{self.mode}"', details=f"known are {', '.join(MODES)}")
        return MODES[self.mode]

    @property
    def address(self) -> str:
        """The hardware address as `aa:bb:cc:dd:ee:ff`, or empty.

        Raises:
            InvalidRequest: it is none.
        """
        return ethernet_address(self.mac)


def parse_macvlan(request: CniRequest) -> MacvlanConfig:
    """Read the configuration of a request; an ADD reads CNI_ARGS, too.

    Raises:
        InvalidRequest: a key is wrong.
        InvalidEnvironment: CNI_ARGS is malformed.
    """
    conf = request.parse(NetConf)
    mac = conf.mac
    if isinstance(request, CniAdd):
        mac = request.read_args(*known_args(conf.ipam.type)).get("MAC") or mac
    return MacvlanConfig(
        master=conf.master,
        inside=conf.link_in_container,
        mode=conf.mode or "bridge",
        mtu=conf.mtu,
        mac=conf.runtime_config.mac or mac,
        queue=conf.bcqueuelen,
        dns=conf.dns.value(),
        ipam=conf.ipam.type,
    )

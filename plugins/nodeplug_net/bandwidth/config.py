"""The network configuration of bandwidth: the keys of the reference plugin and two more, read into values.

Owns: defaults, bounds, the reference's sentences, and that the network's own rates come before a pod's.
Refuses: the kernel. Keys match without regard to case, as Go matches them.

Source: plugins/meta/bandwidth of the CNI plugins (parseConfig, getBandwidth). `shapedSubnets` and `unshapedSubnets` are
named as its release 1.6.0 had them.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeplug import CniRequest, InvalidRequest
from nodeplug_net.interface_config import Conf
from nodeplug_net.netlink.traffic_control import Subnet

_LARGEST: Final = 0xFFFFFFFF
"""Bytes of a burst, as the kernel counts them."""
_U64: Final = 1 << 64


class _Entry(Conf):
    ingress_rate: int | None = None
    ingress_burst: int | None = None
    egress_rate: int | None = None
    egress_burst: int | None = None


class _RuntimeConf(Conf):
    bandwidth: _Entry | None = None


class _BandwidthConf(_Entry):
    shaped_subnets: list[str] | None = None
    unshaped_subnets: list[str] | None = None
    runtime_config: _RuntimeConf = _RuntimeConf()


@dataclass(frozen=True, slots=True)
class Limit:
    """What one direction may use, both positive.

    Attributes:
        rate: bits a second.
        burst: bits that pass at once after a pause.
    """

    rate: int
    burst: int


@dataclass(frozen=True, slots=True)
class BandwidthConfig:
    """What one attachment asks for; the directions are the container's.

    Attributes:
        ingress: of what it receives.
        egress: of what it sends.
        shaped: the peers that the limits are about; all if there are none.
        unshaped: the peers that they are not about; there are none if there are `shaped`.
    """

    ingress: Limit | None = None
    egress: Limit | None = None
    shaped: tuple[Subnet, ...] = ()
    unshaped: tuple[Subnet, ...] = ()

    @property
    def subnets(self) -> tuple[Subnet, ...]:
        """Those of which packets are told apart."""
        return self.shaped or self.unshaped


def parse_bandwidth(request: CniRequest) -> BandwidthConfig:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: a key is wrong.
    """
    try:
        conf = request.parse(_BandwidthConf)
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to parse network configuration: {error}") from error
    entry: _Entry = conf
    own = (conf.ingress_rate, conf.ingress_burst, conf.egress_rate, conf.egress_burst)
    if own == (None,) * 4 and conf.runtime_config.bandwidth is not None:
        entry = conf.runtime_config.bandwidth
    if conf.shaped_subnets and conf.unshaped_subnets:
        raise InvalidRequest(
            "shapedSubnets and unshapedSubnets cannot both be set", details="one of them says what the other means"
        )
    return BandwidthConfig(
        ingress=_limit("ingress", entry.ingress_rate, entry.ingress_burst),
        egress=_limit("egress", entry.egress_rate, entry.egress_burst),
        shaped=_subnets("shapedSubnets", conf.shaped_subnets or ()),
        unshaped=_subnets("unshapedSubnets", conf.unshaped_subnets or ()),
    )


def _limit(direction: str, rate: int | None, burst: int | None) -> Limit | None:
    rate, burst = rate or 0, burst or 0
    for key, value in ((f"{direction}Rate", rate), (f"{direction}Burst", burst)):
        if not 0 <= value < _U64:
            raise InvalidRequest(
                f"failed to parse network configuration: key '{key}': bits are a number from 0 on, found {value}"
            )
    if rate and not burst:
        raise InvalidRequest("if rate is set, burst must also be set", details=f"{direction}Rate is {rate}")
    if burst and not rate:
        raise InvalidRequest("if burst is set, rate must also be set", details=f"{direction}Burst is {burst}")
    if burst // 8 >= _LARGEST:
        raise InvalidRequest("burst cannot be more than 4GB", details=f"{direction}Burst is {burst} bits")
    return Limit(rate, burst) if rate else None


def _subnets(key: str, written: Sequence[str]) -> tuple[Subnet, ...]:
    found: list[Subnet] = []
    for one in written:
        try:
            found.append(ipaddress.ip_network(one, strict=False))
        except ValueError as error:
            raise InvalidRequest(
                f"bad subnet {one!r} provided", details=f"{key} has networks such as 10.0.0.0/8: {error}"
            ) from error
    return tuple(dict.fromkeys(found))

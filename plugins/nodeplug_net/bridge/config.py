"""The network configuration of the bridge: the keys of the reference bridge plugin, read into values.

Owns: defaults, types, the precedence of the places where a MAC can be requested, and the refusal of keys that would
change behaviour and are not supported: ignoring `vlan` would put a container into the wrong network.
Refuses: addresses (see `ipam.config`). Keys match without regard to case, as Go matches them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from pydantic import Field, field_validator

from nodeplug import CniAdd, CniDns, CniRequest, InvalidEnvironment, InvalidRequest
from nodeplug_net.interface_config import Conf, DelegationConf
from nodeplug_net.ipam.config import DnsConf, known_args
from nodeplug_net.masquerade_config import MasqueradeConf
from nodeplug_net.nftables.masquerade import NOTHING, Masquerading

DEFAULT_BRIDGE: Final = "cni0"
_NAME_LIMIT: Final = 15
_BRIDGE: Final = re.compile(r"(?!\.{1,2}$)[^/:%\s\ud800-\udfff]+")
_MAC: Final = re.compile(r"[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{4}(\.[0-9A-Fa-f]{4}){2}")
_NO_MAC: Final = "failed to make veth pair: address {}: invalid MAC address"
_VLAN_LIMIT: Final = 4094


class _MacConf(Conf):
    mac: str = ""


class _ArgsConf(Conf):
    cni: _MacConf = _MacConf()


class PortConf(Conf):
    """The key with which the ports of a network are found."""

    bridge: str = DEFAULT_BRIDGE

    @field_validator("bridge")
    @classmethod
    def _is_an_interface(cls, name: str) -> str:
        # The kernel treats % as a pattern: each ADD would create another bridge.
        if name and (not _BRIDGE.fullmatch(name) or len(name.encode()) > _NAME_LIMIT):
            raise ValueError("must be an interface name of at most 15 characters")
        return name or DEFAULT_BRIDGE


class _TrunkConf(Conf):
    min_id: int | None = Field(None, alias="minID")
    max_id: int | None = Field(None, alias="maxID")
    id: int | None = None


class NetConf(PortConf, DelegationConf, MasqueradeConf):
    """The keys of the reference plugin, under its names."""

    is_gateway: bool = False
    is_default_gateway: bool = False
    force_address: bool = False
    mtu: int = Field(0, ge=0, lt=1 << 31)
    hairpin_mode: bool = False
    promisc_mode: bool = False
    dns: DnsConf = DnsConf()
    args: _ArgsConf = _ArgsConf()
    runtime_config: _MacConf = _MacConf()
    vlan: int = 0
    vlan_trunk: tuple[_TrunkConf, ...] = Field((), strict=False)
    macspoofchk: bool = False
    port_isolation: bool = False
    preserve_default_vlan: bool = False
    disable_container_interface: bool = False
    enabledad: bool = False

    @cached_property
    def config(self) -> "BridgeConfig":
        """The checked keys, but for the hardware address: one value for all requests of a network."""
        return _read(self)


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """One network of the bridge plugin.

    Attributes:
        bridge: the bridge's name in the host namespace.
        is_gateway: the bridge gets the gateway addresses, and the host forwards.
        is_default_gateway: containers get a default route; implies `is_gateway`.
        force_address: conflicting addresses of the bridge are removed.
        masquerading: what is masqueraded, if anything is.
        mtu: of both ends, and of a bridge that is created; 0 leaves it to the kernel.
        hairpin: containers reach themselves through the bridge.
        promiscuous: the bridge is promiscuous.
        mac_spoof_check: frames with another source than the container's hardware address are dropped.
        isolated: containers exchange no frames with others that are isolated.
        interface_stays_down: the container's end is left down, for who configures it.
        dad: the container's IPv6 addresses are given when no neighbour has them.
        vlan: where containers are without a tag of theirs; 0 for none.
        trunk: where they are with one, each once and in order.
        preserve_default_vlan: they stay in that of the bridge's ports, too.
        mac: the container's hardware address, or empty.
        dns: instead of IPAM's, or None.
        ipam: the IPAM plugin, or empty for a network without addresses.
    """

    bridge: str = DEFAULT_BRIDGE
    is_gateway: bool = False
    is_default_gateway: bool = False
    force_address: bool = False
    masquerading: Masquerading = NOTHING
    mtu: int = 0
    hairpin: bool = False
    promiscuous: bool = False
    mac_spoof_check: bool = False
    isolated: bool = False
    interface_stays_down: bool = False
    dad: bool = False
    vlan: int = 0
    trunk: tuple[int, ...] = ()
    preserve_default_vlan: bool = False
    mac: str = ""
    dns: CniDns | None = None
    ipam: str = ""

    @property
    def filters_vlans(self) -> bool:
        """Whether the bridge has to keep VLANs apart."""
        return bool(self.vlan or self.trunk)

    @property
    def gateway_interface(self) -> str:
        """The interface with the gateway's addresses: the bridge, or one in the VLAN, as the reference names it."""
        return f"{self.bridge}.{self.vlan}" if self.vlan else self.bridge


def parse_bridge(request: CniRequest) -> BridgeConfig:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: a key is wrong or not supported; the message names key and value.
        InvalidEnvironment: CNI_ARGS has no hardware address in MAC.
    """
    conf = request.parse(NetConf)
    mac = _checked(request, conf)
    if conf.hairpin_mode and conf.promisc_mode:
        raise InvalidRequest("cannot set hairpin mode and promiscuous mode at the same time")
    return replace(conf.config, mac=mac) if mac else conf.config


def _read(conf: NetConf) -> BridgeConfig:
    return BridgeConfig(
        bridge=conf.bridge,
        is_gateway=conf.is_gateway or conf.is_default_gateway,
        is_default_gateway=conf.is_default_gateway,
        force_address=conf.force_address,
        masquerading=conf.masquerading,
        mtu=conf.mtu,
        hairpin=conf.hairpin_mode,
        promiscuous=conf.promisc_mode,
        mac_spoof_check=conf.macspoofchk,
        isolated=conf.port_isolation,
        interface_stays_down=conf.disable_container_interface,
        dad=conf.enabledad,
        vlan=conf.vlan,
        trunk=_trunk(conf.vlan_trunk),
        preserve_default_vlan=conf.preserve_default_vlan,
        dns=conf.dns.value() if conf.dns.is_given else None,
        ipam=conf.ipam.type,
    )


def _checked(request: CniRequest, conf: NetConf) -> str:
    """Check the keys in the reference's order and words; return the MAC."""
    if not 0 <= conf.vlan <= _VLAN_LIMIT:
        raise InvalidRequest(f"invalid VLAN ID {conf.vlan} (must be between 0 and {_VLAN_LIMIT})")
    for trunk in conf.vlan_trunk:
        _check_trunk(trunk)
    mac = _mac(request, conf)
    if conf.ipam.type and conf.disable_container_interface:
        raise InvalidRequest("cannot use IPAM when DisableContainerInterface flag is set")
    if conf.ipam.type:
        conf.check_backend()
    return mac


def _check_trunk(trunk: _TrunkConf) -> None:
    for name, other, value, counterpart in (
        ("minID", "maxID", trunk.min_id, trunk.max_id),
        ("maxID", "minID", trunk.max_id, trunk.min_id),
    ):
        if value is None and counterpart is not None:
            raise InvalidRequest(f"minID and maxID should be configured simultaneously, {name} is missing")
        if value is not None and not 0 < value <= _VLAN_LIMIT:
            raise InvalidRequest(f"incorrect trunk {name} parameter", details=f"with {other} {counterpart}")
    if trunk.min_id is not None and trunk.max_id is not None and trunk.max_id < trunk.min_id:
        raise InvalidRequest("minID is greater than maxID in trunk parameter")
    if trunk.id is not None and not 0 < trunk.id <= _VLAN_LIMIT:
        raise InvalidRequest("incorrect trunk id parameter")


def _trunk(conf: Sequence[_TrunkConf]) -> tuple[int, ...]:
    numbers = {one.id for one in conf if one.id is not None}
    for one in conf:
        if one.min_id is not None and one.max_id is not None:
            numbers.update(range(one.min_id, one.max_id + 1))
    return tuple(sorted(numbers))


def _mac(request: CniRequest, conf: NetConf) -> str:
    """CNI_ARGS, then `args.cni.mac`, then `runtimeConfig.mac`: the later place wins."""
    chosen = ""
    if isinstance(request, CniAdd):
        chosen = request.read_args(*known_args(conf.ipam.type)).get("MAC", "")
        if chosen and not _MAC.fullmatch(chosen):
            raise InvalidEnvironment(_NO_MAC.format(chosen), details="in CNI_ARGS; six bytes are wanted")
    for value in (conf.args.cni.mac, conf.runtime_config.mac):
        if value and not _MAC.fullmatch(value):
            raise InvalidRequest(_NO_MAC.format(value), details="in key 'mac'; six bytes are wanted")
        chosen = value or chosen
    digits = re.sub(r"[:.-]", "", chosen.lower())
    return ":".join(digits[place : place + 2] for place in range(0, len(digits), 2))

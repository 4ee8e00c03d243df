"""What the bridge is asked for: the keys of the reference bridge plugin, read into values.

Owns: defaults, types, the precedence of the places where a MAC can be asked for, and the refusal of keys that would
change behaviour and are not served: ignoring `vlan` would put a container into the wrong network.
Refuses: addresses (see `ipam_config`). Keys match without regard to case, as Go matches them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodeplug import CniAttachmentRequest, CniDns, CniRequest, InvalidEnvironment, InvalidRequest
from nodeplug_net.ipam_config import parse_dns, section

DEFAULT_BRIDGE: Final = "cni0"
_NAME_LIMIT: Final = 15
_BRIDGE: Final = re.compile(r"(?!\.{1,2}$)[^/:%\s\ud800-\udfff]+")
_MAC: Final = re.compile(r"[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}")
_REFUSED: Final[Mapping[str, tuple[str, tuple[Any, ...]]]] = {
    "vlan": ("vlan", (0,)),
    "vlantrunk": ("vlanTrunk", ([],)),
    "macspoofchk": ("macspoofchk", (False,)),
    "portisolation": ("portIsolation", (False,)),
    "preservedefaultvlan": ("preserveDefaultVlan", (True,)),
    "disablecontainerinterface": ("disableContainerInterface", (False,)),
    "enabledad": ("enabledad", (False,)),
    "ipmasqbackend": ("ipMasqBackend", ("", "nftables")),
}
"""Key in lower case, its name, and the values that ask for nothing that is not done anyway."""


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """One network of the bridge plugin.

    Attributes:
        bridge: the bridge's name in the host namespace.
        is_gateway: the bridge gets the gateway addresses, and the host forwards.
        is_default_gateway: containers get a default route; implies `is_gateway`.
        force_address: addresses of the bridge that stand in the way are removed.
        ip_masq: what leaves the subnet carries the host's address.
        mtu: of both ends, and of a bridge that is created; 0 leaves it to the kernel.
        hairpin: containers reach themselves through the bridge.
        promiscuous: the bridge takes every frame.
        mac: the container's hardware address, or empty.
        dns: instead of IPAM's, or None.
        ipam: the IPAM plugin, or empty for a network without addresses.
    """

    bridge: str = DEFAULT_BRIDGE
    is_gateway: bool = False
    is_default_gateway: bool = False
    force_address: bool = False
    ip_masq: bool = False
    mtu: int = 0
    hairpin: bool = False
    promiscuous: bool = False
    mac: str = ""
    dns: CniDns | None = None
    ipam: str = ""


def parse_bridge(request: CniRequest) -> BridgeConfig:
    """Read what a request asks of the bridge.

    Raises:
        InvalidRequest: a key is wrong or not served; the message names key and value.
        InvalidEnvironment: CNI_ARGS has no hardware address in MAC.
    """
    config = {key.lower(): value for key, value in request.config.items()}
    _refuse_unserved(config)
    default_gateway = _flag(config, "isDefaultGateway")
    hairpin, promiscuous = _flag(config, "hairpinMode"), _flag(config, "promiscMode")
    if hairpin and promiscuous:
        raise InvalidRequest("cannot set hairpin mode and promiscuous mode at the same time")
    dns = parse_dns(section(config, "dns"))
    return BridgeConfig(
        bridge=bridge_name(request),
        is_gateway=_flag(config, "isGateway") or default_gateway,
        is_default_gateway=default_gateway,
        force_address=_flag(config, "forceAddress"),
        ip_masq=_flag(config, "ipMasq"),
        mtu=_mtu(config),
        hairpin=hairpin,
        promiscuous=promiscuous,
        mac=_mac(request, config),
        dns=dns if dns != CniDns() else None,
        ipam=ipam_type(request),
    )


def bridge_name(request: CniRequest) -> str:
    """Return the bridge's name: with `ipam_type`, all that DEL and GC need of the configuration.

    Raises:
        InvalidRequest: it cannot be the name of an interface.
    """
    name = next((value for key, value in request.config.items() if key.lower() == "bridge"), None) or DEFAULT_BRIDGE
    # The kernel takes a % for a pattern: each ADD would make one more bridge.
    if not isinstance(name, str) or not _BRIDGE.fullmatch(name) or len(name.encode()) > _NAME_LIMIT:
        raise InvalidRequest(f"key 'bridge' must be an interface name of at most 15 characters, found {name!r}")
    return name


def ipam_type(request: CniRequest) -> str:
    """Return the IPAM plugin's name, or nothing for a network without addresses.

    Raises:
        InvalidRequest: `ipam` or its type has another shape.
    """
    name = section(request.config, "ipam").get("type") or ""
    if not isinstance(name, str) or "/" in name:
        raise InvalidRequest(f"key 'ipam.type' must be the name of a plugin, found {name!r}")
    return name


def _refuse_unserved(config: Mapping[str, Any]) -> None:
    for key, (name, harmless) in _REFUSED.items():
        value = config.get(key)
        if value is not None and not any(value == one and type(value) is type(one) for one in harmless):
            raise InvalidRequest(f"key {name!r} with value {value!r} is not supported; remove it")


def _flag(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name.lower())
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"key {name!r} must be true or false, found {value!r}")
    return value


def _mtu(config: Mapping[str, Any]) -> int:
    value = config.get("mtu")
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise InvalidRequest(f"key 'mtu' must be a number of bytes, found {value!r}")
    return value


def _mac(request: CniRequest, config: Mapping[str, Any]) -> str:
    """CNI_ARGS, then `args.cni.mac`, then `runtimeConfig.mac`: the later place wins."""
    chosen = ""
    if isinstance(request, CniAttachmentRequest) and request.args.get("MAC"):
        chosen = request.args["MAC"]
        if not _MAC.fullmatch(chosen):
            raise InvalidEnvironment(f"CNI_ARGS: MAC={chosen!r} is no hardware address of six bytes")
    for place in (section(section(config, "args"), "cni"), section(config, "runtimeconfig")):
        value = place.get("mac")
        if value and not (isinstance(value, str) and _MAC.fullmatch(value)):
            raise InvalidRequest(f"key 'mac' must be a hardware address of six bytes, found {value!r}")
        chosen = value or chosen
    return chosen.lower().replace("-", ":")

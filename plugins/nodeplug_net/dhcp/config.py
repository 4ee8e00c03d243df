"""The network configuration of dhcp: what the container tells a server, and what it asks for.

Owns: the keys of the reference plugin, its order, its sentences, and the identifier of a client.
Refuses: messages. Keys match without regard to case, as Go matches them.

Source: plugins/ipam/dhcp of the CNI plugins (options.go, lease.go: prepareOptions, daemon.go: generateClientID).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from nodeplug import CniAttachmentRequest, CniRequest, InvalidRequest
from nodeplug_net.dhcp.message import PARAMETERS, ROUTER, SUBNET_MASK
from nodeplug_net.interface_config import Conf

ALLOCATE: Final = "error calling DHCP.Allocate: "
"""How every failed ADD of the reference begins."""
_NAMES: Final[Mapping[str, int]] = {
    "dhcp-client-identifier": 61,
    "subnet-mask": 1,
    "routers": 3,
    "host-name": 12,
    "user-class": 77,
    "vendor-class-identifier": 60,
}
_USUAL: Final = bytes((1, 3, 15, 6))
"""What the reference's library asks for if a network asks for nothing: also the domain and its servers."""
_LONGEST: Final = 255
_ID_LIMIT: Final = 254


class _ProvideConf(Conf):
    option: str = ""
    value: str = ""
    from_arg: str = ""


class _RequestConf(Conf):
    skip_default: bool = False
    option: str = ""


class _IpamConf(Conf):
    daemon_socket_path: str = ""
    provide: tuple[_ProvideConf, ...] = Field((), strict=False)  # JSON has no tuples
    request: tuple[_RequestConf, ...] = Field((), strict=False)
    priority: int = 0


class NetConf(Conf):
    """The keys of the reference plugin, under its names; the outer ones say how a host reaches the network."""

    ipam: _IpamConf | None = None
    bridge: str = ""
    master: str = ""


@dataclass(frozen=True, slots=True)
class DhcpConfig:
    """What an attachment says and asks.

    Attributes:
        options: by code.
        priority: of its routes; 0 leaves it to the kernel.
        via: the host's interface into the network, or empty.
    """

    options: Mapping[int, bytes]
    priority: int = 0
    via: str = ""


def client_id(request: CniAttachmentRequest) -> bytes:
    """Return the identifier by which the server knows the attachment: type 0, then text (RFC 2132, section 9.14)."""
    text = f"{request.container_id}/{request.network}/{request.ifname}"
    return b"\0" + text.encode("utf-8", "surrogateescape")[:_ID_LIMIT]


def parse_dhcp(request: CniRequest) -> DhcpConfig:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: a key is wrong.
    """
    conf = request.parse(NetConf)
    if conf.ipam is None:
        raise InvalidRequest("the configuration has no key 'ipam'; dhcp is named there, in ipam.type")
    args = _pairs(request.args_as_text()) if isinstance(request, CniAttachmentRequest) else {}
    options: dict[int, bytes] = {}
    for given in conf.ipam.provide:
        code = _code(given.option)
        if given.value:
            options[code] = _value(given.value, f'value too long for option "{given.option}": "{given.value}"')
        if given.from_arg in args:
            where = f'option "{given.option}" from CNI_ARGS "{given.from_arg}"'
            options[code] = _value(args[given.from_arg], f'value too long for {where}: "{given.value}"')
    return DhcpConfig(options | _wished(conf.ipam), conf.ipam.priority, conf.bridge or conf.master)


def _wished(conf: _IpamConf) -> dict[int, bytes]:
    codes = [_code(one.option) for one in conf.request if one.option]
    if not any(one.skip_default for one in conf.request):
        codes += [ROUTER, SUBNET_MASK]
    return {PARAMETERS: bytes(dict.fromkeys(codes)) or _USUAL}


def _pairs(text: str) -> dict[str, str]:
    """Split CNI_ARGS as the reference does here: what is no pair is ignored."""
    return dict(pair.split("=", 1) for pair in text.split(";") if "=" in pair)


def _value(text: str, sentence: str) -> bytes:
    value = text.encode("utf-8", "surrogateescape")
    if len(value) > _LONGEST:
        raise InvalidRequest(ALLOCATE + sentence, details=f"at most {_LONGEST} bytes fit into an option")
    return value


def _code(option: str) -> int:
    """Return the number of an option, given by name or number."""
    if option in _NAMES:
        return _NAMES[option]
    digits = option.isascii() and option.isdigit()
    if digits and int(option) <= _LONGEST:
        return int(option)
    reason = "value out of range" if digits else "invalid syntax"
    raise InvalidRequest(
        f'{ALLOCATE}Can not parse option "{option}": Can not parse option: '
        f'strconv.ParseUint: parsing "{option}": {reason}',
        details=f"0 to {_LONGEST} is expected, or one of {', '.join(_NAMES)}",
    )

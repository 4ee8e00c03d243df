"""Which networks a pod wants: the annotation `k8s.v1.cni.cncf.io/networks` in both of its forms.

Owns: from a text to values, and one sentence for each mistake, for the pod's owner.
Refuses: I/O, and to guess: a key that nobody here knows is refused by its name, since a pod that asked for an address
by a misspelt key would run with another one.

Source: Kubernetes Network Custom Resource Definition De-facto Standard 1.3, section 4.1; the type
NetworkSelectionElement of network-attachment-definition-client.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from nodeplug import InvalidRequest, NotSupported
from nodeplug_net.mac_address import ethernet_address

NETWORKS: Final = "k8s.v1.cni.cncf.io/networks"
DEFAULT: Final = "v1.multus-cni.io/default-network"
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_IFNAME: Final = re.compile(r"[^\s/:\x00]{1,15}")
_RATES: Final = ("ingressRate", "ingressBurst", "egressRate", "egressBurst")
_KEYS: Final = (
    *("name", "namespace", "interface", "ips", "mac", "default-route", "bandwidth", "portMappings", "cni-args"),
    "interfaceRequest",
)
_REFUSED: Final[Mapping[str, str]] = {
    "infiniband-guid": "no plugin of nodeplug makes interfaces of InfiniBand",
    "ipam-claim-reference": "addresses that outlive a pod by an IPAMClaim are not supported",
    "deviceID": "devices for networks are not supported",
}
_SHOWN: Final = 120


@dataclass(frozen=True, slots=True)
class Selection:
    """One network that a pod wants.

    Attributes:
        namespace: of its NetworkAttachmentDefinition.
        name: of that.
        interface: in the pod; empty for the next free `netN`.
        gateways: through which all further traffic goes; at most one for each version of IP.
        runtime: capability arguments: `ips`, `mac`, `bandwidth`, `portMappings`.
        cni_args: for `args.cni`.
    """

    namespace: str
    name: str
    interface: str = ""
    gateways: tuple[IPv4Address | IPv6Address, ...] = ()
    runtime: Mapping[str, Any] = field(default_factory=dict)
    cni_args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def network(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def parse_networks(text: str, namespace: str, key: str = NETWORKS) -> tuple[Selection, ...]:
    """Read an annotation.

    Args:
        text: its value: a list in JSON, or names that are separated by commas.
        namespace: of networks that name none.
        key: of the annotation, for messages.

    Raises:
        InvalidRequest: it is neither, or an element is wrong; the message says which, and what it should be.
        NotSupported: an element asks for what nobody here can do.
    """
    stripped = text.strip()
    if not stripped:
        return ()
    parse = _elements if stripped.startswith(("[", "{")) else _names
    found = tuple(parse(stripped, namespace, key))
    for version in (4, 6):
        if sum(one.version == version for selection in found for one in selection.gateways) > 1:
            raise InvalidRequest(f"annotation {key} has two gateways of IPv{version} in default-route; choose one")
    return found


def _names(text: str, namespace: str, key: str) -> list[Selection]:
    return [_named(item.strip(), namespace, f"annotation {key}") for item in text.split(",")]


def _named(item: str, namespace: str, where: str) -> Selection:
    whole, at, interface = item.partition("@")
    before, slash, after = whole.partition("/")
    space, name = (before, after) if slash else (namespace, before)
    if not _LABEL.fullmatch(space) or not _LABEL.fullmatch(name) or (at and not interface):
        raise InvalidRequest(
            f"{where}: {_shown(item)} is no network; write NAME, NAMESPACE/NAME or either with @INTERFACE"
        )
    return Selection(space, name, _interface(interface, where) if at else "")


def _elements(text: str, namespace: str, key: str) -> list[Selection]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"annotation {key} is no JSON: {error}") from None
    if not isinstance(document, list):
        raise InvalidRequest(f"annotation {key} must be a list in JSON, or names separated by commas")
    return [_element(one, namespace, f"annotation {key}[{index}]") for index, one in enumerate(document)]


def _element(found: Any, namespace: str, where: str) -> Selection:
    if not isinstance(found, dict):
        raise InvalidRequest(f"{where} must be an object with a name, and is {_shown(found)}")
    for key in found:
        if key in _REFUSED:
            raise NotSupported(f"{where} asks for {key!r}: {_REFUSED[key]}")
        if key not in _KEYS:
            raise InvalidRequest(f"{where} has the unknown key {_shown(key)}; known: {', '.join(_KEYS[:-1])}")
    name, space = found.get("name"), found.get("namespace") or namespace
    for what, value in (("name", name), ("namespace", space)):
        if not isinstance(value, str) or not _LABEL.fullmatch(value):
            raise InvalidRequest(f"{where}: {what} must be that of an object, and is {_shown(value)}")
    interface = found.get("interface") or found.get("interfaceRequest") or ""
    runtime = {key: read(found[key], where) for key, read in _RUNTIME.items() if found.get(key)}
    return Selection(
        str(space),
        str(name),
        _interface(interface, where) if interface else "",
        _gateways(found.get("default-route"), where),
        runtime,
        _mapping(found.get("cni-args") or {}, "cni-args", where),
    )


def _interface(name: Any, where: str) -> str:
    if not isinstance(name, str) or not _IFNAME.fullmatch(name) or name in {".", ".."}:
        raise InvalidRequest(
            f"{where}: {_shown(name)} cannot be the name of an interface: 1 to 15 characters, no / or :"
        )
    return name


def _ips(value: Any, where: str) -> list[str]:
    for one in _list(value, "ips", where):
        try:
            ipaddress.ip_interface(one if isinstance(one, str) else "")
        except ValueError:
            raise InvalidRequest(f"{where}: ips has {_shown(one)}, which is no address") from None
    return list(value)


def _mac(value: Any, where: str) -> str:
    try:
        return ethernet_address(value)
    except (InvalidRequest, TypeError):
        raise InvalidRequest(f"{where}: mac must be like 02:00:00:00:00:01, and is {_shown(value)}") from None


def _bandwidth(value: Any, where: str) -> dict[str, int]:
    for key, number in _mapping(value, "bandwidth", where).items():
        if key not in _RATES or type(number) is not int or number < 0:
            raise InvalidRequest(
                f"{where}: bandwidth has {_shown({key: number})}; it takes numbers for {', '.join(_RATES)}"
            )
    return dict(value)


def _ports(value: Any, where: str) -> list[Mapping[str, Any]]:
    return [_mapping(one, "portMappings", where) for one in _list(value, "portMappings", where)]


def _gateways(value: Any, where: str) -> tuple[IPv4Address | IPv6Address, ...]:
    found = []
    for one in _list(value or [], "default-route", where):
        try:
            found.append(ipaddress.ip_address(one if isinstance(one, str) else ""))
        except ValueError:
            raise InvalidRequest(f"{where}: default-route has {_shown(one)}, which is no address") from None
    return tuple(found)


def _list(value: Any, key: str, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{where}: {key} must be a list, and is {_shown(value)}")
    return value


def _mapping(value: Any, key: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}: {key} must be an object, and has {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_RUNTIME: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "ips": _ips,
    "mac": _mac,
    "bandwidth": _bandwidth,
    "portMappings": _ports,
}
"""Keys of an element that become capability arguments of the same name."""

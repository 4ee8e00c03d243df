"""CNI results in every version of the specification, and the one value that plugins see.

Owns: the three families of result JSON, and the conversions between them as libcni does them. Within a family the JSON
is the same, so a result of one version decodes as any other.
Refuses: I/O, and checks of a result beyond its types.

| family | addresses | interfaces | routes |
|---|---|---|---|
| 0.1, 0.2 | the first of each family, as `ip4` and `ip6` | none | inside `ip4` and `ip6` |
| 0.3, 0.4 | `ips` with `version` | name, mac, sandbox | `routes` |
| 1.x | `ips` | and mtu, socketPath, pciID | `routes` |
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Any, Final, TypeVar

from nodeplug.contract.errors import IncompatibleVersion, PluginError, Undecodable
from nodeplug.contract.values import CniDns, CniInterface, CniIp, CniResult, CniRoute, fold

VERSIONS: Final = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Every released version of the specification, oldest first."""
FAMILIES: Final = (VERSIONS[0:2], VERSIONS[2:5], VERSIONS[5:7])
"""Versions that share one form of result."""
_CIDR: Final = re.compile(r"[0-9a-fA-F.:]+/[0-9]{1,3}")
_READ: Final = 1024
"""Texts whose values are remembered."""
_ROUTE_NUMBERS: Final = ("mtu", "advmss", "priority", "table", "scope")
T = TypeVar("T")


def family(version: str) -> tuple[str, ...]:
    """Return the versions whose results have the same form; IncompatibleVersion if this one is not served."""
    for members in FAMILIES:
        if version in members:
            return members
    raise IncompatibleVersion(f"unsupported CNI result version {version!r}; known: {', '.join(VERSIONS)}")


# --- value -> JSON ----------------------------------------------------------------------------------------------


def encode(result: CniResult, version: str) -> dict[str, Any]:
    """Write a result in the form of one version (SPEC 1.1.0, "Success"; libcni's converters for older ones).

    Raises:
        IncompatibleVersion: the version is not served.
        PluginError: version 0.1.0 or 0.2.0, and the result has no address.
    """
    members = family(version)
    if members == FAMILIES[0]:
        return {"cniVersion": version, **_encode_oldest(result)}
    modern = members == FAMILIES[2]
    document: dict[str, Any] = {"cniVersion": version}
    if result.interfaces:
        document["interfaces"] = [_encode_interface(item, modern=modern) for item in result.interfaces]
    if result.ips:
        document["ips"] = [_encode_ip(item, modern=modern) for item in result.ips]
    if result.routes:
        document["routes"] = [_encode_route(item) for item in result.routes]
    dns = _encode_dns(result.dns)
    if dns or not modern:
        document["dns"] = dns
    return document


def _encode_oldest(result: CniResult) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for item in result.ips:
        number = item.address.version
        routes = [_encode_way(route) for route in result.routes if route.dst.version == number]
        ip = _present(ip=str(item.address), gateway=_str(item.gateway), routes=routes or None)
        document.setdefault(f"ip{number}", ip)
    if not document:
        raise PluginError(
            "cannot convert: no valid IP addresses",
            details="a result of version 0.1.0 or 0.2.0 needs one: raise cniVersion of the network to 0.3.0 or more",
        )
    document["dns"] = _encode_dns(result.dns)
    return document


def _encode_interface(item: CniInterface, *, modern: bool) -> dict[str, Any]:
    document = {"name": item.name, **_present(mac=item.mac or None, sandbox=item.sandbox or None)}
    if modern:
        document |= _present(mtu=item.mtu or None, socketPath=item.socket_path or None, pciID=item.pci_id or None)
    return document


def _encode_ip(item: CniIp, *, modern: bool) -> dict[str, Any]:
    version = None if modern else str(item.address.version)
    gateway = _str(item.gateway)
    return _present(version=version, address=str(item.address), gateway=gateway, interface=item.interface)


def _encode_way(item: CniRoute) -> dict[str, Any]:
    """Write what version 0.2.0 knows of a route; libcni keeps no more."""
    return _present(dst=str(item.dst), gw=_str(item.gw))


def _encode_route(item: CniRoute) -> dict[str, Any]:
    # libcni keeps the keys of 1.1.0 from 0.3.0 on; readers of older versions skip them.
    return _present(dst=str(item.dst), gw=_str(item.gw), **{key: getattr(item, key) for key in _ROUTE_NUMBERS})


def _encode_dns(dns: CniDns) -> dict[str, Any]:
    lists = {"search": dns.search, "options": dns.options}
    document: dict[str, Any] = {"nameservers": list(dns.nameservers)} if dns.nameservers else {}
    if dns.domain:
        document["domain"] = dns.domain
    return document | {key: list(value) for key, value in lists.items() if value}


def _present(**members: Any) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}


def _str(address: object | None) -> str | None:
    return None if address is None else str(address)


# --- JSON -> value ----------------------------------------------------------------------------------------------


def decode(document: Any, version: str) -> CniResult:
    """Read a result in the form of one version; keys match regardless of case, as in Go.

    Raises:
        IncompatibleVersion: the result has a version of another family.
        Undecodable: a value has the wrong type; the message names it.
    """
    if not isinstance(document, Mapping):
        raise Undecodable(f"a CNI result is an object, found {_kind(document)}")
    members = family(version)
    folded = fold(document)
    own = _text(folded, "cniversion", "result") or version
    if own not in members:
        raise IncompatibleVersion(
            f"result type supports [{' '.join(members)}] but unmarshalled CNIVersion is {json.dumps(own)}"
        )
    if members == FAMILIES[0]:
        return _decode_oldest(folded)
    return CniResult(
        interfaces=_items(folded, "interfaces", "result", _decode_interface),
        ips=_items(folded, "ips", "result", _decode_ip),
        routes=_items(folded, "routes", "result", _decode_route),
        dns=_decode_dns(folded),
    )


def _decode_oldest(folded: Mapping[str, Any]) -> CniResult:
    ips: list[CniIp] = []
    routes: list[CniRoute] = []
    for key in ("ip4", "ip6"):
        item = _get(folded, key, "result", dict, "an object")
        if item is not None:
            ips.append(CniIp(_address(item, "ip", key), gateway=_gateway(item, "gateway", key)))
            routes += _items(item, "routes", key, _decode_route)
    return CniResult(ips=tuple(ips), routes=tuple(routes), dns=_decode_dns(folded))


def _decode_interface(item: Mapping[str, Any], where: str) -> CniInterface:
    return CniInterface(
        name=_text(item, "name", where),
        mac=_text(item, "mac", where),
        sandbox=_text(item, "sandbox", where),
        mtu=_number(item, "mtu", where) or 0,
        socket_path=_text(item, "socketpath", where),
        pci_id=_text(item, "pciid", where),
    )


def _decode_ip(item: Mapping[str, Any], where: str) -> CniIp:
    return CniIp(
        address=_address(item, "address", where),
        gateway=_gateway(item, "gateway", where),
        interface=_number(item, "interface", where),
    )


def _decode_route(item: Mapping[str, Any], where: str) -> CniRoute:
    numbers = {key: _number(item, key, where) for key in _ROUTE_NUMBERS}
    return CniRoute(dst=_network(item, "dst", where), gw=_gateway(item, "gw", where), **numbers)


def _decode_dns(folded: Mapping[str, Any]) -> CniDns:
    item = _get(folded, "dns", "result", dict, "an object") or {}
    return CniDns(
        nameservers=_texts(item, "nameservers", "dns"),
        domain=_text(item, "domain", "dns"),
        search=_texts(item, "search", "dns"),
        options=_texts(item, "options", "dns"),
    )


# --- one value of a given type, or Undecodable; null and absent are the same, as in Go ---------------------------


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _wrong(where: str, key: str, due: str, value: Any) -> Undecodable:
    return Undecodable(f"{key!r} of {where} must be {due}, found {_kind(value)}")


def _get(item: Mapping[str, Any], key: str, where: str, kind: type[T], due: str) -> T | None:
    value = item.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise _wrong(where, key, due, value)
    return value


def _items(item: Mapping[str, Any], key: str, where: str, read: Callable[[Mapping[str, Any], str], T]) -> tuple[T, ...]:
    found = []
    for index, entry in enumerate(_get(item, key, where, list, "a list") or ()):
        if not isinstance(entry, dict):  # as `fold` makes them
            raise _wrong(where, f"{key}[{index}]", "an object", entry)
        found.append(read(entry, f"{key}[{index}]"))
    return tuple(found)


def _text(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if value is None or type(value) is str:  # nearly always
        return value or ""
    return _get(item, key, where, str, "a string") or ""


def _texts(item: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = _get(item, key, where, list, "a list of strings") or []
    if not all(isinstance(entry, str) for entry in value):
        raise _wrong(where, key, "a list of strings", value)
    return tuple(value)


def _number(item: Mapping[str, Any], key: str, where: str) -> int | None:
    return _get(item, key, where, int, "a whole number")


def _parsed(text: str, key: str, where: str, due: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except ValueError:
        raise Undecodable(f"{key!r} of {where} must be {due}, found {text!r}") from None


def _prefixed(text: str) -> str:
    if not _CIDR.fullmatch(text):
        raise ValueError(text)
    return text


# Each container has the routes and the gateway of its network, and its own address in CHECK and DEL.
@lru_cache(_READ)
def _read_interface(text: str) -> IPv4Interface | IPv6Interface:
    return ip_interface(_prefixed(text))


@lru_cache(_READ)
def _read_network(text: str) -> IPv4Network | IPv6Network:
    return ip_network(_prefixed(text), strict=False)


_read_address: Final = lru_cache(_READ)(ip_address)


def _address(item: Mapping[str, Any], key: str, where: str) -> IPv4Interface | IPv6Interface:
    return _parsed(_text(item, key, where), key, where, "an address with prefix length", _read_interface)


def _network(item: Mapping[str, Any], key: str, where: str) -> IPv4Network | IPv6Network:
    return _parsed(_text(item, key, where), key, where, "a network with prefix length", _read_network)


def _gateway(item: Mapping[str, Any], key: str, where: str) -> IPv4Address | IPv6Address | None:
    text = _text(item, key, where)
    return _parsed(text, key, where, "an address", _read_address) if text else None

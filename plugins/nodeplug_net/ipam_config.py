"""What host-local is asked for: `ipam`, the runtime's arguments and CNI_ARGS, read into values.

Owns: the keys of host-local, old style and new, the precedence of the places where an address can be asked for, and
resolv.conf.
Refuses: allocation. Keys match without regard to case, as Go matches them.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug import (
    CniAttachmentRequest,
    CniDns,
    CniRequest,
    CniRoute,
    IncompatibleVersion,
    InvalidEnvironment,
    InvalidRequest,
    fold,
)
from nodeplug_net.ranges import Address, RangeSet, parse_range_sets

_SINGLE_ADDRESS_VERSIONS: Final = frozenset({"", "0.1.0", "0.2.0"})
"""Their results hold one address of each family (SPEC 0.2.0)."""
_ROUTE_NUMBERS: Final = ("mtu", "advmss", "priority", "table", "scope")


@dataclass(frozen=True, slots=True)
class IpamConfig:
    """One network's addresses, and what this request wants of them.

    Attributes:
        folder: where addresses are reserved.
        ranges: one address is given out of each.
        routes: for the result.
        dns: for the result.
        requested: addresses that the runtime or the user asks for.
    """

    folder: Path
    ranges: tuple[RangeSet, ...]
    routes: tuple[CniRoute, ...] = ()
    dns: CniDns = field(default_factory=CniDns)
    requested: tuple[Address, ...] = ()


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object of the configuration with its keys in lower case; empty when absent or null.

    Raises:
        InvalidRequest: it is something else.
    """
    value = next((item for name, item in config.items() if name.lower() == key), None)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"key {key!r} must be an object, found {value!r}")
    folded: Mapping[str, Any] = fold(value)
    return folded


def listing(config: Mapping[str, Any], key: str) -> Sequence[Any]:
    """Return a list of a folded object; empty when absent or null.

    Raises:
        InvalidRequest: it is something else.
    """
    value = config.get(key)
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidRequest(f"key {key!r} must be a list, found {value!r}")
    return value


def folder_of(request: CniRequest, data_dir: Path) -> Path:
    """Return where a network's addresses are reserved; all that DEL and GC need.

    Raises:
        InvalidRequest: `ipam.dataDir` is no absolute path, or the network's name is no file name.
    """
    chosen = section(request.config, "ipam").get("datadir")
    if chosen is not None and not (isinstance(chosen, str) and chosen.startswith("/")):
        raise InvalidRequest(f"key 'ipam.dataDir' must be an absolute path, found {chosen!r}")
    if not request.network or "/" in request.network or request.network in {".", ".."}:
        raise InvalidRequest(f"network name {request.network!r} cannot be the name of a folder")
    return Path(chosen or data_dir) / request.network


def parse_config(request: CniRequest, data_dir: Path) -> IpamConfig:
    """Read what a request asks of host-local.

    Raises:
        InvalidRequest: a key is wrong; the message says which.
        InvalidEnvironment: CNI_ARGS has no address in IP.
        IncompatibleVersion: the request's version cannot carry that many addresses.
    """
    ipam = section(request.config, "ipam")
    if not ipam:
        raise InvalidRequest("IPAM config missing 'ipam' key")
    runtime = section(request.config, "runtimeconfig")
    sets = [*listing(runtime, "ipranges")]
    if ipam.get("subnet"):
        sets.append([ipam])
    sets += listing(ipam, "ranges")
    ranges = parse_range_sets(sets)
    _check_version(request.version, ranges)
    return IpamConfig(
        folder_of(request, data_dir),
        ranges,
        tuple(map(parse_route, listing(ipam, "routes"))),
        _parse_resolv_conf(ipam.get("resolvconf")),
        _requested(request, runtime),
    )


def has_ranges(request: CniRequest) -> bool:
    """Whether the configuration says the ranges, or leaves them to `runtimeConfig.ipRanges`, which STATUS lacks."""
    ipam = section(request.config, "ipam")
    offered = section(request.config, "capabilities").get("ipranges") is True
    return bool(ipam.get("subnet") or ipam.get("ranges")) or not offered


def _check_version(version: str, ranges: tuple[RangeSet, ...]) -> None:
    families = [one.version for one in ranges]
    if version in _SINGLE_ADDRESS_VERSIONS and max(families.count(4), families.count(6)) > 1:
        raise IncompatibleVersion(
            f"CNI version {version or '0.1.0'} does not support more than 1 address per family; "
            f"found {len(ranges)} range sets"
        )


def _requested(request: CniRequest, runtime: Mapping[str, Any]) -> tuple[Address, ...]:
    """Collect addresses from CNI_ARGS `IP`, `args.cni.ips` and `runtimeConfig.ips`, each with or without a prefix."""
    wanted: dict[Address, None] = {}
    if isinstance(request, CniAttachmentRequest) and request.args.get("IP"):
        value = request.args["IP"]
        try:
            wanted[ipaddress.ip_interface(value).ip] = None
        except ValueError as error:
            raise InvalidEnvironment(f"CNI_ARGS: IP={value!r} is no IP address") from error
    arguments = section(section(request.config, "args"), "cni")
    for value in (*listing(arguments, "ips"), *listing(runtime, "ips")):
        try:
            wanted[ipaddress.ip_interface(value if isinstance(value, str) else "").ip] = None
        except ValueError as error:
            raise InvalidRequest(f"requested address {value!r} in key 'ips' is no IP address") from error
    return tuple(wanted)


def parse_route(config: Any) -> CniRoute:
    """Read a route `{dst, gw, mtu, advmss, priority, table, scope}`, keys in lower case.

    Raises:
        InvalidRequest: naming the route.
    """
    try:
        numbers = {key: int(config[key]) for key in _ROUTE_NUMBERS if config.get(key) is not None}
        gateway = config.get("gw")
        return CniRoute(
            dst=ipaddress.ip_network(config["dst"], strict=False),
            gw=ipaddress.ip_address(gateway) if gateway else None,
            **numbers,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"invalid route {config!r}: wanted dst as CIDR and gw as IP address ({error})") from error


def parse_dns(config: Mapping[str, Any]) -> CniDns:
    """Read `{nameservers, domain, search, options}`, keys in lower case."""
    domain = config.get("domain") or ""
    if not isinstance(domain, str):
        raise InvalidRequest(f"key 'dns.domain' must be a string, found {domain!r}")
    lists = {key: tuple(map(str, listing(config, key))) for key in ("nameservers", "search", "options")}
    return CniDns(domain=domain, **lists)


def _parse_resolv_conf(path: Any) -> CniDns:
    if not path:
        return CniDns()
    try:
        text = Path(str(path)).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidRequest(f"cannot read key 'ipam.resolvConf' {path!r}: {error.strerror}") from error
    return parse_resolv_conf(text)


def parse_resolv_conf(text: str) -> CniDns:
    """Read resolv.conf(5): nameserver, domain, search, options; the last domain wins, lists add up."""
    found: dict[str, list[str]] = {"nameserver": [], "domain": [], "search": [], "options": []}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and not line.startswith(("#", ";")) and words[0] in found:
            found[words[0]] += words[1:2] if words[0] in {"nameserver", "domain"} else words[1:]
    domain = found["domain"][-1] if found["domain"] else ""
    return CniDns(
        nameservers=tuple(found["nameserver"]),
        domain=domain,
        search=tuple(found["search"]),
        options=tuple(found["options"]),
    )

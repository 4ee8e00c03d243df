"""The network configuration of host-local: `ipam`, the runtime's arguments and CNI_ARGS, read into values.

Owns: the keys of host-local, old style and new, the precedence of the places where an address can be requested, and
resolv.conf.
Refuses: allocation. Keys match without regard to case, as Go matches them.
"""

import errno
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic.alias_generators import to_camel

from nodeplug import (
    CniAdd,
    CniDns,
    CniRequest,
    CniRoute,
    IncompatibleVersion,
    InvalidEnvironment,
    InvalidRequest,
    read_bounded,
)
from nodeplug.fields import Seconds
from nodeplug_net.ipam.ranges import Address, Network, RangeConf, RangeSet, parse_address, parse_cidr, parse_range_sets

_SINGLE_ADDRESS_VERSIONS: Final = frozenset({"", "0.1.0", "0.2.0"})
"""Their results hold one address of each family (SPEC 0.2.0)."""
KNOWN_ARGS: Final = ("IP", "MAC")
"""Keys of CNI_ARGS that a bridge and its IPAM know together: one text is for both."""
_RESOLV_CONF_LIMIT: Final = 64 << 10
"""Bytes of a resolv.conf, which has few lines."""
STATIC: Final = frozenset({"static", "nodeplug-static"})
"""IPAM types whose addresses are in the configuration itself."""


class _Conf(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class RouteConf(_Conf):
    """One of the key `routes` of an IPAM plugin."""

    dst: str
    gw: str = ""
    mtu: int | None = None
    advmss: int | None = None
    priority: int | None = None
    table: int | None = None
    scope: int | None = None


class DnsConf(_Conf):
    """The key `dns` of a network."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def is_given(self) -> bool:
        """Whether a network says anything; an empty list says that there is none of a kind (bridge.go, dnsConfSet)."""
        return bool(self.domain or self.model_fields_set - {"domain"})

    def value(self) -> CniDns:
        """Return it as a result carries it."""
        return CniDns(nameservers=self.nameservers, domain=self.domain, search=self.search, options=self.options)


class _FolderConf(_Conf):
    data_dir: str = ""

    @field_validator("data_dir")
    @classmethod
    def _is_absolute(cls, folder: str) -> str:
        if not folder.startswith("/"):
            raise ValueError("must be an absolute path")
        return folder


class _IpamConf(_FolderConf, RangeConf):
    type: str = ""
    ranges: tuple[tuple[RangeConf, ...], ...] = ()
    exclude: tuple[str, ...] = ()
    keep_for: Seconds | None = None
    routes: tuple[RouteConf, ...] = ()
    resolv_conf: str = ""

    @cached_property
    def ways(self) -> tuple[CniRoute, ...]:
        """The routes as values."""
        return tuple(map(route_of, self.routes))


class _RuntimeConf(_Conf):
    ip_ranges: tuple[tuple[RangeConf, ...], ...] = ()
    ips: tuple[str, ...] = ()


class _AddressesConf(_Conf):
    ips: tuple[str, ...] = ()


class _ArgsConf(_Conf):
    cni: _AddressesConf = _AddressesConf()


class _CapabilitiesConf(_Conf):
    ip_ranges: bool = False


class PoolConf(_Conf):
    """The keys that DEL and GC need: mistakes in others must not keep addresses reserved."""

    ipam: _FolderConf = _FolderConf()


class NetConf(_Conf):
    """The keys of the reference plugin, under its names."""

    cni_version: str = ""
    ipam: _IpamConf | None = None
    runtime_config: _RuntimeConf = _RuntimeConf()
    args: _ArgsConf = _ArgsConf()
    capabilities: _CapabilitiesConf = _CapabilitiesConf()

    @cached_property
    def range_sets(self) -> tuple[RangeSet, ...]:
        """The ranges of runtime and network. Few networks make all requests, and this takes as long as an address."""
        ipam = self.ipam or _IpamConf()
        old_style = [(ipam,)] if ipam.subnet is not None else []
        return parse_range_sets([*self.runtime_config.ip_ranges, *old_style, *ipam.ranges])

    @cached_property
    def allocatable(self) -> tuple[RangeSet, ...]:
        """The same without what is excluded."""
        return _without(self.range_sets, list(map(_left_out, self.ipam.exclude if self.ipam else ())))


@dataclass(frozen=True, slots=True)
class IpamConfig:
    """The addresses of a network, and those that this request wants.

    Attributes:
        folder: where addresses are reserved.
        ranges: an attachment has one address of each.
        allocatable: the same without what is excluded, in the same order: from there the next address comes.
        routes: for the result.
        dns: for the result.
        requested: addresses that the runtime or the user requests.
        keep_for: seconds for which the addresses of a pod that is gone wait for it; None if they do not.
    """

    folder: Path
    ranges: tuple[RangeSet, ...]
    allocatable: tuple[RangeSet, ...]
    routes: tuple[CniRoute, ...] = ()
    dns: CniDns = field(default_factory=CniDns)
    requested: tuple[Address, ...] = ()
    keep_for: float | None = None


def known_args(ipam: str) -> tuple[str, ...]:
    """Return the keys of CNI_ARGS that an interface's plugin and its IPAM plugin know together."""
    return (*KNOWN_ARGS, "GATEWAY") if ipam in STATIC else KNOWN_ARGS


def folder_of(request: CniRequest, data_dir: Path) -> Path:
    """Return where a network's addresses are reserved; all that DEL and GC need.

    Raises:
        InvalidRequest: `ipam.dataDir` is not an absolute path, or the network's name is not a file name.
    """
    return _folder(request.network, request.parse(PoolConf).ipam.data_dir or data_dir)


def _folder(network: str, data_dir: str | Path) -> Path:
    if not network or "/" in network or network in {".", ".."}:
        raise InvalidRequest(f"network name {network!r} cannot be the name of a folder")
    return Path(data_dir) / network


def parse_config(request: CniRequest, data_dir: Path) -> IpamConfig:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: a key is wrong; the message says which.
        InvalidEnvironment: CNI_ARGS has no address in IP.
        IncompatibleVersion: the request's version cannot carry that many addresses.
    """
    conf = request.parse(NetConf)
    ipam = conf.ipam
    if ipam is None:
        raise InvalidRequest("IPAM config missing 'ipam' key")
    requested = _requested(request, conf)
    ranges = conf.range_sets
    check_version(request.version, conf.cni_version, [one.version for one in ranges])
    return IpamConfig(
        _folder(request.network, ipam.data_dir or data_dir),
        ranges,
        conf.allocatable,
        ipam.ways,
        _read_resolv_conf(ipam.resolv_conf) if ipam.resolv_conf else CniDns(),
        requested,
        ipam.keep_for,
    )


def _left_out(text: str) -> Network:
    """Read one of `exclude`, an address or a network."""
    found = parse_cidr(text, "exclude") if "/" in text else ipaddress.ip_interface(parse_address(text, "exclude"))
    if found.ip != found.network.network_address:
        raise InvalidRequest(
            f"exclude {text} is an address of network {found.network}, not a network",
            details=f"wanted: {found.network}, or {found.ip} for the address alone",
        )
    return found.network


def _without(ranges: Sequence[RangeSet], left_out: Sequence[Network]) -> tuple[RangeSet, ...]:
    cut = tuple(one.without(left_out) for one in ranges)
    for index, (whole, left) in enumerate(zip(ranges, cut, strict=True)):
        if not left.ranges:
            said = ", ".join(map(str, left_out))
            raise InvalidRequest(f"range set {index}: exclude leaves no address of {whole}", details=f"found: {said}")
    return cut


def has_ranges(request: CniRequest) -> bool:
    """Whether the configuration has the ranges, or leaves them to `runtimeConfig.ipRanges`, which STATUS lacks."""
    conf = request.parse(NetConf)
    own = conf.ipam is not None and bool(conf.ipam.subnet or conf.ipam.ranges)
    return own or not conf.capabilities.ip_ranges


def check_version(version: str, said: str, families: Sequence[int]) -> None:
    """Refuse more addresses than a version has room for.

    Args:
        version: of the request.
        said: what the configuration said, which the sentence repeats.
        families: 4 or 6 for each address.

    Raises:
        IncompatibleVersion: in the reference's words.
    """
    if version in _SINGLE_ADDRESS_VERSIONS and max(families.count(4), families.count(6)) > 1:
        raise IncompatibleVersion(
            f"CNI version {said} does not support more than 1 address per family",
            details=f"found {len(families)} addresses",
        )


def _requested(request: CniRequest, conf: NetConf) -> tuple[Address, ...]:
    """Collect addresses from CNI_ARGS `IP`, `args.cni.ips` and `runtimeConfig.ips`, each with or without a prefix."""
    wanted: dict[Address, None] = {}
    if isinstance(request, CniAdd) and (value := request.read_args(*KNOWN_ARGS).get("IP")):
        try:
            wanted[_address_of(value)] = None
        except ValueError as error:
            said = json.dumps(f"IP={value}", ensure_ascii=False)
            raise InvalidEnvironment(
                f"ARGS: error parsing value of pair {said}: invalid IP address {value}", details="in CNI_ARGS"
            ) from error
    for value in (*conf.args.cni.ips, *conf.runtime_config.ips):
        if not value:
            raise InvalidRequest(
                "cannot understand ip: IP <nil> not v4 nor v6", details="the key 'ips' has an empty one"
            )
        try:
            wanted[_address_of(value)] = None
        except ValueError as error:
            raise InvalidRequest(f"invalid IP address {value}", details="in key 'ips'") from error
    return tuple(wanted)


def _address_of(text: str) -> Address:
    """Read an address with or without a prefix length."""
    return ipaddress.ip_interface(text if "%" not in text else "").ip


def route_of(conf: RouteConf) -> CniRoute:
    """Read a route.

    Raises:
        InvalidRequest: an address in it is none.
    """
    return CniRoute(
        dst=parse_cidr(conf.dst, "routes.dst").network,
        gw=parse_address(conf.gw, "routes.gw") if conf.gw else None,
        **conf.model_dump(exclude={"dst", "gw"}),
    )


def _read_resolv_conf(path: str) -> CniDns:
    try:
        return parse_resolv_conf(read_bounded(Path(path), _RESOLV_CONF_LIMIT).decode(errors="replace"))
    except OSError as error:
        step = "read" if error.errno in {errno.EISDIR, errno.EINVAL, errno.EFBIG} else "open"
        said = "is a directory" if error.errno == errno.EISDIR else (error.strerror or "").lower()
        raise InvalidRequest(f"{step} {path}: {said}", details="in key 'ipam.resolvConf'") from error


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

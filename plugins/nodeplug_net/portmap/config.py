"""The configuration of port mappings: the keys of the reference's portmap, read into values.

Owns: defaults, types, and the reference's sentences in its order (portmap/main.go); which addresses of the container
ports lead to.
Refuses: the kernel, and marks: what is masqueraded is known without one, so `markMasqBit` and `externalSetMarkChain`
are checked and change nothing. Keys match without regard to case, as Go matches them.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from nodeplug import CniAttachmentRequest, CniRequest, CniResult, InvalidRequest
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.portmap.conditions import Condition, is_of_iptables, parse_conditions

PROTOCOLS: Final = {"tcp": 6, "udp": 17, "sctp": 132}
"""Numbers of IANA."""
_IPTABLES, _NFTABLES = "iptables", "nftables"
_PORT_LIMIT: Final = 65535
_BIT_LIMIT: Final = 31


class _Conf(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, strict=True, frozen=True)


class PortMapping(_Conf):
    """One mapping, as the runtime asks for it."""

    host_port: int = 0
    container_port: int = 0
    protocol: str = ""
    host_ip: str = Field("", alias="hostIP")


class _RuntimeConf(_Conf):
    port_mappings: list[PortMapping] = []


class PortmapConf(_Conf):
    """The keys of the reference plugin, under its names."""

    backend: str | None = None
    snat: bool = True
    masq_all: bool = False
    mark_masq_bit: int | None = None
    external_set_mark_chain: str | None = None
    conditions_v4: list[str] = Field([], alias="conditionsV4")
    conditions_v6: list[str] = Field([], alias="conditionsV6")
    runtime_config: _RuntimeConf = _RuntimeConf()


class _MappingsOnly(_Conf):
    runtime_config: Any = None


@dataclass(frozen=True, slots=True)
class Forward:
    """One port of the host that leads to a port of a container, for one version of IP.

    Attributes:
        protocol: its number.
        host_ip: the host's address; None for each address of the host.
        target: the container's address.
    """

    protocol: int
    host_ip: IPv4Address | IPv6Address | None
    host_port: int
    target: IPv4Address | IPv6Address
    container_port: int

    @property
    def version(self) -> int:
        """Of IP."""
        return self.target.version

    @property
    def name(self) -> str:
        """`192.0.2.1:8080/tcp`, or `8080/tcp` for each address."""
        return port_name(self.protocol, self.host_ip, self.host_port)


@dataclass(frozen=True, slots=True)
class Mappings:
    """What an attachment asks for.

    Attributes:
        forwards: the ports.
        near: whose packets are masqueraded, as the prefix length and the packed address of a network, by version of
            IP: those that could not be answered otherwise.
        conditions: of packets that are forwarded, by version of IP.
        localhost: whether connections from the host to itself by 127.0.0.1 must cross to the container.
    """

    forwards: tuple[Forward, ...] = ()
    near: tuple[tuple[int, tuple[Interface, ...]], ...] = ()
    conditions: tuple[tuple[int, tuple[Condition, ...]], ...] = ()
    localhost: bool = False


def port_name(protocol: int, host_ip: IPv4Address | IPv6Address | None, port: int) -> str:
    """Name a port of the host as people write it."""
    word = next((word for word, number in PROTOCOLS.items() if number == protocol), str(protocol))
    where = "" if host_ip is None else f"{host_ip}:" if host_ip.version == 4 else f"[{host_ip}]:"
    return f"{where}{port}/{word}"


def asks_for_ports(request: CniRequest) -> bool:
    """Whether a request names port mappings, right or wrong ones."""
    runtime = request.parse(_MappingsOnly).runtime_config
    found = runtime if isinstance(runtime, dict) else {}
    return any(value for key, value in found.items() if str(key).lower() == "portmappings")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an attachment asks for, as it can be recorded.

    Attributes:
        conf: the configuration.
        targets: the container's addresses, at most one of each version of IP.
    """

    conf: PortmapConf
    targets: tuple[Interface, ...]

    def encode(self) -> dict[str, Any]:
        """Encode it for a record."""
        conf = self.conf.model_dump(by_alias=True, exclude_defaults=True)
        return {"config": conf, "targets": [str(target) for target in self.targets]}

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> "Wanted":
        """Decode a record.

        Raises:
            ValueError: it is none (also pydantic's error, KeyError and TypeError are).
        """
        targets = tuple(ipaddress.ip_interface(target) for target in data["targets"])
        return cls(PortmapConf.model_validate(data["config"]), targets)

    def mappings(self) -> Mappings:
        """Return what follows for the kernel."""
        conf = self.conf
        asked = conf.runtime_config.port_mappings
        forwards = (one for target in self.targets for mapping in asked for one in _forward(mapping, target))
        conditions = _conditions(conf)
        return Mappings(
            forwards=_first_of_each_port(forwards),
            near=tuple((target.version, _near(conf, target)) for target in self.targets) if conf.snat else (),
            conditions=tuple((version, found) for version, found in conditions.items() if found),
            localhost=conf.snat,
        )


def parse_portmap(request: CniAttachmentRequest) -> Wanted:
    """Read the configuration of a request, and to which addresses of its `prev_result` ports lead.

    Raises:
        InvalidRequest: a key is wrong; the sentence is the reference's where it has one.
    """
    conf = check_portmap(request)
    result = request.prev_result
    found = () if result is None or not conf.runtime_config.port_mappings else targets(result, request.ifname)
    return Wanted(conf, tuple(found))


def check_portmap(request: CniRequest) -> PortmapConf:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: a key is wrong.
    """
    conf = request.parse(PortmapConf)
    _check(conf)
    _conditions(conf)
    return conf


def _conditions(conf: PortmapConf) -> Mapping[int, tuple[Condition, ...]]:
    return {
        4: parse_conditions("conditionsV4", conf.conditions_v4, 4),
        6: parse_conditions("conditionsV6", conf.conditions_v6, 6),
    }


def _check(conf: PortmapConf) -> None:
    """Check the keys in the reference's order and words."""
    if conf.mark_masq_bit is not None and conf.external_set_mark_chain is not None:
        raise InvalidRequest("Cannot specify externalSetMarkChain and markMasqBit")
    if conf.mark_masq_bit is not None and not 0 <= conf.mark_masq_bit <= _BIT_LIMIT:
        raise InvalidRequest("MasqMarkBit must be between 0 and 31")
    _check_backend(conf)
    for mapping in conf.runtime_config.port_mappings:
        if not 0 < mapping.container_port <= _PORT_LIMIT:
            raise InvalidRequest(f"Invalid container port number: {mapping.container_port}")
        if not 0 < mapping.host_port <= _PORT_LIMIT:
            raise InvalidRequest(f"Invalid host port number: {mapping.host_port}")
        if mapping.protocol.lower() not in PROTOCOLS:
            raise InvalidRequest(
                f"key 'portMappings': protocol is one of {', '.join(PROTOCOLS)}, found {mapping.protocol!r}"
            )
        host_ip_of(mapping)


def _check_backend(conf: PortmapConf) -> None:
    """Refuse a backend that is not that of other keys; without one, the words of both are read."""
    if conf.backend is None:
        return
    wrong = _NFTABLES if conf.backend == _IPTABLES else _IPTABLES
    options = ["externalSetMarkChain"] if conf.external_set_mark_chain is not None and wrong == _IPTABLES else []
    for key, words in (("conditionsV4", conf.conditions_v4), ("conditionsV6", conf.conditions_v6)):
        if words and words[0] and is_of_iptables(words) == (wrong == _IPTABLES):
            options.append(key)
    if options:
        raise InvalidRequest(
            f"{conf.backend} backend was requested but configuration contains {wrong}-specific options "
            f"[{' '.join(options)}]"
        )
    if conf.backend not in {_IPTABLES, _NFTABLES}:
        raise InvalidRequest(f'unrecognized backend "{conf.backend}"')


def host_ip_of(mapping: PortMapping) -> IPv4Address | IPv6Address | None:
    """Return the host's address of a mapping; None for each.

    Raises:
        InvalidRequest: it is none.
    """
    if not mapping.host_ip:
        return None
    try:
        found = ipaddress.ip_address(mapping.host_ip)
    except ValueError:
        raise InvalidRequest(
            f"key 'portMappings': hostIP is an address of this host, found {mapping.host_ip!r}"
        ) from None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return found if mapped is None else mapped


def targets(result: CniResult, ifname: str) -> list[Interface]:
    """Return the addresses to which ports lead: of each version the first that is not surely another interface's."""
    found: dict[int, Interface] = {}
    for ip in result.ips:
        if ip.interface is not None and 0 <= ip.interface < len(result.interfaces):
            interface = result.interfaces[ip.interface]
            if interface.name != ifname or not interface.sandbox:
                continue
        found.setdefault(ip.address.version, ip.address)
    return [found[version] for version in sorted(found)]


def _forward(mapping: PortMapping, address: Interface) -> Sequence[Forward]:
    """Return the forward of a mapping to an address: none if the host's address is of the other version."""
    host_ip = host_ip_of(mapping)
    if host_ip is not None and host_ip.version != address.version:
        return ()
    if host_ip is not None and host_ip.is_unspecified:
        host_ip = None
    protocol = PROTOCOLS[mapping.protocol.lower()]
    return (Forward(protocol, host_ip, mapping.host_port, address.ip, mapping.container_port),)


def _first_of_each_port(forwards: Iterable[Forward]) -> tuple[Forward, ...]:
    """Let the first mapping of a port count, as the reference's first rule does."""
    found: dict[tuple[int, str], Forward] = {}
    for one in forwards:
        found.setdefault((one.version, one.name), one)
    return tuple(found.values())


def _near(conf: PortmapConf, address: Interface) -> tuple[Interface, ...]:
    """Return the networks whose packets are masqueraded: the container's own, this host by its loopback, or all."""
    if conf.masq_all:
        return (ipaddress.ip_interface("0.0.0.0/0" if address.version == 4 else "::/0"),)
    if address.version == 6:
        return (address,)
    return (address, ipaddress.ip_interface("127.0.0.1/8"))

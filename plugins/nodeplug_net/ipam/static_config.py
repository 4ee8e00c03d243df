"""The network configuration of static: addresses that an administrator or the runtime chose, read into a result.

Owns: the keys of the reference plugin, and which of the places where addresses stand counts: CNI_ARGS adds to
`ipam.addresses`, `args.cni.ips` takes the place of both, `runtimeConfig.ips` that of all.
Refuses: allocation, and so any record: nothing is reserved, and two attachments may be given one address.

Source: static of the CNI plugins; the error texts are its own, because people search for them.
"""

from collections.abc import Iterable
from dataclasses import replace

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from nodeplug import (
    CniAdd,
    CniCheck,
    CniIp,
    CniRequest,
    CniResult,
    InvalidEnvironment,
    InvalidRequest,
    PluginError,
)
from nodeplug_net.ipam.config import DnsConf, RouteConf, check_version, known_args, route_of
from nodeplug_net.ipam.ranges import Interface, parse_address, parse_cidr


class _Conf(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class _AddressConf(_Conf):
    address: str = ""
    gateway: str = ""


class _IpamConf(_Conf):
    addresses: tuple[_AddressConf, ...] = ()
    routes: tuple[RouteConf, ...] = ()
    dns: DnsConf = DnsConf()


class _IpsConf(_Conf):
    ips: tuple[str, ...] = ()


class _ArgsConf(_Conf):
    cni: _IpsConf = _IpsConf()


class NetConf(_Conf):
    """The keys of the reference plugin, under its names."""

    cni_version: str = ""
    ipam: _IpamConf | None = None
    runtime_config: _IpsConf = _IpsConf()
    args: _ArgsConf = _ArgsConf()


def parse_static(request: CniRequest) -> CniResult:
    """Read the addresses, routes and dns of a request.

    Raises:
        InvalidRequest: a key is wrong.
        InvalidEnvironment: CNI_ARGS has no addresses in IP or GATEWAY.
        IncompatibleVersion: the request's version cannot carry that many addresses.
    """
    conf = request.parse(NetConf)
    if conf.ipam is None:
        raise InvalidRequest("IPAM config missing 'ipam' key")
    gateways = [parse_address(one.gateway, "gateway") if one.gateway else None for one in conf.ipam.addresses]
    routes = tuple(map(route_of, conf.ipam.routes))
    from_args = _from_args(request)
    chosen = [_ips(asked) for asked in (conf.args.cni.ips, conf.runtime_config.ips) if asked]
    if chosen:
        ips = chosen[-1]
    else:
        configured = zip(conf.ipam.addresses, gateways, strict=True)
        ips = [CniIp(_configured(one.address), gateway=gateway) for one, gateway in configured] + from_args
    check_version(request.version, conf.cni_version, [ip.address.version for ip in ips])
    return CniResult(ips=tuple(ips), routes=routes, dns=conf.ipam.dns.value())


def check_static(request: CniCheck) -> None:
    """Serve CHECK: what is configured has the gateway of the result.

    Raises:
        PluginError: it has another one.
    """
    for configured in parse_static(request).ips:
        found = [ip.gateway for ip in request.prev_result.ips if ip.address.ip == configured.address.ip]
        if configured.gateway is not None and found and found[0] != configured.gateway:
            raise PluginError(
                f"static: Failed to match addr {configured.address.ip} on interface {request.ifname}",
                details=f"gateway {configured.gateway} is configured, the result has {found[0]}",
            )


def _from_args(request: CniRequest) -> list[CniIp]:
    """Read IP and GATEWAY of CNI_ARGS, both lists; a gateway is that of the addresses whose subnet it is in."""
    if not isinstance(request, CniAdd):
        return []
    args = request.read_args(*known_args("static"))
    ips = [CniIp(_from_args_ip(one.strip())) for one in args.get("IP", "").split(",")] if args.get("IP") else []
    for word in args["GATEWAY"].split(",") if args.get("GATEWAY") else ():
        try:
            gateway = parse_address(word.strip(), "GATEWAY")
        except InvalidRequest as error:
            raise InvalidEnvironment(f"invalid gateway address: {word}", details="in CNI_ARGS") from error
        ips = [replace(ip, gateway=gateway) if gateway in ip.address.network else ip for ip in ips]
    return ips


def _from_args_ip(text: str) -> Interface:
    try:
        return parse_cidr(text, "IP")
    except InvalidRequest as error:
        words = f"the 'ip' field is expected to be in CIDR notation, got: '{text}'"
        raise InvalidEnvironment(words, details="in CNI_ARGS; such as 10.1.0.5/16") from error


def _ips(asked: Iterable[str]) -> list[CniIp]:
    return [CniIp(_cidr(one, "an entry in the 'ips' field is NOT in CIDR notation, got: '{}'")) for one in asked]


def _configured(text: str) -> Interface:
    return _cidr(text, "the 'address' field is expected to be in CIDR notation, got: '{}'")


def _cidr(text: str, sentence: str) -> Interface:
    try:
        return parse_cidr(text, "address")
    except InvalidRequest as error:
        raise InvalidRequest(sentence.format(text), details="such as 10.1.0.5/16") from error

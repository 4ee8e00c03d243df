"""The rules of the reference's portmap, written for containers that are ours.

Owns: their shape, as portmap_iptables.go and portmap_nftables.go have it: what its CHECK compares word by word.
Refuses: to be on the path of a container: a command executes iptables(8) or nft(8) for them, as the reference does.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from nodeplug import InvalidRequest
from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.portmap.conditions import is_of_iptables
from nodeplug_net.portmap.config import PortmapConf, PortMapping, Wanted, host_ip_of
from nodeplug_net.reference.iptables import list_chosen, quoted, restore_chosen
from nodeplug_net.reference.ports import chains_of
from nodeplug_net.reference.programs import execute

IPTABLES: Final = "iptables"
_MARK_BIT: Final = 13
_TOGETHER: Final = 15
"""Ports of one rule: what the match multiport takes."""
_PLAIN: Final = re.compile(r"[\w./:!,+-]+")
_DNAT, _SETMARK, _MASQ = "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"
_NFT_TABLE: Final = """
add table {family} cni_hostport {{ comment "CNI portmap plugin" ; }}
add chain {family} cni_hostport hostports
add chain {family} cni_hostport hostip_hostports
add chain {family} cni_hostport hostports_all
flush chain {family} cni_hostport hostports_all
add rule {family} cni_hostport hostports_all jump hostip_hostports
add rule {family} cni_hostport hostports_all jump hostports
add chain {family} cni_hostport prerouting {{ type nat hook prerouting priority -100 ; }}
flush chain {family} cni_hostport prerouting
add rule {family} cni_hostport prerouting {conditions} fib daddr type local jump hostports_all
add chain {family} cni_hostport output {{ type nat hook output priority -100 ; }}
flush chain {family} cni_hostport output
add rule {family} cni_hostport output {conditions} fib daddr type local jump hostports_all
"""
_NFT_MASQUERADING: Final = "add chain {family} cni_hostport masquerading {{ type nat hook postrouting priority 100 ; }}"
Planned = tuple[Attachment, Wanted]


def writer(backend: str, planned: Sequence[Planned]) -> Callable[[], None]:
    """Return what writes the rules of attachments with a backend, one transaction for each version of IP.

    Raises:
        InvalidRequest: conditions are in the words of the other backend.
    """
    for attachment, wanted in planned:
        for words in _conditions(wanted.conf).values():
            if words and words[0] and is_of_iptables(words) != (backend == IPTABLES):
                raise InvalidRequest(
                    f"the port mappings of {attachment.container_id!r} in network {attachment.network!r} have "
                    f"conditions, {' '.join(words)!r}, that backend {backend} does not know; choose the other one"
                )
    return lambda: _write_iptables(planned) if backend == IPTABLES else _write_nft(planned)


def _of_version(planned: Sequence[Planned], version: int) -> Iterator[tuple[Attachment, PortmapConf, Interface]]:
    return (
        (attachment, wanted.conf, target)
        for attachment, wanted in planned
        for target in wanted.targets
        if target.version == version
    )


def _conditions(conf: PortmapConf) -> Mapping[int, Sequence[str]]:
    return {4: conf.conditions_v4, 6: conf.conditions_v6}


# --- iptables -----------------------------------------------------------------------------------------------------


def _write_iptables(planned: Sequence[Planned]) -> None:
    for version in (4, 6):
        mine = list(_of_version(planned, version))
        if mine:
            present = list_chosen(version, "nat")
            lines = [line for _, conf, _ in mine for line in shared_rules(conf, present)]
            lines += [line for one in mine for line in container_rules(*one)]
            restore_chosen(version, "nat", list(dict.fromkeys(lines)))


def shared_rules(conf: PortmapConf, present: Sequence[str]) -> Iterator[str]:
    """Compose what all containers share, as far as it is missing among the lines of `iptables -S`."""

    def lacks(chain: str, ending: str) -> bool:
        return not any(line.startswith(f"-A {chain} ") and line.endswith(ending) for line in present)

    chains = [_DNAT, *([_SETMARK, _MASQ] if _marks(conf) else [])]
    yield from (f":{chain} - [0:0]" for chain in chains if f"-N {chain}" not in present)
    for hook in ("PREROUTING", "OUTPUT"):
        if lacks(hook, f"-j {_DNAT}"):
            yield f"-A {hook} -m addrtype --dst-type LOCAL -j {_DNAT}"
    if not _marks(conf):
        return
    value = 1 << (_MARK_BIT if conf.mark_masq_bit is None else conf.mark_masq_bit)
    mark = f"{value:#x}/{value:#x}"
    if lacks(_SETMARK, f"--set-xmark {mark}"):
        yield f'-A {_SETMARK} -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark {mark}'
    if lacks(_MASQ, f"--mark {mark} -j MASQUERADE"):
        yield f"-A {_MASQ} -m mark --mark {mark} -j MASQUERADE"
    if lacks("POSTROUTING", f"-j {_MASQ}"):
        yield f'-I POSTROUTING 1 -m comment --comment "CNI portfwd requiring masquerade" -j {_MASQ}'


def _marks(conf: PortmapConf) -> bool:
    return conf.snat and conf.external_set_mark_chain is None


def container_rules(attachment: Attachment, conf: PortmapConf, target: Interface) -> Iterator[str]:
    """Compose the chain of a container, and what leads there (fillDnatRules)."""
    chain, asked = chains_of(attachment)[0], conf.runtime_config.port_mappings
    text = f'dnat name: "{attachment.network}" id: "{attachment.container_id}"'
    comment = text if len(text) <= 255 else f"{text[:253]}..."
    yield f":{chain} - [0:0]"
    for mapping in asked:
        yield from (f"-A {chain} {rule}" for rule in _port_rules(mapping, conf, target))
    words = [word if _PLAIN.fullmatch(word) else quoted(word) for word in _conditions(conf)[target.version]]
    for protocol in sorted({one.protocol.lower() for one in asked}):
        ports = [str(one.host_port) for one in asked if one.protocol.lower() == protocol]
        for first in range(0, len(ports), _TOGETHER):
            some = ",".join(ports[first : first + _TOGETHER])
            start = f"-A {_DNAT} -m comment --comment {quoted(comment)} -m multiport -p {protocol}"
            yield " ".join([start, f"--destination-ports {some}", *words, f"-j {chain}"])


def _port_rules(mapping: PortMapping, conf: PortmapConf, target: Interface) -> Iterator[str]:
    own = _host_address(mapping, target.version)
    if own is None:
        return
    base = f"-p {mapping.protocol.lower()} --dport {mapping.host_port}" + (f" -d {own}" if own else "")
    marking = conf.external_set_mark_chain or _SETMARK
    if conf.snat:
        everybody = "0.0.0.0/0" if target.version == 4 else "::/0"
        yield f"{base} -s {everybody if conf.masq_all else target} -j {marking}"
        if target.version == 4 and not conf.masq_all:
            yield f"{base} -s 127.0.0.1 -j {marking}"
    yield f"{base} -j DNAT --to-destination {_goal(target, mapping)}"


def _host_address(mapping: PortMapping, version: int) -> str | None:
    """Return the address of the host that a mapping is about; empty for all, None if it is of the other version."""
    address = host_ip_of(mapping)
    if address is not None and address.version != version:
        return None
    return "" if address is None or address.is_unspecified else str(address)


def _goal(target: Interface, mapping: PortMapping) -> str:
    where = str(target.ip) if target.version == 4 else f"[{target.ip}]"
    return f"{where}:{mapping.container_port}"


# --- nftables -----------------------------------------------------------------------------------------------------


def _write_nft(planned: Sequence[Planned]) -> None:
    lines = [
        line
        for version in (4, 6)
        for attachment, conf, target in _of_version(planned, version)
        for line in nft_rules(attachment, conf, target)
    ]
    if lines:
        execute(["nft"], "-f", "-", stdin="\n".join([*lines, ""]))


def nft_rules(attachment: Attachment, conf: PortmapConf, target: Interface) -> Iterator[str]:
    """Compose the rules of a container, and the table that all share (forwardPorts)."""
    family = "ip" if target.version == 4 else "ip6"
    comment = f'comment "{attachment.container_id}"'
    yield _NFT_TABLE.format(family=family, conditions=" ".join(_conditions(conf)[target.version])).strip()
    for mapping in conf.runtime_config.port_mappings:
        own = _host_address(mapping, target.version)
        if own is not None:
            to = f"{family} daddr {own} " if own else ""
            port = f"{mapping.protocol.lower()} dport {mapping.host_port}"
            yield f"add rule {family} cni_hostport hostports {to}{port} dnat to {_goal(target, mapping)} {comment}"
    if conf.snat:
        yield _NFT_MASQUERADING.format(family=family)
        for source in (str(target.ip), *(["127.0.0.1"] if target.version == 4 else [])):
            what = f"{family} saddr {source} {family} daddr {target.ip} masquerade"
            yield f"add rule {family} cni_hostport masquerading {what} {comment}"

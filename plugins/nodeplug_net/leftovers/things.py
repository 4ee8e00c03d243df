"""The things that attachments have on a node, outside of their containers, and how one of them ends.

Owns: listing them (addresses, pairs, rules, forwarded ports, limits, backups, leases) by the name that each carries,
in the calling thread's namespace, without a plugin.
Refuses: to judge (`evidence`), and what a running daemon keeps a record of: it would bring that back, and ends it by
itself or by its DEL or GC.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nodeplug import read_bounded
from nodeplug_net.attachment import OURS, Attachment, of_label
from nodeplug_net.bandwidth.verbs import KIND, label_of
from nodeplug_net.dataplane import names_of_links
from nodeplug_net.firewall.table import FilterTable
from nodeplug_net.ipam.ranges import Address
from nodeplug_net.ipam.store import Owner, Store, parse_address
from nodeplug_net.leftovers.evidence import Leftover, host_ends
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.nftables.masquerade import Element, Masquerade
from nodeplug_net.nftables.sockets import open_nft
from nodeplug_net.nftables.spoof_check import SpoofCheck
from nodeplug_net.portmap.table import PortTable
from nodeplug_net.tuning.backups import BackupFile

_NOBODY = Attachment("", "", "")


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are that are no objects of the kernel.

    Attributes:
        addresses: host-local's folder of networks.
        backups: tuning's.
        run_dir: the daemon's; its plugins' records are below.
    """

    addresses: Path
    backups: Path
    run_dir: Path


def things(places: Places, network: str = "") -> Iterator[Leftover]:
    """List what attachments have, of one network or of all.

    Raises:
        PluginError: a folder of addresses cannot be used.
        OSError: the kernel refuses.
    """
    found = [*addresses(places.addresses, network), *_pairs(), *_rules(places), *_limits()]
    for one in [*found, *_backups(places.backups), *_leases(places)]:
        if network in {"", one.whose.network}:
            yield one


def addresses(data_dir: Path, network: str = "") -> Iterator[Leftover]:
    """List what is reserved below a folder, of one network or of all."""
    for folder in sorted(data_dir.glob("*/")):
        if network and folder.name != network:
            continue
        store = Store(folder)
        with store.locked(create=False) as there:
            found = [(address, owner) for owner in store.owners() for address in store.held(owner)] if there else []
        for address, owner in sorted(found, key=lambda pair: (pair[0].version, int(pair[0]))):
            with suppress(FileNotFoundError):  # released meanwhile
                written = (folder / str(address)).stat().st_mtime
                end = partial(_release, folder, address, owner, written)
                yield Leftover(
                    "address", str(address), Attachment(folder.name, *owner), address=address, written=written, end=end
                )


def _release(folder: Path, address: Address, owner: Owner, written: float) -> bool:
    file, store = folder / str(address), Store(folder)
    with store.locked(create=False) as there, suppress(FileNotFoundError):
        if there and file.stat().st_mtime == written:
            store.release([address], owner)
            return not file.exists()
    return False


def _pairs() -> Iterator[Leftover]:
    for label, name in host_ends():
        yield Leftover(
            "interface", name, _whose(label), label, held="its other end is in a network namespace that exists"
        )


def _rules(places: Places) -> list[Leftover]:
    """List what is masqueraded, checked, forwarded and accepted."""
    recorded = _records(places.run_dir, "ports") | _records(places.run_dir, "firewall")
    with open_nft() as netlink:
        masqueraded = Masquerade(netlink).entries(OURS)
        ports, accepted, checks = PortTable(netlink), FilterTable(netlink), SpoofCheck(netlink).interfaces()
        tables: list[tuple[str, str, PortTable | FilterTable, Callable[[Netlink], PortTable | FilterTable]]] = [
            ("ports", "forwarded", ports, PortTable),
            ("rules", "of table filter", accepted, FilterTable),
        ]
        found = [
            Leftover(
                kind,
                f"{len(table.owned(label))} {words}",
                _whose(label),
                label,
                records=tuple(path for path, whose in recorded.items() if whose == label),
                end=partial(_end_in_table, label, make),
            )
            for kind, words, table, make in tables
            for label in sorted(table.labels(OURS))
        ]
    found += [
        Leftover(
            "masquerading",
            str(one.address),
            _whose(one.label),
            one.label,
            address=one.address,
            end=partial(_end_masquerading, one),
        )
        for one in masqueraded
    ]
    there = names_of_links()  # after the rules: an interface is older than its rule
    return found + [_check_of(name, there) for name in checks]


def _end_in_table(label: str, make: Callable[[Netlink], PortTable | FilterTable]) -> bool:
    with open_nft() as netlink:
        make(netlink).remove(label)
    return True


def _end_masquerading(element: Element) -> bool:
    with open_nft() as netlink:
        Masquerade(netlink).remove([element])
    return True


def _check_of(interface: str, there: frozenset[str]) -> Leftover:
    held = f"interface {interface} exists" if interface in there else ""
    gone = f"interface {interface}, whose frames it checks, is gone"
    return Leftover("check of MACs", interface, _NOBODY, held=held, gone="" if held else gone, end=_sweep_checks)


def _sweep_checks() -> bool:
    with open_nft() as netlink:
        SpoofCheck(netlink).sweep(names_of_links)
    return True


def _limits() -> list[Leftover]:
    with Netlink() as netlink:
        present = [(one, label_of(one)) for one in Links(netlink).all() if one.kind == KIND]
    return [
        Leftover("limit", one.name, _whose(label), label, end=partial(_delete, one)) for one, label in present if label
    ]


def _delete(link: Link) -> bool:
    with Netlink() as netlink:
        links = Links(netlink)
        now = links.get(link.name)
        if now is None or (now.index, now.alias) != (link.index, link.alias):
            return False
        Reaper().delete(now).wait(links)
    return True


def _backups(folder: Path) -> Iterator[Leftover]:
    for path in sorted(folder.glob("*.json")):
        file = BackupFile(path)
        backup = file.read()
        if backup is not None:
            container, _, ifname = path.stem.rpartition("_")
            with suppress(FileNotFoundError):
                written, whose = path.stat().st_mtime, Attachment(backup.network, container, ifname)
                yield Leftover("backup", str(path), whose, written=written, end=partial(_remove_backup, file, written))


def _remove_backup(file: BackupFile, written: float) -> bool:
    with suppress(FileNotFoundError):
        if file.path.stat().st_mtime == written:
            file.remove()
            return True
    return False


def _leases(places: Places) -> Iterator[Leftover]:
    for path, data in _documents(places.run_dir, "leases"):
        with suppress(KeyError, TypeError, ValueError):
            address = parse_address(str(data["lease"]["address"]).partition("/")[0])
            whose = Attachment(*map(str, data["attachment"]))
            yield Leftover("lease", str(address), whose, address=address, records=(path,), end=lambda: True)


def _records(run_dir: Path, folder: str) -> dict[Path, str]:
    """List the labels of what a daemon keeps records of, by file."""
    return {path: str(data.get("label", "")) for path, data in _documents(run_dir, folder)}


def _documents(run_dir: Path, folder: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(run_dir.glob(f"plugins/*/{folder}/*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            yield path, dict(json.loads(read_bounded(path))["data"])


def _whose(label: str) -> Attachment:
    return of_label(label) or Attachment("", label.removeprefix(OURS), "")


def end(one: Leftover, *, daemon: bool) -> bool:
    """End a thing; return whether that was done.

    Args:
        one: the thing.
        daemon: whether one runs, which keeps its records, and would bring back what they name.

    Raises:
        PluginError: it cannot be ended.
        OSError: the kernel or a disk refuses.
    """
    if one.records and daemon:
        return False
    for path in one.records:
        path.unlink(missing_ok=True)
    return one.end()

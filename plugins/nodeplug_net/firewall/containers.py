"""The containers whose packets are accepted: recorded, then written in one transaction, and ended in the other order.

Owns: what each verb does, and what is left to do after the daemon was killed or rules were flushed.
Refuses: hooks and configuration (`plugin`, `config`).
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniRequest, CniStatus, Host
from nodeplug_net.attachment import OURS, Attachment, network_label
from nodeplug_net.dataplane import names_of_links
from nodeplug_net.firewall.config import Address, FirewallConf, Wanted
from nodeplug_net.firewall.messages import Rule
from nodeplug_net.firewall.obstacles import refuse_obstacles
from nodeplug_net.firewall.rules import Entry
from nodeplug_net.firewall.table import FilterTable
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.nftables.sockets import Identity, NftSockets, open_nft
from nodeplug_net.records import ADDING, Record, Records
from nodeplug_net.reference.firewall_iptables import LegacyFirewall
from nodeplug_net.undo import Errors, Undo

if TYPE_CHECKING:
    import logging

RECORDS: Final = "firewall"
"""The folder of the records, below the plugin's own in /run."""
_AGAIN: Final = "the next STATUS or GC of a network with the firewall restores them"


class Containers:
    """The containers of one plugin. Any thread may call it."""

    def __init__(self, host: Host) -> None:
        self._log: logging.LoggerAdapter[logging.Logger] = host.log
        self._nft = NftSockets(Reaper())
        self._records = Records.of_host(host, RECORDS, Wanted.decode)
        self._changing = threading.Lock()

    def recover(self, home: Identity) -> None:
        """Take over what an earlier daemon did in this boot, in the namespace that the calling thread is in.

        Raises:
            OSError: the kernel refuses.
        """
        self._records.recover()
        found = self._records.of(home)
        if not found:
            return
        with open_nft() as netlink:
            table = FilterTable(netlink)
            unfinished = [one.label for one in found if one.phase == ADDING]
            table.remove(*unfinished)
            for label in unfinished:
                self._records.forget(home, label)
            table.mend(lambda: self._entries(home))

    def close(self) -> None:
        """Close idle sockets."""
        self._nft.close()

    def add(self, request: CniAdd, wanted: Wanted, backend: str) -> None:
        """Accept the packets of an attachment; a failure leaves what was before.

        Raises:
            PluginError: something else on this host would drop them, or the record cannot be written.
            OSError: the kernel refuses.
        """
        if not wanted.addresses:
            return
        namespace, entry = request.host_netns.identity, Entry(Attachment.of(request).label, wanted)
        with self._nft.lent(request.host_netns) as netlink:
            refuse_obstacles(netlink, backend, wanted.versions)
        with Undo(self._log) as undo:
            former = self._records.get(namespace, entry.label)
            undo.push(f"undo the rules of {entry.label}", lambda: self._withdraw(request, entry.label, former))
            self._records.note(Record(namespace, entry.label, wanted, ADDING))
            with self._table(request) as table:
                table.add(entry)
            self._records.note(Record(namespace, entry.label, wanted))

    def _withdraw(self, request: CniAdd, label: str, former: Record[Wanted] | None) -> None:
        """Return to what was before an ADD; what cannot be removed keeps its unfinished record."""
        with self._table(request) as table:
            if former is None or former.phase == ADDING:
                table.remove(label)
                self._records.forget(request.host_netns.identity, label)
            else:
                table.add(Entry(label, former.wanted))
                self._records.note(former)

    def delete(self, request: CniDel) -> None:
        """End what is accepted for an attachment; needs no result and no namespace.

        Raises:
            PluginError: something is left; the runtime will repeat DEL.
            OSError: the kernel refuses.
        """
        label = Attachment.of(request).label
        with self._table(request) as table:
            theirs = self._records.are_leaving or not table.owned(label)
        self._end(request, label)
        if theirs and request.prev_result is not None:
            self._end_reference(request, [one.address.ip for one in request.prev_result.ips])

    def _end(self, request: CniRequest, label: str) -> None:
        namespace = request.host_netns.identity
        with self._changing:  # from here on nothing brings the rules back
            self._records.end(namespace, label)
        record = self._records.get(namespace, label)
        with self._table(request) as table:
            table.remove(label)
        if record is not None and self._records.are_leaving:
            self._end_reference(request, record.wanted.addresses)
        self._records.forget(namespace, label)

    def _end_reference(self, request: CniRequest, addresses: Iterable[Address]) -> None:
        """End what the reference accepts for addresses, whose rules name nobody."""
        own = list(dict.fromkeys(addresses))
        with self._table(request) as table:
            table.remove_unlabelled(own)
        LegacyFirewall(self._log).remove(own)

    def differences(self, request: CniCheck, wanted: Wanted) -> list[str]:
        """Name what is not as ADD left it; rules that the reference wrote count.

        Raises:
            OSError: the kernel refuses.
        """
        entry = Entry(Attachment.of(request).label, wanted)
        with self._table(request) as table:
            found = table.missing([entry], unlabelled=True)
        return list(map(_told, found)) if found and not LegacyFirewall(self._log).accepts(wanted.addresses) else []

    def collect(self, request: CniGc) -> None:
        """End what belongs to no valid attachment of this network, and restore the rules of the others.

        Raises:
            PluginError: with every failure; the rest is done.
            OSError: the kernel refuses.
        """
        errors, namespace, prefix = Errors(), request.host_netns.identity, network_label(request.network)
        if request.valid is not None:
            valid = {Attachment(request.network, one.container_id, one.ifname).label for one in request.valid}
            with self._table(request) as table:
                present = table.labels(prefix)
            present |= {one.label for one in self._records.of(namespace) if one.label.startswith(prefix)}
            for label in sorted(present - valid):
                with errors.kept():
                    self._end(request, label)
        with errors.kept(), self._table(request) as table:
            self._mend(table, namespace)
            isolated = {one.wanted.bridge for one in self._entries(namespace)}
            table.sweep(isolated | names_of_links())
        errors.raise_all()

    def mend(self, request: CniStatus, conf: FirewallConf) -> None:
        """Restore what the containers of the request's host lost.

        Raises:
            PluginError: an ADD would fail; the message says why.
            OSError: the kernel refuses.
        """
        namespace = request.host_netns.identity
        with self._table(request) as table:
            missing = table.missing(self._entries(namespace))
            if missing:
                self._log.warning("%s; restored", _summary(missing))
                self._mend(table, namespace)
        with self._nft.lent(request.host_netns) as netlink:
            refuse_obstacles(netlink, conf.backend, (4, 6))

    def has_any(self, namespace: Identity) -> bool:
        """Whether packets of an attachment of a host's namespace are accepted."""
        return bool(self._records.of(namespace))

    def restore(self, home: Identity) -> None:
        """Restore the rules that containers of the namespace lost that the calling thread is in.

        Raises:
            PluginError: others keep changing the table.
            OSError: the kernel refuses.
        """
        with open_nft() as netlink:
            self._mend(FilterTable(netlink), home)

    def missing(self, home: Identity) -> list[str]:
        """Name what containers of the namespace lost that the calling thread is in.

        Raises:
            OSError: the kernel refuses.
        """
        entries = self._entries(home)
        if not entries:
            return []
        with open_nft() as netlink:
            missing = FilterTable(netlink).missing(entries)
        return [f"{_summary(missing)}; {_AGAIN}"] if missing else []

    def _mend(self, table: FilterTable, namespace: Identity) -> None:
        """Restore what attachments lack, those excepted that end: a DEL that begins meanwhile waits, and removes it."""
        with self._changing:
            table.mend(lambda: self._entries(namespace))

    def _entries(self, namespace: Identity) -> list[Entry]:
        """Compose what the kernel is to have for the attachments of a namespace."""
        return [Entry(one.label, one.wanted) for one in self._records.attached(namespace)]

    @contextmanager
    def _table(self, request: CniRequest) -> Iterator[FilterTable]:
        """Open the table of the request's host namespace, which the calling thread is in."""
        with self._nft.lent(request.host_netns) as netlink:
            yield FilterTable(netlink)


def _told(rule: Rule) -> str:
    """Say what a missing rule means, with its chain."""
    (kind, value), family = rule.parts[0], "ip" if rule.version == 4 else "ip6"
    where = f"of table {family} filter"
    if kind in {"to", "from"}:
        what = f"answers to {value} are" if kind == "to" else f"packets from {value} are"
        return f"{what} not accepted: chain {rule.chain} {where} has no such rule"
    about = f" about {value}" if kind in {"in", "out"} else f" that jumps to {value}" if kind == "jump" else ""
    return f"chain {rule.chain} {where} has lost its rule{about}"


def _summary(missing: list[Rule]) -> str:
    owners = sorted({rule.comment for rule in missing if rule.comment.startswith(OURS)})
    whose = f", those of {', '.join(owners)} among them" if owners else ""
    return f"table filter lost {len(missing)} rules of the firewall{whose}"

"""The ports of hosts that lead to containers: reserved, recorded, forwarded, in this order, and ended in the other.

Owns: what each verb does, and what is left to do after the daemon was killed or rules were flushed.
Refuses: hooks and configuration (`plugin`, `config`), and work for a container without port mappings.

Whatever ends the daemon within an ADD, the record says what to remove: the transaction is whole or absent, and a socket
ends with the daemon, or is found again in what the host keeps.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniRequest, CniStatus, Host, InvalidRequest, PluginError, TryAgain
from nodeplug_net.attachment import Attachment, network_label, of_label
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.nftables.sockets import Identity, NftSockets, open_nft
from nodeplug_net.portmap import conntrack
from nodeplug_net.portmap.config import Forward, Mappings, Wanted, asks_for_ports, parse_portmap, targets
from nodeplug_net.portmap.reservations import Port, Reservations
from nodeplug_net.portmap.table import Entry, PortTable, entry_of
from nodeplug_net.records import ADDING, Record, Records
from nodeplug_net.reference.ports import ReferencePorts
from nodeplug_net.sysctl import get_sysctl, set_sysctl
from nodeplug_net.undo import Errors, Undo

if TYPE_CHECKING:
    import logging

_BEHIND: Final = 1.0
"""Seconds between the end of a port and that of its connections."""
_GO_ON: Final = "connections to former owners of host ports go on: %s"
RECORDS: Final = "ports"
"""The folder of the records, below the plugin's own in /run."""
_AGAIN: Final = "the next ADD, STATUS or GC of a network with port mappings restores it"


class HostPorts:
    """The host ports of one plugin. Any thread may call it.

    Args:
        host: what the plugin may use of the daemon's.
        reserve: whether each port is bound, so that no program of the host takes it.
    """

    def __init__(self, host: Host, *, reserve: bool = True) -> None:
        self._log: logging.LoggerAdapter[logging.Logger] = host.log
        self._nft = NftSockets(Reaper())
        self._sweeper = Reaper(limit=1)
        self._records = Records.of_host(host, RECORDS, Wanted.decode)
        self._reservations = Reservations(host.sockets, reserve)
        self._recovered: set[Identity] = set()
        self._lock = threading.Lock()
        self._changing = threading.Lock()

    def recover(self, home: Identity) -> None:
        """Take over what an earlier daemon did in this boot, in the namespace that the calling thread is in.

        Raises:
            OSError: the kernel refuses.
        """
        self._records.recover()
        known = [one for one in self._records.all() if one.phase != ADDING]
        ports = [(one.namespace, Port.of(forward)) for one in known for forward in one.wanted.mappings().forwards]
        self._reservations.release_others(ports)
        if self._records.of(home):
            with open_nft() as netlink:
                self._recover(home, PortTable(netlink))

    def close(self) -> None:
        """Close idle sockets. The ports stay reserved for who comes next."""
        self._nft.close()

    def add(self, request: CniAdd, wanted: Wanted) -> None:
        """Forward the ports of an attachment; a failure leaves nothing behind.

        Raises:
            TryAgain: somebody has one of the ports; the message says who.
            PluginError: the record cannot be written.
            OSError: the kernel refuses.
        """
        mappings = wanted.mappings()
        if not mappings.forwards:
            return
        namespace, label = request.host_netns.identity, Attachment.of(request).label
        with self._table(request) as table, Undo(self._log) as undo:
            former = self._records.get(namespace, label)
            undo.push(f"undo the host ports of {label}", lambda: self._withdraw(request, label, former))
            self._records.note(Record(namespace, label, wanted, ADDING))
            with self._changing:
                self._reservations.take(namespace, label, map(Port.of, mappings.forwards))
            self._forward(table, namespace, entry_of(mappings, label), again=former is not None)
            if mappings.localhost:
                _cross_from_localhost(mappings)
            self._forget(request, conntrack.forget_before, mappings.forwards)
            self._records.note(Record(namespace, label, wanted))

    def _withdraw(self, request: CniAdd, label: str, former: Record[Wanted] | None) -> None:
        """Return to what was before an ADD; what cannot be removed keeps its unfinished record."""
        if former is None or former.phase == ADDING:
            self._remove(request, label)
            self._release(request.host_netns.identity, label)
            return
        mappings = former.wanted.mappings()
        with self._table(request) as table:
            self._forward(table, former.namespace, entry_of(mappings, label), again=True)
        with self._changing:
            self._reservations.take(former.namespace, label, map(Port.of, mappings.forwards))
            self._records.note(former)

    def _forward(self, table: PortTable, namespace: Identity, entry: Entry, *, again: bool) -> None:
        table.add(entry, lambda near: self._mend(table, namespace, near), again=again)

    def _release(self, namespace: Identity, label: str) -> None:
        with self._changing:
            self._reservations.release(namespace, label)
            self._records.forget(namespace, label)

    def delete(self, request: CniDel) -> None:
        """End the forwarding of an attachment's ports, whether or not the request names them.

        Raises:
            PluginError: something is left; the runtime will repeat DEL.
            OSError: the kernel refuses.
        """
        attachment = Attachment.of(request)
        record = self._records.get(request.host_netns.identity, attachment.label)
        if record is None and not asks_for_ports(request):
            return
        errors, removed = Errors(), False
        with errors.kept():
            removed = self._end(request, attachment.label, record)
        if not removed or self._records.are_leaving:  # the reference made them, or they are handed over to it
            with errors.kept(), self._reference(request) as reference:
                result = request.prev_result
                reference.end(attachment, [one.ip for one in targets(result, request.ifname)] if result else [])
        errors.raise_all()

    def _end(self, request: CniRequest, label: str, record: Record[Wanted] | None) -> bool:
        """End what is known and what the table has of an attachment; return whether the table had something."""
        namespace, errors, removed = request.host_netns.identity, Errors(), False
        with self._changing:  # from here on nothing brings the ports back
            self._records.end(namespace, label)
        with errors.kept():
            removed = self._remove(request, label)
            if record is not None:
                self._forget_later(namespace, record.wanted.mappings().forwards)
            self._release(namespace, label)
        errors.raise_all()
        return removed

    def differences(self, request: CniCheck, wanted: Wanted) -> list[str]:
        """Name what is not as ADD left it.

        Raises:
            OSError: the kernel refuses.
        """
        mappings, label = wanted.mappings(), Attachment.of(request).label
        if not mappings.forwards:
            return []
        with self._table(request) as table:
            found = table.differences(entry_of(mappings, label))
        if found:
            attachment = Attachment.of(request)
            with self._reference(request) as reference:
                if all(reference.covers(attachment, forward) for forward in mappings.forwards):
                    found = []
        for link in _interfaces(mappings) if mappings.localhost else ():
            if get_sysctl(f"ipv4/conf/{link}/route_localnet") == "0":
                found.append(f"connections from 127.0.0.1 do not reach {link}: its route_localnet is 0")
        return found

    def collect(self, request: CniGc) -> None:
        """End the ports of this network that belong to no valid attachment, and restore those of the others.

        Raises:
            PluginError: with every failure; the rest is done.
            OSError: the kernel refuses.
        """
        errors, namespace, prefix = Errors(), request.host_netns.identity, network_label(request.network)
        self._release_removed()
        if request.valid is not None:
            valid = {Attachment(request.network, one.container_id, one.ifname).label for one in request.valid}
            with self._table(request) as table:
                present = table.labels(prefix)
            present |= {one.label for one in self._records.of(namespace) if one.label.startswith(prefix)}
            for label in sorted(present - valid):
                record, whose = self._records.get(namespace, label), of_label(label)
                with errors.kept():
                    self._end(request, label, record)
                if record is not None and whose is not None and self._records.are_leaving:
                    with errors.kept(), self._reference(request) as reference:
                        reference.end(whose, [one.ip for one in record.wanted.targets])
            with errors.kept(), self._reference(request) as reference:
                reference.collect(request.network, {one.container_id for one in request.valid})
        with errors.kept(), self._table(request) as table:
            self._mend(table, namespace)
            table.prune()
        errors.raise_all()

    def mend(self, request: CniStatus) -> None:
        """Restore what the containers of the request's host lost: rules, and reservations.

        Raises:
            OSError: the kernel refuses.
        """
        namespace = request.host_netns.identity
        self._release_removed()
        records = self._records.of(namespace)
        if not records:
            return
        with self._table(request) as table:
            missing = table.missing(self._entries(namespace))
            if missing:
                self._log.warning("%s; it is restored", "; ".join(missing))
                self._mend(table, namespace)
        for record in records:
            self._reserve(record)

    def has_any(self, namespace: Identity) -> bool:
        """Whether an attachment of a host's namespace has ports."""
        return bool(self._records.of(namespace))

    def restore(self, home: Identity) -> None:
        """Restore the rules that containers of the namespace lost that the calling thread is in.

        Raises:
            PluginError: others keep changing the table.
            OSError: the kernel refuses.
        """
        with open_nft() as netlink:
            self._mend(PortTable(netlink), home)

    def missing(self, home: Identity) -> list[str]:
        """Name what containers of the namespace lost that the calling thread is in.

        Raises:
            OSError: the kernel refuses.
        """
        self._release_removed()
        entries = self._entries(home)
        if not entries:
            return []
        with open_nft() as netlink:
            return [f"{one}; {_AGAIN}" for one in PortTable(netlink).missing(entries)]

    def _release_removed(self) -> None:
        """Release the ports of attachments that were handed over, whose records are gone."""
        with self._changing:
            self._reservations.release_unknown({(one.namespace, one.label) for one in self._records.all()})

    def _mend(self, table: PortTable, namespace: Identity, near: Sequence[str] = ()) -> None:
        """Restore what attachments lack, those excepted that end: a DEL that begins meanwhile waits, and removes it."""
        with self._changing:
            table.mend(lambda: self._entries(namespace), near)

    def _entries(self, namespace: Identity) -> list[Entry]:
        """Compose what the kernel is to have for the attachments of a namespace."""
        return [entry_of(one.wanted.mappings(), one.label) for one in self._records.attached(namespace)]

    def _recover(self, namespace: Identity, table: PortTable) -> None:
        with self._lock:
            if namespace in self._recovered:
                return
            for record in self._records.of(namespace):
                if record.phase == ADDING:
                    table.remove(record.label)
                    self._records.forget(namespace, record.label)
                elif not self._reserve(record):
                    self._log.warning("the host ports of %r are not reserved, and go on to lead there", record.label)
            if self._entries(namespace):
                self._mend(table, namespace)
            else:
                table.prune()
            self._recovered.add(namespace)

    def _reserve(self, record: Record[Wanted]) -> bool:
        """Reserve the ports of an attachment that has not ended, nor changed, since its record was read."""
        ports = map(Port.of, record.wanted.mappings().forwards)
        try:
            with self._changing:
                if record.phase != ADDING and self._records.get(record.namespace, record.label) is record:
                    self._reservations.take(record.namespace, record.label, ports)
        except (OSError, TryAgain) as error:
            self._log.debug("%s", error)
            return False
        return True

    @contextmanager
    def _table(self, request: CniRequest) -> Iterator[PortTable]:
        """Open the table of the request's host namespace, which the calling thread is in."""
        with self._nft.lent(request.host_netns) as netlink:
            table = PortTable(netlink)
            self._recover(request.host_netns.identity, table)
            yield table

    @contextmanager
    def _reference(self, request: CniRequest) -> Iterator[ReferencePorts]:
        """Open what the reference's portmap wrote into the request's host namespace."""
        with self._nft.lent(request.host_netns) as netlink:
            yield ReferencePorts(netlink, self._log)

    def _remove(self, request: CniRequest, label: str) -> bool:
        with self._table(request) as table:
            return table.remove(label)

    def _forget(
        self, request: CniRequest, forget: Callable[[Netlink, Sequence[Forward]], int], forwards: Sequence[Forward]
    ) -> None:
        """Delete connections; a failure is said and no more, since they end by themselves."""
        try:
            with self._nft.lent(request.host_netns) as netlink:
                forget(netlink, forwards)
        except (OSError, PluginError) as error:
            self._log.warning(_GO_ON, error)

    def _forget_later(self, namespace: Identity, forwards: Sequence[Forward]) -> None:
        """Delete the connections of ports that lead nowhere any more, a moment later and in the background.

        The kernel walks through its whole table for each port and version of IP, ten milliseconds each, on a processor
        that the rest of the pod's end needs now. Nobody waits for what that finds: an ADD that gets one of the ports
        looks by itself.
        """
        netlink, due = self._nft.take(namespace), time.monotonic() + _BEHIND  # the calling thread is in that namespace

        def sweep() -> None:
            time.sleep(max(due - time.monotonic(), 0.0))
            try:
                conntrack.forget_after(netlink, forwards)
            except OSError as error:
                netlink.close()
                self._log.warning(_GO_ON, error)
            else:
                self._nft.give_back(namespace, netlink)

        self._sweeper.later(sweep)


def _interfaces(mappings: Mappings) -> list[str]:
    """Return the host's interfaces by which the containers' IPv4 addresses are reached."""
    targets = dict.fromkeys(one.target for one in mappings.forwards if isinstance(one.target, IPv4Address))
    with Netlink() as netlink:
        found = [Links(netlink).towards(target) for target in targets]
    return [link.name for link in found if link is not None]


def _cross_from_localhost(mappings: Mappings) -> None:
    """Let packets from 127.0.0.1 leave by the containers' interface: the kernel takes them for martians otherwise.

    Raises:
        OSError: the setting cannot be written.
    """
    for link in _interfaces(mappings):
        set_sysctl(f"ipv4/conf/{link}/route_localnet", "1")


def parsed(request: CniAdd | CniCheck) -> Wanted:
    """Read a request; the sentence of a mistake is the reference's.

    Raises:
        InvalidRequest: a key is wrong.
    """
    try:
        return parse_portmap(request)
    except InvalidRequest as error:
        if isinstance(request, CniCheck):
            raise
        raise InvalidRequest(f"failed to parse config: {error}") from error

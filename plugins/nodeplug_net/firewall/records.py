"""What is known of attachments whose packets are accepted: one record each, until they end.

Owns: the records, in the plugin's folder below /run, where they end with the boot as the containers do; and which of
them belong to a host's namespace.
Refuses: to be the truth about the kernel. A record says what was asked, so that rules come back that somebody flushed.
One that an ADD left unfinished says what to remove.
"""

import threading
from dataclasses import dataclass, replace
from typing import Final

from nodeplug import Host
from nodeplug_net.firewall.config import Wanted
from nodeplug_net.firewall.rules import Entry
from nodeplug_net.nftables.sockets import Identity

ADDING: Final = "adding"
ACCEPTED: Final = "accepted"


@dataclass(frozen=True, slots=True)
class Record:
    """One attachment.

    Attributes:
        namespace: of its host.
        entry: its label, and what it asked for.
        phase: `ADDING` until ADD has done everything, and from when DEL begins.
    """

    namespace: Identity
    entry: Entry
    phase: str = ACCEPTED


class Records:
    """The records of one plugin. Any thread may call it."""

    def __init__(self, host: Host) -> None:
        self._journal = replace(host.journal, folder=host.run_dir / "firewall")
        self._known: dict[tuple[Identity, str], Record] = {}
        self._lock = threading.Lock()

    def recover(self) -> None:
        """Read what was recorded in this boot, and remove all else."""
        for found in self._journal.entries():
            try:
                device, inode = found.data["namespace"]
                entry = Entry(found.data["label"], Wanted.decode(found.data))
                record = Record((device, inode), entry, found.phase)
            except (ValueError, KeyError, TypeError):
                record = None
            if record is None or self._journal.is_stale(found):
                self._journal.remove(found.key)
            else:
                self._known[record.namespace, record.entry.label] = record

    def note(self, record: Record) -> None:
        """Record an attachment.

        Raises:
            PluginError: the folder cannot be written.
        """
        label = record.entry.label
        data = {"namespace": list(record.namespace), "label": label, **record.entry.wanted.encode()}
        self._journal.write(_key(record.namespace, label), phase=record.phase, data=data)
        with self._lock:
            self._known[record.namespace, label] = record

    def forget(self, namespace: Identity, label: str) -> None:
        """Remove the record of an attachment; succeed when there is none."""
        if (namespace, label) in self._known:
            self._journal.remove(_key(namespace, label))
        with self._lock:
            self._known.pop((namespace, label), None)

    def end(self, namespace: Identity, label: str) -> None:
        """Let an attachment count as unfinished from now on, until the daemon ends or the attachment does."""
        with self._lock:
            found = self._known.get((namespace, label))
            if found is not None:
                self._known[namespace, label] = replace(found, phase=ADDING)

    def get(self, namespace: Identity, label: str) -> Record | None:
        """Return the record of an attachment."""
        return self._known.get((namespace, label))

    def of(self, namespace: Identity) -> list[Record]:
        """Return the attachments of a host's namespace."""
        with self._lock:
            return [one for one in self._known.values() if one.namespace == namespace]

    def entries(self, namespace: Identity) -> list[Entry]:
        """Return what the kernel is to have for the attachments of a host's namespace."""
        return [one.entry for one in self.of(namespace) if one.phase != ADDING]


def _key(namespace: Identity, label: str) -> str:
    device, inode = namespace
    return f"{label}@{device}:{inode}"

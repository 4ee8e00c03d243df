"""What is known of a plugin's attachments beyond the kernel's state: one record each, until they end.

Owns: the records, in a folder of the plugin's below /run, where they end with the boot as the containers do; and which
of them belong to a host's namespace.
Refuses: to be the truth about the kernel. A record says what was asked, so that what somebody flushed comes back, also
after the daemon was killed. One that an ADD left unfinished says what to remove. One whose file somebody removes is
forgotten by the daemon that runs: so attachments are handed over to the reference's plugins.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from nodeplug import Host, Journal, PluginError
from nodeplug_net.nftables.sockets import Identity

ADDING: Final = "adding"
ATTACHED: Final = "attached"
LEAVING: Final = "to-reference"
"""A file beside the records while attachments are handed over to the reference's plugins: they may have its rules and
ours. It stays when that is cut off."""
_SETTLED: Final = 0.1
"""Seconds after which a folder that changes has another time of change; the kernel's clock of files ticks slowly."""


class Wanted(Protocol):
    """What an attachment asked a plugin for, as a record keeps it."""

    def encode(self) -> Mapping[str, Any]:
        """Return keys and values for JSON."""


W = TypeVar("W", bound=Wanted)


@dataclass(frozen=True, slots=True)
class Record(Generic[W]):
    """One attachment.

    Attributes:
        namespace: of its host.
        label: of the attachment.
        wanted: what it asked for.
        phase: `ADDING` until ADD has done everything, and from when DEL begins.
    """

    namespace: Identity
    label: str
    wanted: W
    phase: str = ATTACHED


class Records(Generic[W]):
    """The records of one plugin. Any thread may call it.

    Args:
        journal: in their folder.
        decode: reads what `Wanted.encode` returned, among other keys; ValueError, KeyError or TypeError if it is none.
    """

    def __init__(self, journal: Journal, decode: Callable[[Mapping[str, Any]], W]) -> None:
        self._journal, self._decode = journal, decode
        self._known: dict[tuple[Identity, str], Record[W]] = {}
        self._seen = 0
        self._lock = threading.Lock()

    @classmethod
    def of_host(cls, host: Host, folder: str, decode: Callable[[Mapping[str, Any]], W]) -> "Records[W]":
        """Return those of a plugin, in a folder of this name below the plugin's own in /run."""
        return cls(replace(host.journal, folder=host.run_dir / folder), decode)

    def recover(self) -> None:
        """Read what was recorded in this boot, and remove all else."""
        for key in self.read():
            self._journal.remove(key)

    def read(self) -> list[str]:
        """Read what was recorded in this boot; return the keys of all else."""
        useless = []
        for entry in self._journal.entries():
            try:
                device, inode = entry.data["namespace"]
                record = Record((device, inode), entry.data["label"], self._decode(entry.data), entry.phase)
            except (ValueError, KeyError, TypeError):
                record = None
            if record is None or self._journal.is_stale(entry):
                useless.append(entry.key)
            else:
                self._known[record.namespace, record.label] = record
        return useless

    def note(self, record: Record[W]) -> None:
        """Record an attachment.

        Raises:
            PluginError: the folder cannot be written.
        """
        data = {"namespace": list(record.namespace), "label": record.label, **record.wanted.encode()}
        key = _key(record.namespace, record.label)
        try:
            self._journal.write(key, phase=record.phase, data=data)
        except PluginError:
            if self.get(record.namespace, record.label) is None:
                self._journal.remove(key)  # it may be there, and only not be durable: nobody would ask for its end
            raise
        with self._lock:
            self._known[record.namespace, record.label] = record

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

    @property
    def are_leaving(self) -> bool:
        """Whether attachments are being handed over, or that was cut off: who ends one ends both kinds of rules."""
        return (self._journal.folder / LEAVING).exists()

    def get(self, namespace: Identity, label: str) -> Record[W] | None:
        """Return the record of an attachment."""
        return self._known.get((namespace, label))

    def all(self) -> list[Record[W]]:
        """Return the attachments of all hosts' namespaces."""
        self._forget_removed()
        with self._lock:
            return list(self._known.values())

    def of(self, namespace: Identity) -> list[Record[W]]:
        """Return the attachments of a host's namespace."""
        return [one for one in self.all() if one.namespace == namespace]

    def attached(self, namespace: Identity) -> list[Record[W]]:
        """Return the attachments of a host's namespace that are to be there: ADD is through, and DEL not begun."""
        return [one for one in self.of(namespace) if one.phase != ADDING]

    def _forget_removed(self) -> None:
        """Forget the attachments whose files somebody removed; without the folder, none."""
        folder = self._journal.folder
        try:
            changed = folder.stat().st_mtime_ns
            if changed == self._seen:
                return
            with self._lock:
                before = dict(self._known)
            there = sum(path.suffix == ".json" for path in folder.iterdir())
        except OSError:
            return
        if there < len(before):
            present = {entry.key for entry in self._journal.entries()}
            with self._lock:
                for (namespace, label), record in before.items():
                    if _key(namespace, label) not in present and self._known.get((namespace, label)) is record:
                        del self._known[namespace, label]
        if time.time() - changed / 1e9 > _SETTLED:
            self._seen = changed


def _key(namespace: Identity, label: str) -> str:
    device, inode = namespace
    return f"{label}@{device}:{inode}"

"""Addresses that wait for a pod to come back: who had which, and until when nobody else is given it.

Owns: one journal record per pod and interface of a network that asks for it (`ipam.keepFor`), written by ADD.
Refuses: promises, and errors. A pod that comes back while somebody else has its address gets another one; when all
others are taken, a waiting address goes to whoever comes: a pod that starts is worth more than one that may; and a disk
that takes no record keeps no pod from its start.

Nobody says when a pod is gone for good, or whether its DEL will come: an address counts as waiting from the first ADD
of its network that finds it free.
"""

import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from nodeplug import CniAttachmentRequest, Entry, Host, PluginError
from nodeplug_net.ipam.ranges import Address

Workload = tuple[str, str, str]
"""Namespace and name of a pod, and its interface."""


def workload_of(request: CniAttachmentRequest) -> Workload | None:
    """Return whose attachment it is, as kubelet's runtimes say in CNI_ARGS; None for others."""
    args = request.args
    namespace, name = args.get("K8S_POD_NAMESPACE", ""), args.get("K8S_POD_NAME", "")
    return (namespace, name, request.ifname) if namespace and name else None


@dataclass(frozen=True, slots=True)
class Record:
    """What one workload had.

    Attributes:
        addresses: in the order of the network's range sets.
        seconds: for how long they wait.
        since: when they were first found free, in seconds since the epoch; None while they are in use.
    """

    addresses: tuple[Address, ...]
    seconds: float
    since: float | None = None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> "Record":
        """Read what `data` wrote; raises KeyError, TypeError or ValueError for anything else."""
        since = data["since"]
        addresses = tuple(ip_address(str(one)) for one in data["addresses"])
        return cls(addresses, float(data["seconds"]), None if since is None else float(since))

    def data(self) -> dict[str, Any]:
        """Return it as the journal keeps it."""
        return {"addresses": list(map(str, self.addresses)), "seconds": self.seconds, "since": self.since}


@dataclass(slots=True)
class Kept:
    """The records of one plugin. The lock of a network's folder is held by whoever asks about it."""

    host: Host
    now: Callable[[], float] = time.time
    _folders: dict[Path, dict[Workload, Record]] | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def of(self, folder: Path, workload: Workload) -> tuple[Address, ...]:
        """Return what a workload had, or has."""
        record = self._records(folder).get(workload)
        return record.addresses if record is not None else ()

    def waiting(self, folder: Path, workload: Workload | None, taken: Mapping[int, AbstractSet[int]]) -> set[Address]:
        """Return the free addresses that wait for other workloads; forget those that have waited for long enough.

        Args:
            folder: of the network.
            workload: whose do not count.
            taken: the numbers of the addresses in use, by family.
        """
        found: set[Address] = set()
        for one, record in list(self._records(folder).items()):
            free = {address for address in record.addresses if int(address) not in taken[address.version]}
            if not free:
                if record.since is not None:
                    self._write(folder, one, replace(record, since=None))
            elif record.since is None:
                self._write(folder, one, replace(record, since=self.now()))
            elif self.now() - record.since > record.seconds:
                self._forget(folder, one)
                continue
            if one != workload:
                found |= free
        return found

    def note(self, folder: Path, workload: Workload, addresses: tuple[Address, ...], seconds: float) -> None:
        """Record what a workload has now, and that nobody else waits for it."""
        for one, record in list(self._records(folder).items()):
            if one != workload and set(record.addresses) & set(addresses):
                self._forget(folder, one)
        if self._records(folder).get(workload) != (record := Record(addresses, seconds)):
            self._write(folder, workload, record)

    def _records(self, folder: Path) -> dict[Workload, Record]:
        with self._reading:
            if self._folders is None:
                self._folders = {}
                for entry in self.host.journal.entries():
                    if entry.phase == "kept" and (one := _read(entry)) is not None:
                        where, workload, record = one
                        self._folders.setdefault(where, {})[workload] = record
            return self._folders.setdefault(folder, {})

    def _write(self, folder: Path, workload: Workload, record: Record) -> None:
        self._records(folder)[workload] = record
        data = {"folder": str(folder), "workload": list(workload), **record.data()}
        try:
            self.host.journal.write(_key(folder, workload), phase="kept", data=data)
        except PluginError as error:
            self.host.log.warning("the addresses of pod %s/%s are not noted: %s", *workload[:2], error)

    def _forget(self, folder: Path, workload: Workload) -> None:
        self._records(folder).pop(workload, None)
        self.host.journal.remove(_key(folder, workload))


def _key(folder: Path, workload: Workload) -> str:
    return f"kept {folder} {' '.join(workload)}"


def _read(entry: Entry) -> tuple[Path, Workload, Record] | None:
    """Read a record; one that makes no sense counts as none."""
    try:
        namespace, name, ifname = map(str, entry.data["workload"])
        return Path(str(entry.data["folder"])), (namespace, name, ifname), Record.read(entry.data)
    except (KeyError, TypeError, ValueError):
        return None

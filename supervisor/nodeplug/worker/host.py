"""The `Host` of a plugin that runs in a worker: every request goes to the daemon, which has the real one.

Owns: asking on the channel of the call in whose thread the plugin asks, or on one of its own; the log records.
Refuses: state: the journal's files, who holds what and other plugins are the daemon's.
"""

import builtins
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import Any, Final

from nodeplug.contract.cgroups import ProgramCgroups
from nodeplug.contract.errors import PluginError, TryAgain, clip
from nodeplug.contract.host import FormerSection, Host
from nodeplug.contract.journal import Entry, Journal
from nodeplug.contract.sockets import KeptSockets
from nodeplug.contract.tracebacks import traced
from nodeplug.contract.values import CniRecord, CniRequest, CniResult, Holding, ResourceName
from nodeplug.worker.asked_networks import AskedNetworks
from nodeplug.worker.asked_scheduling import AskedScheduling
from nodeplug.worker.encoding import Stray, read_error, read_holdings, read_records, read_result, write_delegated
from nodeplug.worker.wire import Broken, Channel, Closed, Control, Message, NoDescriptorLeft

REQUEST: Final[ContextVar[str]] = ContextVar("nodeplug_request", default="")
"""The id of the request in which the plugin runs."""
_TEXT: Final = 4096
_TRACE: Final = 12 << 10


class Asking(local):
    """The channel of the call that runs in this thread."""

    channel: Channel | None = None


@dataclass(frozen=True, slots=True)
class Door:
    """The way from a plugin to the daemon. Any thread may use it."""

    control: Control
    here: Asking = field(default_factory=Asking)

    def ask(self, message: Message) -> Message:
        """Ask the daemon, and wait for its answer.

        Raises:
            TryAgain: the daemon has gone, or one of the two processes may open no more files.
            PluginError, OSError: what the daemon's own `Host` raised.
        """
        try:
            if self.here.channel is not None:
                return self._ask(self.here.channel, message, first=False)
            channel = self.control.open({"op": "ask"})
            try:
                return self._ask(channel, message, first=True)
            finally:
                channel.close()
        except NoDescriptorLeft as error:
            raise TryAgain(
                f"the plugin's process could not receive an answer: {error}; close files that it does not need"
            ) from None
        except Closed:
            raise TryAgain(
                "the daemon did not answer: it has ended, is ending this process, or has no free file descriptor"
            ) from None

    def _ask(self, channel: Channel, message: Message, *, first: bool) -> Message:
        channel.send(message, first=first)
        answer = channel.receive()
        if answer.op == "answer":
            return answer
        error = read_error(answer)
        if isinstance(error, Stray):
            kind = getattr(builtins, error.kind, None)
            if isinstance(kind, type) and issubclass(kind, OSError):
                raise kind(str(error))
            raise PluginError(f"the daemon failed: {error.kind}: {error}")
        raise error


@dataclass(frozen=True, slots=True)
class AskedJournal(Journal):
    """A journal whose records the daemon reads and writes.

    Attributes:
        door: the way to the daemon.
        of: the file name of the section, where it is not the plugin's own.
    """

    door: Door | None = field(default=None, compare=False, repr=False)
    of: str = ""

    def _do(self, what: str, **about: Any) -> Mapping[str, Any]:
        assert self.door is not None  # noqa: S101 - the host of a worker always gives one
        return self.door.ask(Message({"op": "journal", "do": what, "of": self.of, **about})).head

    def write(
        self, key: str, *, phase: str, data: Mapping[str, Any] | None = None, request: Mapping[str, Any] | None = None
    ) -> Entry:
        """Write or replace a record; see `Journal`."""
        about = {"key": key, "phase": phase, "data": dict(data or {}), "request": dict(request or {})}
        return Entry(**self._do("write", **about)["entry"])

    def read(self, key: str) -> Entry | None:
        """Return a record, or None."""
        entry = self._do("read", key=key)["entry"]
        return Entry(**entry) if entry is not None else None

    def remove(self, key: str) -> None:
        """Remove a record; succeed when there is none."""
        self._do("remove", key=key)

    def count_as_removed(self, key: str, reason: str) -> None:
        """Count a record as removed from now on; see `Journal`."""
        self._do("count_as_removed", key=key, reason=reason)

    def entries(self) -> tuple[Entry, ...]:
        """Return every valid record, by key."""
        return tuple(Entry(**entry) for entry in self._do("entries")["entries"])


@dataclass(frozen=True, slots=True)
class AskedCgroups(ProgramCgroups):
    """Cgroups that the daemon makes and removes.

    Attributes:
        door: the way to the daemon.
    """

    door: Door

    def _do(self, what: str, name: str, **about: Any) -> Mapping[str, Any]:
        return self.door.ask(Message({"op": "cgroups", "do": what, "name": name, **about})).head

    def lacking(self) -> Mapping[str, str]:
        """Return why a limit cannot be kept; see `ProgramCgroups`."""
        return dict(self._do("lacking", "")["lacking"])

    def make(self, name: str, *, memory: int | None = None, tasks: int | None = None) -> tuple[Path, ...]:
        """Have the cgroup of a program made; see `ProgramCgroups`."""
        made = self._do("make", name, memory=memory, tasks=tasks)
        return tuple(Path(one) for one in made["entrances"])

    def excess(self, name: str, *, own: bool = False) -> str:
        """Say why the kernel has ended a process of a program for memory; see `ProgramCgroups`."""
        return str(self._do("excess", name, own=own)["excess"])

    def remove(self, name: str) -> None:
        """Have a cgroup removed, with all that is in it; see `ProgramCgroups`."""
        self._do("remove", name)


@dataclass(frozen=True, slots=True)
class AskedSockets(KeptSockets):
    """Sockets that the daemon keeps.

    Attributes:
        door: the way to the daemon.
    """

    door: Door = field(kw_only=True)

    def _do(self, what: str, name: str, *descriptors: int) -> Message:
        return self.door.ask(Message({"op": "sockets", "do": what, "name": name}, b"", list(descriptors)))

    def keep(self, name: str, kept: socket.socket) -> None:
        """Have a socket kept; see `KeptSockets`."""
        self._do("keep", name, kept.fileno())

    def names(self) -> Sequence[str]:
        """Return the names of what is kept."""
        return [str(name) for name in self._do("names", "").head["names"]]

    def get(self, name: str) -> socket.socket | None:
        """Return a socket that is kept; see `KeptSockets`."""
        answer = self._do("get", name)
        try:
            return socket.socket(fileno=answer.descriptors.pop()) if answer.descriptors else None
        finally:
            answer.close()

    def drop(self, name: str) -> None:
        """Have closed what is kept under a name; succeed when there is none."""
        self._do("drop", name)


def make_host(door: Door, about: Mapping[str, Any]) -> Host:
    """Make the host of the plugin of this process.

    Args:
        door: the way to the daemon.
        about: what the daemon says of the host: the plain members, and the folder of the journal.
    """
    name, boot_id = about["plugin"], about["boot_id"]

    def refresh(resource: ResourceName) -> None:
        with suppress(Closed):  # the daemon is ending
            door.control.send({"op": "refresh", "resource": resource})

    def refresh_health() -> None:
        with suppress(Closed):  # as above
            door.control.send({"op": "refresh_health"})

    def refresh_cluster() -> None:
        with suppress(Closed):  # as above
            door.control.send({"op": "refresh_cluster"})

    def delegate(request: CniRequest, plugin_type: str, config: Mapping[str, Any]) -> CniResult | None:
        descriptors: list[int] = []
        cls, body = write_delegated(request, descriptors)
        head = {"op": "delegate", "class": cls, "type": plugin_type, "config": config}
        return read_result(door.ask(Message(head, body, descriptors)))

    def holders(resource: ResourceName) -> Sequence[Holding]:
        return read_holdings(door.ask(Message({"op": "holders", "resource": resource})))

    def former() -> Sequence[FormerSection]:
        return [
            FormerSection(
                AskedJournal(Path(one["journal"]), boot_id, door=door, of=one["name"]),
                Path(one["state_dir"]),
                Path(one["run_dir"]),
            )
            for one in door.ask(Message({"op": "former_sections"})).head["sections"]
        ]

    def attachments() -> Sequence[CniRecord]:
        return read_records(door.ask(Message({"op": "attachments"})))

    return Host(
        plugin=name,
        node_name=about["node_name"],
        boot_id=boot_id,
        log=logging.LoggerAdapter(logging.getLogger(f"nodeplug.plugin.{name}"), {"plugin": name}),
        journal=AskedJournal(Path(about["journal"]), boot_id, door=door),
        state_dir=Path(about["state_dir"]),
        run_dir=Path(about["run_dir"]),
        _refresh=refresh,
        _delegate=delegate,
        _holders=holders,
        _former=former,
        cgroups=AskedCgroups(door),
        _refresh_health=refresh_health,
        sockets=AskedSockets(door=door),
        _attachments=attachments,
        networks=AskedNetworks(door),
        scheduling=AskedScheduling(door),
        _refresh_cluster=refresh_cluster,
        serves_claims=about["serves_claims"],
    )


class ToDaemon(logging.Handler):
    """Sends records to the daemon, which writes them beside its own."""

    def __init__(self, control: Control) -> None:
        super().__init__()
        self._control = control

    def handle(self, record: logging.LogRecord) -> bool:
        """Format without a lock, and send."""
        try:
            error = record.exc_info[1] if record.exc_info else None
            trace = traced(error) if error is not None else ""
            head = {
                "op": "log",
                "level": record.levelno,
                "logger": record.name,
                "text": clip(record.getMessage(), _TEXT),
                "trace": trace if len(trace) <= _TRACE else f"...\n{trace[-_TRACE:]}",
                "request": REQUEST.get(),
                "plugin": str(getattr(record, "plugin", "") or ""),
                "created": record.created,
                "thread": record.threadName,
            }
            self._send(head)
        except Exception:
            self.handleError(record)
        return True

    def _send(self, head: Mapping[str, Any]) -> None:
        with suppress(Closed):
            try:
                self._control.send(head)
            except Broken:
                self._control.send({**head, "text": clip(head["text"], _TEXT // 8), "trace": ""})

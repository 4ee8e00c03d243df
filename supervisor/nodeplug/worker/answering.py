"""Answers what a plugin in a process asks of its host, with the daemon's own `Host`, which knows the plugin's rights.

It works in the thread of the call in which the plugin asks, so that a delegate runs inside that call.
"""

import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, cast

from nodeplug.contract.cluster import ClusterNetworks
from nodeplug.contract.discarding import discard
from nodeplug.contract.errors import NotFound, PluginError, clip
from nodeplug.contract.host import Host
from nodeplug.contract.journal import Journal
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.worker.asked_networks import ASKED_NETWORKS
from nodeplug.worker.asked_scheduling import ASKED_SCHEDULING
from nodeplug.worker.encoding import read_delegated, write_holdings, write_records, write_result
from nodeplug.worker.log_allowance import LogAllowance
from nodeplug.worker.wire import UNASKED, Broken, Message

if TYPE_CHECKING:
    from nodeplug.contract.values import CniAdd

_WITH_DESCRIPTORS: Final = frozenset({"sockets.keep", "delegate"})
"""Operations whose messages carry descriptors: a socket to keep, or the network namespaces of a delegated request."""
_LATE: Final = 3600.0
"""Seconds by which the time of a log record may differ from the daemon's."""
_TRACE: Final = 16 << 10
_ENTRIES: Final = 32 << 20
"""Bytes of all records of a section that a plugin's process is given at once."""


def about(host: Host) -> dict[str, Any]:
    """Return what a worker is told of its host."""
    return {
        "plugin": host.plugin,
        "node_name": host.node_name,
        "boot_id": host.boot_id,
        "journal": str(host.journal.folder),
        "state_dir": str(host.state_dir),
        "run_dir": str(host.run_dir),
        "serves_claims": host.serves_claims,
    }


def answer(host: Host, message: Message) -> Message:
    """Do what a plugin asks.

    Raises:
        Broken: there is no such operation, or its arguments are none.
        PluginError, OSError: what the host raised, for the plugin.
    """
    operation = f"{message.op}.{message.text('do')}" if "do" in message.head else message.op
    if operation not in ANSWERS:
        raise Broken(f"nobody knows its request {operation!r}")
    if message.descriptors and operation not in _WITH_DESCRIPTORS:
        raise Broken(UNASKED)
    return ANSWERS[operation](host, message)


def _found(**found: Any) -> Message:
    return Message({"op": "answer", **found})


# --- the journal --------------------------------------------------------------------------------------------------


def _journal(host: Host, message: Message) -> Journal:
    """Return the journal that the message names: the plugin's own, or that of a former section."""
    name = message.text("of")
    if not name:
        return host.journal
    for one in host.former_sections():
        if one.journal.folder.name == name:
            return one.journal
    raise NotFound(f"section {name!r} has left nothing, or has a plugin again")


def _write(host: Host, message: Message) -> Message:
    data, request = message.head.get("data"), message.head.get("request")
    if not isinstance(data, dict) or not isinstance(request, dict):
        raise Broken("it writes a record without data")
    written = _journal(host, message).write(
        message.text("key"), phase=message.text("phase"), data=data, request=request
    )
    return _found(entry=asdict(written))


def _read(host: Host, message: Message) -> Message:
    entry = _journal(host, message).read(message.text("key"))
    return _found(entry=asdict(entry) if entry is not None else None)


def _remove(host: Host, message: Message) -> Message:
    _journal(host, message).remove(message.text("key"))
    return _found()


def _count_as_removed(host: Host, message: Message) -> Message:
    _journal(host, message).count_as_removed(message.text("key"), message.text("reason"))
    return _found()


def _entries(host: Host, message: Message) -> Message:
    journal = _journal(host, message)
    if (size := _size(journal)) > _ENTRIES:
        raise PluginError(f"the records of {journal.folder} have {size} bytes; at most {_ENTRIES} are read at once")
    return _found(entries=[asdict(entry) for entry in journal.entries()])


def _size(journal: Journal) -> int:
    """Return the bytes of all records."""
    total = 0
    for path in journal.folder.glob("*.json"):
        with suppress(OSError):  # removed meanwhile
            total += path.stat().st_size
    return total


# --- cgroups of programs and kept sockets -------------------------------------------------------------------------


def _make_cgroup(host: Host, message: Message) -> Message:
    memory, tasks = (message.head.get(limit) for limit in ("memory", "tasks"))
    if not all(limit is None or type(limit) is int for limit in (memory, tasks)):
        raise Broken("it asks for a limit that is no number")
    return _found(entrances=[str(one) for one in host.cgroups.make(message.text("name"), memory=memory, tasks=tasks)])


def _excess(host: Host, message: Message) -> Message:
    return _found(excess=host.cgroups.excess(message.text("name"), own=message.head.get("own") is True))


def _remove_cgroup(host: Host, message: Message) -> Message:
    host.cgroups.remove(message.text("name"))
    return _found()


def _keep_socket(host: Host, message: Message) -> Message:
    if len(message.descriptors) != 1:
        raise Broken("it keeps no socket, or more than one")
    kept = _socket(message.descriptors.pop())
    name = message.text("name")
    try:
        former = host.sockets.get(name)  # copies, so that what is closed here is never the last one
        host.sockets.keep(name, kept)
    finally:
        discard([kept.detach()])
    discard([] if former is None else [former.detach()])
    return _found()


def _get_socket(host: Host, message: Message) -> Message:
    """Return a kept socket, whose descriptor belongs to whoever sends the answer."""
    found = host.sockets.get(message.text("name"))
    return Message({"op": "answer"}, b"", [] if found is None else [found.detach()])


def _drop_socket(host: Host, message: Message) -> Message:
    name = message.text("name")
    last = host.sockets.get(name)  # a copy, so that to drop the other one waits for nobody
    host.sockets.drop(name)
    discard([] if last is None else [last.detach()])
    return _found()


def _socket(descriptor: int) -> socket.socket:
    """Take over a descriptor: of a socket, since to close something else may take as long as its disk hangs."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        discard([descriptor])
        raise Broken("it keeps what is no socket") from None


# --- other sections, other plugins, the cluster -------------------------------------------------------------------


def _former_sections(host: Host, _: Message) -> Message:
    sections = [
        {
            "name": one.journal.folder.name,
            "journal": str(one.journal.folder),
            "state_dir": str(one.state_dir),
            "run_dir": str(one.run_dir),
        }
        for one in host.former_sections()
    ]
    return _found(sections=sections)


def _delegate(host: Host, message: Message) -> Message:
    request, config = read_delegated(message.text("class"), message), message.head.get("config")
    if not isinstance(config, dict):
        raise Broken("its delegate has no configuration")
    result = host.delegate(cast("CniAdd", request), message.text("type"), config)  # or another verb, for None
    return Message({"op": "answer"}, write_result(result))


def _holders(host: Host, message: Message) -> Message:
    return Message({"op": "answer"}, write_holdings(host.holders(message.text("resource"))))


def _attachments(host: Host, _: Message) -> Message:
    return Message({"op": "answer"}, write_records(host.attachments()))


def _of_networks(ask: Callable[[ClusterNetworks, Message], Any]) -> Callable[[Host, Message], Message]:
    return lambda host, message: _found(found=ask(host.networks, message))


def _of_scheduling(ask: Callable[[ClusterScheduling, Message], Any]) -> Callable[[Host, Message], Message]:
    return lambda host, message: _found(found=ask(host.scheduling, message))


ANSWERS: Final[Mapping[str, Callable[[Host, Message], Message]]] = {
    "journal.write": _write,
    "journal.read": _read,
    "journal.remove": _remove,
    "journal.count_as_removed": _count_as_removed,
    "journal.entries": _entries,
    "cgroups.lacking": lambda host, _: _found(lacking=dict(host.cgroups.lacking())),
    "cgroups.make": _make_cgroup,
    "cgroups.excess": _excess,
    "cgroups.remove": _remove_cgroup,
    "sockets.keep": _keep_socket,
    "sockets.names": lambda host, _: _found(names=list(host.sockets.names())),
    "sockets.get": _get_socket,
    "sockets.drop": _drop_socket,
    "former_sections": _former_sections,
    "delegate": _delegate,
    "holders": _holders,
    "attachments": _attachments,
    **{f"networks.{name}": _of_networks(ask) for name, ask in ASKED_NETWORKS.items()},
    **{f"scheduling.{name}": _of_scheduling(ask) for name, ask in ASKED_SCHEDULING.items()},
}
"""What is done for each operation; `nodeplug.hosting.rights` says who may ask for which."""
UNANSWERED: Final = frozenset({"refresh", "refresh_health", "refresh_cluster"})
"""Operations without an answer, which `nodeplug.worker.process` passes on."""


def write_record(head: Any, plugin: str, allowance: LogAllowance) -> None:
    """Write a log record of a plugin beside the daemon's own; raise Broken if it is none."""
    texts = {name: head.get(name) for name in ("logger", "text", "trace", "request", "thread")}
    level, created = head.get("level"), head.get("created")
    if not all(isinstance(text, str) for text in texts.values()) or type(level) is not int:
        raise Broken("its log record is none")
    level = min(max(level, 0), 10 * logging.CRITICAL)
    # Always the same logger: each new name would stay in memory for good.
    logger = logging.getLogger(f"nodeplug.plugin.{plugin}")
    if not (logger.isEnabledFor(level) and allowance.take()):
        return
    record = logger.makeRecord(clip(texts["logger"], 200), level, "", 0, texts["text"], (), None)
    record.levelname, record.of_process = logging.getLevelName(level), True
    if isinstance(created, float) and abs(created - record.created) < _LATE:
        record.created = created
    record.plugin, record.request, record.trace = plugin, clip(texts["request"], 64), clip(texts["trace"], _TRACE)
    record.threadName = clip(texts["thread"], 120)
    logger.handle(record)

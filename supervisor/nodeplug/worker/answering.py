"""What a plugin in a worker asks of its host, answered with the daemon's own `Host`.

Owns: which requests there are, and the check of what they say.
Refuses: threads: it works in that of the call in which the plugin asks, so that a delegate runs inside that call.
"""

import logging
import os
import socket
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, cast

from nodeplug.contract.errors import NotFound, clip
from nodeplug.contract.host import Host
from nodeplug.contract.journal import Journal
from nodeplug.worker.asked_networks import answer_networks
from nodeplug.worker.asked_scheduling import answer_scheduling
from nodeplug.worker.encoding import read_delegated, write_holdings, write_records, write_result
from nodeplug.worker.wire import Broken, Message

if TYPE_CHECKING:
    from nodeplug.contract.values import CniAdd

_TRACE: Final = 16 << 10


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
        Broken: there is no such request.
        PluginError, OSError: what the host raised, for the plugin.
    """
    match message.op:
        case "journal":
            return Message({"op": "answer", **_with_journal(host, message)})
        case "holders":
            return Message({"op": "answer"}, write_holdings(host.holders(message.text("resource"))))
        case "attachments":
            return Message({"op": "answer"}, write_records(host.attachments()))
        case "cgroup":
            return Message({"op": "answer", **_with_cgroup(host, message)})
        case "sockets":
            return _with_sockets(host, message)
        case "networks" | "scheduling":
            return Message({"op": "answer", "found": _of_cluster(host, message)})
        case "former":
            return Message({"op": "answer", "sections": _former(host)})
        case "delegate":
            request, config = read_delegated(message.text("class"), message), message.head.get("config")
            if not isinstance(config, dict):
                raise Broken("it delegates without a configuration")
            result = host.delegate(cast("CniAdd", request), message.text("type"), config)  # or another verb, for None
            return Message({"op": "answer"}, write_result(result))
        case unknown:
            raise Broken(f"nobody knows its request {unknown!r}")


def _of_cluster(host: Host, message: Message) -> Any:
    if message.op == "networks":
        return answer_networks(host.networks, message)
    return answer_scheduling(host.scheduling, message)


def _with_journal(host: Host, message: Message) -> dict[str, Any]:
    journal = host.journal if not message.text("of") else _journal_of(host, message.text("of"))
    match message.head.get("do"):
        case "entries":
            return {"entries": [asdict(entry) for entry in journal.entries()]}
        case "read":
            entry = journal.read(message.text("key"))
            return {"entry": asdict(entry) if entry is not None else None}
        case "write":
            data, request = message.head.get("data"), message.head.get("request")
            if not isinstance(data, dict) or not isinstance(request, dict):
                raise Broken("it writes a record without data")
            return {
                "entry": asdict(
                    journal.write(message.text("key"), phase=message.text("phase"), data=data, request=request)
                )
            }
        case "remove":
            journal.remove(message.text("key"))
        case "count_as_removed":
            journal.count_as_removed(message.text("key"), message.text("reason"))
        case unknown:
            raise Broken(f"nobody can {unknown!r} with a journal")
    return {}


def _with_cgroup(host: Host, message: Message) -> dict[str, Any]:
    name = message.text("name")
    match message.head.get("do"):
        case "make":
            memory, tasks = (message.head.get(limit) for limit in ("memory", "tasks"))
            if not all(limit is None or type(limit) is int for limit in (memory, tasks)):
                raise Broken("it asks for a limit that is no number")
            return {"entrances": [str(one) for one in host.cgroups.make(name, memory=memory, tasks=tasks)]}
        case "lacking":
            return {"lacking": dict(host.cgroups.lacking())}
        case "excess":
            return {"excess": host.cgroups.excess(name, own=message.head.get("own") is True)}
        case "remove":
            host.cgroups.remove(name)
            return {}
        case unknown:
            raise Broken(f"nobody can {unknown!r} with a cgroup")


def _with_sockets(host: Host, message: Message) -> Message:
    """Do what is asked of the kept sockets; those of the answer belong to whoever sends it."""
    name, answer = message.text("name"), Message({"op": "answer"})
    match message.head.get("do"):
        case "keep" if len(message.descriptors) == 1:
            with _socket(message.descriptors.pop()) as kept:
                host.sockets.keep(name, kept)
        case "names":
            answer.head = {**answer.head, "names": list(host.sockets.names())}
        case "get":
            found = host.sockets.get(name)
            if found is not None:
                answer.descriptors.append(found.detach())
        case "drop":
            host.sockets.drop(name)
        case unknown:
            raise Broken(f"nobody can {unknown!r} with sockets")
    return answer


def _socket(descriptor: int) -> socket.socket:
    """Take over a descriptor: of a socket, since to close something else may take as long as its disk hangs."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise Broken("it keeps what is no socket") from None


def _former(host: Host) -> list[dict[str, str]]:
    return [
        {
            "name": one.journal.folder.name,
            "journal": str(one.journal.folder),
            "state_dir": str(one.state_dir),
            "run_dir": str(one.run_dir),
        }
        for one in host.former_sections()
    ]


def _journal_of(host: Host, name: str) -> Journal:
    """Return the journal of a section without a plugin; one that has a plugin again belongs to that."""
    for one in host.former_sections():
        if one.journal.folder.name == name:
            return one.journal
    raise NotFound(f"section {name!r} has left nothing, or has a plugin again")


def write_record(head: Any, plugin: str) -> None:
    """Write a log record of a plugin beside the daemon's own; raise Broken if it is none."""
    texts = {name: head.get(name) for name in ("logger", "text", "trace", "request", "thread")}
    level, created = head.get("level"), head.get("created")
    if not all(isinstance(text, str) for text in texts.values()) or type(level) is not int:
        raise Broken("its log record is none")
    # Always the same logger: each new name would stay in memory for good.
    logger = logging.getLogger(f"nodeplug.plugin.{plugin}")
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(clip(texts["logger"], 200), level, "", 0, texts["text"], (), None)
    record.levelname = logging.getLevelName(level)
    record.created = created if isinstance(created, float) else record.created
    record.plugin, record.request, record.trace = plugin, clip(texts["request"], 64), clip(texts["trace"], _TRACE)
    record.threadName = clip(texts["thread"], 120)
    logger.handle(record)

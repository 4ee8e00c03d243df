"""The Node object of this node: the fields of ours in it, and nobody else's.

Owns: server-side apply of them, so that what is no longer wanted goes; leaving a field to whoever else has set it; and
seeing that the Node was made anew, or that somebody has removed what is ours.
Refuses: to take a field from another manager, to create a Node, and what the fields say (`desired`).
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from nodeplug.cluster.desired import Desired
from nodeplug.cluster.requests import MANAGER, Requests
from nodeplug.contract.errors import NotFound
from nodeplug.contract.values import NodeCondition
from nodeplug.kubeapi.refusals import Conflict, FieldConflict
from nodeplug.kubeapi.resources import NODES, Object

LOG: Final = logging.getLogger(__name__)
_ROUNDS: Final = 3
"""Applies that one change may take: each may meet others' fields once more."""
_LABEL, _ANNOTATION = ".metadata.labels.", ".metadata.annotations."
_CONDITION: Final = '.status.conditions[type="'
Value = str | NodeCondition


@dataclass(slots=True)
class NodeObject:
    """What of the Node is ours. Event loop only.

    Attributes:
        node: its name.
        resync: seconds after which it is looked at again.
        uid: of the Node; empty while that is not known.
        left: fields that are left to others, by path, with the name of their manager.
        written: what was written last, by path, what is left to others included.
        at: when something was written last, in Unix time; 0 for never.
    """

    node: str
    resync: float
    uid: str = ""
    left: dict[str, str] = field(default_factory=dict)
    written: dict[str, Value] = field(default_factory=dict)
    at: float = 0.0
    _stale: set[str] = field(default_factory=lambda: {"", "status"})
    _looked: float = float("-inf")
    _times: dict[str, tuple[NodeCondition, str, str]] = field(default_factory=dict)

    async def bring(self, desired: Desired, requests: Requests) -> None:
        """Bring the Node in line with what is desired.

        Raises:
            NotFound: the cluster has no such node.
            PluginError: the API server refused, or cannot be asked.
        """
        if not self.uid or time.monotonic() - self._looked >= self.resync:
            await self._look(requests)
        try:
            for part in ("", "status"):
                await self._bring(part, dict(_paths(desired, part)), requests)
        except Conflict:
            self._forget()  # another Node has its name, or it is gone: the next round asks for it
            raise

    def _forget(self) -> None:
        self.uid, self._stale, self.left = "", {"", "status"}, {}

    async def _look(self, requests: Requests) -> None:
        """Ask what is there; what is not as it was written is written again."""
        try:
            found = await requests.get(NODES, self.node)
        except NotFound:
            self._forget()
            said = f"the cluster has no node {self.node!r}: look at node_name under [supervisor]"
            raise NotFound(said) from None
        uid = str(found["metadata"]["uid"])
        if uid != self.uid:
            self._forget()
            self.uid = uid
        there = dict(_found(found))
        self.left = {path: who for path, who in self.left.items() if path in there}
        for path, value in self.written.items():
            if path not in self.left and value != there.get(path):
                self._stale.add(_part(path))
        self._looked = time.monotonic()

    async def _bring(self, part: str, wanted: dict[str, Value], requests: Requests) -> None:
        before = {path: value for path, value in self.written.items() if _part(path) == part}
        if wanted == before and part not in self._stale:
            return
        for _ in range(_ROUNDS):
            mine = {path: value for path, value in wanted.items() if path not in self.left}
            try:
                await requests.apply(NODES, self._body(mine), part=part)
                break
            except FieldConflict as error:
                self._leave(error, mine)
        else:
            raise Conflict(f"others set the fields of node {self.node} faster than they can be left to them")
        self.written = {path: value for path, value in self.written.items() if _part(path) != part} | wanted
        self._stale.discard(part)
        self.at = time.time()

    def _leave(self, error: FieldConflict, mine: Mapping[str, Value]) -> None:
        """Note which fields are others'; raise the error if none of them is a field that was applied."""
        found = {
            path: who
            for field_, who in error.fields.items()
            for path in mine
            if field_ == path or _within(field_, path)
        }
        if not found:
            raise error
        for path, who in found.items():
            LOG.warning("%s of node %s is left to %s, who has set it", path, self.node, who)
        self.left |= found

    def _body(self, fields: Mapping[str, Value]) -> Object:
        metadata: dict[str, Any] = {"name": self.node, "uid": self.uid}
        labels = {path[len(_LABEL) :]: value for path, value in fields.items() if path.startswith(_LABEL)}
        notes = {path[len(_ANNOTATION) :]: value for path, value in fields.items() if path.startswith(_ANNOTATION)}
        metadata |= {"labels": labels} if labels else {}
        metadata |= {"annotations": notes} if notes else {}
        conditions = [self._condition(one) for one in fields.values() if isinstance(one, NodeCondition)]
        return {"metadata": metadata, **({"status": {"conditions": conditions}} if conditions else {})}

    def _condition(self, one: NodeCondition) -> Object:
        """Write a condition; its times stay while it does not change."""
        known = self._times.get(one.type)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if known is None or known[0] != one:
            since = known[1] if known is not None and known[0].status == one.status else now
            known = self._times[one.type] = (one, since, now)
        return {
            "type": one.type,
            "status": one.status,
            "reason": one.reason,
            "message": one.message,
            "lastTransitionTime": known[1],
            "lastHeartbeatTime": known[2],
        }


def _paths(desired: Desired, part: str) -> Iterator[tuple[str, Value]]:
    """Yield what is desired of a part of the Node, by path."""
    if part == "status":
        yield from ((_path_of(name), one) for name, one in desired.conditions.items())
        return
    yield from ((_LABEL + key, value) for key, value in desired.labels.items())
    yield from ((_ANNOTATION + key, value) for key, value in desired.annotations.items())


def _found(node: Object) -> Iterator[tuple[str, Value]]:
    """Yield what a Node has, by path."""
    metadata = node["metadata"]
    yield from ((_LABEL + key, value) for key, value in (metadata.get("labels") or {}).items())
    yield from ((_ANNOTATION + key, value) for key, value in (metadata.get("annotations") or {}).items())
    for one in (node.get("status") or {}).get("conditions") or ():
        texts = {key: str(one.get(key, "")) for key in ("type", "reason", "message")}
        yield _path_of(texts["type"]), NodeCondition(**texts, status=one.get("status", "Unknown"))


def _path_of(condition: str) -> str:
    return f'{_CONDITION}{condition}"]'


def _part(path: str) -> str:
    return "status" if path.startswith(".status") else ""


def _within(found: str, path: str) -> bool:
    """Whether a field is part of a condition."""
    return path.startswith(_CONDITION) and found.startswith(path)


def is_ours(one: Object, part: str = "") -> bool:
    """Whether an object has fields that were applied here."""
    managers = one["metadata"].get("managedFields") or ()
    return any(it.get("manager") == MANAGER and (it.get("subresource") or "") == part for it in managers)

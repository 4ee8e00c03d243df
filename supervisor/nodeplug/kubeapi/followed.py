"""A collection of the API server as it is now.

Owns: a copy of the objects that somebody here wants, kept by a watch.
Refuses: decisions, and what whoever asks does not need of an object.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from nodeplug.kubeapi.client import Client, Listed
from nodeplug.kubeapi.resources import Object, Resource, key_of
from nodeplug.kubeapi.watch import Watch


def slim(found: Object) -> Object:
    """Return an object without what nobody here reads and can be long."""
    metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    return {**found, "metadata": metadata}


class Followed:
    """One collection; event loop only.

    Args:
        client: who asks.
        resource: of which kind.
        wanted: which objects are kept.
        changed: are set at every change of what is kept.
        kept: what of an object is kept.
        fields: a field selector, for what the server need not send.
        optional: whether a cluster may do without the kind.

    Attributes:
        objects: by `namespace/name`, or name.
        known: all of them have been listed once.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        wanted: Callable[[Object], bool],
        *changed: asyncio.Event,
        kept: Callable[[Object], Object] = slim,
        fields: str = "",
        optional: bool = False,
    ) -> None:
        self.objects: dict[str, Object] = {}
        self.known = False
        self._kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        self._watch = Watch(client, resource, fields=fields, kept=self._copy, optional=optional)
        self._wanted, self._changed, self._kept = wanted, changed, kept

    @property
    def trouble(self) -> str:
        """Why nothing new is known at present."""
        return self._watch.trouble

    @property
    def absent(self) -> str:
        """Says that the cluster does not have the kind; empty if it has."""
        return self._watch.absent

    async def follow(self) -> None:
        """Keep the copy, for ever."""
        async with aclosing(self._watch.changes()) as changes:
            async for change in changes:
                if isinstance(change, Listed):
                    self.objects = {key_of(one): one for one in change}
                    self.known = True
                elif change.how == "DELETED" or (copy := self._copy(change.object)) is None:
                    if self.objects.pop(key_of(change.object), None) is None:
                        continue
                else:
                    self.objects[key_of(change.object)] = copy
                for event in self._changed:
                    event.set()

    def _copy(self, found: Object) -> Object | None:
        return {**self._kind, **self._kept(found)} if self._wanted(found) else None

"""What plugins ask of the cluster about networks, answered from what is followed, or by the API server within bounds.

Owns: the way from a plugin's thread to the event loop and back, and how long it may take.
Refuses: pods of other nodes, and any other object: a plugin without rights must not read the cluster by this.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from nodeplug.contract.cluster import ClusterNetworks, ClusterPod, NetworkDefinition
from nodeplug.contract.errors import InvalidRequest, NotFound, PluginError, TryAgain
from nodeplug.kubeapi.client import Bounds, Client
from nodeplug.kubeapi.resources import NETWORK_ATTACHMENT_DEFINITIONS, PODS, Object, Resource
from nodeplug.kubeapi.watch import Pauses
from nodeplug.networks import node_paths, objects
from nodeplug.networks.conflists import Conflists
from nodeplug.networks.definitions import Definitions
from nodeplug.process import across

_PAUSES: Final = Bounds(pause=0.1, longest_pause=1.0)
_GRACE: Final = 2.0
"""Seconds that the event loop may be late."""


class Door:
    """What all plugins ask. Made on the event loop; any thread asks.

    Args:
        node: its name in the cluster.
        patience: seconds that an answer of the API server may take.
        paths: of the node that a definition may name.
        definitions: those that are known.
        conflists: of objects `Network`.

    Attributes:
        client: who asks now; None while there is nobody.
        trouble: why there is nobody.
        pods: returns what is followed of a pod, by its key.
        reported: is told of a report, on the event loop.
        changed: is told of it on the event loop when `used` has changed.
    """

    def __init__(
        self, node: str, patience: float, paths: Collection[str], definitions: Definitions, conflists: Conflists
    ) -> None:
        self.client: Client | None = None
        self.trouble = "the API server has not been found yet"
        self.pods: Callable[[str], Object | None] = lambda _: None
        self.reported: Callable[[ClusterPod, Sequence[Mapping[str, Any]]], None] = lambda *_: None
        self.changed: Callable[[], None] = lambda: None
        self._used: dict[str, frozenset[str]] = {}
        self._node, self._patience, self._paths = node, patience, paths
        self._definitions, self._conflists = definitions, conflists
        self._loop = asyncio.get_running_loop()

    def pod(self, namespace: str, name: str, uid: str = "") -> ClusterPod:
        """Return a pod of this node; see `ClusterNetworks`."""
        followed = self.followed(f"{namespace}/{name}")
        if followed is not None and objects.is_the_pod(pod := objects.pod_of(followed), uid):
            return pod
        about = f"which networks pod {namespace}/{name} wants cannot be read"
        try:
            found = self._ask(PODS, namespace, name)
        except PluginError as error:
            raise TryAgain(f"{about}: {error.message}") from None
        pod = objects.pod_of(found)
        if not objects.is_the_pod(pod, uid):
            raise TryAgain(f"{about}: the runtime asks for the pod with UID {uid}, and the one of that name is another")
        if (found.get("spec") or {}).get("nodeName") != self._node:
            raise TryAgain(f"{about}: it is not on node {self._node}")
        return pod

    def definition(self, namespace: str, name: str) -> NetworkDefinition:
        """Return a NetworkAttachmentDefinition; see `ClusterNetworks`."""
        found = self._definitions.find(namespace, name) or self._asked(namespace, name)
        if refusal := node_paths.refusal_of_text(found.config, self._paths):
            raise InvalidRequest(f"NetworkAttachmentDefinition {namespace}/{name}: {refusal}")
        return found

    def _asked(self, namespace: str, name: str) -> NetworkDefinition:
        try:
            return objects.definition_of(self._ask(NETWORK_ATTACHMENT_DEFINITIONS, namespace, name))
        except NotFound:
            raise NotFound(f"there is no NetworkAttachmentDefinition {namespace}/{name}") from None
        except PluginError as error:
            raise TryAgain(
                f"network {namespace}/{name} is not known yet, and cannot be read: {error.message}"
            ) from None

    def conflist(self, name: str) -> Mapping[str, Any] | None:
        """Return the configuration list of an object `Network`; see `ClusterNetworks`."""
        found = self._conflists.read(name) if objects.is_name(name) else None
        if refusal := node_paths.refusal(found, self._paths):  # it may be older than `paths`
            raise InvalidRequest(f"network {name}: {refusal}")
        return found

    def report(self, pod: ClusterPod, networks: Sequence[Mapping[str, Any]]) -> None:
        """Have a pod's network status written; see `ClusterNetworks`."""
        across.tell(self._loop, lambda: self.reported(pod, networks))

    def hold(self, section: str, names: Collection[str]) -> None:
        """Take down which networks have attachments of a section; see `ClusterNetworks`."""
        self._used = {**self._used, section: frozenset(names)}
        across.tell(self._loop, self._changed)

    @property
    def used(self) -> frozenset[str] | None:
        """Network configurations that have attachments; None if nobody has said."""
        said = self._used
        return frozenset().union(*said.values()) if said else None

    def _changed(self) -> None:
        self.changed()  # whoever listens by now

    def followed(self, key: str) -> Object | None:
        """Return what is followed of a pod at present, by `namespace/name`."""
        return self.pods(key)

    def _ask(self, resource: Resource, namespace: str, name: str) -> Object:
        """Ask the API server, from a plugin's thread."""
        return across.ask(self._loop, self._get(resource, namespace, name), self._patience + _GRACE)

    async def _get(self, resource: Resource, namespace: str, name: str) -> Object:
        pauses, last = Pauses(_PAUSES), ""
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    try:
                        if self.client is None:
                            raise TryAgain(self.trouble)
                        return await self.client.get(resource, name, namespace)
                    except TryAgain as error:
                        last = error.message
                    await asyncio.sleep(pauses.next())
        except TimeoutError:
            said = last or "it does not answer"
            raise TryAgain(f"the API server was asked for {self._patience:g} s: {said}") from None


class SectionDoor(ClusterNetworks):
    """The door, as the plugin of one section has it.

    Args:
        door: of all.
        section: its name.
    """

    def __init__(self, door: Door, section: str) -> None:
        self._door, self._section = door, section

    def pod(self, namespace: str, name: str, uid: str = "") -> ClusterPod:
        """Return a pod of this node; see `ClusterNetworks`."""
        return self._door.pod(namespace, name, uid)

    def definition(self, namespace: str, name: str) -> NetworkDefinition:
        """Return a NetworkAttachmentDefinition; see `ClusterNetworks`."""
        return self._door.definition(namespace, name)

    def conflist(self, name: str) -> Mapping[str, Any] | None:
        """Return the configuration list of an object `Network`; see `ClusterNetworks`."""
        return self._door.conflist(name)

    def report(self, pod: ClusterPod, networks: Sequence[Mapping[str, Any]]) -> None:
        """Have a pod's network status written; see `ClusterNetworks`."""
        self._door.report(pod, networks)

    def hold(self, names: Collection[str]) -> None:
        """Say which networks have attachments; see `ClusterNetworks`."""
        self._door.hold(self._section, names)

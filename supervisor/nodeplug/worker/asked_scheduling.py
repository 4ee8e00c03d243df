"""What a scheduler extender in a worker asks of the cluster, on both sides of the wire.

Owns: the messages, and the check of what they say.
Refuses: to know anything itself: the daemon's own `ClusterScheduling` answers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.worker.asked_networks import Door
from nodeplug.worker.wire import Message


class AskedScheduling(ClusterScheduling):
    """A cluster that the daemon asks for.

    Args:
        door: the way to the daemon.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    def _do(self, what: str, **about: Any) -> Any:
        return self._door.ask(Message({"op": "scheduling", "do": what, **about})).head["found"]

    def node(self, name: str) -> Mapping[str, Any] | None:
        """Return a node; see `ClusterScheduling`."""
        found: Mapping[str, Any] | None = self._do("node", name=name)
        return found

    def bound(self) -> Sequence[Mapping[str, Any]]:
        """Return the pods that are bound and wait; see `ClusterScheduling`."""
        found: Sequence[Mapping[str, Any]] = self._do("bound")
        return found

    def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Ask for a pod; see `ClusterScheduling`."""
        found: Mapping[str, Any] | None = self._do("pod", namespace=namespace, name=name)
        return found

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Bind a pod; see `ClusterScheduling`."""
        self._do("bind", namespace=namespace, name=name, uid=uid, node=node)


ASKED_SCHEDULING: Final[Mapping[str, Callable[[ClusterScheduling, Message], Any]]] = {
    "node": lambda scheduling, message: scheduling.node(message.text("name")),
    "bound": lambda scheduling, _: list(scheduling.bound()),
    "pod": lambda scheduling, message: scheduling.pod(message.text("namespace"), message.text("name")),
    "bind": lambda scheduling, message: scheduling.bind(
        *(message.text(key) for key in ("namespace", "name", "uid", "node"))
    ),
}
"""What is done for each question, with what the daemon has."""

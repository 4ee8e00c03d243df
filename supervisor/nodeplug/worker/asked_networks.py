"""What a plugin in a worker asks of the cluster about networks, on both sides of the wire.

Owns: the messages, and the check of what they say.
Refuses: to know anything itself: the daemon's own `ClusterNetworks` answers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from nodeplug.contract.cluster import ClusterNetworks, ClusterPod, NetworkDefinition
from nodeplug.worker.wire import Broken, Message


class Door(Protocol):
    """The way to the daemon."""

    def ask(self, message: Message) -> Message:
        """Ask, and wait for the answer."""


class AskedNetworks(ClusterNetworks):
    """Networks that the daemon asks for.

    Args:
        door: the way to the daemon.
    """

    def __init__(self, door: Door) -> None:
        self._door = door

    def _do(self, what: str, **about: Any) -> Any:
        return self._door.ask(Message({"op": "networks", "do": what, **about})).head["found"]

    def pod(self, namespace: str, name: str, uid: str = "") -> ClusterPod:
        """Return a pod of this node; see `ClusterNetworks`."""
        return _pod(self._do("pod", namespace=namespace, name=name, uid=uid))

    def definition(self, namespace: str, name: str) -> NetworkDefinition:
        """Return a NetworkAttachmentDefinition; see `ClusterNetworks`."""
        found = self._do("definition", namespace=namespace, name=name)
        return NetworkDefinition(
            found["namespace"], found["name"], config=found["config"], annotations=found["annotations"]
        )

    def conflist(self, name: str) -> Mapping[str, Any] | None:
        """Return the configuration list of an object `Network`; see `ClusterNetworks`."""
        found: Mapping[str, Any] | None = self._do("conflist", name=name)
        return found

    def report(self, pod: ClusterPod, networks: Sequence[Mapping[str, Any]]) -> None:
        """Have a pod's network status written; see `ClusterNetworks`."""
        self._do("report", pod=_of(pod), networks=[dict(one) for one in networks])

    def hold(self, names: Collection[str]) -> None:
        """Say which networks have attachments; see `ClusterNetworks`."""
        self._do("hold", names=sorted(names))


def _answer_pod(networks: ClusterNetworks, message: Message) -> Any:
    return _of(networks.pod(message.text("namespace"), message.text("name"), message.text("uid")))


def _answer_definition(networks: ClusterNetworks, message: Message) -> Any:
    found = networks.definition(message.text("namespace"), message.text("name"))
    about = {"namespace": found.namespace, "name": found.name, "config": found.config}
    return {**about, "annotations": dict(found.annotations)}


def _answer_conflist(networks: ClusterNetworks, message: Message) -> Any:
    conflist = networks.conflist(message.text("name"))
    return None if conflist is None else dict(conflist)


def _answer_report(networks: ClusterNetworks, message: Message) -> None:
    pod, told = message.head.get("pod"), message.head.get("networks")
    if not isinstance(pod, dict) or not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
        raise Broken("it reports networks of no pod")
    networks.report(_pod(pod), told)


def _answer_hold(networks: ClusterNetworks, message: Message) -> None:
    names = message.head.get("names")
    if not isinstance(names, list):
        raise Broken("it holds networks without names")
    networks.hold([str(one) for one in names])


ASKED_NETWORKS: Final[Mapping[str, Callable[[ClusterNetworks, Message], Any]]] = {
    "pod": _answer_pod,
    "definition": _answer_definition,
    "conflist": _answer_conflist,
    "report": _answer_report,
    "hold": _answer_hold,
}
"""What is done for each question, with what the daemon has; each raises Broken for arguments that are none."""


def _of(pod: ClusterPod) -> dict[str, Any]:
    return {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "annotations": dict(pod.annotations)}


def _pod(found: Mapping[str, Any]) -> ClusterPod:
    try:
        annotations = {str(key): str(value) for key, value in dict(found.get("annotations") or {}).items()}
        return ClusterPod(str(found["namespace"]), str(found["name"]), uid=str(found["uid"]), annotations=annotations)
    except (KeyError, TypeError, ValueError):
        raise Broken("a pod of it is none") from None

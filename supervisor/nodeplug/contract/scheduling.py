"""What a scheduler extender may ask of the cluster: its nodes, pods on their way to them, and a Binding.

Owns: the questions and their answers, and what they say where nobody asks an API server.
Refuses: to ask one (the daemon's room `extender` does), and any other object.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodeplug.contract.errors import NotReady

__all__ = ["ClusterScheduling"]

_NOBODY: Final = (
    "and this daemon follows no cluster: add `follow = true` to the section [extender] of its configuration, and "
    "restart it"
)


class ClusterScheduling:
    """Nodes and pods, as a scheduler extender needs them. Any thread may use it.

    This one knows nothing and says so: the daemon gives one that knows to sections that claim an extender, if its
    section `[extender]` has `follow`. Objects are as the API server has them, without `managedFields`; nobody may
    change them.
    """

    def node(self, name: str) -> Mapping[str, Any] | None:
        """Return a v1 Node as it is followed, without the images and volumes of its status. Returns at once.

        Returns:
            None if there is none of that name, or if nobody has heard of it yet.

        Raises:
            TryAgain: the nodes have not been listed yet, as after the start.
            NotReady: nobody asks an API server here; so for all methods.
        """
        raise NotReady(f"node {name} is asked for by its name alone, {_NOBODY}")

    def bound(self) -> Sequence[Mapping[str, Any]]:
        """Return the v1 Pods that are bound to a node and whose phase is Pending, whoever bound them. Returns at once.

        Raises:
            TryAgain: they have not been listed yet, as after the start.
        """
        raise NotReady(f"pods that are bound are asked for, {_NOBODY}")

    def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Ask the API server for a v1 Pod; None if there is none. Blocks, for at most two seconds.

        Raises:
            PluginError: it cannot be read now.
        """
        raise NotReady(f"pod {namespace}/{name} is asked for, {_NOBODY}")

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Bind a pod to a node; succeed if it is bound to that node already, also by an earlier call.

        Blocks, for less than the four seconds that `extender_bind` has.

        Args:
            namespace: of the pod.
            name: of the pod.
            uid: of the very pod that is meant.
            node: its name.

        Raises:
            NotReady: the API server was not even asked.
            PluginError: the pod is not bound to it.
            Uncertain: nobody knows whether it is.
        """
        raise NotReady(f"pod {namespace}/{name} with UID {uid} is to be bound to {node}, {_NOBODY}")

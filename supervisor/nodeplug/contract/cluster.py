"""What a plugin may ask of the cluster about networks, and tell it.

Owns: the questions and their answers, and what they say where nobody asks an API server.
Refuses: to ask one (the daemon's room `networks` does), and any other object: a plugin reads no more of the cluster by
this than the networks that pods of its node ask for.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from nodeplug.contract.errors import NotReady

__all__ = ["ClusterNetworks", "ClusterPod", "NetworkDefinition"]

_NOBODY: Final = "and this daemon asks no API server for networks: add a section [networks] to its configuration"


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """A pod of this node, as the API server has it.

    Attributes:
        namespace: where it is.
        name: of the pod.
        uid: of this very pod.
        annotations: its own, those about networks among them.
    """

    namespace: str
    name: str
    _: KW_ONLY
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NetworkDefinition:
    """A NetworkAttachmentDefinition (`k8s.cni.cncf.io/v1`).

    Attributes:
        namespace: where it is.
        name: of the object.
        config: its `spec.config`, as text; empty if the node has the configuration.
        annotations: its own.
    """

    namespace: str
    name: str
    _: KW_ONLY
    config: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


class ClusterNetworks:
    """Networks as objects of the cluster. Any thread may use it; each method may block, within bounds.

    This one knows nothing and says so: the daemon gives one that asks, if it has a section `[networks]`.
    """

    def pod(self, namespace: str, name: str, uid: str = "") -> ClusterPod:
        """Return a pod of this node.

        Args:
            namespace: where it is.
            name: of the pod.
            uid: of the very pod that is meant; empty for whichever has the name.

        Raises:
            TryAgain: it cannot be read now, or there is none with this UID; the message says why.
            NotReady: nobody asks an API server here.
        """
        raise NotReady(f"which networks pod {namespace}/{name} {uid} wants is asked, {_NOBODY}")

    def definition(self, namespace: str, name: str) -> NetworkDefinition:
        """Return a NetworkAttachmentDefinition: the last one that is known, if the API server is away.

        Raises:
            NotFound: there is none of that name.
            TryAgain: nothing is known of it yet.
            NotReady: nobody asks an API server here.
        """
        raise NotReady(f"NetworkAttachmentDefinition {namespace}/{name} is asked for, {_NOBODY}")

    def conflist(self, name: str) -> Mapping[str, Any] | None:  # noqa: ARG002 - the daemon's own answers by it
        """Return the network configuration list of an object `Network` that this node has; None without one.

        Raises:
            TryAgain: the network is being withdrawn from this node, or the disk does not answer.
        """
        return None

    def report(self, pod: ClusterPod, networks: Sequence[Mapping[str, Any]]) -> None:
        """Have a pod's `k8s.v1.cni.cncf.io/network-status` written. Returns at once; it is tried for some minutes.

        Args:
            pod: whose; a later one with its name is left alone.
            networks: the elements, as the annotation has them.
        """

    def hold(self, names: Collection[str]) -> None:
        """Say which network configurations have attachments: those of objects `Network` stay on the node until then.

        Args:
            names: all of them; what was said before counts no more.
        """

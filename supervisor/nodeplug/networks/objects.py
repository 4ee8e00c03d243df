"""What objects of the cluster say about networks, and what a node says of them.

Owns: from a `Network` to a network configuration list and a verdict; which parts of pods and of
NetworkAttachmentDefinitions are kept.
Refuses: I/O. An object is a plain dictionary, as JSON has it, and may hold anything: a server may have another schema.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from nodeplug.contract.cluster import ClusterPod, NetworkDefinition
from nodeplug.contract.errors import clip
from nodeplug.kubeapi.resources import Object
from nodeplug.kubeapi.selectors import selects
from nodeplug.networks import node_paths

MIRROR: Final = "kubernetes.io/config.mirror"
"""The annotation of a static pod's object: the UID by which kubelet and the runtime know the pod."""
RECURSIVE: Final = "nodeplug-networks"
"""The plugin that would read such a list for a pod: a list that names it would never end."""
VERSIONS: Final = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Of the specification: those in which plugins can follow each other."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_TYPE: Final = re.compile(r"[^/\s\x00]{1,255}")
_OURS: Final = ("name", "cniversion", "prevresult", "runtimeconfig")
_SHOWN: Final = 500

Reason = Literal[
    "Ready", "InvalidConfiguration", "UnknownPlugin", "NameTaken", "PathNotAllowed", "DiskFailure", "InUse"
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a node makes of an object.

    Attributes:
        reason: in one word.
        message: in a sentence; empty if all is well.
        conflist: what the node's file has to hold; None to leave it as it is.
    """

    reason: Reason
    message: str = ""
    conflist: Mapping[str, Any] | None = None

    def entry(self, generation: int) -> dict[str, Any]:
        """Return what stands in the object's status for this node."""
        ready = self.reason == "Ready"
        about = {"ready": ready, "reason": self.reason, "message": clip(self.message, _SHOWN)}
        return {**about, "observedGeneration": generation}


def is_name(text: str) -> bool:
    """Whether an object can have a name, which can then be that of a file, too."""
    return _NAME.fullmatch(text) is not None


def is_for(network: Object, labels: Mapping[str, str]) -> bool:
    """Whether a `Network` is for a node; one whose selector nobody can read is for none."""
    selector = _mapping(network.get("spec")).get("nodeSelector")
    if selector is None:
        return True
    try:
        return isinstance(selector, Mapping) and selects(selector, labels)
    except (KeyError, TypeError, AttributeError):
        return False


def judge(
    network: Object,
    taken: Mapping[str, str],
    served: Collection[str],
    installed: Collection[str],
    paths: Collection[str],
) -> Verdict:
    """Judge a `Network` that is for this node.

    Args:
        network: the object.
        taken: names of networks that the node has otherwise, and the files that have them.
        served: claims of this daemon.
        installed: executables in the folder of CNI plugins.
        paths: of the node that it may name.
    """
    name = str(network["metadata"]["name"])
    conflist = conflist_of(network)
    if isinstance(conflist, str):
        return Verdict("InvalidConfiguration", conflist)
    if name in taken:
        return Verdict("NameTaken", f"the node has a network {name!r} already, in {taken[name]}; choose another name")
    if refusal := node_paths.refusal(conflist, paths):
        return Verdict("PathNotAllowed", refusal)
    unknown = [one["type"] for one in conflist["plugins"] if one["type"] not in {*served, *installed}]
    if unknown:
        text = f"nobody serves the plugin {unknown[0]!r} on this node: enable it in nodeplug, or install the executable"
        return Verdict("UnknownPlugin", text)
    return Verdict("Ready", "", conflist)


def conflist_of(network: Object) -> dict[str, Any] | str:
    """Return the network configuration list of a `Network`, or why it has none."""
    name, spec = str(network["metadata"]["name"]), _mapping(network.get("spec"))
    plugins, version = spec.get("plugins"), spec.get("cniVersion", "1.0.0")
    if not is_name(name):
        return f"{clip(name, 80)!r} cannot be the name of a network"
    if version not in VERSIONS:
        return f"spec.cniVersion must be one of {', '.join(VERSIONS)}, and is {clip(repr(version), 80)}"
    if not isinstance(plugins, list) or not plugins:
        return "spec.plugins must be a list of plugins with at least one"
    for index, one in enumerate(plugins):
        if wrong := _mistake(one):
            return f"spec.plugins[{index}] {wrong}"
    switches = {key: True for key in ("disableCheck", "disableGC") if spec.get(key) is True}
    return {"cniVersion": version, "name": name, **switches, "plugins": plugins}


def _mistake(plugin: Any) -> str:
    if not isinstance(plugin, Mapping):
        return "must be an object"
    kind = plugin.get("type")
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        return f"must have a type, the name of an executable, and has {clip(repr(kind), 80)}"
    if kind == RECURSIVE:
        return f"names {RECURSIVE}, which would ask for this network again"
    if found := [key for key in plugin if str(key).lower() in _OURS]:
        return f"has {found[0]!r}, which is not for a plugin to have: it follows from the object"
    return ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- what is kept of other objects


def slim_pod(found: Object) -> Object:
    """Return what is read of a pod."""
    metadata = found["metadata"]
    kept = {key: metadata[key] for key in ("namespace", "name", "uid", "annotations") if key in metadata}
    return {"metadata": kept}


def slim_definition(found: Object) -> Object:
    """Return what is read of a NetworkAttachmentDefinition."""
    config = _mapping(found.get("spec")).get("config")
    return {**slim_pod(found), "spec": {"config": config if isinstance(config, str) else ""}}


def slim_node(found: Object) -> Object:
    """Return what is read of a node."""
    return {"metadata": {key: found["metadata"].get(key) for key in ("name", "labels")}}


def pod_of(found: Object) -> ClusterPod:
    """Return a pod as plugins see it."""
    metadata = found["metadata"]
    annotations = {str(key): str(value) for key, value in (metadata.get("annotations") or {}).items()}
    return ClusterPod(
        str(metadata.get("namespace", "")),
        str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        annotations=annotations,
    )


def is_the_pod(pod: ClusterPod, uid: str) -> bool:
    """Whether a pod is the one that a runtime means, which knows static pods by another UID."""
    return not uid or uid in {pod.uid, pod.annotations.get(MIRROR)}


def definition_of(found: Object) -> NetworkDefinition:
    """Return a NetworkAttachmentDefinition as plugins see it."""
    pod, config = pod_of(found), _mapping(found.get("spec")).get("config")
    text = config if isinstance(config, str) else ""
    return NetworkDefinition(pod.namespace, pod.name, config=text, annotations=pod.annotations)

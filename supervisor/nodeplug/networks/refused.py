"""Lists the networks of a cluster that name a path which a node does not allow."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nodeplug.contract.errors import NotFound
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.resources import NETWORK_ATTACHMENT_DEFINITIONS, NETWORKS, Object
from nodeplug.networks import node_paths, objects


@dataclass(frozen=True, slots=True)
class RefusedNetwork:
    """One object.

    Attributes:
        kind: of the object.
        name: `namespace/name`, or the name alone.
        reason: the key, the path and what is allowed.
    """

    kind: str
    name: str
    reason: str


async def refused(client: Client, paths: Collection[str]) -> Sequence[RefusedNetwork]:
    """Return the objects that a node with these `paths` refuses, in the order of their names.

    Raises:
        PluginError: the API server refused, or cannot be asked.
    """
    found: list[RefusedNetwork] = []

    def judge_definition(one: Object) -> None:
        definition = objects.definition_of(objects.slim_definition(one))
        if reason := node_paths.refusal_of_text(definition.config, paths):
            name = f"{definition.namespace}/{definition.name}"
            found.append(RefusedNetwork("NetworkAttachmentDefinition", name, reason))

    def judge_network(one: Object) -> None:
        conflist = objects.conflist_of(one)
        if not isinstance(conflist, str) and (reason := node_paths.refusal(conflist, paths)):
            found.append(RefusedNetwork("Network", str(one["metadata"]["name"]), reason))

    for resource, judge in ((NETWORK_ATTACHMENT_DEFINITIONS, judge_definition), (NETWORKS, judge_network)):
        try:
            await client.list(resource, kept=judge)
        except NotFound:  # the cluster has no such objects
            continue
    return sorted(found, key=lambda one: (one.kind, one.name))

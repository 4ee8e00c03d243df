"""Removing what a node has published: what its field manager has written goes, and nothing else.

Owns: finding it again without any record: in the Node by the manager, in ConfigMaps by their label.
Refuses: annotations of pods, which go with the pods, and events, which the API server forgets after an hour.
"""

from nodeplug.cluster.node_object import is_ours
from nodeplug.cluster.other_objects import NODE_LABEL
from nodeplug.cluster.requests import MANAGER
from nodeplug.contract.errors import NotFound
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.refusals import Forbidden
from nodeplug.kubeapi.resources import CONFIG_MAPS, NODES, Object

_MAPS = "kube-system"


async def withdraw(client: Client, node: str) -> list[str]:
    """Remove it, and return what was removed; succeeds where there is nothing.

    Raises:
        PluginError: the API server refused, or cannot be asked.
    """
    removed = []
    try:
        found = await client.get(NODES, node)
    except NotFound:
        found = {}
    for part in ("", "status") if found else ():
        if is_ours(found, part):
            body = {"metadata": {"name": node, "uid": found["metadata"]["uid"]}}
            await client.apply(NODES, body, MANAGER, part=part)
            removed.append(f"{'conditions' if part else 'labels and annotations'} of node {node}")
    for made in await _maps(client, node):
        metadata = made["metadata"]
        await client.delete(CONFIG_MAPS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        removed.append(f"ConfigMap {metadata['namespace']}/{metadata['name']}")
    return removed


async def _maps(client: Client, node: str) -> list[Object]:
    """Return the ConfigMaps of a node: of all namespaces, or where nobody else may look, of gpushare's."""
    labels = f"{NODE_LABEL}={node}"
    try:
        listed = await client.list(CONFIG_MAPS, labels=labels)
    except Forbidden:
        listed = await client.list(CONFIG_MAPS, _MAPS, labels=labels)
    return [one for one in listed if is_ours(one)]

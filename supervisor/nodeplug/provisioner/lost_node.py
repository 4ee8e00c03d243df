"""What a node that is gone has left in the cluster: volumes that nobody can delete, and room that nobody has.

Owns: which objects are its, and removing them on request. The data is lost with the node, and only its administrator
can know that.
Refuses: a node that the cluster still has, and volumes that a claim has.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from nodeplug.contract.errors import InvalidRequest, NotFound
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.resources import (
    CSI_STORAGE_CAPACITIES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    Object,
    key_of,
)
from nodeplug.provisioner import objects
from nodeplug.provisioner.steps import let_go

Fate = Literal["forgotten", "would be forgotten", "kept"]


@dataclass(frozen=True, slots=True)
class Left:
    """One object.

    Attributes:
        kind: of it.
        name: of it.
        fate: what becomes of it.
        why: it is kept; empty otherwise.
    """

    kind: str
    name: str
    fate: Fate
    why: str = ""


async def forget(client: Client, node: str, *, apply: bool) -> Sequence[Left]:
    """Remove what a lost node has left; without `apply`, only tell.

    Raises:
        InvalidRequest: the cluster still has the node.
        PluginError: the API server refuses.
    """
    with suppress(NotFound):
        await client.get(NODES, node)
        raise InvalidRequest(
            f"node {node!r} is there: only a lost node is forgotten; if it never comes back, run "
            f"`kubectl delete node {node}`"
        )
    gone: Fate = "forgotten" if apply else "would be forgotten"
    found: list[Left] = []
    for volume in await client.list(PERSISTENT_VOLUMES):
        if objects.made_here(volume, node):
            name = volume["metadata"]["name"]
            owner = await _owner(client, volume)
            if owner:
                text = f"claim {owner} has it; its data is lost: delete the claim, and ask again"
                found.append(Left(PERSISTENT_VOLUMES.kind, name, "kept", text))
                continue
            if apply:
                await _remove(client, volume)
            found.append(Left(PERSISTENT_VOLUMES.kind, name, gone))
    labels = ",".join(f"{key}={value}" for key, value in objects.capacity_labels("", node).items())
    for room in await client.list(CSI_STORAGE_CAPACITIES, labels=labels):
        metadata = room["metadata"]
        if apply:
            with suppress(NotFound):
                await client.delete(CSI_STORAGE_CAPACITIES, metadata["name"], metadata["namespace"])
        found.append(Left(CSI_STORAGE_CAPACITIES.kind, key_of(room), gone))
    return found


async def _owner(client: Client, volume: Object) -> str:
    """Return the claim that has a volume; empty if there is none any more."""
    reference = volume["spec"].get("claimRef")
    if not reference:
        return ""
    with suppress(NotFound):
        claim = await client.get(PERSISTENT_VOLUME_CLAIMS, reference["name"], reference["namespace"])
        if claim["metadata"]["uid"] == reference.get("uid"):
            return key_of(claim)
    return ""


async def _remove(client: Client, volume: Object) -> None:
    metadata = volume["metadata"]
    with suppress(NotFound):
        if not metadata.get("deletionTimestamp"):
            await client.delete(PERSISTENT_VOLUMES, metadata["name"], uid=metadata["uid"])
        await let_go(client, metadata["name"], metadata["uid"])

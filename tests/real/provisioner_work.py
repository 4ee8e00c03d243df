"""What a provisioner has to do for claims and classes: how it is asked for, and when it is done.

`test_provisioner_killed` interrupts each row of `WORK` at each of its requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.real.consumers.claims import CLAIMS, CORE, DRIVER, STORAGE, Cluster

from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import Journal
from nodeplug.fields import parse_quantity
from nodeplug.testing.acted_api.store import Where
from nodeplug_volumes.marker import MARKER

TOTAL: Final = 416
"""Mi that the volumes of the node may have together."""
FINALIZER: Final = "external-provisioner.volume.kubernetes.io/finalizer"


def is_of_claims(_: str, where: Where) -> bool:
    """Whether a request is for a claim; how much room there is is told beside it."""
    return where.resource != "csistoragecapacities"


def is_of_room(_: str, where: Where) -> bool:
    return where.resource == "csistoragecapacities"


@dataclass(frozen=True)
class Work:
    """What the provisioner has to do.

    Attributes:
        begin: asks for it, about something of this name.
        done: whether it is, and nothing is left over; so it has to be after every crash.
        asks: the requests that it takes.
        prepare: makes what has to be there before.
        told: whether the last request has come, where `done` does not see it.
        counts: which requests are counted.
    """

    begin: Callable[[Cluster, str], None]
    done: Callable[[Cluster, str], bool]
    asks: frozenset[str]
    prepare: Callable[[Cluster, str], None] = lambda cluster, name: None
    told: Callable[[Cluster, str], bool] = lambda cluster, name: True
    counts: Callable[[str, Where], bool] = is_of_claims


def is_tidy(cluster: Cluster) -> bool:
    """Whether every image has one volume, every volume one claim, and nothing is noted as begun."""
    volumes = cluster.call("GET", f"{CORE}/persistentvolumes")["items"]
    owners = [one["spec"]["claimRef"]["uid"] for one in volumes]
    claims = {one["metadata"]["uid"] for one in cluster.call("GET", CLAIMS)["items"]}
    images = {path.name.split(".")[0] for path in cluster.images.iterdir() if path.is_file() and path.name != MARKER}
    begun = Journal(cluster.daemon.paths.journal / "csi-provisioner").entries()
    return (
        images == {one["spec"]["csi"]["volumeHandle"] for one in volumes}
        and len(owners) == len(set(owners))
        and set(owners) <= claims
        and not begun
    )


# --- what is done


def is_bound(cluster: Cluster, name: str) -> bool:
    return cluster.get(name)["status"]["phase"] == "Bound" and is_tidy(cluster)


def is_told(reason: str, cluster: Cluster, name: str) -> bool:
    return reason in cluster.events(name)


def made(cluster: Cluster, name: str) -> None:
    cluster.claim(name)
    cluster.until(f"the volume of {name}", lambda: is_bound(cluster, name))
    cluster.until("the event", lambda: "ProvisioningSucceeded" in cluster.events(name))


def source(cluster: Cluster, _: str) -> None:
    try:
        cluster.get("source")
    except PluginError:
        made(cluster, "source")


def copy(cluster: Cluster, name: str) -> None:
    cluster.claim(name, dataSource={"kind": "PersistentVolumeClaim", "name": "source"})


def grow(cluster: Cluster, name: str) -> None:
    cluster.patch(name, {"resources": {"requests": {"storage": "48Mi"}}})


def has_grown(cluster: Cluster, name: str) -> bool:
    volume, status = cluster.volume_of(name), cluster.get(name)["status"]
    image = cluster.images / f"{volume['spec']['csi']['volumeHandle']}.img"
    return (
        volume["spec"]["capacity"]["storage"] == "48Mi"
        and status.get("allocatedResourceStatuses") == {"storage": "NodeResizePending"}
        and [one["type"] for one in status["conditions"]] == ["FileSystemResizePending"]
        and image.stat().st_size == 48 << 20
        and is_tidy(cluster)
    )


def is_gone(cluster: Cluster, name: str) -> bool:
    claims = {one["metadata"]["name"] for one in cluster.call("GET", CLAIMS)["items"]}
    return name not in claims and is_tidy(cluster)


def keep(cluster: Cluster, name: str) -> None:
    volume = cluster.volume_of(name)
    volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
    cluster.call("PUT", f"{CORE}/persistentvolumes/{volume['metadata']['name']}", volume)


def is_let_go(cluster: Cluster, name: str) -> bool:
    return FINALIZER not in cluster.volume_of(name)["metadata"].get("finalizers", ()) and is_tidy(cluster)


def is_sent_away(cluster: Cluster, name: str) -> bool:
    annotations = cluster.get(name)["metadata"].get("annotations") or {}
    return "volume.kubernetes.io/selected-node" not in annotations and is_tidy(cluster)


# --- room


def classes(cluster: Cluster) -> list[str]:
    found = cluster.call("GET", f"{STORAGE}/storageclasses")["items"]
    return [one["metadata"]["name"] for one in found if one["provisioner"] == DRIVER]


def add_class(cluster: Cluster, name: str) -> None:
    made = {"metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    cluster.call("POST", f"{STORAGE}/storageclasses", made)


def remove_class(cluster: Cluster, name: str) -> None:
    cluster.call("DELETE", f"{STORAGE}/storageclasses/{name}")


def is_room_told(cluster: Cluster, _: str = "") -> bool:
    """Whether each class has one object, and each says what is left."""
    volumes = cluster.call("GET", f"{CORE}/persistentvolumes")["items"]
    taken = sum(parse_quantity(one["spec"]["capacity"]["storage"]) for one in volumes) >> 20
    return cluster.capacity_of_classes() == dict.fromkeys(classes(cluster), f"{TOTAL - taken}Mi")


def class_with_room(cluster: Cluster, name: str) -> None:
    add_class(cluster, name)
    cluster.until("its room", lambda: is_room_told(cluster))


# --- the table

CREATED: Final = {"POST persistentvolumes", "POST events"}
WORK: Final[dict[str, Work]] = {
    "a claim gets a volume": Work(
        begin=lambda cluster, name: cluster.claim(name),
        told=partial(is_told, "ProvisioningSucceeded"),
        done=is_bound,
        asks=frozenset(CREATED),
    ),
    "a claim gets a copy": Work(
        prepare=source,
        begin=copy,
        told=partial(is_told, "ProvisioningSucceeded"),
        done=is_bound,
        asks=frozenset({*CREATED, "GET persistentvolumeclaims", "GET persistentvolumes"}),
    ),
    "a volume grows": Work(
        prepare=made,
        begin=grow,
        done=has_grown,
        asks=frozenset({"PATCH persistentvolumeclaims status", "PATCH persistentvolumes"}),
    ),
    "a volume is deleted": Work(
        prepare=made,
        begin=lambda cluster, name: cluster.delete(name),
        done=is_gone,
        asks=frozenset({"GET persistentvolumes", "DELETE persistentvolumes", "PATCH persistentvolumes"}),
    ),
    "a volume is kept": Work(
        prepare=made, begin=keep, done=is_let_go, asks=frozenset({"GET persistentvolumes", "PATCH persistentvolumes"})
    ),
    "a claim is sent away": Work(
        begin=lambda cluster, name: cluster.claim(name, "480Mi"),
        told=partial(is_told, "ProvisioningFailed"),
        done=is_sent_away,
        asks=frozenset({"PATCH persistentvolumeclaims", "POST events"}),
    ),
    "a class has room": Work(
        begin=add_class, done=is_room_told, counts=is_of_room, asks=frozenset({"POST csistoragecapacities"})
    ),
    "a class is gone": Work(
        prepare=class_with_room,
        begin=remove_class,
        done=is_room_told,
        counts=is_of_room,
        asks=frozenset({"DELETE csistoragecapacities"}),
    ),
    "there is less room": Work(
        begin=lambda cluster, name: cluster.claim(name),
        told=lambda cluster, name: is_bound(cluster, name) and is_room_told(cluster),
        done=lambda cluster, name: is_bound(cluster, name) and is_room_told(cluster),
        counts=is_of_room,
        asks=frozenset({"PATCH csistoragecapacities"}),
    ),
}

"""Creating and deleting volumes and snapshots, for any front.

Owns: which of these requests exclude each other, that no volume is deleted under a pod, and what the host checks of a
plugin's answers. Plain synchronous code in the thread of its request, as the other steps.
Refuses: messages, and PersistentVolume objects.
"""

from collections.abc import Mapping
from typing import Any, Final

from nodeplug.contract.errors import InUse, NotFound, NotReady, NotSupported, PluginError
from nodeplug.contract.values import (
    DriverRequest,
    ProvisionedVolume,
    Secrets,
    Snapshot,
    VolumeCapacity,
    VolumeCreate,
    VolumeDelete,
    VolumeExpand,
    VolumeId,
    VolumeList,
    VolumeRoom,
    VolumeSnapshot,
    VolumeSnapshotDelete,
    VolumeSnapshotList,
)
from nodeplug.volumes.compose import Steps

_SHOWN: Final = 3
"""How many pods' mounts a message names."""


def create(steps: Steps, wanted: VolumeCreate) -> ProvisionedVolume:
    """Create a volume, or return the one that has the name already.

    Raises:
        PluginError: the plugin refused, or its answer is not what was asked for.
    """
    made: ProvisionedVolume = _by_name(steps, "volume_create", wanted.name, wanted)
    plugin = steps.composition.route.plugin
    if made.size < wanted.size or (wanted.limit and made.size > wanted.limit):
        limit = f"at most {wanted.limit}" if wanted.limit else "no limit"
        raise PluginError(
            f"plugin {plugin!r} made volume {made.volume_id!r} of {made.size} bytes; at least {wanted.size} and "
            f"{limit} were asked for"
        )
    if steps.composition.has("volume_id"):
        named = steps.identify(made.options, Secrets())
        if named != made.volume_id:
            raise PluginError(
                f"plugin {plugin!r} made volume {made.volume_id!r}, and calls its options {named!r}: nobody could "
                "publish it; volume_id has to agree with volume_create"
            )
    return made


def delete(steps: Steps, request: VolumeDelete) -> None:
    """Delete a volume that no pod has; succeed if it does not exist.

    Raises:
        InUse: a pod has it.
    """
    _demand(steps, "volume_delete")
    volume = steps.ledger.plan(steps.driver, request.volume_id)
    if steps.ledger.staged(steps.driver, request.volume_id) is not None:
        steps.unstage_unused(volume)  # left by a plugin that did not run when its last pod ended
    with steps.alone("volume", steps.driver, request.volume_id):
        if users := sorted(steps.ledger.users(volume)):
            more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
            raise InUse(
                f"volume {request.volume_id!r} of {steps.driver} is mounted at {', '.join(users[:_SHOWN])}{more}; "
                "end its pods first"
            )
        steps.composition.hook("volume_delete", request=request)


def expand(steps: Steps, volume_id: VolumeId, size: int, limit: int) -> int:
    """Grow a volume, not its filesystem, which grows where it is mounted; return its bytes.

    Raises:
        NotFound: there is no such volume.
    """
    _demand(steps, "volume_expand")
    request = VolumeExpand(
        driver=steps.driver,
        volume_id=volume_id,
        options=_options_of(steps, volume_id),
        new_size=size,
        limit=limit,
    )
    answer: int = steps.on_volume("volume_expand", request)
    return answer


def _options_of(steps: Steps, volume_id: VolumeId) -> Mapping[str, str]:
    """Return the options of a volume, of which the caller knows the id alone."""
    if steps.composition.has("volume_list"):
        return one(steps, volume_id).options
    targets = [target for target in steps.ledger.targets() if target.options]
    mine = (
        target for target in targets if (target.volume.driver, target.volume.volume_id) == (steps.driver, volume_id)
    )
    return next((target.options for target in mine), {})


def every(steps: Steps) -> list[ProvisionedVolume]:
    """Return every volume that this node can reach, by id."""
    answer = _ask(steps, "volume_list", VolumeList(driver=steps.driver))
    return sorted(answer, key=lambda volume: volume.volume_id)


def one(steps: Steps, volume_id: VolumeId) -> ProvisionedVolume:
    """Return a volume; raise NotFound if this node cannot reach it."""
    found = next((volume for volume in every(steps) if volume.volume_id == volume_id), None)
    if found is None:
        raise NotFound(f"there is no volume {volume_id!r} of {steps.driver} on this node")
    return found


def capacity(steps: Steps, request: VolumeCapacity) -> VolumeRoom:
    """Return how many bytes are left for new volumes; never less than none, and none where the driver is not ready."""
    try:
        answer = _ask(steps, "volume_capacity", request)
    except NotReady:
        return VolumeRoom(available=0, largest=0)
    return room_of(answer)


def room_of(answer: int | VolumeRoom) -> VolumeRoom:
    """Return what a plugin says of its room: never less than none, and no volume larger than what is left."""
    room = answer if isinstance(answer, VolumeRoom) else VolumeRoom(available=int(answer))
    available = max(0, room.available)
    # The scheduler looks at `largest` alone where it is told (pkg/scheduler volumebinding, hasEnoughCapacity).
    largest = None if room.largest is None else min(max(0, room.largest), available)
    return VolumeRoom(available=available, largest=largest)


def snapshot(steps: Steps, wanted: VolumeSnapshot) -> Snapshot:
    """Take a snapshot of a volume, or return the one that has the name already."""
    _demand(steps, "volume_snapshot")
    with steps.alone("volume", steps.driver, wanted.volume_id):
        made: Snapshot = _by_name(steps, "volume_snapshot", wanted.name, wanted)
    return made


def delete_snapshot(steps: Steps, request: VolumeSnapshotDelete) -> None:
    """Delete a snapshot; succeed if it does not exist."""
    _by_name(steps, "volume_snapshot_delete", request.snapshot_id, request)


def snapshots(steps: Steps) -> list[Snapshot]:
    """Return every snapshot that this node can reach, by id."""
    answer = _ask(steps, "volume_snapshot_list", VolumeSnapshotList(driver=steps.driver))
    return sorted(answer, key=lambda found: found.snapshot_id)


def _by_name(steps: Steps, hook: str, name: str, request: DriverRequest) -> Any:
    """Call a hook while no other request about the same name does."""
    _demand(steps, hook)
    with steps.alone(hook.removesuffix("_delete"), steps.driver, name):
        return steps.composition.hook(hook, request=request)


def _ask(steps: Steps, hook: str, request: DriverRequest) -> Any:
    _demand(steps, hook)
    steps.composition.call.key = steps.driver
    return steps.composition.hook(hook, request=request)


def _demand(steps: Steps, hook: str) -> None:
    """Raise NotSupported if the plugin lacks a hook."""
    if not steps.composition.has(hook):
        raise NotSupported(f"plugin {steps.composition.route.plugin!r} of {steps.driver} has no hook {hook}")

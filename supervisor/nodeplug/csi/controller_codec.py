"""CSI's Controller on the wire: messages about creating volumes become requests of the contract, and answers messages.

Owns: the provisioner's own keys among the parameters, places in a list, and which capabilities a driver announces.
Refuses: I/O and hooks.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar, cast

from google.protobuf.timestamp_pb2 import Timestamp

from nodeplug.contract.errors import Exhausted, InvalidRequest, UnknownPlace
from nodeplug.contract.values import (
    AccessMode,
    ProvisionedVolume,
    Snapshot,
    VolumeCapacity,
    VolumeClaim,
    VolumeCreate,
    VolumeDelete,
    VolumeId,
    VolumeRoom,
    VolumeSnapshot,
    VolumeSnapshotDelete,
)
from nodeplug.csi import codec
from nodeplug.csi.codec import require
from nodeplug.pb import csi_v1_pb2 as pb

_PLACE: Final = b"after:"
_NANOSECONDS: Final = 1_000_000_000
_T = TypeVar("_T")
_Kind = pb.ControllerServiceCapability.RPC
_ByHook = Mapping[str, tuple["_Kind.Type.ValueType", ...]]
_CAPABILITIES: Final[_ByHook] = {
    "volume_create": (_Kind.CREATE_DELETE_VOLUME,),
    "volume_list": (_Kind.LIST_VOLUMES, _Kind.GET_VOLUME, _Kind.VOLUME_CONDITION),
    "volume_capacity": (_Kind.GET_CAPACITY,),
    "volume_expand": (_Kind.EXPAND_VOLUME,),
    "volume_snapshot": (_Kind.CREATE_DELETE_SNAPSHOT,),
    "volume_snapshot_list": (_Kind.LIST_SNAPSHOTS,),
}


def plugin_capabilities(claim: VolumeClaim, hooks: frozenset[str]) -> pb.GetPluginCapabilitiesResponse:
    """Return what a driver can do at all."""
    kinds = [pb.PluginCapability.Service.CONTROLLER_SERVICE] if "volume_create" in hooks else []
    if claim.node_local:
        kinds.append(pb.PluginCapability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS)
    capabilities = [pb.PluginCapability(service=pb.PluginCapability.Service(type=kind)) for kind in kinds]
    if "volume_expand" in hooks:
        online = pb.PluginCapability.VolumeExpansion(type=pb.PluginCapability.VolumeExpansion.ONLINE)
        capabilities.append(pb.PluginCapability(volume_expansion=online))
    return pb.GetPluginCapabilitiesResponse(capabilities=capabilities)


def controller_capabilities(claim: VolumeClaim, hooks: frozenset[str]) -> pb.ControllerGetCapabilitiesResponse:
    """Return what a driver can do for a provisioner; nothing, if it does not create volumes."""
    kinds: list[_Kind.Type.ValueType] = []
    if "volume_create" in hooks:
        kinds = [kind for hook, some in _CAPABILITIES.items() if hook in hooks for kind in some]
        kinds += [_Kind.CLONE_VOLUME] if claim.clones else []
        kinds.append(_Kind.SINGLE_NODE_MULTI_WRITER)
    capabilities = [pb.ControllerServiceCapability(rpc=_Kind(type=kind)) for kind in kinds]
    return pb.ControllerGetCapabilitiesResponse(capabilities=capabilities)


# --- volumes


def read_create(message: pb.CreateVolumeRequest, claim: VolumeClaim, here: Mapping[str, str]) -> VolumeCreate:
    """Read what is to be created.

    Args:
        message: the request.
        claim: of the driver.
        here: the topology of this node; empty if volumes can be used anywhere.

    Raises:
        InvalidRequest: something that the specification demands is missing or wrong, or the driver cannot do it.
        Exhausted: the volume is wanted on other nodes alone.
    """
    require(message.name, "name")
    require(message.volume_capabilities, "volume_capabilities")
    for capability in message.volume_capabilities:
        check_capability(capability, claim)
    size, limit = codec.read_range(message.capacity_range)
    _check_place([dict(one.segments) for one in message.accessibility_requirements.requisite], here)
    mounts = [one.mount for one in message.volume_capabilities if one.WhichOneof("access_type") == "mount"]
    source = _source(message, claim)
    preferred = (*message.accessibility_requirements.preferred, *message.accessibility_requirements.requisite)
    return VolumeCreate(
        driver=claim.name,
        name=message.name,
        size=size,
        limit=limit,
        access_modes=tuple(_mode(one) for one in message.volume_capabilities),
        block=len(mounts) < len(message.volume_capabilities),
        fs_type=next((one.fs_type for one in mounts if one.fs_type), ""),
        mount_flags=tuple(flag for one in mounts for flag in one.mount_flags),
        parameters=codec.options_in(message.parameters),
        secrets=codec.secrets_in(message.secrets),
        source=source.volume.volume_id,
        snapshot=source.snapshot.snapshot_id,
        topology=tuple(dict(one.segments) for one in preferred),
    )


def _source(message: pb.CreateVolumeRequest, claim: VolumeClaim) -> pb.VolumeContentSource:
    """Return what is to be copied; InvalidRequest if it is not named, or the driver does not copy."""
    source = message.volume_content_source
    if message.HasField("volume_content_source"):
        require(source.snapshot.snapshot_id or source.volume.volume_id, "id of a volume or snapshot to copy")
    if source.WhichOneof("type") == "volume" and not claim.clones:
        raise InvalidRequest(f"{claim.name} does not copy volumes; create an empty one")
    return source


def _mode(capability: pb.VolumeCapability) -> AccessMode:
    return cast("AccessMode", pb.VolumeCapability.AccessMode.Mode.Name(capability.access_mode.mode))


def _check_place(requisite: Sequence[Mapping[str, str]], here: Mapping[str, str]) -> None:
    if here and requisite and not any(dict(one).items() <= here.items() for one in requisite):
        wanted = "; ".join(", ".join(f"{key}={value}" for key, value in sorted(one.items())) for one in requisite[:3])
        mine = ", ".join(f"{key}={value}" for key, value in here.items())
        raise Exhausted(f"a volume is wanted where {wanted}; this node makes volumes where {mine}")


def check_capability(capability: pb.VolumeCapability, claim: VolumeClaim) -> None:
    """Raise InvalidRequest if the volumes of a driver cannot do this, on any node."""
    codec.check_capability(capability, claim)
    if claim.node_local and _mode(capability).startswith("MULTI_NODE"):
        raise InvalidRequest(
            f"volumes of {claim.name} are on one node each; {_mode(capability)} is asked for: use ReadWriteOnce"
        )


def write_volume(volume: ProvisionedVolume, here: Mapping[str, str], wanted: VolumeCreate | None = None) -> pb.Volume:
    """Write a volume; `wanted` is what it was created for, whose source the answer has to repeat."""
    topology = volume.topology or ((here,) if here else ())
    written = pb.Volume(
        capacity_bytes=volume.size,
        volume_id=volume.volume_id,
        volume_context=volume.options,
        accessible_topology=[pb.Topology(segments=one) for one in topology],
    )
    if wanted is not None and wanted.snapshot:
        written.content_source.snapshot.snapshot_id = wanted.snapshot
    elif wanted is not None and wanted.source:
        written.content_source.volume.volume_id = wanted.source
    return written


def write_condition(volume: ProvisionedVolume) -> pb.VolumeCondition:
    """Write how a volume is."""
    return pb.VolumeCondition(abnormal=bool(volume.condition), message=volume.condition or "healthy")


def read_delete(message: pb.DeleteVolumeRequest, claim: VolumeClaim) -> VolumeDelete:
    """Read what is to be deleted; raise InvalidRequest without an id."""
    require(message.volume_id, "volume_id")
    secrets = codec.secrets_in(message.secrets)
    return VolumeDelete(driver=claim.name, volume_id=VolumeId(message.volume_id), secrets=secrets)


def read_expand(message: pb.ControllerExpandVolumeRequest) -> tuple[VolumeId, int, int]:
    """Return the volume that is to grow, its bytes at least, and at most; raise InvalidRequest if one is missing."""
    require(message.volume_id, "volume_id")
    require(message.HasField("capacity_range"), "capacity_range")
    return VolumeId(message.volume_id), *codec.read_range(message.capacity_range)


def write_room(room: VolumeRoom) -> pb.GetCapacityResponse:
    """Say how much room there is."""
    message = pb.GetCapacityResponse(available_capacity=room.available)
    if room.largest is not None:
        message.maximum_volume_size.value = room.largest
        message.maximum_volume_size.SetInParent()  # also for 0
    return message


def read_capacity(message: pb.GetCapacityRequest, claim: VolumeClaim, here: Mapping[str, str]) -> VolumeCapacity | None:
    """Read how much room is asked for; None if the answer is none, since no such volume can be created here."""
    where = dict(message.accessible_topology.segments)
    try:
        _check_place([where] if where else [], here)
        for capability in message.volume_capabilities:
            if capability.WhichOneof("access_type") is not None:  # all of them may be empty
                check_capability(capability, claim)
    except (Exhausted, InvalidRequest):
        return None
    return VolumeCapacity(driver=claim.name, parameters=codec.options_in(message.parameters), topology=where)


# --- snapshots


def read_snapshot(message: pb.CreateSnapshotRequest, claim: VolumeClaim) -> VolumeSnapshot:
    """Read of what a snapshot is to be taken; raise InvalidRequest without a name or an id."""
    require(message.name, "name")
    require(message.source_volume_id, "source_volume_id")
    return VolumeSnapshot(
        driver=claim.name,
        volume_id=VolumeId(message.source_volume_id),
        name=message.name,
        parameters=codec.options_in(message.parameters),
        secrets=codec.secrets_in(message.secrets),
    )


def read_delete_snapshot(message: pb.DeleteSnapshotRequest, claim: VolumeClaim) -> VolumeSnapshotDelete:
    """Read what is to be deleted; raise InvalidRequest without an id."""
    require(message.snapshot_id, "snapshot_id")
    secrets = codec.secrets_in(message.secrets)
    return VolumeSnapshotDelete(driver=claim.name, snapshot_id=message.snapshot_id, secrets=secrets)


def write_snapshot(snapshot: Snapshot) -> pb.Snapshot:
    """Write a snapshot."""
    seconds, rest = divmod(round(snapshot.created * _NANOSECONDS), _NANOSECONDS)
    return pb.Snapshot(
        size_bytes=snapshot.size,
        snapshot_id=snapshot.snapshot_id,
        source_volume_id=snapshot.volume_id,
        creation_time=Timestamp(seconds=seconds, nanos=rest),
        ready_to_use=snapshot.ready,
    )


# --- pages


def page(names: Sequence[str], found: Sequence[_T], token: str, most: int) -> tuple[Sequence[_T], str]:
    """Return one page of a list that is ordered by name, and where the next one begins; empty after the last.

    A place is the name of the last entry before it, so that it stays good when that entry is deleted.

    Raises:
        InvalidRequest: a negative number of entries.
        UnknownPlace: the token is none of these.
    """
    if most < 0:
        raise InvalidRequest(f"max_entries is {most}; it must be 0 for all, or more")
    after = _read_place(token) if token else ""
    rest = [(name, one) for name, one in zip(names, found, strict=True) if name > after]
    shown = list(islice(rest, most or None))
    more = len(shown) < len(rest)
    return [one for _, one in shown], _write_place(shown[-1][0]) if more else ""


def _write_place(name: str) -> str:
    return base64.urlsafe_b64encode(_PLACE + name.encode("utf-8", "surrogateescape")).decode()


def _read_place(token: str) -> str:
    try:
        text = base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        text = b""
    if not text.startswith(_PLACE):
        raise UnknownPlace(f"starting_token is {token[:40]!r}, which is no next_token of this driver; begin without it")
    return text.removeprefix(_PLACE).decode("utf-8", "surrogateescape")

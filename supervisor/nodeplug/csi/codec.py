"""CSI on the wire: messages of csi.v1 become requests of the contract, and answers become messages.

Owns: the names of drivers, kubelet's own keys in a volume's context, and which capabilities a driver announces.
Refuses: I/O, hooks, and trust: volume attributes are the pod author's for an inline volume, so what they say of the pod
is a hint. Error messages name keys, never values.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, cast

from nodeplug.contract.errors import InvalidRequest, NotFound
from nodeplug.contract.inputs import VOLUME_OPTIONS
from nodeplug.contract.values import (
    AccessMode,
    Pod,
    Secrets,
    VolumeClaim,
    VolumeId,
    VolumePublish,
    VolumeStats,
)
from nodeplug.pb import csi_v1_pb2 as pb

KUBELETS: Final = "csi.storage.k8s.io/"
"""The prefix of what kubelet adds to a volume's context (CSIDriver, `podInfoOnMount` and `tokenRequests`)."""
TOKENS: Final = "csi.storage.k8s.io/serviceAccount.tokens"
"""Tokens by audience, in JSON; in the context, or among the secrets (CSIDriver, `serviceAccountTokenInSecrets`)."""
EPHEMERAL: Final = "csi.storage.k8s.io/ephemeral"
"""Whether the volume is an inline one (CSIDriver, `podInfoOnMount`)."""
_PROVISIONERS: Final = "storage.kubernetes.io/csiProvisionerIdentity"
_READERS: Final = frozenset({"SINGLE_NODE_READER_ONLY", "MULTI_NODE_READER_ONLY"})
"""Access modes in which kubelet does not say readonly, unless the pod does."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_LIMIT: Final = 63
_GROUP_LIMIT: Final = (1 << 31) - 1
_Kind = pb.NodeServiceCapability.RPC


def driver_name(claim: VolumeClaim) -> str:
    """Return the name of a claim's CSI driver: `driver.vendor` for `vendor/driver`, or what the claim says.

    Raises:
        InvalidRequest: it is no name for a CSIDriver object, which is a DNS subdomain of at most 63 characters.
    """
    vendor, _, driver = claim.name.rpartition("/")
    name = claim.csi_name or (f"{driver}.{vendor}" if vendor else "")
    if not _NAME.fullmatch(name) or len(name) > _NAME_LIMIT:
        text = f"{claim.name!r} gives the CSI driver name {name!r}" if name else f"{claim.name!r} has no vendor"
        raise InvalidRequest(
            f"{text}; it must be lower-case letters, digits, '-' and '.', at most {_NAME_LIMIT}, beginning and ending "
            "with a letter or digit: set csi_name in the plugin's VolumeClaim"
        )
    return name


def read_options(text: str) -> dict[str, str]:
    """Read the options of a volume, as a PersistentVolume has them.

    Raises:
        InvalidRequest: they are not a JSON object of texts.
    """
    try:
        found = VOLUME_OPTIONS.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidRequest("the options of a volume are a JSON object whose values are texts")
    return found


def read_publish(message: pb.NodePublishVolumeRequest, claim: VolumeClaim) -> VolumePublish:
    """Read what is to be published for a pod.

    An inline volume has an id of kubelet's making; its own follows from the options. Any other was provisioned, so it
    must exist.

    Raises:
        InvalidRequest: something that the specification demands is missing or wrong, or the driver cannot do it.
    """
    require(message.volume_id, "volume_id")
    capability = check_capability(message.volume_capability, claim)
    mount, mode = capability.mount, pb.VolumeCapability.AccessMode.Mode.Name(capability.access_mode.mode)
    ephemeral = message.volume_context.get(EPHEMERAL) == "true"
    if ephemeral and not claim.inline:
        raise InvalidRequest(
            f"{claim.name} has no inline volumes, whose options any author of a pod may choose; use a PersistentVolume"
        )
    return VolumePublish(
        driver=claim.name,
        volume_id=VolumeId(message.volume_id),
        options=options_in(message.volume_context),
        target_path=read_path(message.target_path, "target_path"),
        fs_type=mount.fs_type,
        read_only=message.readonly or mode in _READERS,
        fs_group=_group(mount.volume_mount_group),
        secrets=secrets_in(message.secrets, message.volume_context),
        access_mode=cast("AccessMode", mode),
        block=capability.WhichOneof("access_type") == "block",
        mount_flags=tuple(mount.mount_flags),
        publish_context=dict(message.publish_context),
        must_exist=not ephemeral,
        pod=_pod(message.volume_context),
        ephemeral=ephemeral,
    )


def read_unpublish(message: pb.NodeUnpublishVolumeRequest) -> str:
    """Return the target of what is to be unpublished; raise InvalidRequest if the id or the path is missing."""
    require(message.volume_id, "volume_id")
    return read_path(message.target_path, "target_path")


def read_stats(message: pb.NodeGetVolumeStatsRequest) -> str:
    """Return the path whose usage is asked for.

    Raises:
        InvalidRequest: the id or the path is missing.
        NotFound: nothing can be published at such a path.
    """
    require(message.volume_id, "volume_id")
    return _published_path(message.volume_path)


def read_expand(message: pb.NodeExpandVolumeRequest) -> tuple[str, int, int]:
    """Return the path of a published volume, the bytes that it should have, and the most that it may; 0: no limit.

    Raises:
        InvalidRequest: the id, the path or a size is missing or wrong.
        NotFound: nothing can be published at such a path.
    """
    require(message.volume_id, "volume_id")
    required, limit = read_range(message.capacity_range)
    return _published_path(message.volume_path), required, limit


def _published_path(text: str) -> str:
    require(text, "volume_path")
    try:
        return read_path(text, "volume_path")
    except InvalidRequest as error:
        raise NotFound(error.message) from None


def read_range(message: pb.CapacityRange) -> tuple[int, int]:
    """Return the bytes that a volume should have at least, and at most; 0 means no limit.

    Raises:
        InvalidRequest: it is no range.
    """
    required, limit = message.required_bytes, message.limit_bytes
    if required < 0 or limit < 0 or (limit and required > limit):
        raise InvalidRequest(f"the capacity_range from {required} to {limit} bytes is none")
    return required, limit


def hidden(secrets: Secrets) -> Secrets:
    """Return the secrets as texts may quote them: also each token alone, out of the JSON that has them all."""
    tokens: dict[str, bytes] = {}
    try:
        document = VOLUME_OPTIONS.loads(secrets.get(TOKENS, b"{}"))
        found = document.values() if isinstance(document, dict) else ()
        texts = [one["token"] for one in found if isinstance(one, dict) and isinstance(one.get("token"), str)]
        tokens = {f"{TOKENS}/{number}": text.encode() for number, text in enumerate(texts)}
    except (ValueError, RecursionError):
        pass  # it is hidden as it is
    return Secrets({**secrets, **tokens})


def options_in(context: Mapping[str, str]) -> dict[str, str]:
    """Return the driver's own options in a volume's context: plugins refuse those that they do not know."""
    return {key: value for key, value in context.items() if not key.startswith(KUBELETS) and key != _PROVISIONERS}


def secrets_in(secrets: Mapping[str, str], context: Mapping[str, str] = MappingProxyType({})) -> Secrets:
    """Return the secrets of a message, tokens in a volume's context among them."""
    tokens = {TOKENS: context[TOKENS]} if TOKENS in context else {}
    return Secrets({name: value.encode() for name, value in (dict(secrets) | tokens).items()})


def read_path(text: str, what: str) -> str:
    """Return an absolute path without '.' and '..', with single slashes; raise InvalidRequest for anything else."""
    require(text, what)
    if not text.startswith("/") or {".", ".."} & set(text.split("/")) or not text.strip("/") or "\0" in text:
        raise InvalidRequest(f"{what} must be an absolute path without '.' and '..'; found {len(text)} characters")
    return "/" + "/".join(part for part in text.split("/") if part)


def require(value: object, what: str) -> None:
    """Raise InvalidRequest if a field is empty."""
    if not value:
        raise InvalidRequest(f"the request has no {what}")


def check_capability(capability: pb.VolumeCapability, claim: VolumeClaim) -> pb.VolumeCapability:
    """Return what a volume shall be able to do, if a driver's volumes can.

    Raises:
        InvalidRequest: it is incomplete, or they cannot.
    """
    kind = capability.WhichOneof("access_type")
    require(kind, "volume_capability with an access type")
    if capability.access_mode.mode == pb.VolumeCapability.AccessMode.UNKNOWN:
        raise InvalidRequest("the request's volume_capability has no access mode")
    if capability.access_mode.mode not in pb.VolumeCapability.AccessMode.Mode.values():
        raise InvalidRequest(f"the request's access mode {capability.access_mode.mode} is none that nodeplug knows")
    if kind == "block" and not claim.block:
        raise InvalidRequest(f"{claim.name} has no block volumes; use volumeMode Filesystem")
    return capability


def _group(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _GROUP_LIMIT):
        raise InvalidRequest(f"volume_mount_group must be a group number between 0 and {_GROUP_LIMIT}")
    return int(text)


def _pod(context: Mapping[str, str]) -> Pod:
    return Pod(
        name=context.get(f"{KUBELETS}pod.name", ""),
        namespace=context.get(f"{KUBELETS}pod.namespace", ""),
        uid=context.get(f"{KUBELETS}pod.uid", ""),
        service_account=context.get(f"{KUBELETS}serviceAccount.name", ""),
    )


# --- what a driver answers ------------------------------------------------------------------------------------------


def node_capabilities(claim: VolumeClaim, hooks: frozenset[str]) -> pb.NodeGetCapabilitiesResponse:
    """Return what a driver can do on a node.

    STAGE_UNSTAGE_VOLUME is never among it: kubelet does not unstage a volume of which it sees a mount that it did not
    make, such as that of a FlexVolume pod (mount-utils, HasMountRefs), so publishing stages.
    """
    kinds = [_Kind.SINGLE_NODE_MULTI_WRITER]
    if claim.metrics or "volume_stats" in hooks:
        kinds += [_Kind.GET_VOLUME_STATS, _Kind.VOLUME_CONDITION]
    if "volume_expand" in hooks:
        kinds.append(_Kind.EXPAND_VOLUME)
    if claim.fs_group == "driver":
        kinds.append(_Kind.VOLUME_MOUNT_GROUP)
    capabilities = [pb.NodeServiceCapability(rpc=_Kind(type=kind)) for kind in kinds]
    return pb.NodeGetCapabilitiesResponse(capabilities=capabilities)


def write_stats(stats: VolumeStats) -> pb.NodeGetVolumeStatsResponse:
    """Write usage and condition; kubelet takes no answer without usage."""
    usage = [pb.VolumeUsage(unit=pb.VolumeUsage.BYTES, total=stats.total, used=stats.used, available=stats.available)]
    if stats.inodes:
        free = stats.inodes - stats.inodes_used
        usage.append(
            pb.VolumeUsage(unit=pb.VolumeUsage.INODES, total=stats.inodes, used=stats.inodes_used, available=free)
        )
    condition = pb.VolumeCondition(abnormal=bool(stats.condition), message=stats.condition or "healthy")
    return pb.NodeGetVolumeStatsResponse(usage=usage, volume_condition=condition)

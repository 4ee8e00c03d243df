"""The services of one CSI driver on this node: Identity and Node.

Owns: the RPCs, each through the front, and what kubelet expects around a publish: the target is made before and removed
after, and so is the folder for staging that kubelet makes and forgets.
Refuses: plugin code (`volumes` runs the hooks), staging at a path of kubelet's (see `codec.node_capabilities`), and to
wait for minutes: kubelet gives a call two, and repeats it.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.wrappers_pb2 import BoolValue

from nodeplug.contract.errors import InvalidRequest, NotFound, NotSupported, PluginError, TryAgain, wire, with_request
from nodeplug.contract.mounts import mounted_at
from nodeplug.contract.values import (
    Secrets,
    VolumeClaim,
    VolumeExpand,
    VolumeId,
    VolumePublish,
    VolumeStage,
    VolumeStats,
    VolumeStatsRequest,
)
from nodeplug.csi import codec
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.volumes.compose import Steps
from nodeplug.volumes.service import Volumes

LOG: Final = logging.getLogger(__name__)
PATIENCE: Final = 5.0
"""Seconds that a call waits for an earlier one about the same volume."""
_T = TypeVar("_T")


@dataclass(slots=True)
class Driver:
    """What the services of one driver share. Event loop only.

    Attributes:
        name: of the CSI driver.
        claim: the name of the claim, `vendor/driver`.
        node: the name of this node.
        folders: `plugins/kubernetes.io/csi` below kubelet's root, where kubelet makes folders for staging.
    """

    name: str
    claim: str
    node: str
    folders: Path
    registry: Registry
    runner: Runner
    volumes: Volumes
    _front: Front = field(init=False)

    def __post_init__(self) -> None:
        self._front = Front(self.runner)

    def route(self, undoing: str = "") -> Route:
        """Return the route to the plugin; one without callers, if it is at rest and lacks the hook that undoes.

        Raises:
            TryAgain: the plugin does not run.
            NotFound: nobody has the claim.
        """
        try:
            return self.registry.route("volume", self.claim)
        except TryAgain:
            at_rest = [one for one in self.registry.routes("volume") if one.claim.name == self.claim]
            if not undoing or not at_rest or undoing in at_rest[0].hooks:
                raise
            return replace(at_rest[0], callers={})

    async def answer(
        self,
        verb: str,
        context: Any,
        work: Callable[[Steps], _T],
        *,
        target: str = "",
        secrets: Secrets | None = None,
        undoing: str = "",
    ) -> _T:
        """Run the steps of a call; end it with the status of the error, if there is one."""
        known = self.volumes.known
        if secrets is not None:
            known.remember(self.claim, target, secrets)
        call = Call(verb, f"volume:{self.claim}", target, mask=known.mask(self.claim))
        try:
            return await self._front.serve(call, self._run(call, work, undoing))
        except PluginError as error:
            await context.abort(grpc.StatusCode[wire(error).grpc], with_request(error.message, error))
            raise AssertionError from error  # abort raises: this line tells the type checker so

    async def _run(self, call: Call, work: Callable[[Steps], _T], undoing: str) -> _T:
        route = self.route(undoing)
        try:
            answer = await self.volumes.run(route, call, work, patience=PATIENCE)
        except OSError as error:
            raise PluginError(f"{type(error).__name__}: {error}") from error
        if route.callers:
            await self.volumes.undo_left(self.registry, self.claim)
        return answer


@dataclass(slots=True)
class _Identity(pb_grpc.IdentityServicer):
    """Who the driver is; never asks the plugin."""

    driver: Driver

    async def GetPluginInfo(self, request: pb.GetPluginInfoRequest, context: Any) -> pb.GetPluginInfoResponse:  # noqa: N802 - the RPC's name
        del request, context
        return pb.GetPluginInfoResponse(name=self.driver.name, vendor_version=version("nodeplug"))

    async def GetPluginCapabilities(  # noqa: N802 - the RPC's name
        self, request: pb.GetPluginCapabilitiesRequest, context: Any
    ) -> pb.GetPluginCapabilitiesResponse:
        del request
        return await _now(context, lambda: codec.plugin_capabilities(_claimed(self.driver).hooks))

    async def Probe(self, request: pb.ProbeRequest, context: Any) -> pb.ProbeResponse:  # noqa: N802 - the RPC's name
        del request, context
        try:
            self.driver.route()
        except PluginError:
            return pb.ProbeResponse(ready=BoolValue(value=False))
        return pb.ProbeResponse(ready=BoolValue(value=True))


@dataclass(slots=True)
class _Node(pb_grpc.NodeServicer):
    """What kubelet calls."""

    driver: Driver

    async def NodeGetInfo(self, request: pb.NodeGetInfoRequest, context: Any) -> pb.NodeGetInfoResponse:  # noqa: N802 - the RPC's name
        del request
        route = await _now(context, lambda: _claimed(self.driver))
        claim = cast("VolumeClaim", route.claim)
        return pb.NodeGetInfoResponse(node_id=self.driver.node, max_volumes_per_node=claim.max_volumes)

    async def NodeGetCapabilities(  # noqa: N802 - the RPC's name
        self, request: pb.NodeGetCapabilitiesRequest, context: Any
    ) -> pb.NodeGetCapabilitiesResponse:
        del request
        route = await _now(context, lambda: _claimed(self.driver))
        return codec.node_capabilities(cast("VolumeClaim", route.claim), route.hooks)

    async def NodePublishVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodePublishVolumeRequest, context: Any
    ) -> pb.NodePublishVolumeResponse:
        wanted = await _now(
            context, lambda: codec.read_publish(request, cast("VolumeClaim", _claimed(self.driver).claim))
        )
        await self.driver.answer(
            "NodePublishVolume",
            context,
            lambda steps: publish(steps, wanted),
            target=wanted.target_path,
            secrets=wanted.secrets,
        )
        return pb.NodePublishVolumeResponse()

    async def NodeUnpublishVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeUnpublishVolumeRequest, context: Any
    ) -> pb.NodeUnpublishVolumeResponse:
        path = await _now(context, lambda: codec.read_unpublish(request))
        folder = globalmount(self.driver.folders, self.driver.name, request.volume_id)
        await self.driver.answer(
            "NodeUnpublishVolume",
            context,
            lambda steps: unpublish(steps, path, folder),
            target=path,
            undoing="volume_unpublish",
        )
        self.driver.volumes.known.forget(self.driver.claim, path)
        return pb.NodeUnpublishVolumeResponse()

    async def NodeGetVolumeStats(  # noqa: N802 - the RPC's name
        self, request: pb.NodeGetVolumeStatsRequest, context: Any
    ) -> pb.NodeGetVolumeStatsResponse:
        path = await _now(context, lambda: codec.read_stats(request))
        stats = await self.driver.answer("NodeGetVolumeStats", context, lambda steps: measure(steps, path), target=path)
        return codec.write_stats(stats)

    async def NodeExpandVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeExpandVolumeRequest, context: Any
    ) -> pb.NodeExpandVolumeResponse:
        path, size, limit = await _now(context, lambda: codec.read_expand(request))
        size = await self.driver.answer(
            "NodeExpandVolume", context, lambda steps: expand(steps, path, size, limit), target=path
        )
        return pb.NodeExpandVolumeResponse(capacity_bytes=size)

    async def NodeStageVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeStageVolumeRequest, context: Any
    ) -> pb.NodeStageVolumeResponse:
        del request
        return await _now(context, _not_staged)

    async def NodeUnstageVolume(  # noqa: N802 - the RPC's name
        self, request: pb.NodeUnstageVolumeRequest, context: Any
    ) -> pb.NodeUnstageVolumeResponse:
        del request
        return await _now(context, _not_staged)


def _not_staged() -> Any:
    raise NotSupported("volumes are staged when they are published; STAGE_UNSTAGE_VOLUME is not among the capabilities")


def serve(driver: Driver, server: grpc.aio.Server) -> None:
    """Add the services of a driver to a server."""
    pb_grpc.add_IdentityServicer_to_server(_Identity(driver), server)
    pb_grpc.add_NodeServicer_to_server(_Node(driver), server)


async def _now(context: Any, look: Callable[[], _T]) -> _T:
    """Answer from memory, or end the call with the status of the error."""
    try:
        return look()
    except PluginError as error:
        await context.abort(grpc.StatusCode[wire(error).grpc], error.message)
        raise AssertionError from error  # abort raises: this line tells the type checker so


def _claimed(driver: Driver) -> Route:
    """Return the route to the claim whether its plugin runs or not: kubelet asks before it unpublishes, too."""
    for route in driver.registry.routes("volume"):
        if route.claim.name == driver.claim:
            return route
    raise TryAgain(f"no plugin serves {driver.claim!r} at present; see `nodeplug status`")


# --- in the thread of a request -------------------------------------------------------------------------------------


def publish(steps: Steps, wanted: VolumePublish) -> None:
    """Publish a volume at a target that is made for it, and stage it before if no pod has it yet.

    Raises:
        InvalidRequest: the options mean another volume than the caller's id, or the target is something else.
    """
    wanted = replace(wanted, volume_id=_identify(steps, wanted))
    made = _make_target(wanted)
    stage = VolumeStage(
        driver=wanted.driver,
        volume_id=wanted.volume_id,
        options=wanted.options,
        staging_path="",
        fs_type=wanted.fs_type,
        fs_group=wanted.fs_group,
        secrets=wanted.secrets,
        access_mode=wanted.access_mode,
        block=wanted.block,
        mount_flags=wanted.mount_flags,
        publish_context=wanted.publish_context,
        must_exist=wanted.must_exist,
    )
    try:
        steps.publish(wanted, stage)
    except PluginError:
        if made and mounted_at(wanted.target_path) is None:
            _remove_target(wanted.target_path)
        raise


def _identify(steps: Steps, wanted: VolumePublish) -> VolumeId:
    """Return the id under which all fronts know the volume."""
    if not wanted.ephemeral and not steps.composition.has("volume_id"):
        return wanted.volume_id
    # Tokens change with every call, so they cannot be part of what names a volume.
    secrets = Secrets({name: value for name, value in wanted.secrets.items() if name != codec.TOKENS})
    named = steps.identify(wanted.options, secrets)
    if not wanted.ephemeral and named != wanted.volume_id:
        raise InvalidRequest(
            f"the volume attributes mean volume {named!r} of {wanted.driver}, and the volumeHandle is "
            f"{wanted.volume_id!r}: give the PersistentVolume the first as volumeHandle"
        )
    return named


def _make_target(wanted: VolumePublish) -> bool:
    """Make what the volume is mounted on: a directory, or a file for a block device; return whether it is new."""
    path = Path(wanted.target_path)
    try:
        if wanted.block:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        else:
            path.mkdir(mode=0o750)
    except FileExistsError:
        return False  # not looked at: a dead filesystem may be mounted there
    except OSError as error:
        raise InvalidRequest(
            f"the target {wanted.target_path!r} cannot be made ({error.strerror}); its folder is the caller's to make"
        ) from error
    return True


def unpublish(steps: Steps, path: str, folder: Path) -> None:
    """Unpublish a volume, remove the target, and the empty folder that kubelet made to stage it in."""
    steps.unpublish(path)
    _remove_target(path)
    # Kubelet does not know that it made it: it writes no record there for a driver that does not stage.
    for empty in (folder, folder.parent):
        with suppress(OSError):
            empty.rmdir()


def _remove_target(path: str) -> None:
    """Remove an unmounted target; what is in it is not removed.

    Raises:
        TryAgain: it cannot be removed yet; kubelet cannot either, and the pod would stay.
    """
    target = Path(path)
    try:
        if target.is_dir() and not target.is_symlink():
            target.rmdir()
        else:
            target.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise TryAgain(f"the target {path!r} is unmounted and cannot be removed: {error.strerror}") from error


def measure(steps: Steps, path: str) -> VolumeStats:
    """Return the usage of a published volume.

    Raises:
        NotFound: no volume of the driver is published there.
    """
    target = steps.ledger.target(path)
    if target is None or target.volume.driver != steps.driver or mounted_at(path) is None:
        raise NotFound(f"no volume of {steps.driver} is published at {path!r}")
    if steps.composition.has("volume_stats"):
        volume = target.volume
        request = VolumeStatsRequest(
            driver=steps.driver, volume_id=volume.volume_id, mount_path=path, staging_path=volume.staging_path
        )
        answer: VolumeStats = steps.composition.hook("volume_stats", request=request)
        return answer
    steps.composition.step("the look at its usage")
    found = os.statvfs(path)
    unit = found.f_frsize
    return VolumeStats(
        total=found.f_blocks * unit,
        used=(found.f_blocks - found.f_bfree) * unit,
        available=found.f_bavail * unit,
        inodes=found.f_files,
        inodes_used=found.f_files - found.f_ffree,
    )


def expand(steps: Steps, path: str, size: int, limit: int) -> int:
    """Grow a published volume and its filesystem; return its bytes.

    Raises:
        NotFound: no volume of the driver is published there.
        NotSupported: the driver's volumes do not grow.
    """
    target = steps.ledger.target(path)
    if target is None or target.volume.driver != steps.driver:
        raise NotFound(f"no volume of {steps.driver} is published at {path!r}")
    if not steps.composition.has("volume_expand"):
        raise NotSupported(
            f"volumes of {steps.driver} do not grow: plugin {steps.composition.route.plugin!r} has no hook"
        )
    request = VolumeExpand(
        driver=steps.driver,
        volume_id=target.volume.volume_id,
        options=target.options,
        new_size=size,
        limit=limit,
        mount_path=path,
    )
    answer: int = steps.on_volume("volume_expand", request)
    return answer


def globalmount(folders: Path, driver: str, handle: str) -> Path:
    """Return where kubelet makes a folder to stage a PersistentVolume in (kubelet, pkg/volume/csi/csi_util.go)."""
    return folders / driver / hashlib.sha256(handle.encode()).hexdigest() / "globalmount"

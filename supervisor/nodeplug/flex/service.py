"""The FlexVolume front: one execution of the driver script in, one JSON object out.

Owns: which driver an executed path means, which verbs a driver lacks, and which secrets no reply may show.
Refuses: a non-zero exit (kubelet then logs the whole argv, base64 secrets included), stderr (kubelet parses both
streams as one JSON text), and "Not supported" for anything but a verb that the driver really lacks: kubelet remembers
it until it probes the driver again.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from nodeplug.contract.errors import InvalidRequest, NotFound, NotSupported, PluginError, TryAgain
from nodeplug.contract.netns import Netns
from nodeplug.contract.values import (
    Secrets,
    VolumeAttach,
    VolumeAttached,
    VolumeClaim,
    VolumeDetach,
    VolumeExpand,
    VolumeId,
    VolumeIsAttached,
    VolumePublish,
    VolumeStage,
    VolumeWaitAttached,
)
from nodeplug.exec.frame import Frame, Reply
from nodeplug.flex import codec
from nodeplug.flex import commands as cmd
from nodeplug.flex.codec import DriverStatus
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner, close_all
from nodeplug.hosting.slot import Route
from nodeplug.volumes.callers import pod_of
from nodeplug.volumes.compose import Steps
from nodeplug.volumes.routes import NOBODY, at_rest, unclaimed
from nodeplug.volumes.service import Volumes


def driver_name(path: str) -> str:
    """Return the claim behind an executed path: `<dir>/<vendor~driver>/<driver>` is `vendor/driver`.

    Without a vendor, kubelet's folder is `<driver>/<driver>` (flexvolume.md, "Prerequisites").

    Raises:
        InvalidRequest: the path has another shape, as while a folder is being renamed.
    """
    folder, name = os.path.split(path)
    folder_name = os.path.basename(folder)  # noqa: PTH119 - a name on the wire, not a file here
    vendor, tilde, driver = folder_name.rpartition("~")
    if not name or driver != name or (tilde and not vendor) or name.startswith(".") or "~" in vendor:
        raise InvalidRequest(
            f"{path!r} is no FlexVolume driver: expected .../<vendor~driver>/<driver> with the same driver twice"
        )
    return f"{vendor}/{driver}" if tilde else driver


@dataclass(slots=True)
class FlexService:
    """Serves the "flex" style of the entrypoint scripts. Event loop only."""

    registry: Registry
    runner: Runner
    volumes: Volumes
    _front: Front = field(init=False)

    def __post_init__(self) -> None:
        self._front = Front(self.runner, quiet=(NotSupported,))  # kubelet asks for verbs that a driver lacks

    async def handle(self, frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        """Answer one execution; never raises a PluginError, always exits 0. Volumes need no namespaces."""
        close_all(namespaces)
        call = Call(codec.verb_in(frame.argv), "volume:?", frame.path)
        try:
            return Reply(stdout=await self._front.serve(call, self._answer(frame, call)))
        except PluginError as error:
            return Reply(stdout=codec.encode_error(error))

    async def _answer(self, frame: Frame, call: Call) -> bytes:
        driver = driver_name(frame.path)
        call.claim = f"volume:{driver}"
        command = codec.decode(frame.argv)
        options = getattr(command, "options", None)
        if isinstance(options, cmd.VolumeOptions):
            target = getattr(command, "target", "")
            self.volumes.known.remember(driver, target, options.secrets)
            call.pod = pod_of(options.pod, target)
        call.mask = self.volumes.known.mask(driver)  # an error may contain secrets of its other volumes, too
        route = self._route(driver, command)
        _refuse_lacking(route, command)
        handler = _HANDLERS[type(command)]
        try:
            status = await self.volumes.run(route, call, lambda steps: handler(steps, command))
        except NotSupported as error:  # from a hook that exists, so it is about this request only, but kubelet would
            # remember it for every volume of the driver
            raise InvalidRequest(error.message, details=error.details) from error
        if route.callers:
            await self.volumes.undo_left(self.registry, driver)
        if isinstance(command, cmd.Unmount):
            self.volumes.known.forget(driver, command.target)
        return codec.encode(status)

    def _route(self, driver: str, command: cmd.Command) -> Route:
        """Find the driver's plugin, or a route without callers, whose hooks cannot be called, to undo without it.

        Kubelet repeats unmount until it succeeds, and keeps the pod meanwhile. A plugin that was removed may never come
        back, so its pods can end without it.

        Raises:
            NotFound: no plugin claims the driver, and the verb is not unmount.
            TryAgain: its plugin does not run, and the verb needs its hook.
        """
        try:
            return self.registry.route("volume", driver)
        except NotFound:
            if not isinstance(command, cmd.Unmount):
                raise
            return unclaimed(self.registry, driver)
        except TryAgain:
            resting = at_rest(self.registry, driver, _UNDOES.get(type(command), ""))
            if resting is None:
                raise
            return resting


_UNDOES: Final[Mapping[type[cmd.Command], str]] = MappingProxyType(
    {cmd.Unmount: "volume_unpublish", cmd.UnmountDevice: "volume_unstage"}
)
"""The verbs that have a default, and the hook with which a plugin replaces it; a removed plugin may have had both."""
_NEEDS: Final[Mapping[type[cmd.Command], tuple[str, ...]]] = MappingProxyType(
    {
        cmd.Attach: ("volume_attach",),
        cmd.Detach: ("volume_detach",),
        cmd.IsAttached: ("volume_is_attached",),
        cmd.WaitForAttach: ("volume_attach",),
        cmd.MountDevice: ("volume_attach", "volume_stage"),
        cmd.UnmountDevice: ("volume_attach", "volume_stage"),
        cmd.ExpandVolume: ("volume_expand",),
        cmd.ExpandFs: ("volume_expand",),
    }
)
"""The hooks that a verb needs. `mount` and `unmount` have defaults, `init` needs none."""


def _refuse_lacking(route: Route, command: cmd.Command) -> None:
    verb = cmd.verb_of(command)
    if isinstance(command, cmd.GetVolumeName):  # kubelet uses its own name anyway, but treats Failure as an error
        raise NotSupported(f"{verb} is left to kubelet")
    missing = [hook for hook in _NEEDS.get(type(command), ()) if hook not in route.hooks]
    if missing:
        raise NotSupported(f"{route.claim.name} does not {verb}: plugin {route.plugin!r} has no {missing[0]}")


def is_pods_volume(path: str, driver: str) -> bool:
    """Whether a path is where kubelet mounts a driver's volume for a pod, under any root.

    The layout is `<root>/pods/<uid>/volumes/<vendor~driver>/<volume>` (kubelet, kubelet_getters.go).
    """
    parts = Path(path).parts
    return len(parts) > 5 and (parts[-5], *parts[-3:-1]) == ("pods", "volumes", driver.replace("/", "~"))


# --- one function per verb, in the thread of its request -------------------------------------------------------------


def _init(steps: Steps, _: cmd.Init) -> DriverStatus:
    route = steps.composition.route
    return DriverStatus(capabilities=codec.capabilities(cast("VolumeClaim", route.claim), route.hooks))


def _attach(steps: Steps, command: cmd.Attach) -> DriverStatus:
    volume_id = _identify(steps, command.options)
    request = VolumeAttach(driver=steps.driver, volume_id=volume_id, options=command.options.own, node=command.node)
    attached: VolumeAttached = steps.on_volume("volume_attach", request)
    return DriverStatus(device=attached.device)


def _wait_for_attach(steps: Steps, command: cmd.WaitForAttach) -> DriverStatus:
    if not steps.composition.has("volume_wait_attached"):
        return DriverStatus(device=command.device)
    volume_id = _identify(steps, command.options)
    request = VolumeWaitAttached(
        driver=steps.driver, volume_id=volume_id, options=command.options.own, device=command.device
    )
    return DriverStatus(device=steps.on_volume("volume_wait_attached", request))


def _is_attached(steps: Steps, command: cmd.IsAttached) -> DriverStatus:
    volume_id = _identify(steps, command.options)
    request = VolumeIsAttached(driver=steps.driver, volume_id=volume_id, options=command.options.own, node=command.node)
    return DriverStatus(attached=steps.on_volume("volume_is_attached", request))


def _detach(steps: Steps, command: cmd.Detach) -> DriverStatus:
    request = VolumeDetach(driver=steps.driver, volume_name=command.volume_name, node=command.node)
    steps.detach(request)
    return DriverStatus()


def _expand_volume(steps: Steps, command: cmd.ExpandVolume) -> DriverStatus:
    return DriverStatus(new_size=_expand(steps, command))


def _expand_fs(steps: Steps, command: cmd.ExpandFs) -> DriverStatus:
    _expand(steps, command, mount_path=command.target)
    return DriverStatus()


def _expand(steps: Steps, command: cmd.ExpandVolume | cmd.ExpandFs, mount_path: str = "") -> int:
    request = VolumeExpand(
        driver=steps.driver,
        volume_id=_identify(steps, command.options, command.target),
        options=command.options.own,
        new_size=command.new_size,
        mount_path=mount_path,
    )
    size: int = steps.on_volume("volume_expand", request)
    return size


def _mount(steps: Steps, command: cmd.Mount) -> DriverStatus:
    steps.composition.call.key = command.target
    options = command.options
    wanted = VolumePublish(
        driver=steps.driver,
        volume_id=_identify(steps, options),
        options=options.own,
        target_path=command.target,
        fs_type=options.fs_type,
        read_only=options.read_only,
        fs_group=options.fs_group,
        pod=options.pod,
        secrets=options.secrets,
    )
    # A driver with attach was staged by mountdevice, in a directory of kubelet's.
    attached = steps.composition.has("volume_attach")
    stage = None if attached else _staging(wanted.volume_id, steps, options, command.device)
    steps.publish(wanted, stage)
    return DriverStatus()


def _unmount(steps: Steps, command: cmd.Unmount) -> DriverStatus:
    claimed = steps.composition.route.plugin != NOBODY
    steps.unpublish(command.target, trusted=claimed or is_pods_volume(command.target, steps.driver))
    return DriverStatus()


def _mount_device(steps: Steps, command: cmd.MountDevice) -> DriverStatus:
    steps.composition.call.key = command.target
    volume_id = _identify(steps, command.options)
    steps.stage(_staging(volume_id, steps, command.options, command.device, command.target))
    return DriverStatus()


def _unmount_device(steps: Steps, command: cmd.UnmountDevice) -> DriverStatus:
    steps.unstage(command.target)
    return DriverStatus()


def _staging(
    volume_id: VolumeId, steps: Steps, options: cmd.VolumeOptions, device: str, staging_path: str = ""
) -> VolumeStage:
    return VolumeStage(
        driver=steps.driver,
        volume_id=volume_id,
        options=options.own,
        staging_path=staging_path,
        device=device,
        fs_type=options.fs_type,
        read_only=options.read_only,
        secrets=options.secrets,
    )


def _identify(steps: Steps, options: cmd.VolumeOptions, mounted_at: str = "") -> VolumeId:
    """Return the id of the volume that the options mean, or that is mounted at a path: expandfs has no secrets.

    With attach, the secrets are ignored: kubelet sends them with mount, but not with mountdevice.
    """
    secrets = Secrets() if steps.composition.has("volume_attach") else options.secrets
    if mounted_at:
        return steps.identify_at(mounted_at, options.own, secrets)
    return steps.identify(options.own, secrets)


_HANDLERS: Final[Mapping[type[cmd.Command], Callable[[Steps, Any], DriverStatus]]] = MappingProxyType(
    {
        cmd.Init: _init,
        cmd.Attach: _attach,
        cmd.WaitForAttach: _wait_for_attach,
        cmd.IsAttached: _is_attached,
        cmd.Detach: _detach,
        cmd.Mount: _mount,
        cmd.Unmount: _unmount,
        cmd.MountDevice: _mount_device,
        cmd.UnmountDevice: _unmount_device,
        cmd.ExpandVolume: _expand_volume,
        cmd.ExpandFs: _expand_fs,
    }
)

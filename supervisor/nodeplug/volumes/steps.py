"""The steps of one mount or unmount, each written down before it is done.

Owns: the order of intents, hooks and mounts, the defaults for hooks that a driver leaves out, and the way back after a
failure.
Refuses: options and secrets on the way down: like CSI's NodeUnpublish and NodeUnstage, the hooks that undo get the
volume id and the path alone, for `unmount` carries nothing else and nothing else is kept.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest, NotFound, PluginError
from nodeplug.contract.mounts import bind, mounted_at, unmount
from nodeplug.contract.values import (
    VolumeId,
    VolumeIdentify,
    VolumePublish,
    VolumeRequest,
    VolumeStage,
    VolumeUnpublish,
    VolumeUnstage,
)
from nodeplug.flex.codec import default_volume_id
from nodeplug.flex.commands import Mount, MountDevice, VolumeOptions
from nodeplug.volumes import ledger as led
from nodeplug.volumes.ledger import Ledger, Target, Volume
from nodeplug.volumes.records import Records
from nodeplug.volumes.work import Work, Workshop

LOG: Final = logging.getLogger(__name__)
_MARK: Final = "+"
"""Between the digest of the options and the mark of the secrets, in an id that the host made."""


@dataclass(slots=True)
class Steps:
    """The steps of one request."""

    ledger: Ledger
    records: Records
    workshop: Workshop
    work: Work

    @property
    def driver(self) -> str:
        """The claim that was called."""
        return self.work.route.claim.name

    async def volume_id(self, own: VolumeOptions) -> VolumeId:
        """Name the volume that the options mean.

        Raises:
            PluginError: the plugin's name for it cannot be written down.
        """
        if not self.work.has("volume_id"):
            return VolumeId(default_volume_id(own.own) + await self._secret_mark(own))
        name = await self.work.hook("volume_id", request=VolumeIdentify(driver=self.driver, options=own.own))
        if not name or "\0" in name or name != name.encode("utf-8", "replace").decode():
            raise PluginError(
                f"plugin {self.work.route.plugin!r} named a volume {name!r}; a volume id is non-empty text"
            )
        return VolumeId(name)

    async def _secret_mark(self, own: VolumeOptions) -> str:
        """Keep pods with different secrets apart: a stage that one pod's credentials made is not for another's.

        Drivers that do not stage share nothing, and of those with attach kubelet sends secrets with mount alone.
        """
        if not own.secrets or not self.work.has("volume_stage") or self.work.has("volume_attach"):
            return ""
        if not await self.work.host(self.ledger.has_mark_key):
            await self.records.make_mark_key()
        mark: str = await self.work.host(self.ledger.secret_mark, own.secrets)
        return f"{_MARK}{mark}"

    async def volume_id_at(self, path: str, own: VolumeOptions) -> VolumeId:
        """Name the volume that is mounted at a path: kubelet sends secrets with mount alone, so expandfs lacks them.

        Raises:
            PluginError: the plugin's name for it cannot be written down.
        """
        computed = await self.volume_id(own)
        if self.work.has("volume_id"):
            return computed
        recorded = await self.work.host(self._recorded_at, path)
        return recorded if recorded is not None and recorded.partition(_MARK)[0] == computed else computed

    def _recorded_at(self, path: str) -> VolumeId | None:
        found = self.ledger.target(path) or self.ledger.staged_at(path)
        return found.volume.volume_id if found is not None and found.volume.driver == self.driver else None

    async def on_volume(self, hook: str, request: VolumeRequest) -> Any:
        """Call a hook about one volume while nothing else works on that volume."""
        async with self.workshop.room("volume", request.driver, request.volume_id):
            self.work.call.key = f"{request.driver} {request.volume_id}"
            return await self.work.hook(hook, request=request)

    # --- the way up

    async def mount(self, command: Mount) -> None:
        """Stage if needed, then publish."""
        self.work.call.key = command.target
        volume_id = await self.volume_id(command.options)
        async with self.workshop.room("target", command.target), self.workshop.room("volume", self.driver, volume_id):
            self.work.call.key = f"{self.driver} {volume_id}"
            volume = await self.work.host(self._place, volume_id)
            wanted = Target(command.target, volume, command.options.read_only)
            standing = await self.work.host(self._standing, wanted)
            if standing is not None:
                if standing.phase != led.PUBLISHED:
                    await self.records.note_target(led.with_phase(standing, led.PUBLISHED))
                return
            try:
                await self._bring_up(wanted, command)
            except Exception as error:
                await self._roll_back(wanted, error)
                raise

    def _place(self, volume_id: VolumeId) -> Volume:
        """Where the volume is staged: kubelet's directory for a driver with attach, nodeplug's own otherwise."""
        if self.work.has("volume_attach"):
            record = self.ledger.staged(self.driver, volume_id)
            return record.volume if record is not None else Volume(self.driver, volume_id)
        if self.work.has("volume_stage"):
            return self.ledger.plan(self.driver, volume_id)
        return Volume(self.driver, volume_id)

    def _standing(self, wanted: Target) -> Target | None:
        """Return the target if it has the volume already: kubelet repeats mount for binds that it does not recognise.

        One that is not PUBLISHED lacks its record.

        Raises:
            InvalidRequest: another volume is mounted there.
        """
        if mounted_at(wanted.path) is None:
            return None
        record = self.ledger.target(wanted.path)
        if record is None:  # the record was lost: the kernel tells whether it is this volume
            found = self.ledger.infer_target(self.driver, wanted.path)
            if found is None or not wanted.volume.staging_path or found.volume != wanted.volume:
                return None
            return wanted if found.read_only == wanted.read_only else None
        if (record.volume.driver, self._unmarked(record.volume)) != (self.driver, self._unmarked(wanted.volume)):
            raise InvalidRequest(
                f"{wanted.path!r} holds volume {record.volume.volume_id!r} of {record.volume.driver}; "
                f"unmount it before volume {wanted.volume.volume_id!r} of {wanted.volume.driver} is mounted there"
            )
        return record if record.phase == led.PUBLISHED else None

    def _unmarked(self, volume: Volume) -> str:
        """The id without secrets: a pod whose Secret was rotated keeps the mount that it has."""
        return volume.volume_id if self.work.has("volume_id") else volume.volume_id.partition(_MARK)[0]

    async def _bring_up(self, wanted: Target, command: Mount) -> None:
        await self.records.write_target(wanted)
        await self._clear(wanted)
        await self.work.host(led.check_target, wanted.path)
        if self.work.has("volume_stage") and self.ledger.owns(wanted.volume):
            # Staged writable whatever this pod asked for: the next pod shares it. Read-only is the publish's.
            await self._stage(wanted.volume, command.options, device=command.device, read_only=False)
        await self._publish(wanted, command.options)
        await self.work.host(led.check_published, wanted, self.work.route.plugin)
        await self.records.write_target(led.with_phase(wanted, led.PUBLISHED))

    async def _clear(self, wanted: Target) -> None:
        """Remove what a killed predecessor half-mounted at the target."""
        if await self.work.host(mounted_at, wanted.path) is not None:
            await self._unpublish(wanted)

    async def _stage(self, volume: Volume, options: VolumeOptions, *, device: str, read_only: bool) -> None:
        # In a directory of kubelet's own it is one volume for one PersistentVolume: nothing to agree upon.
        fs_type = options.fs_type if self.ledger.owns(volume) else ""
        if await self.work.host(self.ledger.is_staged, volume, fs_type):
            return
        if await self.work.host(self._was_begun, volume):
            await self.unstage(volume)
        await self.records.write_staged(volume, led.STAGING, fs_type)
        if self.ledger.owns(volume):
            await self.work.host(led.make_directory, volume.staging_path)
        request = VolumeStage(
            driver=volume.driver,
            volume_id=volume.volume_id,
            options=options.own,
            staging_path=volume.staging_path,
            device=device,
            fs_type=options.fs_type,
            read_only=read_only,
            secrets=options.secrets,
        )
        await self.work.hook("volume_stage", request=request)
        await self.work.host(led.check_staged, volume, self.work.route.plugin)
        await self.records.write_staged(volume, led.STAGED, fs_type)

    def _was_begun(self, volume: Volume) -> bool:
        known = self.ledger.staged(volume.driver, volume.volume_id) is not None
        return known or mounted_at(volume.staging_path) is not None

    async def _publish(self, wanted: Target, options: VolumeOptions) -> None:
        volume = wanted.volume
        if not self.work.has("volume_publish"):
            if not volume.staging_path:
                raise PluginError(
                    f"volume {volume.volume_id!r} of {volume.driver} is not staged; mountdevice comes first"
                )
            await self.work.host(bind, volume.staging_path, wanted.path, read_only=wanted.read_only)
            return
        request = VolumePublish(
            driver=volume.driver,
            volume_id=volume.volume_id,
            options=options.own,
            target_path=wanted.path,
            staging_path=volume.staging_path,
            fs_type=options.fs_type,
            read_only=wanted.read_only,
            fs_group=options.fs_group,
            pod=options.pod,
            secrets=options.secrets,
        )
        await self.work.hook("volume_publish", request=request)

    async def _roll_back(self, wanted: Target, error: Exception) -> None:
        try:
            await self.take_down(wanted, forced=True)
        except PluginError as second:
            reason = error.message if isinstance(error, PluginError) else str(error)
            raise PluginError(f"{reason}; and what was half done could not be undone: {second.message}") from error

    # --- the way down

    async def unmount(self, path: str) -> None:
        """Unpublish and, for the last user, unstage."""
        self.work.call.key = path
        async with self.workshop.room("target", path):
            target = await self.work.host(self._who, path)
            if target is None:
                return
            volume = target.volume
            async with self.workshop.room("volume", volume.driver, volume.volume_id):
                self.work.call.key = f"{volume.driver} {volume.volume_id or path}"
                await self.records.note_target(led.with_phase(target, led.UNPUBLISHING))
                await self.take_down(target)

    def _who(self, path: str) -> Target | None:
        recorded = self.ledger.target(path)
        if recorded is not None:
            return recorded
        if self.work.is_unclaimed and not led.is_pods_volume(path, self.driver):
            raise NotFound(
                f"{path!r} is no volume of {self.driver} that is known here, and no enabled plugin serves that driver; "
                "enable one in the configuration, or unmount the path by hand"
            )
        return self.ledger.infer_target(self.driver, path)

    async def take_down(self, target: Target, *, forced: bool = False) -> None:
        """Unpublish, unstage after the last user, and forget; every step may find its work done already.

        Without the plugin the host unmounts, so that the pod ends; the record stays for the hooks that were left out.

        Args:
            target: what goes.
            forced: go on to the host's own unmount when the plugin's unpublish fails.
        """
        await self._unpublish(target, forced=forced)
        if self.work.at_rest and self.work.has("volume_unpublish"):
            LOG.warning("%s is unmounted without the plugin of %s, which is not loaded", target.path, self.driver)
            self.workshop.leave(led.with_phase(target, led.UNPUBLISHING))
            return
        volume = target.volume
        if self.ledger.owns(volume) and not await self.work.host(self.ledger.users, volume, besides=target.path):
            await self._unstage_or_leave(volume, forced=forced)
        await self.records.forget_target(target.path)

    async def _unpublish(self, target: Target, *, forced: bool = False) -> None:
        if self.work.has("volume_unpublish") and not self.work.at_rest:
            volume = target.volume
            request = VolumeUnpublish(driver=volume.driver, volume_id=volume.volume_id, target_path=target.path)
            await self._undo("volume_unpublish", request, forced=forced)
        await self.work.host(unmount, target.path)

    async def _unstage_or_leave(self, volume: Volume, *, forced: bool) -> None:
        """Unstage; what a plugin promises to unstage itself waits until it runs (`Staging.undo_left`)."""
        if self.work.at_rest and self.work.has("volume_unstage"):
            LOG.warning("volume %s of %s stays staged: its plugin does not run", volume.volume_id, volume.driver)
            self.workshop.leave(volume)
            return
        await self.unstage(volume, forced=forced)

    async def unstage(self, volume: Volume, *, forced: bool = False) -> None:
        """Undo the staging of a volume that no pod uses."""
        if await self.work.host(mounted_at, volume.staging_path) is not None:
            await self.records.note_staged(volume, led.UNSTAGING)
        if self.work.has("volume_unstage"):
            request = VolumeUnstage(driver=volume.driver, volume_id=volume.volume_id, staging_path=volume.staging_path)
            await self._undo("volume_unstage", request, forced=forced)
        await self.work.host(unmount, volume.staging_path)
        await self.work.host(self.ledger.remove_directory, volume)
        await self.records.forget_staged(volume)

    async def unstage_unused(self, volume: Volume) -> None:
        """Unstage a volume of nodeplug's own folder if no pod uses it."""
        async with self.workshop.room("volume", volume.driver, volume.volume_id):
            self.work.call.key = f"{volume.driver} {volume.volume_id}"
            if self.ledger.owns(volume) and not await self.work.host(self.ledger.users, volume):
                LOG.info("unstaging volume %s of %s: no pod uses it", volume.volume_id, volume.driver)
                await self.unstage(volume)

    async def _undo(self, hook: str, request: VolumeUnpublish | VolumeUnstage, *, forced: bool) -> None:
        try:
            await self.work.hook(hook, request=request)
        except PluginError as error:
            if not forced:
                raise
            LOG.warning(
                "%s of plugin %s failed on the way back: %s", hook, self.work.route.plugin, type(error).__name__
            )

    # --- drivers with attach: kubelet stages in a directory of its own

    async def mount_device(self, command: MountDevice) -> None:
        """Stage at kubelet's directory; a failure leaves nothing mounted there."""
        self.work.call.key = command.target
        volume_id = await self.volume_id(command.options)
        async with self.workshop.room("target", command.target), self.workshop.room("volume", self.driver, volume_id):
            self.work.call.key = f"{self.driver} {volume_id}"
            volume = Volume(self.driver, volume_id, command.target)
            options = command.options
            try:
                await self._stage(volume, options, device=command.device, read_only=options.read_only)
            except Exception:
                await self.unstage(volume, forced=True)
                raise

    async def unmount_device(self, path: str) -> None:
        """Unstage what is mounted at kubelet's directory; succeed when nothing is."""
        self.work.call.key = path
        async with self.workshop.room("target", path):
            record = await self.work.host(self.ledger.staged_at, path)
            volume = record.volume if record is not None else Volume(self.driver, VolumeId(""), path)
            async with self.workshop.room("volume", volume.driver, volume.volume_id):
                self.work.call.key = f"{volume.driver} {volume.volume_id or path}"
                await self.unstage(volume)

"""The steps of one request about volumes, each recorded before it is done.

Owns: the order of intents, hooks and mounts, the defaults for hooks that a driver does not implement, and the rollback
after a failure. Plain synchronous code in one thread, for any front.
Refuses: verbs and wires: a front passes requests of the contract, and these steps decide on the paths. Also options and
secrets for undoing: as with CSI's NodeUnpublish and NodeUnstage, those hooks get only the volume id and the path,
because callers send nothing else and nothing else is stored.

Every intent is on disk before its side effect, mountinfo is the truth, and each step may be repeated: after SIGKILL
between any two of them, the repeated call or the next start repairs the state.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from nodeplug.contract.errors import AlreadyExists, InUse, InvalidRequest, NotFound, PluginError, TryAgain, Uncertain
from nodeplug.contract.mounts import bind, mounted_at, unmount
from nodeplug.contract.values import (
    Secrets,
    VolumeDetach,
    VolumeId,
    VolumeIdentify,
    VolumePublish,
    VolumeRequest,
    VolumeStage,
    VolumeUnpublish,
    VolumeUnstage,
)
from nodeplug.hosting.composition import Composition
from nodeplug.volumes import ledger as led
from nodeplug.volumes.ledger import Ledger, Staged, Target, Volume
from nodeplug.volumes.locks import Locks
from nodeplug.volumes.records import Records

LOG: Final = logging.getLogger(__name__)
_MARK: Final = "+"
"""Between the digest of the options and the mark of the secrets, in an id that nodeplug made."""
_LOOK: Final = "the look at records and mounts"


def default_volume_id(options: Mapping[str, str]) -> VolumeId:
    """Derive a volume id from the driver's own options in any order: 32 hexadecimal digits of SHA-256."""
    text = json.dumps(dict(options), sort_keys=True)
    return VolumeId(hashlib.sha256(text.encode()).hexdigest()[:32])


@dataclass(slots=True)
class Steps:
    """The steps of one request, used in the thread of its composition.

    Attributes:
        ledger: reads the records.
        records: writes them.
        locks: one request at a time for each target and each volume.
        leave: keeps what cannot be undone completely now until the driver's plugin runs.
        composition: the request: its route, hooks and deadlines.
        driver: the claim that was called.
        patience: seconds to wait for an earlier request about the same target or volume.
    """

    ledger: Ledger
    records: Records
    locks: Locks
    leave: Callable[[Target | Volume], None]
    composition: Composition
    driver: str
    patience: float
    _mine: str = ""

    # --- which volume

    def identify(self, options: Mapping[str, str], secrets: Secrets) -> VolumeId:
        """Return the id of the volume that the options mean; PluginError if the plugin returns an invalid one.

        Without the hook, the id of a driver that stages also depends on the secrets: a volume staged with one pod's
        credentials must not serve another pod. Drivers that do not stage share nothing.
        """
        if not self.composition.has("volume_id"):
            marked = secrets and self.composition.has("volume_stage")
            return VolumeId(default_volume_id(options) + (self._secret_mark(secrets) if marked else ""))
        name = self.composition.hook("volume_id", request=VolumeIdentify(driver=self.driver, options=options))
        if not name or "\0" in name or name != name.encode("utf-8", "replace").decode():
            plugin = self.composition.route.plugin
            raise PluginError(f"plugin {plugin!r} named a volume {name!r}; a volume id is non-empty text")
        return VolumeId(name)

    def _secret_mark(self, secrets: Secrets) -> str:
        if not self.ledger.has_mark_key():
            self.records.make_mark_key()
        return f"{_MARK}{self.ledger.secret_mark(secrets)}"

    def identify_at(self, path: str, options: Mapping[str, str], secrets: Secrets) -> VolumeId:
        """Return the id of the volume mounted at a path, for callers that do not send its secrets again."""
        computed = self.identify(options, secrets)
        if self.composition.has("volume_id"):
            return computed
        found = self.ledger.target(path) or self.ledger.staged_at(path)
        if found is None or found.volume.driver != self.driver:
            return computed
        recorded = found.volume.volume_id
        return recorded if recorded.partition(_MARK)[0] == computed else computed

    def on_volume(self, hook: str, request: VolumeRequest) -> Any:
        """Call a hook about one volume while nothing else works on it."""
        with self.alone("volume", request.driver, request.volume_id):
            return self.composition.hook(hook, request=request)

    def detach(self, request: VolumeDetach) -> None:
        """Detach a volume of which the caller knows only the name."""
        with self.alone("name", request.driver, request.volume_name):
            self.composition.hook("volume_detach", request=request)

    @contextmanager
    def at_target(self, path: str) -> Iterator[None]:
        """Keep other requests from a target, for what its front does there before and after a step."""
        with self.alone("target", path):
            self._mine = path
            try:
                yield
            finally:
                self._mine = ""

    @contextmanager
    def alone(self, kind: str, *key: str, about: str = "") -> Iterator[None]:
        """Lock a target, a volume or a name; `about` describes it to people if the key cannot."""
        if kind == "target" and key == (self._mine,):
            yield
            return
        self.composition.call.key = about or " ".join(key)
        self.composition.step("the wait for an earlier call", math.inf)
        with self.locks.held(kind, *key, patience=self.patience):
            self.composition.step(_LOOK)
            yield

    # --- setting up

    def publish(self, wanted: VolumePublish, stage: VolumeStage | None, *, renew: bool = False) -> None:
        """Publish a volume to a pod, and stage it first if needed; a failure leaves nothing mounted at the target.

        `stage` says how to stage it in nodeplug's own folder; it is None if the caller stages volumes itself, and then
        may pass `staging_path`. With `renew`, a volume that is there already is refreshed.
        """
        path, volume_id = wanted.target_path, wanted.volume_id
        with self.alone("target", path), self.alone("volume", self.driver, volume_id):
            volume = self._place(wanted, stage)
            target = Target(
                path,
                volume,
                wanted.read_only,
                fs_type=wanted.fs_type,
                access_mode=wanted.access_mode or "",
                options=wanted.options if wanted.access_mode else {},
            )
            standing = self._standing(target)
            if standing is not None:
                if standing.phase != led.PUBLISHED:
                    self.records.note(replace(standing, phase=led.PUBLISHED))
                if renew and self.composition.has("volume_refresh"):
                    self._refresh(standing, wanted)
                return
            self._refuse_second_writer(target)
            try:
                self._bring_up(target, wanted, stage)
            except Exception as error:
                self._roll_back(target, error)
                raise

    def _refresh(self, standing: Target, wanted: VolumePublish) -> None:
        """Have the plugin renew what expires; a pod has the volume, so whatever happens it stays."""
        try:
            self.composition.hook("volume_refresh", request=replace(wanted, staging_path=standing.volume.staging_path))
        except TryAgain:
            raise
        except PluginError as error:
            raise TryAgain(f"the volume stays as it is for its pod, although: {error.message}") from error

    def _place(self, wanted: VolumePublish, stage: VolumeStage | None) -> Volume:
        """Return the volume with its staging path: the caller's, or one in nodeplug's own folder."""
        if stage is not None and self.composition.has("volume_stage"):
            return self.ledger.plan(self.driver, wanted.volume_id)
        record = self.ledger.staged(self.driver, wanted.volume_id) if stage is None else None
        if record is not None and not wanted.staging_path:
            return record.volume
        return Volume(self.driver, wanted.volume_id, wanted.staging_path)

    def _standing(self, wanted: Target) -> Target | None:
        """Return the target if it has the volume already: kubelet does not recognise bind mounts, and repeats them.

        If its phase is not PUBLISHED, its record was lost.

        Raises:
            InvalidRequest: another volume is mounted there.
            AlreadyExists: this one is, in another way than is asked for now.
        """
        if mounted_at(wanted.path) is None:
            return None
        record = self.ledger.target(wanted.path)
        if record is None:  # the record was lost: mountinfo shows whether it is this volume
            found = self.ledger.infer_target(self.driver, wanted.path)
            if found is None or not wanted.volume.staging_path or found.volume != wanted.volume:
                return None
            return wanted if found.read_only == wanted.read_only else None
        if (record.volume.driver, self._unmarked(record.volume)) != (self.driver, self._unmarked(wanted.volume)):
            raise InvalidRequest(
                f"{wanted.path!r} holds volume {record.volume.volume_id!r} of {record.volume.driver}; "
                f"unmount it before volume {wanted.volume.volume_id!r} of {wanted.volume.driver} is mounted there"
            )
        if record.phase != led.PUBLISHED:
            return None
        if difference := record.differs(wanted):
            raise AlreadyExists(
                f"volume {record.volume.volume_id!r} of {self.driver} is mounted at {wanted.path!r} already, and now "
                f"{difference} is asked for; unmount it first"
            )
        return record

    def _refuse_second_writer(self, wanted: Target) -> None:
        """Keep a volume that one pod alone may use from a second one (SINGLE_NODE_SINGLE_WRITER, ReadWriteOncePod).

        Raises:
            InUse: another target has it.
        """
        if not wanted.access_mode:  # FlexVolume knows no such rule
            return
        alone = wanted.access_mode == led.ALONE
        if users := self.ledger.users(wanted.volume, besides=wanted.path, alone=not alone):
            raise InUse(
                f"volume {wanted.volume.volume_id!r} of {self.driver} is for one pod alone ({led.ALONE}), and "
                f"{min(users)!r} has it"
            )

    def _unmarked(self, volume: Volume) -> str:
        """Return the id without the mark of secrets: a pod keeps its mount when its Secret is rotated."""
        return volume.volume_id if self.composition.has("volume_id") else volume.volume_id.partition(_MARK)[0]

    def _bring_up(self, target: Target, wanted: VolumePublish, stage: VolumeStage | None) -> None:
        self.records.write(target)
        if mounted_at(target.path) is not None:  # left half done by a killed daemon
            self._unpublish(target)
        led.check_target(target.path)
        if stage is not None and self.ledger.owns(target.volume):
            # Staged writable even for a read-only pod, because the next pod shares it; publish makes it read-only.
            self._stage(target.volume, replace(stage, read_only=False))
        self._publish(target, wanted)
        led.check_published(target, self.composition.route.plugin)
        self.records.write(replace(target, phase=led.PUBLISHED))

    def _publish(self, target: Target, wanted: VolumePublish) -> None:
        place = target.volume.staging_path
        if self.composition.has("volume_publish"):
            self.composition.hook("volume_publish", request=replace(wanted, staging_path=place))
            return
        if not place or mounted_at(place) is None:
            raise PluginError(f"volume {wanted.volume_id!r} of {self.driver} is not staged; it has to be staged first")
        self.composition.step("bind")
        bind(place, target.path, read_only=target.read_only)

    def stage(self, request: VolumeStage) -> None:
        """Stage a volume at a path of the caller's; a failure leaves nothing mounted there."""
        path, volume_id = request.staging_path, request.volume_id
        with self.alone("target", path), self.alone("volume", self.driver, volume_id):
            volume = Volume(self.driver, volume_id, path)
            try:
                self._stage(volume, request)
            except Exception:
                if not self.ledger.users(volume):
                    self._unstage(volume, forced=True)
                raise

    def _stage(self, volume: Volume, request: VolumeStage) -> None:
        owned = self.ledger.owns(volume)
        # At a path of the caller's, it is one volume for one caller: there is no filesystem to agree on.
        fs_type = request.fs_type if owned else ""
        if self.ledger.is_staged(volume, fs_type, block=request.block):
            return
        begun = self.ledger.staged(volume.driver, volume.volume_id) is not None or mounted_at(volume.staging_path)
        # What a pod still has lost its staging mount, be it for a while: to undo it would take it from that pod.
        if begun and not self.ledger.users(volume):
            self._unstage(volume)  # left half done
        self.records.write(Staged(volume, led.STAGING, fs_type, request.block))
        if owned:
            led.make_staging_path(volume.staging_path, block=request.block)
        self.composition.hook("volume_stage", request=replace(request, staging_path=volume.staging_path))
        led.check_staged(volume, self.composition.route.plugin)
        self.records.write(Staged(volume, led.STAGED, fs_type, request.block))

    def _roll_back(self, target: Target, error: Exception) -> None:
        try:
            self._take_down(target, forced=True)
        except PluginError as second:
            reason = error.message if isinstance(error, PluginError) else str(error)
            raise Uncertain(f"{reason}; and what was half done could not be undone: {second.message}") from error

    # --- taking down

    def unpublish(self, path: str, *, trusted: bool = True) -> None:
        """Unpublish a volume, and unstage it after its last user if nodeplug staged it; succeed if it is gone.

        With `trusted`, a mount that has no record counts as one of the driver's; otherwise it raises NotFound.
        """
        with self.alone("target", path):
            target = self.ledger.target(path)
            if target is None and not trusted:
                raise NotFound(
                    f"{path!r} is not a volume of {self.driver} that is known here, and no enabled plugin serves that "
                    "driver; enable one in the configuration, or unmount the path by hand"
                )
            target = target or self.ledger.infer_target(self.driver, path)
            if target is None:
                return
            volume = target.volume
            about = f"{volume.driver} {volume.volume_id or path}"
            with self.alone("volume", volume.driver, volume.volume_id, about=about):
                self.records.note(replace(target, phase=led.UNPUBLISHING))
                self._take_down(target)

    def _take_down(self, target: Target, *, forced: bool = False) -> None:
        """Unpublish, unstage after the last user, and forget; every step may find its work already done.

        Without the plugin, nodeplug unmounts, so that the pod can end, and keeps the record for the hooks that did not
        run. With `forced`, it also unmounts when the plugin's unpublish fails.
        """
        self._unpublish(target, forced=forced)
        if self.composition.at_rest and self.composition.has("volume_unpublish"):
            LOG.warning("%s is unmounted without the plugin of %s, which is not loaded", target.path, self.driver)
            self.leave(replace(target, phase=led.UNPUBLISHING))
            return
        volume = target.volume
        if self.ledger.owns(volume) and not self.ledger.users(volume, besides=target.path):
            if self.composition.at_rest and self.composition.has("volume_unstage"):
                LOG.warning("volume %s of %s stays staged: its plugin does not run", volume.volume_id, volume.driver)
                self.leave(volume)
            else:
                self._unstage(volume, forced=forced)
        self.records.forget(target)

    def _unpublish(self, target: Target, *, forced: bool = False) -> None:
        if self.composition.has("volume_unpublish") and not self.composition.at_rest:
            volume = target.volume
            request = VolumeUnpublish(driver=volume.driver, volume_id=volume.volume_id, target_path=target.path)
            self._undo("volume_unpublish", request, forced=forced)
        self._unmount(target.path)

    def _unmount(self, path: str) -> None:
        self.composition.step("unmount")
        unmount(path)
        self.composition.step(_LOOK)

    def unstage(self, path: str) -> None:
        """Undo the staging at a path of the caller's; succeed if nothing is there."""
        with self.alone("target", path):
            record = self.ledger.staged_at(path)
            volume = record.volume if record is not None else Volume(self.driver, VolumeId(""), path)
            about = f"{volume.driver} {volume.volume_id or path}"
            with self.alone("volume", volume.driver, volume.volume_id, about=about):
                self._unstage(volume)

    def unstage_unused(self, volume: Volume) -> None:
        """Unstage a volume in nodeplug's own folder if no pod uses it."""
        with self.alone("volume", volume.driver, volume.volume_id):
            if self.ledger.owns(volume) and not self.ledger.users(volume):
                LOG.info("unstaging volume %s of %s: no pod uses it", volume.volume_id, volume.driver)
                self._unstage(volume)

    def _unstage(self, volume: Volume, *, forced: bool = False) -> None:
        staged = Staged(volume, led.UNSTAGING)
        if mounted_at(volume.staging_path) is not None:
            self.records.note(staged)
        if self.composition.has("volume_unstage"):
            request = VolumeUnstage(driver=volume.driver, volume_id=volume.volume_id, staging_path=volume.staging_path)
            self._undo("volume_unstage", request, forced=forced)
        self._unmount(volume.staging_path)
        self.ledger.remove_directory(volume)
        self.records.forget(staged)

    # --- hooks

    def _undo(self, hook: str, request: VolumeUnpublish | VolumeUnstage, *, forced: bool) -> None:
        try:
            self.composition.hook(hook, request=request)
        except PluginError as error:
            if not forced:
                raise
            plugin = self.composition.route.plugin
            LOG.warning("%s of plugin %s failed on the way back: %s", hook, plugin, type(error).__name__)

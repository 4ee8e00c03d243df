"""What is mounted for which pod: records of intent, compared with the kernel's mount table.

Owns: the records of targets and of staged volumes, nodeplug's staging folder, and their comparison with mountinfo.
Refuses: hooks, secrets in records, and to believe a record that contradicts mountinfo. Options are recorded only for
callers that keep them in the open themselves (CSI): among those of FlexVolume may be a misplaced password. A caller
that unmounts may know only the path, so the record has the volume; without it, a mount that shows the directory of a
staged volume belongs to that volume.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import InvalidRequest, PluginError
from nodeplug.contract.journal import Entry, Journal, file_name, write_durably
from nodeplug.contract.mounts import Mount, mounted_at, mounts
from nodeplug.contract.values import Secrets, VolumeId

PUBLISHING: Final = "publishing"
PUBLISHED: Final = "published"
UNPUBLISHING: Final = "unpublishing"
STAGING: Final = "staging"
STAGED: Final = "staged"
UNSTAGING: Final = "unstaging"
ALONE: Final = "SINGLE_NODE_SINGLE_WRITER"
"""The access mode of a volume for one pod (ReadWriteOncePod)."""
_PODS: Final = re.compile(r"/pods/[^/]+/volume|/volumeDevices/publish/")
"""Where kubelet puts what pods have: volumes, volume-subpaths, volumeDevices (pkg/kubelet/config/defaults.go)."""
_KEY_FILE: Final = "secret-mark.key"
_KEY_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume of one driver on this node.

    `volume_id` is empty if the records were lost and mountinfo does not show it; `staging_path` is empty for a driver
    that does not stage.
    """

    driver: str
    volume_id: VolumeId
    staging_path: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """One directory of a pod, and the volume that is, or will be, mounted there.

    `fs_type` and `access_mode` are what its pod asked for; empty if it did not say, or an earlier version recorded it.
    `options` are the volume's, where callers name it by its id alone when it is to grow (CSI).
    """

    path: str
    volume: Volume
    read_only: bool = False
    phase: str = PUBLISHING
    fs_type: str = ""
    access_mode: str = ""
    options: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        """Return the key of its record."""
        return f"target {self.path}"

    @property
    def data(self) -> dict[str, Any]:
        """Return the content of its record."""
        asked = {"fs_type": self.fs_type, "access_mode": self.access_mode, "options": dict(self.options)}
        told = {name: value for name, value in asked.items() if value}
        return asdict(self.volume) | {"path": self.path, "read_only": self.read_only} | told

    def differs(self, other: "Target") -> str:
        """Say in what another request for the same path and volume differs; empty if it is a repetition."""
        modes = {self.access_mode, other.access_mode}
        pairs = {
            "read-only": (str(self.read_only), str(other.read_only)),
            "fsType": (self.fs_type, other.fs_type),
            # Kubelet names what may be shared otherwise after an upgrade (SINGLE_NODE_MULTI_WRITER).
            "access mode": (self.access_mode, other.access_mode) if ALONE in modes else ("", ""),
        }
        return ", ".join(
            f"{what} {asked} instead of {has}" for what, (has, asked) in pairs.items() if has and asked and has != asked
        )


@dataclass(frozen=True, slots=True)
class Staged:
    """A volume and its staging phase; `fs_type` is what its first pod asked for, or empty.

    A volume that is staged as a `block` device is bound on a file.
    """

    volume: Volume
    phase: str
    fs_type: str = ""
    block: bool = False

    @property
    def key(self) -> str:
        """Return the key of its record."""
        return f"volume {self.volume.driver} {self.volume.volume_id}"

    @property
    def data(self) -> dict[str, Any]:
        """Return the content of its record."""
        return asdict(self.volume) | {"fs_type": self.fs_type} | ({"block": True} if self.block else {})


Record = Target | Staged


@dataclass(frozen=True, slots=True)
class Ledger:
    """The records and the staging folder. Every method may block: call it in a thread.

    Volumes are staged at `<folder>/<driver quoted>/<volume id quoted>`.
    """

    journal: Journal
    folder: Path

    def secret_mark(self, secrets: Secrets) -> str:
        """Return 16 hexadecimal digits that differ for different secrets and reveal nothing about them.

        Keyed with random bytes of this node: a weak password could be guessed from a plain digest in a path. OSError if
        the key cannot be read, FileNotFoundError if there is none yet.
        """
        digest = hmac.new(read_bounded(self._mark_key), digestmod=hashlib.sha256)
        for name in sorted(secrets):
            for part in (name.encode("utf-8", "surrogateescape"), secrets[name]):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()[:16]

    @property
    def _mark_key(self) -> Path:
        return self.journal.folder / _KEY_FILE

    def has_mark_key(self) -> bool:
        """Whether there is a key for `secret_mark`."""
        return self._mark_key.exists()

    def make_mark_key(self) -> None:
        """Make the key for `secret_mark` if there is none; not thread-safe. Raises OSError or PluginError."""
        if not self.has_mark_key():
            self._mark_key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(self._mark_key, os.urandom(_KEY_SIZE))

    # --- targets

    def target(self, path: str) -> Target | None:
        """Return the record of a target; one from another boot is ignored, because its mount is gone."""
        found = self._record(self.journal.read(f"target {path}"))
        return found if isinstance(found, Target) else None

    def targets(self) -> list[Target]:
        """Return all targets recorded in this boot."""
        return [one for one in map(self._record, self.journal.entries()) if isinstance(one, Target)]

    def infer_target(self, driver: str, path: str) -> Target | None:
        """Find out from mountinfo alone what is mounted at a path; None if nothing is."""
        mount = mounted_at(path)
        if mount is None:
            return None
        recorded = [staged.volume for staged in self.all_staged() if staged.volume.driver == driver]
        for volume in recorded + self._folders(driver):
            staged = mounted_at(volume.staging_path)
            if staged is not None and _shows(mount, staged):
                return Target(path, volume, mount.read_only, PUBLISHED)
        return Target(path, Volume(driver, VolumeId("")), mount.read_only, PUBLISHED)

    # --- staged volumes

    def plan(self, driver: str, volume_id: VolumeId) -> Volume:
        """Return a volume with its path in nodeplug's own staging folder."""
        return Volume(driver, volume_id, str(self.folder / file_name(driver) / file_name(volume_id)))

    def owns(self, volume: Volume) -> bool:
        """Whether the volume is staged in nodeplug's own folder, and not in a directory of kubelet's."""
        return bool(volume.staging_path) and Path(volume.staging_path).is_relative_to(self.folder)

    def staged(self, driver: str, volume_id: VolumeId) -> Staged | None:
        """Return the record of a volume, if it is from this boot."""
        found = self._record(self.journal.read(f"volume {driver} {volume_id}"))
        return found if isinstance(found, Staged) else None

    def all_staged(self) -> list[Staged]:
        """Return all volumes recorded in this boot."""
        return [one for one in map(self._record, self.journal.entries()) if isinstance(one, Staged)]

    def staged_at(self, path: str) -> Staged | None:
        """Return the record of the volume that is staged at a path."""
        return next((staged for staged in self.all_staged() if staged.volume.staging_path == path), None)

    def remove_directory(self, volume: Volume) -> None:
        """Remove a directory in nodeplug's own staging folder; succeed if there is none, and leave kubelet's.

        Call it before removing the record: a directory without a record would never be found.
        """
        if self.owns(volume):
            path = Path(volume.staging_path)
            with suppress(OSError):  # not empty: a driver wrote beside its mount, and that is not ours to delete
                if path.is_file() and not path.is_symlink():
                    path.unlink()  # a block device was bound on it
                else:
                    path.rmdir()

    def is_staged(self, volume: Volume, fs_type: str, *, block: bool = False) -> bool:
        """Whether staging is complete: the volume is mounted, and its record or the pods that use it confirm that.

        Raises:
            InvalidRequest: it is staged with another filesystem than this pod asks for, or as a block device.
        """
        if mounted_at(volume.staging_path) is None:
            return False
        record = self.staged(volume.driver, volume.volume_id)
        if record is not None and record.block != block:
            has, asked = ("a block device", "a filesystem") if record.block else ("a filesystem", "a block device")
            raise InvalidRequest(
                f"volume {volume.volume_id!r} of {volume.driver} is staged on this node as {has}; a pod asks for "
                f"{asked}: give all its pods the same volumeMode"
            )
        if record is not None and fs_type and record.fs_type not in {"", fs_type}:
            raise InvalidRequest(
                f"volume {volume.volume_id!r} of {volume.driver} is staged on this node as {record.fs_type!r}; "
                f"a pod asks for fsType {fs_type[:40]!r}: give all its pods the same"
            )
        return (record is not None and record.phase == STAGED) or bool(self.users(volume))

    def users(self, volume: Volume, *, besides: str = "", alone: bool = False) -> set[str]:
        """Return the mount points, besides one, that use a volume: recorded, or showing its staging directory.

        A mount that shows it and has no record may be the administrator's own, of the same filesystem or export. While
        there is a record of the volume, it counts where kubelet puts what pods have, and nowhere else. With `alone`,
        only those recorded for a pod that shares it with none.
        """
        table = mounts()
        mounted = {mount.target for mount in table}
        recorded = [self._record(entry) for entry in self.journal.entries()]
        records = [one for one in recorded if isinstance(one, Target)]
        own = [one for one in records if _same(one.volume, volume) and (one.access_mode == ALONE or not alone)]
        mine = {_resolved(record.path) for record in own} & mounted
        staged = mounted_at(volume.staging_path) if volume.staging_path else None
        if staged is not None and not alone:
            foreign = {_resolved(record.path) for record in records if not _same(record.volume, volume)}
            places = {one.volume.staging_path for one in recorded if isinstance(one, Staged)}
            places |= {volume.staging_path, staged.target}
            known = any(isinstance(one, Staged) and _same(one.volume, volume) for one in recorded)
            shown = {mount.target for mount in table if _shows(mount, staged)} - foreign
            mine |= {
                target
                for target in shown
                if not self._is_staging(target, places) and (not known or _PODS.search(target))
            }
        return mine - {_resolved(besides)} if besides else mine

    def _is_staging(self, target: str, paths: Iterable[str]) -> bool:
        """Whether a mount is the staging mount of some volume, or a copy that a bind mount of a parent folder shows.

        Neither is a user: volumes of one export, or of one image, have one filesystem.
        """
        return f"{self.folder}/" in target or any(path and target.endswith(path) for path in paths)

    def all_volumes(self) -> list[Volume]:
        """Return all staged volumes: those with a record, and those in the staging folder without one."""
        recorded = [staged.volume for staged in self.all_staged()]
        known = {volume.staging_path for volume in recorded}
        drivers = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        found = [volume for driver in drivers for volume in self._folders(unquote(driver.name))]
        return recorded + [volume for volume in found if volume.staging_path not in known]

    def forget_other_boots(self) -> None:
        """Remove records from another boot: their mounts ended with it."""
        for entry in self.journal.entries():
            if self.journal.is_stale(entry):
                self.journal.remove(entry.key)

    # --- reading

    def _record(self, entry: Entry | None) -> Record | None:
        """Decode an entry of the journal; None if it is damaged, or from another boot."""
        if entry is None or self.journal.is_stale(entry):
            return None
        driver, volume_id, staging_path, path = map(entry.data.get, ("driver", "volume_id", "staging_path", "path"))
        if not (isinstance(driver, str) and isinstance(volume_id, str) and isinstance(staging_path, str)):
            return None
        volume = Volume(driver, VolumeId(volume_id), staging_path)
        if entry.key.startswith("volume "):
            return Staged(volume, entry.phase, str(entry.data.get("fs_type", "")), entry.data.get("block") is True)
        if not entry.key.startswith("target ") or not isinstance(path, str):
            return None
        fs_type, access_mode = (str(entry.data.get(name, "")) for name in ("fs_type", "access_mode"))
        options = entry.data.get("options")
        known = options if isinstance(options, dict) else {}
        return Target(path, volume, bool(entry.data.get("read_only")), entry.phase, fs_type, access_mode, known)

    def _folders(self, driver: str) -> list[Volume]:
        folder = self.folder / file_name(driver)
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [Volume(driver, VolumeId(unquote(name)), str(folder / name)) for name in names]


def make_staging_path(path: str, *, block: bool = False) -> None:
    """Make a directory for a mount, mode 0700, with its parents, or a file for a block device.

    Raises:
        PluginError: that fails.
    """
    try:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not exist_ok: that would stat a dead filesystem that is still mounted there.
        with suppress(FileExistsError):
            if block:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            else:
                Path(path).mkdir(mode=0o700)
    except OSError as error:
        raise PluginError(f"cannot make {path}: {error.strerror}") from error


def check_target(path: str) -> None:
    """Check that a mount would be made at the path itself, where it is looked for later.

    Raises:
        InvalidRequest: the path is a symlink: mount(2) follows it, and the mount behind it would never be found.
    """
    if Path(path).is_symlink():
        raise InvalidRequest(f"{path!r} is a symlink; a volume is mounted on a directory alone: remove the link")


def check_published(target: Target, plugin: str) -> None:
    """Check that the pod really gets the volume as requested.

    Raises:
        PluginError: nothing is mounted, so the pod would write to the node's own disk; or the mount should be read-only
            and is writable.
    """
    mount = mounted_at(target.path)
    if mount is None:
        raise PluginError(
            f"plugin {plugin!r} mounted nothing at {target.path!r}: the pod would write to the node's own disk"
        )
    if target.read_only and not mount.read_only:
        raise PluginError(f"plugin {plugin!r} mounted {target.path!r} writable; read-only was asked for")


def check_staged(volume: Volume, plugin: str) -> None:
    """Check that a volume is mounted at its staging path; PluginError if not."""
    if mounted_at(volume.staging_path) is None:
        raise PluginError(f"plugin {plugin!r} mounted nothing at its staging path {volume.staging_path!r}")


def _same(one: Volume, other: Volume) -> bool:
    return (one.driver, one.volume_id) == (other.driver, other.volume_id)


def _shows(mount: Mount, staged: Mount) -> bool:
    """Whether a mount shows the staged directory or a part of it."""
    return mount.device == staged.device and Path(mount.root).is_relative_to(staged.root)


def _resolved(path: str) -> str:
    """Spell a mount point as mountinfo does, without touching its last component."""
    return str(Path(path).parent.resolve() / Path(path).name)

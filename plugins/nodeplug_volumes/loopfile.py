"""loopfile: a volume with a hard size limit, as a filesystem in a file on the node's disk.

Owns: one image per volume in `Config.directory`, its filesystem, its growth, and the loop device while in use.
Refuses: to format an image that holds anything, to shrink, and to delete what nobody asked it to delete: images are
data.

Options: `name` (required), `size` (such as "64Mi"), `fsType`. Volumes that are provisioned are made by `store`.
"""

import os
import stat
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from nodeplug import (
    Claim,
    Example,
    Exhausted,
    Host,
    InvalidRequest,
    Metric,
    NotFound,
    NotReady,
    OutOfRange,
    PluginError,
    ProvisionedVolume,
    Sample,
    Snapshot,
    TryAgain,
    VolumeCapacity,
    VolumeClaim,
    VolumeCreate,
    VolumeDelete,
    VolumeExpand,
    VolumeId,
    VolumeIdentify,
    VolumePublish,
    VolumeRoom,
    VolumeSnapshot,
    VolumeSnapshotDelete,
    VolumeStage,
    VolumeStats,
    VolumeStatsRequest,
    VolumeUnstage,
    bind,
    hookimpl,
    mount,
    mounted_at,
    unmount,
)
from nodeplug.fields import show_quantity as show
from nodeplug.fields import write_quantity
from nodeplug_volumes import filesystem, loopdev
from nodeplug_volumes.filesystem import FS_TYPES, FsType, Look
from nodeplug_volumes.image_folder import NAME, Disk, ImageFolder
from nodeplug_volumes.loopfile_config import LoopFileConfig
from nodeplug_volumes.marker import Marker
from nodeplug_volumes.store import BLOCK, Store
from nodeplug_volumes.wish import Wish, Wishes

_ONLINE: Final = frozenset({"xfs", "btrfs"})
"""Filesystems that grow only where they are mounted."""
_LOOK_EVERY: Final = 60.0
_ALWAYS: Final[Mapping[str, tuple[str, ...]]] = {"xfs": ("nouuid",)}
"""Options without which a volume and its copy, which have one UUID, cannot be mounted at the same time."""


class LoopFile:
    """The plugin."""

    Config = LoopFileConfig
    isolation = "thread"
    example: ClassVar[Example] = {"volume_options": {"name": "data", "size": "16Mi"}, "keeps_data": True}

    def __init__(self, config: LoopFileConfig, host: Host) -> None:
        self._config = config
        self._log = host.log
        directory = config.directory or host.state_dir / "images"
        marker = Marker(directory, host.state_dir / "image-folders.json")
        self._images = ImageFolder(directory, config.preallocate, config.max_total, config.overcommit, marker)
        self._store = Store(self._images, host.log, config.fs_type, config.default_size, config.max_size)
        self._wishes = Wishes(config.max_size)
        self._disk: Disk | None = None

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """One driver, whose volumes are where their images are."""
        return [VolumeClaim(self._config.driver, block=True, node_local=True, clones=True)]

    @hookimpl
    def start(self) -> None:
        """Create the folder, and remove what a killed predecessor did not complete."""
        self._images.prepare()

    @hookimpl
    def stop(self) -> None:
        """End copies and new filesystems: the next instance begins them anew. Checks and growth go on by themselves."""
        self._store.copies.end()
        self._store.background.end()

    @hookimpl
    def health(self) -> None:
        """Not ready without the folder or loop devices."""
        self._images.check()
        loopdev.check()

    @hookimpl
    def metrics(self) -> Sequence[Metric]:
        """Tell what the disk has and what is promised; log when that becomes too little."""
        if not self._images.is_there():  # these figures would be another disk's
            return []
        before, disk = self._disk, self._look()
        if disk.shortage and not (before and before.shortage):
            self._log.warning("%s", disk.shortage)
        rows = (
            ("volumes_size_bytes", "Sizes of all volumes together.", disk.total),
            ("volumes_promised_bytes", "What volumes may still need of the disk.", disk.promised),
            ("volumes_disk_free_bytes", "What the disk of the images has free.", disk.free),
        )
        return [Metric(name, text, [Sample(float(value))]) for name, text, value in rows]

    def _look(self) -> Disk:
        """Look at the disk, not more often than once a minute: each volume's extents are counted."""
        if self._disk is None or time.monotonic() - self._disk.at > _LOOK_EVERY:
            self._disk = self._images.look()
        return self._disk

    # --- use

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        """Only the name: a larger size is the same volume, grown."""
        return VolumeId(self._wishes.read(request.options).name)

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        """Create, check and grow the image as needed, and mount it; a block device is bound."""
        wish = self._wishes.read(request.options, request.fs_type)
        image = self._image(wish)
        if request.block:
            self._stage_device(image, wish.name, request.staging_path)
            return
        busy = loopdev.release_idle(image)
        if busy is not None:  # still mounted elsewhere, as if somebody unmounted only the staging path
            fs_type = self._held(image, wish)
            with busy.opened(os.O_RDONLY):
                self._mount(busy, fs_type, request)
        else:
            self._make_missing(image, wish, must_exist=request.must_exist)
            self._store.background.do(
                image, _readying(wish), lambda look: self._make_ready(image, wish, look), goes_on=True
            )
            with filesystem.locked(image):
                fs_type = self._held(image, wish)
                with loopdev.attached(image) as loop:
                    self._mount(loop, fs_type, request)
        self._grow_mounted(image, wish, request.staging_path)

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Bind the staged volume; a further pod must agree with what exists, and may request a larger size."""
        wish = self._wishes.read(request.options, request.fs_type)
        image = self._image(wish)
        if not request.block:
            self._held(image, wish)
            if wish.size is not None and wish.size > image.stat().st_size:
                self._grow_mounted(image, wish, request.staging_path)
        bind(request.staging_path, request.target_path, read_only=request.read_only)

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        """Unmount, and release the loop device, also one that a predecessor left."""
        bound = loopdev.bound_at(request.staging_path)
        unmount(request.staging_path)
        if bound is not None and not (bound.in_use() or bound.is_bound()):  # its image may be away
            bound.release()
        if NAME.fullmatch(request.volume_id):
            loopdev.release_idle(self._images.image(request.volume_id))

    @hookimpl
    def volume_expand(self, request: VolumeExpand) -> int:
        """Grow the image, and the filesystem if it is mounted; otherwise it grows when it is staged next."""
        wish = self._wishes.read({"name": request.volume_id, **request.options})
        image = self._image(wish)
        if not image.exists():
            raise NotFound(f"volume {wish.name!r} has no image {image}; it may be on another node")
        size = self._wishes.allowed(wish.name, request.new_size)
        if request.limit and size > request.limit:
            raise OutOfRange(
                f"volume {wish.name!r} would have {show(size)}, and at most {show(request.limit)} is asked for"
            )
        grown = Wish(wish.name, size, wish.fs_type)
        if self._is_block(image):
            self._grow_file(image, grown)
            for loop in loopdev.find(image):
                loop.take_size()
        elif request.mount_path:
            self._grow_mounted(image, grown, request.mount_path, due=True)
        else:
            self._grow_file(image, grown)
        return image.stat().st_size

    @hookimpl
    def volume_stats(self, request: VolumeStatsRequest) -> VolumeStats:
        """Ask the mounted filesystem, and the disk below it."""
        if mounted_at(request.mount_path) is None:
            raise NotFound(f"nothing is mounted at {request.mount_path!r}")
        condition = self._condition()
        if stat.S_ISBLK(Path(request.mount_path).stat().st_mode):
            size = self._images.image(request.volume_id).stat().st_size
            return VolumeStats(total=size, used=0, available=0, condition=condition)
        status = os.statvfs(request.mount_path)
        unit = status.f_frsize
        return VolumeStats(
            total=status.f_blocks * unit,
            used=(status.f_blocks - status.f_bfree) * unit,
            available=status.f_bavail * unit,
            inodes=status.f_files,
            inodes_used=status.f_files - status.f_ffree,
            condition=condition,
        )

    def _condition(self) -> str:
        try:
            self._images.check()
        except PluginError as error:
            return error.message
        return self._look().shortage

    # --- creation

    @hookimpl
    def volume_create(self, request: VolumeCreate) -> ProvisionedVolume:
        """Make an image for somebody, empty or with the contents of another one."""
        try:
            return self._store.create(request)
        except NotReady as error:  # another node may have what this one lacks
            raise Exhausted(error.message) from error

    @hookimpl
    def volume_delete(self, request: VolumeDelete) -> None:
        """Remove an image."""
        self._images.check()
        self._store.delete(request.volume_id)

    @hookimpl
    def volume_list(self) -> Sequence[ProvisionedVolume]:
        """All images, those of pods' options too."""
        self._images.check()
        return list(self._store.volumes())

    @hookimpl
    def volume_capacity(self, request: VolumeCapacity) -> VolumeRoom:
        """What can still be promised, in one volume up to the largest that is allowed."""
        if unknown := sorted(set(request.parameters) - {"fsType"}):
            raise InvalidRequest(f"loopfile has no parameter {', '.join(map(repr, unknown))}; it has fsType")
        self._images.check()
        loopdev.check()
        room = self._images.room() // BLOCK * BLOCK
        return VolumeRoom(available=room, largest=min(room, self._config.max_size or room))

    @hookimpl
    def volume_snapshot(self, request: VolumeSnapshot) -> Snapshot:
        """Copy an image, in an instant where the disk can share blocks."""
        self._images.check()
        return self._store.snapshot(request)

    @hookimpl
    def volume_snapshot_delete(self, request: VolumeSnapshotDelete) -> None:
        """Remove a snapshot."""
        self._images.check()
        self._store.delete_snapshot(request.snapshot_id)

    @hookimpl
    def volume_snapshot_list(self) -> Sequence[Snapshot]:
        """All snapshots."""
        self._images.check()
        return list(self._store.snapshots())

    # --- the image

    def _image(self, wish: Wish) -> Path:
        """Return where the image of a volume is, or would be; NotReady if the folder is away."""
        self._images.check()
        return self._images.image(wish.name)

    def _is_block(self, image: Path) -> bool:
        note = self._images.note(image)
        return note is not None and note.block

    def _make_missing(self, image: Path, wish: Wish, *, must_exist: bool) -> None:
        """Make an image that a pod's options name for the first time."""
        if image.exists() and (self._is_block(image) or filesystem.identify(image) != ""):
            return
        if must_exist:
            raise NotFound(f"volume {wish.name!r} has no image {image}; it may be on another node")
        size = wish.size or self._config.default_size
        if size is None:
            raise InvalidRequest(f"volume {wish.name!r} is new and asks for no size; set the option size, such as 64Mi")
        self._images.check()
        loopdev.check()  # before creating an image that nothing can mount
        self._store.new(image, self._wishes.allowed(wish.name, size), wish.fs_type or self._config.fs_type)

    def _make_ready(self, image: Path, wish: Wish, look: Look) -> None:
        """Check the filesystem of an image, and make it as large as requested; it may take long."""
        fs_type = self._held(image, wish)
        with filesystem.locked(image) as lock:
            self._check_and_grow(image, fs_type, wish, lock, look)

    def _check_and_grow(self, image: Path, fs_type: FsType, wish: Wish, lock: int, look: Look) -> None:
        if filesystem.check(image, fs_type, lock, look):
            self._log.warning("the filesystem of volume %s was damaged and has been repaired", wish.name)
        self._grow_file(image, wish)
        # Also after a kill between the two, when the file is larger than its filesystem.
        if filesystem.has_room(image, fs_type):
            try:
                filesystem.grow_offline(image, lock, look)
            except TryAgain:
                raise
            except PluginError as error:  # its pod shall have what there is
                self._log.warning("volume %s keeps the size that it has: %s", wish.name, error.message)

    def _held(self, image: Path, wish: Wish) -> FsType:
        if self._is_block(image):
            raise InvalidRequest(f"volume {wish.name!r} is a block device; use volumeMode Block")
        held = filesystem.identify(image)
        if held not in FS_TYPES:
            raise PluginError(f"{image} holds no filesystem that loopfile knows; it is left alone: move it away")
        if wish.fs_type is not None and wish.fs_type != held:
            raise InvalidRequest(f"volume {wish.name!r} asks for {wish.fs_type}; its image holds {held} already")
        return held

    # --- growth

    def _grow_file(self, image: Path, wish: Wish) -> bool:
        """Grow the file if more is requested; never shrink it."""
        if wish.size is None or wish.size <= image.stat().st_size:
            return False
        self._images.allocate(image, wish.size)
        return True

    def _grow_mounted(self, image: Path, wish: Wish, mount_path: str, *, due: bool = False) -> None:
        """Grow file, loop device and filesystem while mounted.

        Args:
            image: the file.
            wish: has the size.
            mount_path: where the filesystem is mounted.
            due: raise if it fails; otherwise the growth waits for the next stage.
        """
        found = mounted_at(mount_path)
        fs_type = next((known for known in FS_TYPES if found is not None and known == found.fs_type), None)
        if found is None or fs_type is None:
            raise NotFound(f"volume {wish.name!r} is not mounted at {mount_path!r}")
        grown = self._grow_file(image, wish)
        if not grown and not due and fs_type not in _ONLINE:
            return
        try:
            for loop in loopdev.find(image):
                loop.take_size()
            grow = partial(filesystem.grow_online, mount_path, found.source, fs_type)
            if due:
                what = f"growing it at {mount_path} to {write_quantity(image.stat().st_size)}"
                self._store.background.do(image, what, grow, goes_on=True)
            else:
                grow()
        except PluginError as error:
            if due:
                raise
            self._log.warning("volume %s grows when it is staged the next time: %s", wish.name, error.message)

    # --- loop devices

    def _stage_device(self, image: Path, name: str, path: str) -> None:
        """Bind the loop device of a block volume on a file."""
        if not image.exists():
            raise NotFound(f"volume {name!r} has no image {image}; it may be on another node")
        if not self._is_block(image):
            raise InvalidRequest(f"volume {name!r} has a filesystem; use volumeMode Filesystem")
        with filesystem.locked(image):
            loop = loopdev.release_idle(image) or loopdev.attach(image)
            bind(loop.path, path)

    def _mount(self, loop: loopdev.Loop, fs_type: FsType, request: VolumeStage) -> None:
        # The latter win: pods cannot change them.
        options = (*request.mount_flags, *self._config.mount_options, *_ALWAYS.get(fs_type, ()))
        mount(loop.path, request.staging_path, fs_type, options=options, read_only=request.read_only)


def _readying(wish: Wish) -> str:
    return f"checking it and growing it to {write_quantity(wish.size)}" if wish.size else "checking it"

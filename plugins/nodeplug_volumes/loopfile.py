"""loopfile: a volume with a hard size limit, as a filesystem in a file on the node's disk.

Owns: one sparse image per volume in `Config.directory`, its filesystem, its growth, and the loop device while mounted.
Refuses: to format an image that holds anything, to shrink, to delete: an image is data, and its owner removes it.

A new image is created under a temporary name and renamed when its filesystem is complete, so a kill during mkfs leaves
nothing that looks like a volume. Options: `name` (required), `size` (such as "64Mi"), `fsType` ("ext4" or "xfs").
"""

import errno
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    Claim,
    Example,
    Exhausted,
    Host,
    InvalidRequest,
    NotFound,
    NotReady,
    OutOfRange,
    PluginError,
    VolumeClaim,
    VolumeExpand,
    VolumeId,
    VolumeIdentify,
    VolumePublish,
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
from nodeplug.fields import FlexDriver, Quantity, parse_quantity
from nodeplug.fields import show_quantity as show
from nodeplug_volumes import filesystem, loopdev
from nodeplug_volumes.filesystem import FS_TYPES, FsType

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SMALLEST: Final = 1 << 20
_BLOCK: Final = 4096


class LoopFileConfig(BaseModel):
    """`[plugins.loopfile.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: FlexDriver = Field("nodeplug/loopfile", description="the FlexVolume driver's name, vendor/driver")
    directory: Path | None = Field(
        None, description="where the images are; by default in the plugin's own folder below the state folder"
    )
    default_size: Quantity | None = Field(None, ge=_SMALLEST, description="the size of a volume that requests none")
    max_size: Quantity | None = Field(None, ge=_SMALLEST, description="the largest volume allowed")
    fs_type: Literal["ext4", "xfs"] = Field("ext4", description="the filesystem of a new volume that requests none")
    preallocate: bool = Field(
        default=False,
        description="reserve the whole size on disk; otherwise images are sparse and may outgrow the disk",
    )
    mount_options: tuple[str, ...] = Field(
        ("nosuid", "nodev"), description="options of every mount; pods cannot change them"
    )


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of one volume."""

    name: str
    size: int | None
    fs_type: FsType | None


class LoopFile:
    """The plugin."""

    Config = LoopFileConfig
    isolation = "thread"
    example: ClassVar[Example] = {"volume_options": {"name": "data", "size": "16Mi"}, "keeps_data": True}

    def __init__(self, config: LoopFileConfig, host: Host) -> None:
        self._config = config
        self._log = host.log
        self._directory = config.directory or host.state_dir / "images"

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """One driver."""
        return [VolumeClaim(self._config.driver)]

    @hookimpl
    def start(self) -> None:
        """Create the folder, and remove images whose mkfs was killed."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for leftover in self._directory.glob(".*.new"):
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise PluginError(f"cannot use {self._directory}: {error.strerror}; make it writable") from error

    @hookimpl
    def health(self) -> None:
        """Not ready without the folder or loop devices."""
        if not self._directory.is_dir():
            raise NotReady(f"the image folder {self._directory} is missing; is its disk mounted?")
        loopdev.check()

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        """Only the name: a larger size is the same volume, grown."""
        return VolumeId(self._wish(request.options).name)

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        """Create, check and grow the image as needed, and mount it."""
        wish = self._wish(request.options, request.fs_type)
        image = self._image(wish.name)
        busy = self._release_idle(image)
        if busy is None:
            fs_type = self._prepare(image, wish, must_exist=request.must_exist)
            with loopdev.attached(image) as loop:
                self._mount(loop, fs_type, request)
        else:  # still mounted elsewhere, as if somebody unmounted only the staging path
            fs_type = self._held(image, wish)
            with busy.opened(os.O_RDONLY):
                self._mount(busy, fs_type, request)
        self._grow_mounted(image, wish, request.staging_path)

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Bind the staged volume; a further pod must agree with what exists, and may request a larger size."""
        wish = self._wish(request.options, request.fs_type)
        image = self._image(wish.name)
        self._held(image, wish)
        if wish.size is not None and wish.size > image.stat().st_size:
            self._grow_mounted(image, wish, request.staging_path)
        bind(request.staging_path, request.target_path, read_only=request.read_only)

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        """Unmount; autoclear releases the loop device, and one that a predecessor left is released."""
        unmount(request.staging_path)
        if _NAME.fullmatch(request.volume_id):
            self._release_idle(self._image(request.volume_id))

    @hookimpl
    def volume_expand(self, request: VolumeExpand) -> int:
        """Grow the image, and the filesystem if it is mounted; otherwise it grows when it is staged next."""
        wish = self._wish(request.options)
        image = self._image(wish.name)
        if not image.exists():
            raise NotFound(f"volume {wish.name!r} has no image {image}")
        size = self._allowed(wish.name, request.new_size)
        if request.limit and size > request.limit:
            raise OutOfRange(
                f"volume {wish.name!r} would have {show(size)}, and at most {show(request.limit)} is asked for"
            )
        grown = Wish(wish.name, size, wish.fs_type)
        if request.mount_path:
            self._grow_mounted(image, grown, request.mount_path, due=True)
        else:
            self._grow_file(image, grown)
        return image.stat().st_size

    @hookimpl
    def volume_stats(self, request: VolumeStatsRequest) -> VolumeStats:
        """Ask the mounted filesystem."""
        if mounted_at(request.mount_path) is None:
            raise NotFound(f"nothing is mounted at {request.mount_path!r}")
        status = os.statvfs(request.mount_path)
        unit = status.f_frsize
        return VolumeStats(
            total=status.f_blocks * unit,
            used=(status.f_blocks - status.f_bfree) * unit,
            available=status.f_bavail * unit,
            inodes=status.f_files,
            inodes_used=status.f_files - status.f_ffree,
        )

    # --- the wish

    def _wish(self, options: Mapping[str, str], kubelet_fs_type: str = "") -> Wish:
        unknown = sorted(set(options) - {"name", "size", "fsType"})
        if unknown:
            raise InvalidRequest(f"loopfile has no option {', '.join(map(repr, unknown))}; it has name, size, fsType")
        name = options.get("name", "")
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"option name is {name[:140]!r}; it must be 1 to 128 letters, digits, '.', '_', '-', starting with one "
                "of the first two"
            )
        asked = options.get("fsType") or kubelet_fs_type
        fs_type = next((known for known in FS_TYPES if known == asked), None)
        if asked and fs_type is None:
            raise InvalidRequest(f"volume {name!r} asks for fsType {asked[:40]!r}; loopfile makes ext4 and xfs")
        return Wish(name, self._wished_size(name, options), fs_type)

    def _wished_size(self, name: str, options: Mapping[str, str]) -> int | None:
        text = options.get("size", "")
        return self._allowed(name, parse_quantity(text)) if text else None

    def _allowed(self, name: str, size: int) -> int:
        if size < _SMALLEST:
            raise InvalidRequest(f"volume {name!r} asks for {show(size)}; the smallest is {show(_SMALLEST)}")
        if self._config.max_size is not None and size > self._config.max_size:
            raise InvalidRequest(
                f"volume {name!r} asks for {show(size)}; this node allows at most {show(self._config.max_size)}"
            )
        return -(-size // _BLOCK) * _BLOCK

    def _image(self, name: str) -> Path:
        return self._directory / f"{name}.img"

    # --- the image

    def _prepare(self, image: Path, wish: Wish, *, must_exist: bool) -> FsType:
        """Return the filesystem of an image that is complete, checked and as large as requested."""
        held = filesystem.identify(image) if image.exists() else ""
        if held == "" and must_exist:
            raise NotFound(f"volume {wish.name!r} has no image {image}; it may be on another node")
        if held == "":
            self._make(image, wish)
            return wish.fs_type or self._config.fs_type
        fs_type = self._held(image, wish)
        with filesystem.locked(image) as lock:
            if filesystem.check(image, fs_type, lock):
                self._log.warning("the filesystem of volume %s was damaged and has been repaired", wish.name)
            self._grow_file(image, wish)
            # Also after a kill between the two, when the file is larger than its filesystem.
            if filesystem.has_room(image, fs_type):
                filesystem.grow_offline(image, lock)
        return fs_type

    def _held(self, image: Path, wish: Wish) -> FsType:
        held = filesystem.identify(image)
        if held not in FS_TYPES:
            raise PluginError(f"{image} holds no filesystem that loopfile knows; it is left alone: move it away")
        if wish.fs_type is not None and wish.fs_type != held:
            raise InvalidRequest(f"volume {wish.name!r} asks for {wish.fs_type}; its image holds {held} already")
        return held

    def _make(self, image: Path, wish: Wish) -> None:
        size = wish.size or self._config.default_size
        if size is None:
            raise InvalidRequest(f"volume {wish.name!r} is new and asks for no size; set the option size, such as 64Mi")
        if not self._directory.is_dir():
            raise NotReady(f"the image folder {self._directory} is missing; is its disk mounted?")
        loopdev.check()  # before creating an image that nothing can mount
        fresh = self._directory / f".{image.name}.new"
        try:
            fresh.unlink(missing_ok=True)
            self._allocate(fresh, self._allowed(wish.name, size), create=True)
            filesystem.make(fresh, wish.fs_type or self._config.fs_type)
            _sync(fresh)
            fresh.rename(image)
            _sync(self._directory)
        except OSError as error:
            raise PluginError(f"cannot make {image}: {error.strerror}") from error
        finally:
            fresh.unlink(missing_ok=True)

    def _allocate(self, path: Path, size: int, *, create: bool = False) -> None:
        """Set a file's size, and reserve its blocks if so configured.

        Raises:
            Exhausted: the disk has no room; the message has the numbers.
        """
        flags = os.O_CREAT | os.O_EXCL if create else 0
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        before = os.fstat(descriptor).st_size
        try:
            if self._config.preallocate:
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.ftruncate(descriptor, size)
        except OSError as error:
            os.ftruncate(descriptor, before)
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise
            free, whole = filesystem.space(self._directory)
            raise Exhausted(
                f"no room for {show(size)} in {self._directory}: {show(free)} free of {show(whole)}"
            ) from error
        finally:
            os.close(descriptor)

    # --- growth

    def _grow_file(self, image: Path, wish: Wish) -> bool:
        """Grow the file if more is requested; never shrink it."""
        if wish.size is None or wish.size <= image.stat().st_size:
            return False
        self._allocate(image, wish.size)
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
        if not grown and not due and fs_type != "xfs":  # xfs cannot grow before it is mounted
            return
        try:
            for loop in loopdev.find(image):
                loop.take_size()
            filesystem.grow_online(mount_path, found.source, fs_type)
        except PluginError as error:
            if due:
                raise
            self._log.warning("volume %s grows when it is staged the next time: %s", wish.name, error.message)

    # --- loop devices

    def _release_idle(self, image: Path) -> loopdev.Loop | None:
        """Release every loop device of an image that nothing mounts; return one that is mounted."""
        busy = None
        for loop in loopdev.find(image):
            if loop.in_use():
                busy = loop
            else:
                loop.release()
        return busy

    def _mount(self, loop: loopdev.Loop, fs_type: FsType, request: VolumeStage) -> None:
        options = (*request.mount_flags, *self._config.mount_options)  # the latter win: pods cannot change them
        mount(loop.path, request.staging_path, fs_type, options=options, read_only=request.read_only)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Volumes and snapshots that are created for somebody: made, copied, listed, deleted.

Owns: what a name, a size and a source mean for images, so that a repeated call finds what the first one made.
Refuses: mounting (`loopfile`), and messages.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import (
    AlreadyExists,
    Exhausted,
    InUse,
    InvalidRequest,
    NotFound,
    OutOfRange,
    PluginError,
    ProvisionedVolume,
    Snapshot,
    VolumeCreate,
    VolumeId,
    VolumeSnapshot,
    mounts,
)
from nodeplug.fields import show_quantity as show
from nodeplug_volumes import extents, filesystem, loopdev
from nodeplug_volumes.background import Background
from nodeplug_volumes.copying import Copies
from nodeplug_volumes.filesystem import FS_TYPES, FsType, Look
from nodeplug_volumes.image_folder import NAME, ImageFolder, Note, file_name

SMALLEST: Final = 1 << 20
BLOCK: Final = 4096
_USUAL: Final = 1 << 30
"""The size of a volume for which neither its caller nor the configuration names one."""


@dataclass(frozen=True, slots=True)
class Store:
    """The volumes of one folder.

    Attributes:
        images: the folder.
        log: of the plugin.
        fs_type: of a volume for which none is named.
        default_size: the same, in bytes.
        max_size: of any volume, in bytes; None: no limit.
    """

    images: ImageFolder
    log: logging.LoggerAdapter[logging.Logger]
    fs_type: FsType = "ext4"
    default_size: int | None = None
    max_size: int | None = None
    copies: Copies = field(init=False)
    background: Background = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "copies", Copies(self.log))
        object.__setattr__(self, "background", Background(self.log))

    # --- volumes

    def create(self, request: VolumeCreate) -> ProvisionedVolume:
        """Create a volume; return the one that has the name if it is as this one would be.

        Raises:
            AlreadyExists: it is not.
            InvalidRequest: the parameters are none, or the source has another filesystem.
            NotFound: there is no such source.
            OutOfRange: no such size is possible.
            Exhausted: this node has no room for it, or allows no such size.
            NotReady: the folder is away, or there are no loop devices.
        """
        self.images.check()
        name = file_name(request.name)
        image = self.images.image(name)
        fs_type = self._fs_type(request)
        note = Note(source=request.source, snapshot=request.snapshot, block=request.block)
        promised = self._is_being_made(image)  # asked first: it may be complete by then
        if image.exists():
            self._forget(image)
            self.images.begin(image, note, is_being_made=False)
            self._check_made(image, request, fs_type)
            return self._volume(image)
        origin = self._origin(note, fs_type)
        size = self._size(request, fs_type or self.fs_type, origin)
        loopdev.check()
        if not promised:
            self.images.demand(size)
        self.images.begin(image, note, is_being_made=promised)
        if origin is None:
            self.new(image, size, None if request.block else fs_type or self.fs_type)
        else:
            for path in _mounted(origin):
                extents.sync_filesystem(path)
            self.copies.make(
                origin,
                image,
                is_used=lambda: loopdev.release_idle(origin) is not None,
                complete=lambda fresh: self._complete(fresh, image, size),
            )
        self._check_made(image, request, fs_type)  # an earlier call may have begun it, with another filesystem or size
        return self._volume(image)

    def _is_being_made(self, image: Path) -> bool:
        """Whether a file is being made for an earlier call, so that its room counts as promised."""
        return self.background.runs(image) or self.copies.runs(image)

    def _forget(self, image: Path) -> None:
        self.background.forget(image)
        self.copies.forget(image)

    def new(self, image: Path, size: int, fs_type: FsType | None) -> None:
        """Make an image, complete or not at all, with an empty filesystem if one is named.

        Raises:
            TryAgain: it takes longer.
            Exhausted: the disk is full.
            PluginError: a tool or the disk fails.
        """
        what = f"making it with {show(size)}"
        self.background.do(image, what, lambda look: self._make(image, size, fs_type, look))

    def _make(self, image: Path, size: int, fs_type: FsType | None, look: Look) -> None:
        fresh = image.with_name(f".{image.name}.new")
        try:
            fresh.unlink(missing_ok=True)
            self.images.allocate(fresh, size, create=True)
            if fs_type is not None:
                filesystem.make(fresh, fs_type, look)
            self.images.complete(fresh, image)
        except OSError as error:
            raise PluginError(f"cannot make {image}: {error.strerror}") from error
        finally:
            fresh.unlink(missing_ok=True)

    def delete(self, name: str) -> None:
        """Delete a volume; succeed if there is none.

        Raises:
            InUse: it is attached.
            TryAgain: it is being checked or copied.
        """
        if not NAME.fullmatch(name):  # none of ours
            return
        image = self.images.image(name)
        self.copies.cancel(image)
        self.background.cancel(image)
        if image.exists():
            if (busy := loopdev.release_idle(image)) is not None:
                raise InUse(f"volume {name!r} is in use as {busy.path}; end its pods first")
            with filesystem.locked(image):
                self.images.remove(image)
        else:
            self.images.remove(image)  # its note

    def volumes(self) -> Iterator[ProvisionedVolume]:
        """Yield every volume."""
        shortage = self.images.look().shortage
        for image in self.images.volumes():
            try:
                yield self._volume(image, shortage)
            except NotFound:  # deleted meanwhile
                continue

    def _volume(self, image: Path, condition: str = "") -> ProvisionedVolume:
        try:
            size = image.stat().st_size
        except FileNotFoundError:
            raise NotFound(f"volume {image.stem!r} has no image {image}") from None
        return ProvisionedVolume(
            volume_id=VolumeId(image.stem), size=size, options={"name": image.stem}, condition=condition
        )

    def _complete(self, fresh: Path, image: Path, size: int) -> None:
        if size > fresh.stat().st_size:
            self.images.allocate(fresh, size)
        self.images.complete(fresh, image)

    # --- what is asked for

    def _fs_type(self, request: VolumeCreate) -> FsType | None:
        """Return the filesystem that is asked for; None if it is left to us."""
        if unknown := sorted(set(request.parameters) - {"fsType"}):
            raise InvalidRequest(f"loopfile has no parameter {', '.join(map(repr, unknown))}; it has fsType")
        asked = request.fs_type or request.parameters.get("fsType", "")
        found = next((known for known in FS_TYPES if known == asked), None)
        if asked and found is None:
            raise InvalidRequest(f"fsType {asked[:40]!r} is asked for; loopfile makes {', '.join(FS_TYPES)}")
        return found

    def _check_made(self, image: Path, request: VolumeCreate, fs_type: FsType | None) -> None:
        size = image.stat().st_size
        if size < request.size or (request.limit and size > request.limit):
            limit = f"at most {show(request.limit)}" if request.limit else "no limit"
            raise AlreadyExists(
                f"volume {image.stem!r} has {show(size)}; at least {show(request.size)} and {limit} is asked for"
            )
        held = filesystem.identify(image)
        if fs_type is not None and not request.block and held != fs_type:
            raise AlreadyExists(f"volume {image.stem!r} exists with {held}; {fs_type} is asked for")

    def _origin(self, note: Note, fs_type: FsType | None) -> Path | None:
        """Return the file whose contents a volume gets; None for an empty one."""
        if not (note.source or note.snapshot):
            return None
        what = f"snapshot {note.snapshot!r}" if note.snapshot else f"volume {note.source!r}"
        name = note.snapshot or note.source
        place = self.images.snapshot if note.snapshot else self.images.image
        if not NAME.fullmatch(name) or not place(name).exists():
            raise NotFound(f"there is no {what} here to copy; it may be on another node")
        origin = place(name)
        self._check_copied(origin, what)
        found = self.images.note(origin)
        if note.block != (found is not None and found.block):
            raise InvalidRequest(f"{what} is {'no' if note.block else 'a'} block device; ask for the same volumeMode")
        held = filesystem.identify(origin)
        if fs_type is not None and not note.block and held != fs_type:
            raise InvalidRequest(f"{what} has {held}, and a copy of it with {fs_type} is asked for; ask for {held}")
        return origin

    def _check_copied(self, origin: Path, what: str) -> None:
        if filesystem.identify(origin) == "btrfs":
            raise InvalidRequest(
                f"{what} has btrfs, of which the kernel keeps two copies apart by nothing: use ext4 or xfs for volumes "
                "that are copied"
            )

    def _size(self, request: VolumeCreate, fs_type: FsType, origin: Path | None) -> int:
        least = SMALLEST if request.block else filesystem.SMALLEST[fs_type]
        if origin is not None:
            least = origin.stat().st_size
            if 0 < request.size < least:
                raise OutOfRange(
                    f"a copy of {origin.stem!r} needs {show(least)}, as it has; {show(request.size)} is asked for"
                )
        size = request.size or (least if origin is not None else self.default_size or _USUAL)
        if not request.size and request.limit:
            size = min(size, request.limit // BLOCK * BLOCK)
        size = -(-max(size, least) // BLOCK) * BLOCK
        needs = f"volume {request.name!r} needs {show(size)}; at most"
        if request.limit and size > request.limit:
            raise OutOfRange(f"{needs} {show(request.limit)} is asked for")
        if self.max_size is not None and size > self.max_size:  # another node may allow it
            raise Exhausted(f"{needs} {show(self.max_size)} is allowed on this node")
        return size

    # --- snapshots

    def snapshot(self, request: VolumeSnapshot) -> Snapshot:
        """Take a snapshot; return the one that has the name if it is of the same volume.

        Raises:
            AlreadyExists: it is of another volume.
            NotFound: there is no such volume.
            InUse: it is mounted, and the disk cannot share blocks.
        """
        if request.parameters:
            raise InvalidRequest(f"loopfile has no parameters for snapshots; found {', '.join(request.parameters)}")
        taken = self.images.snapshot(file_name(request.name))
        promised = self._is_being_made(taken)  # asked first: it may be complete by then
        if taken.exists():
            self._forget(taken)
            found = self._snapshot(taken)
            if found.volume_id != request.volume_id:
                raise AlreadyExists(
                    f"snapshot {taken.stem!r} exists, of volume {found.volume_id!r}; one of {request.volume_id!r} is "
                    "asked for"
                )
            return found
        if not NAME.fullmatch(request.volume_id) or not self.images.image(request.volume_id).exists():
            raise NotFound(f"there is no volume {request.volume_id!r} here; it may be on another node")
        image = self.images.image(request.volume_id)
        self._check_copied(image, f"volume {request.volume_id!r}")
        note = self.images.note(image)
        if not promised:
            self.images.demand(image.stat().st_blocks * 512)
        for path in _mounted(image):
            extents.sync_filesystem(path)
        wanted = Note(source=request.volume_id, block=note is not None and note.block)
        self.images.begin(taken, wanted, is_being_made=promised)
        self.copies.make(
            image,
            taken,
            is_used=lambda: loopdev.release_idle(image) is not None,
            complete=lambda fresh: self.images.complete(fresh, taken),
        )
        return self._snapshot(taken)

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot; succeed if there is none; TryAgain while it is being copied."""
        if not NAME.fullmatch(name):
            return
        taken = self.images.snapshot(name)
        self.copies.cancel(taken)
        if taken.exists():
            with filesystem.locked(taken):
                self.images.remove(taken)
        else:
            self.images.remove(taken)

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield every snapshot."""
        for taken in self.images.all_snapshots():
            try:
                yield self._snapshot(taken)
            except FileNotFoundError:  # deleted meanwhile
                continue

    def _snapshot(self, taken: Path) -> Snapshot:
        size, note = taken.stat().st_size, self.images.note(taken)
        if note is None:
            raise PluginError(f"snapshot {taken} has no note of its volume; remove it if it is not needed")
        return Snapshot(
            snapshot_id=taken.stem, volume_id=VolumeId(note.source), size=size, created=note.created, ready=True
        )


def _mounted(image: Path) -> list[str]:
    """Return a mount point for each loop device of an image that is mounted."""
    devices = {loop.path for loop in loopdev.find(image)}
    return list({one.source: one.target for one in mounts() if one.source in devices}.values())

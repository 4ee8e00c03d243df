"""The folder of images: what is in it, how much of the disk it may still promise, and new files in it.

Owns: the names of images and snapshots, the notes beside those that were created for somebody, allocation, and the
guard against promising more than the disk can hold.
Refuses: filesystems, loop devices, and mounting.

An image `NAME.img` that was provisioned has a note `NAME.json`; one that a pod's options named has none. The note is
written first and removed last, so a note without an image means nothing. Snapshots are in `snapshots`, with notes.
New files have the suffix `.new` until they are complete: whatever is killed leaves nothing that looks like a volume.
"""

import errno
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from nodeplug import AlreadyExists, Exhausted, NotReady, PluginError
from nodeplug.fields import show_quantity as show
from nodeplug_volumes import extents
from nodeplug_volumes.durable import sync, write
from nodeplug_volumes.filesystem import space
from nodeplug_volumes.marker import Marker

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_UNIT: Final = 512
"""Bytes of a block in stat(2)."""
_LOW: Final = 0.05
"""Of the disk: less is told as a shortage."""


class Note(BaseModel):
    """Why a file was created.

    Attributes:
        source: the volume whose contents it got; of a snapshot, the volume that it is of.
        snapshot: the snapshot whose contents it got.
        block: it is a block device, and has no filesystem of ours.
        created: seconds since the epoch.
    """

    model_config = ConfigDict(frozen=True)

    source: str = ""
    snapshot: str = ""
    block: bool = False
    created: float = 0.0


def file_name(name: str) -> str:
    """Return a name of the caller's as it names files: itself, or a digest of it."""
    return name if NAME.fullmatch(name) else f"v-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:40]}"


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of the images at one moment, in bytes.

    Attributes:
        at: when, by the monotonic clock.
        free: what it has left.
        total: the sizes of all volumes together.
        promised: what they may still need.
        shortage: why volumes may fail to be written soon; empty if they will not.
    """

    at: float
    free: int
    total: int
    promised: int
    shortage: str


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """The folder.

    Attributes:
        directory: where it is.
        preallocate: new files get all their blocks at once.
        max_total: the most bytes of all volumes together; None: no limit.
        overcommit: how many bytes may be promised for each byte that the disk can hold.
        marker: by which it is told from an empty mount point; None: it is not.
    """

    directory: Path
    preallocate: bool = False
    max_total: int | None = None
    overcommit: float = 1.0
    marker: Marker | None = None
    _prepared: threading.Event = field(default_factory=threading.Event, compare=False)
    _promising: threading.Lock = field(default_factory=threading.Lock, compare=False)

    @property
    def snapshots(self) -> Path:
        """Where the snapshots are."""
        return self.directory / "snapshots"

    def prepare(self) -> None:
        """Make the folder, and remove what was begun and never completed; if it is away, `check` does when it is back.

        Raises:
            PluginError: it cannot be used.
        """
        try:
            self._check_marker()
        except NotReady:
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.directory, self.snapshots):
                for leftover in folder.glob(".*.new"):
                    leftover.unlink(missing_ok=True)
                for note in folder.glob("*.json"):
                    if not note.with_suffix(".img").exists():
                        note.unlink(missing_ok=True)
        except OSError as error:
            raise PluginError(f"cannot use {self.directory}: {error.strerror}; make it writable") from error
        self._prepared.set()

    def check(self) -> None:
        """Check that the folder is there, and is the one that has the volumes.

        Raises:
            NotReady: it is missing or away.
            PluginError: it is back, and cannot be used.
        """
        self._check_marker()
        if not self._prepared.is_set():
            with self._promising:  # nothing is begun before all that was begun is removed
                if not self._prepared.is_set():
                    self.prepare()
        if not self.directory.is_dir():
            raise NotReady(f"the image folder {self.directory} is missing; is its disk mounted?")

    def _check_marker(self) -> None:
        if self.marker is not None:
            self.marker.check(lambda: bool(self.volumes() or self.all_snapshots()))

    def is_there(self) -> bool:
        """Whether `check` finds nothing to say."""
        try:
            self.check()
        except PluginError:
            return False
        return True

    # --- what there is

    def image(self, name: str) -> Path:
        """Return where the image of a volume is."""
        return self.directory / f"{name}.img"

    def snapshot(self, name: str) -> Path:
        """Return where a snapshot is."""
        return self.snapshots / f"{name}.img"

    def volumes(self) -> list[Path]:
        """Return the images of all volumes, in order."""
        return sorted(self.directory.glob("[!.]*.img"))

    def all_snapshots(self) -> list[Path]:
        """Return all snapshots, in order."""
        return sorted(self.snapshots.glob("[!.]*.img"))

    def note(self, image: Path) -> Note | None:
        """Return why a file was created; None if a pod's options named it.

        Raises:
            PluginError: the note is damaged.
        """
        path = image.with_suffix(".json")
        try:
            return Note.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise PluginError(f"the note {path} cannot be read; remove it if its volume is not needed") from error

    # --- new files

    def begin(self, image: Path, note: Note, *, is_being_made: bool) -> Note:
        """Note why a file is about to be created, in a folder that is made when needed; return the note.

        Args:
            image: the file.
            note: what is asked for.
            is_being_made: whether an earlier call is creating it. Otherwise a note without a file is replaced.

        Raises:
            AlreadyExists: it was begun for something else, or its image is somebody else's.
            PluginError: the note cannot be written.
        """
        found = self.note(image)
        if found is None and image.exists():
            raise AlreadyExists(
                f"{image} exists, and was not created for anybody: a pod's options named it; choose another name"
            )
        if found is not None and (is_being_made or image.exists()):
            if (found.source, found.snapshot, found.block) != (note.source, note.snapshot, note.block):
                state = "is being made" if is_being_made else "exists already"
                raise AlreadyExists(f"{image.stem!r} {state}: {_described(found)}; now {_described(note)} is asked for")
            return found
        fresh = note.model_copy(update={"created": time.time()})
        try:
            image.parent.mkdir(mode=0o700, exist_ok=True)
            write(image.with_suffix(".json"), fresh.model_dump_json().encode())
        except OSError as error:
            raise PluginError(f"cannot note why {image} is made: {error.strerror}") from error
        return fresh

    def complete(self, fresh: Path, image: Path) -> None:
        """Give a complete file its name, for good; OSError if that fails."""
        sync(fresh)
        if self.marker is not None:
            self.marker.put()
        fresh.rename(image)
        sync(image.parent)

    def remove(self, image: Path) -> None:
        """Remove a file and its note; succeed if there is none.

        Raises:
            PluginError: the disk refuses.
        """
        try:
            image.unlink(missing_ok=True)
            sync(image.parent)
            image.with_suffix(".json").unlink(missing_ok=True)
        except FileNotFoundError:  # not even a folder
            return
        except OSError as error:
            raise PluginError(f"cannot remove {image}: {error.strerror}") from error
        if self.marker is not None:
            self.marker.drop(self._has_any)

    def _has_any(self) -> bool:
        """Whether there is a volume or a snapshot, or one is being made."""
        # What is being made first: it may get its name meanwhile.
        return any(self.directory.rglob(".*.img.new")) or bool(self.volumes() or self.all_snapshots())

    def allocate(self, path: Path, size: int, *, create: bool = False) -> None:
        """Set a file's size, and reserve its blocks if so configured.

        Raises:
            Exhausted: the disk has no room; the message has the numbers.
            OSError: the disk fails.
        """
        flags = os.O_CREAT | os.O_EXCL if create else 0
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
        before = os.fstat(descriptor).st_size
        try:
            with self._promising:  # the next one counts what this one has got
                self.demand(size - before)
                os.ftruncate(descriptor, size)
            if self.preallocate:
                os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.ftruncate(descriptor, before)
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise
            free, whole = space(self.directory)
            raise Exhausted(
                f"no room for {show(size)} in {self.directory}: {show(free)} free of {show(whole)}"
            ) from error
        finally:
            os.close(descriptor)

    # --- what may be promised

    def demand(self, more: int) -> None:
        """Check that so many further bytes can be promised.

        Raises:
            Exhausted: they cannot; the message has the numbers.
        """
        if more <= 0:
            return
        if self.max_total is not None and (total := self.total()) + more > self.max_total:
            raise Exhausted(
                f"no room for {show(more)} more in {self.directory}: its volumes have {show(total)} of max_total, "
                f"{show(self.max_total)}"
            )
        free, whole = space(self.directory)
        promised = self.promised()
        if more > free * self.overcommit - promised:
            raise Exhausted(
                f"no room for {show(more)} more in {self.directory}: {show(free)} free of {show(whole)}, of which "
                f"{show(promised)} are promised to volumes that have not written them yet (overcommit = "
                f"{self.overcommit:g})"
            )

    def room(self) -> int:
        """Return how many bytes can still be promised."""
        free, _ = space(self.directory)
        left = int(free * self.overcommit) - self.promised()
        if self.max_total is not None:
            left = min(left, self.max_total - self.total())
        return max(0, left)

    def total(self) -> int:
        """Return the sizes of all volumes together, those that are being made included."""
        return sum(status.st_size for _, status in _each(self._counted()))

    def _counted(self) -> list[Path]:
        return [*self.volumes(), *self.directory.glob(".*.img.new")]

    def promised(self) -> int:
        """Return how many bytes of the disk the volumes may still come to need.

        That is what they have not written yet, and what they share with a snapshot or a copy, since writing there
        takes new blocks.
        """
        needed = 0
        for path, status in _each(self._counted()):
            needed += max(0, status.st_size - status.st_blocks * _UNIT)
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    needed += extents.shared(descriptor)
                finally:
                    os.close(descriptor)
        return needed

    def look(self) -> Disk:
        """Look at the disk and at every volume."""
        free, whole = space(self.directory)
        total, promised, shortage = self.total(), self.promised(), ""
        if promised > free * self.overcommit:
            shortage = (
                f"the disk of {self.directory} has {show(free)} free, and its volumes may still need {show(promised)}: "
                "free space there"
            )
        elif promised and free < whole * _LOW:
            shortage = f"the disk of {self.directory} has only {show(free)} free of {show(whole)}: free space there"
        return Disk(time.monotonic(), free, total, promised, shortage)


def _described(note: Note) -> str:
    kind = "a block device" if note.block else "a filesystem"
    if note.snapshot:
        return f"{kind} from snapshot {note.snapshot!r}"
    return f"{kind} from volume {note.source!r}" if note.source else kind


def _each(paths: list[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for path in paths:
        with suppress(FileNotFoundError):
            yield path, path.stat()

"""OCI images as squashfs files, made once each, on the disk of the state folder.

Owns: one file per manifest, named by its digest, and how much all of them may take.
Refuses: to remove one that is mounted.
"""

import logging
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug import Exhausted, NotReady, PluginError
from nodeplug.fields import show_quantity as show
from nodeplug_volumes import filesystem, loopdev, merging, oci

_PROGRAM: Final = "sqfstar"
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_RESERVE: Final = 64 << 20
"""Bytes of the disk that are left free."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The squashfs files of one node.

    Attributes:
        folder: of the files; made when needed.
        limit: bytes of all files together; those that no pod uses are removed, the longest unused first.
        log: hears of the progress.
    """

    folder: Path
    limit: int
    log: logging.LoggerAdapter[logging.Logger]

    def sweep(self) -> None:
        """Remove what a killed daemon left half made."""
        for file in self.folder.glob("*.new"):
            file.unlink(missing_ok=True)

    @contextmanager
    def opened(self, layout: oci.Layout, wanted: str) -> Iterator[int]:
        """Open the squashfs of an image, and make it if there is none yet.

        Args:
            layout: has the image.
            wanted: as `oci.Layout.manifest`.

        Raises:
            Exhausted: there is no room for it.
            PluginError: it is damaged, or cannot be made.
        """
        digest, layers = layout.manifest(wanted)
        file = self.folder / f"{digest.removeprefix('sha256:')}.squashfs"
        with suppress(FileNotFoundError):
            os.utime(file)
        if not file.exists():
            self._make(file, layout, layers)
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make(self, file: Path, layout: oci.Layout, layers: Sequence[oci.Layer]) -> None:
        begun, size = time.monotonic(), sum(layer.size for layer in layers)
        self.log.info("image %s is made a squashfs, once: %d layers of %s", layout.name, len(layers), show(size))
        fresh = self.folder / f"{secrets.token_hex(8)}.new"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._squash(fresh, layout, layers)
            with fresh.open("rb") as stream:
                os.fsync(stream.fileno())
            fresh.rename(file)
        except OSError as error:
            raise PluginError(f"cannot make {file}: {error.strerror}") from error
        finally:
            fresh.unlink(missing_ok=True)
        seconds = time.monotonic() - begun
        self.log.info("image %s is a squashfs of %s after %.1f s", layout.name, show(file.stat().st_size), seconds)
        self._evict(0, besides=file)

    def _squash(self, fresh: Path, layout: oci.Layout, layers: Sequence[oci.Layer]) -> None:
        """Make a squashfs; where there is not enough room, what no pod uses goes first."""
        while True:
            room = self._room()
            try:
                self._pipe(fresh, layout, layers, room)
                return
            except oci.TooLarge as error:
                fresh.unlink(missing_ok=True)
                if self._evict(error.size):
                    continue
                free, whole = filesystem.space(self.folder)
                raise Exhausted(
                    f"image {layout.name} unpacks to {show(error.size)}, and there is room for {show(max(room, 0))}: "
                    f"{show(free)} free of {show(whole)} in {self.folder}, of which images may have "
                    f"{show(self.limit)} and have {show(self._taken())}"
                ) from error

    def _pipe(self, fresh: Path, layout: oci.Layout, layers: Sequence[oci.Layer], room: int) -> None:
        # Uncompressed: what pods read is not computed again and again, and the disk is the administrator's to size.
        command = [_PROGRAM, "-quiet", "-no-progress", "-noD", "-noF", "-no-xattrs", str(fresh)]
        said = os.memfd_create("output", os.MFD_CLOEXEC)
        try:
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=_ENVIRONMENT)
        except OSError as error:
            os.close(said)
            raise NotReady(f"{_PROGRAM} cannot be executed: {error.strerror}; install squashfs-tools 4.5") from error
        try:
            with child:
                if child.stdin is not None:
                    merging.write(layout, layers, room, child.stdin.fileno())
        finally:
            child.kill()
            child.wait()
            text = os.pread(said, 500, 0).decode(errors="replace").strip()
            os.close(said)
        if child.returncode:
            raise PluginError(f"{_PROGRAM} failed with status {child.returncode} for image {layout.name}: {text}")

    def _taken(self) -> int:
        """Return the bytes of all files, also of those that are being made."""
        return sum(_size(one) for one in self.folder.glob("*"))

    def _room(self) -> int:
        free, _ = filesystem.space(self.folder)
        return min(self.limit - self._taken(), free - _RESERVE)

    def _evict(self, needed: int, besides: Path | None = None) -> bool:
        """Remove files that no pod uses, the longest unused first, until there is room; return whether there is.

        If all of them would not be enough, they stay.
        """
        lacking = needed - self._room()
        files = sorted(self.folder.glob("*.squashfs"), key=_used)
        unused = [one for one in files if one != besides and not loopdev.find(one)] if lacking > 0 else []
        if sum(map(_size, unused)) < lacking:
            return False
        for one in unused:
            if lacking > 0:
                lacking -= _size(one)
                one.unlink(missing_ok=True)
                self.log.info("%s is removed: no pod uses it, and another image needs the room", one)
        return True


def _size(file: Path) -> int:
    """Return the size of a file; 0 if it is gone."""
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def _used(file: Path) -> int:
    """Return when a file was used last; 0 if it is gone."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime_ns
    return 0

"""What belongs to one volume on the node, below the plugin's run folder.

Owns: its record, its lock, and a tmpfs that its program has as /tmp: secrets, a home, a decoy for its mount point,
what stands in for fusermount(1), and its output.
Refuses: the disk, for secrets: where the kernel knows how, the tmpfs is kept out of swap too.
"""

import base64
import fcntl
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus

from nodeplug import InProgress, NotReady, PluginError, mount, mounted_at, read_bounded, unmount
from nodeplug_volumes.fuse import fusermount
from nodeplug_volumes.fuse.launch import FOLDERS, NAMES

_OUTPUT_LIMIT: Final = 1 << 20
_TAIL: Final = 400
_SEARCHED: Final = 32 << 10
"""Bytes at the end of the output in which secrets are looked for."""
_SYSTEM_PYTHON: Final = "/usr/bin/python3"
_PAUSE: Final = 0.05


@dataclass(slots=True)
class Record:
    """What must be known of a volume after the daemon was killed. No secrets.

    Attributes:
        volume_id: which one.
        program: its name in the configuration.
        options: the pod's.
        staging: where it is mounted for the node.
        user: whom its program runs as.
        group: of that user.
        pid: of its program; 0: it was not started, or has ended.
        started: when, in clock ticks since boot: unique together with the pid.
        device: of the mount, `major:minor`.
        targets: of the pods, and whether each is read-only.
        former: devices of the mounts of programs that have ended; containers may still see them.
    """

    volume_id: str
    program: str
    options: Mapping[str, str]
    staging: str
    user: int
    group: int
    pid: int = 0
    started: str = ""
    device: str = ""
    targets: dict[str, bool] = field(default_factory=dict)
    former: list[str] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        """Whether its program still runs."""
        return bool(self.pid and self.started) and start_time(self.pid) == self.started


def start_time(pid: int) -> str:
    """Return when a process started (proc(5), field 22 of stat); empty if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]


@dataclass(frozen=True, slots=True)
class Room:
    """The folder of one volume.

    Attributes:
        root: it.
    """

    root: Path

    @classmethod
    def of(cls, run_dir: Path, volume_id: str) -> "Room":
        """Return the room of a volume; it may not exist."""
        return cls(run_dir / "volumes" / hashlib.sha256(volume_id.encode()).hexdigest()[:24])

    @property
    def key(self) -> str:
        """What names the volume in names of mounts and threads."""
        return self.root.name

    @property
    def private(self) -> Path:
        """The tmpfs."""
        return self.root / "private"

    @property
    def connections(self) -> Path:
        """Where FUSE's control filesystem is mounted for a moment: beside the rooms of all volumes, and no room."""
        return self.root.parent.parent / "connections"

    @contextmanager
    def locked(self, patience: float) -> Iterator[None]:
        """Keep everybody else, another daemon too, from changing the volume.

        Raises:
            InProgress: somebody has it for longer than that many seconds.
        """
        until = time.monotonic() + patience
        while True:
            descriptor = self._try_lock()
            if descriptor is not None:
                break
            if time.monotonic() > until:
                raise InProgress(f"the volume is still being changed by an earlier call after {patience:g} s")
            time.sleep(_PAUSE)
        try:
            yield
        finally:
            os.close(descriptor)

    def _try_lock(self) -> int | None:
        self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.root.with_suffix(".lock")
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(descriptor).st_ino:  # else its last owner has removed it
                return descriptor
        os.close(descriptor)
        return None

    # --- the record

    def read(self) -> Record | None:
        """Return the record; None if there is none that can be read."""
        try:
            return Record(**json.loads((self.root / "record.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, record: Record) -> None:
        """Replace the record; PluginError if that fails."""
        new = self.root / "record.new"
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_text(json.dumps(asdict(record)), encoding="utf-8")
            new.rename(self.root / "record.json")
        except OSError as error:
            raise PluginError(f"cannot write the record of a volume in {self.root}: {error.strerror}") from error

    # --- what the program needs

    def furnish(self, record: Record, size: int, files: Mapping[str, bytes], variables: Mapping[str, str]) -> None:
        """Make the tmpfs anew, with the secrets.

        Args:
            record: whose program it is for.
            size: bytes that it may hold.
            files: secrets, by the names of their files.
            variables: secrets that the program gets as variables.

        Raises:
            PluginError: the kernel refuses it.
        """
        self.clear()
        try:
            self.private.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._mount(size)
            for name in FOLDERS:
                (self.private / name).mkdir(mode=0o700)
            for name, value in files.items():
                _write(self.private / "secrets" / name, value, record)
            for name in FOLDERS:
                os.chown(self.private / name, record.user, record.group)
            self._make_programs()
            _write(self.private / "variables", json.dumps(variables).encode(), None)
            hidden = [*variables.values(), *(value.decode(errors="replace") for value in files.values())]
            _write(self.private / "hidden", json.dumps(hidden).encode(), None)
            _write(self.private / "output", b"", None)
        except OSError as error:
            raise PluginError(f"cannot prepare {self.private}: {error.strerror}") from error

    def _mount(self, size: int) -> None:
        options = ("nosuid", f"size={size}", "mode=1777")
        try:
            mount("tmpfs", str(self.private), "tmpfs", options=(*options, "noswap"))
        except PluginError:  # before Linux 6.4
            mount("tmpfs", str(self.private), "tmpfs", options=options)

    def _make_programs(self) -> None:
        folder = self.private / "programs"
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        text = Path(fusermount.__file__).read_text(encoding="ascii")
        for name in NAMES:
            (folder / name).write_text(f"#!{_python()} -IS\n{text}", encoding="ascii")
            (folder / name).chmod(0o755)
        status = Path("/dev/fuse").stat()
        os.mknod(folder / "device", stat.S_IFCHR | 0o600, status.st_rdev)
        (folder / "device").chmod(0o666)

    def variables(self) -> dict[str, str]:
        """Return the secrets that the program gets as variables; the lack of the file raises PluginError."""
        try:
            found: Any = json.loads((self.private / "variables").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PluginError(f"the secrets of the volume are gone from {self.private}; end its pods") from error
        return {str(name): str(value) for name, value in found.items()}

    def last_output(self) -> str:
        """Return what the program printed last, without secrets; nothing if it is not known what they are."""
        with suppress(OSError, ValueError):
            with (self.private / "output").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _SEARCHED))
                text = file.read(_SEARCHED).decode(errors="replace")
            text = self._masked(text)[-_TAIL:]  # the other way round, part of a secret would not be found
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            return "; ".join(lines[-2:])
        return ""

    def _masked(self, text: str) -> str:
        # Not the files that the program has: it may replace them, such as by a FIFO.
        given: list[str] = json.loads(read_bounded(self.private / "hidden"))
        known = {
            piece
            for one in given
            for piece in (one, *one.split(), *one.replace(":", " ").split())
            if len(piece) > 3  # fewer characters would be found in every sentence
        }
        for value in sorted((form for one in known for form in _forms(one)), key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    def trim_output(self) -> None:
        """Keep the output from filling the tmpfs; the program appends to it."""
        with suppress(OSError):
            if (self.private / "output").stat().st_size > _OUTPUT_LIMIT:
                os.truncate(self.private / "output", 0)

    def clear(self) -> None:
        """Remove the tmpfs with all secrets."""
        if mounted_at(str(self.private)) is not None:
            unmount(str(self.private), lazy=True)

    def remove(self) -> None:
        """Remove everything; whoever calls has the lock, which goes too."""
        self.clear()
        with suppress(OSError):
            self.private.rmdir()
        for name in ("record.json", "record.new"):
            with suppress(OSError):
                (self.root / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.root.rmdir()
        self.root.with_suffix(".lock").unlink(missing_ok=True)


def _forms(secret: str) -> set[str]:
    """Return how a program may print a secret: as it is, percent-encoded as in a URL, or as base64."""
    data = secret.encode()
    quoted = {quote(secret, safe="/"), quote(secret, safe=""), quote_plus(secret)}
    lower = {re.sub("%..", lambda found: found[0].lower(), one) for one in quoted}
    encoded = {encode(data).decode() for encode in (base64.standard_b64encode, base64.urlsafe_b64encode)}
    return {secret, *quoted, *lower, *encoded, *(one.rstrip("=") for one in encoded)}


def _write(path: Path, data: bytes, owner: Record | None) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o400)
    with os.fdopen(descriptor, "wb") as stream:
        if owner is not None:
            os.fchown(descriptor, owner.user, owner.group)
        stream.write(data)


def _python() -> str:
    """Return an interpreter that every user may execute.

    Raises:
        NotReady: there is none.
    """
    for path in (Path(sys.executable).resolve(), Path(_SYSTEM_PYTHON)):
        with suppress(OSError):
            found = path.resolve(strict=True)
            if all(one.stat().st_mode & 0o001 for one in (found, *found.parents)):
                return str(path)
    raise NotReady(
        f"no Python that every user may execute: neither {sys.executable} nor {_SYSTEM_PYTHON}; install one, since the "
        "programs do not run as root"
    )

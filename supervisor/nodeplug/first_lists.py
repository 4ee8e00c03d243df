"""What a daemon does first: kubelet gets the lists that it had last, before the rest of the daemon is imported.

Owns: `<run>/next-start.json`: which files of the configuration are in force, and what it takes to reach kubelet.
Refuses: to decide anything that the configuration decides. A note counts only for the files of which it was made, once,
and in the same boot; without one the lists follow when the configuration has been read. So a daemon that does not come
up because of its configuration, or ends during its start, does not offer devices again and again.

Nothing may be imported here that the first list can do without: half of a start is spent on imports.
"""

import asyncio
import json
import logging
import socket
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.journal import read_boot_id, write_whole
from nodeplug.device.caller import LateCaller
from nodeplug.device.kubelet import KubeletFolders, Mode
from nodeplug.device.last_known import LastKnown
from nodeplug.device.resources import Resources
from nodeplug.observe import logs
from nodeplug.process.lane import Lane, Unanswered

if TYPE_CHECKING:
    from nodeplug.config import Reading

VERSION: Final = 1
_LARGEST: Final = 1 << 20
"""Bytes of a note, and of the main file: no configuration is larger."""
_PATIENCE: Final = 0.25
"""Seconds that the import of the daemon waits for kubelet: it would take turns with what kubelet is told."""
_TURN: Final = 0.002
_FOLDER: Final = "plugins.d"
Mark = tuple[str, int, int, int]
"""One version of a file: path, inode, time of change, size."""


@dataclass(frozen=True, slots=True)
class NextStart:
    """What of a daemon that serves holds for the next one.

    Attributes:
        files: the files of the configuration in force.
        root: the value of `--root`.
        sections: those that are enabled.
    """

    boot_id: str
    root: str
    files: tuple[Mark, ...]
    sections: tuple[str, ...]
    run: str
    exec_socket: str
    device_plugins: str
    plugins_registry: str
    registration: Mode
    poll: float
    log_level: str
    log_format: logs.Format
    version: int = VERSION


# --- at the start ---------------------------------------------------------------------------------------------------


def find(config: Path, root: Path | None) -> NextStart | None:
    """Return what the last daemon noted if that holds, and take it away. May block; called before there is a loop."""
    try:
        supervisor = tomllib.loads(read_bounded(config, _LARGEST).decode()).get("supervisor", {})
        path = _path(_run(supervisor, root))
        document = json.loads(read_bounded(path, _LARGEST))
        if _is_served(document["exec_socket"]):
            return None  # the note of a daemon that goes on
        path.unlink()
        note = NextStart(**{**document, "files": tuple(tuple(mark) for mark in document["files"])})
        folder = supervisor.get("drop_in_dir", _FOLDER)
        present = tuple(_mark(one) for one in (config, *_drop_ins(config.parent / folder if folder else None)))
        held = (note.version, note.boot_id, note.root, note.files) == (VERSION, read_boot_id(), _text(root), present)
        return note if held and note.log_level.upper() in logging.getLevelNamesMapping() else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


async def begin(note: NextStart) -> Resources:
    """Serve the last known lists; return as soon as kubelet has them, or will not have them soon."""
    logs.configure(note.log_level, note.log_format)
    resources = Resources(
        LateCaller(),
        KubeletFolders(Path(note.device_plugins), Path(note.plugins_registry)),
        lambda: (),
        note.registration,
        note.poll,
        LastKnown(folder(Path(note.run)), note.boot_id),
    )
    await resources.recall(note.sections)
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            while not resources.told:  # noqa: ASYNC110 - a few turns, once in the life of a daemon
                await asyncio.sleep(_TURN)
    return resources


def folder(run: Path) -> Path:
    """Return where the last known lists are."""
    return run / "devices"


def _run(supervisor: Mapping[str, Any], root: Path | None) -> Path:
    above = root if root is not None else Path(supervisor.get("root", "/"))
    return above.absolute() / str(supervisor.get("run_dir", "/run/nodeplug")).lstrip("/")


def _path(run: Path) -> Path:
    return run / "next-start.json"


def _text(root: Path | None) -> str:
    return "" if root is None else str(root)


def _mark(path: Path) -> Mark:
    status = path.stat()
    return str(path), status.st_ino, status.st_mtime_ns, status.st_size


def _drop_ins(folder: Path | None) -> Sequence[Path]:
    if folder is None or not folder.is_dir():
        return ()
    return [folder / name for name in sorted(path.name for path in folder.iterdir() if path.match("[!.]*.toml"))]


def _is_served(path: str) -> bool:
    """Whether a daemon listens already: it has registered its devices, and this one will end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


# --- while the daemon serves ----------------------------------------------------------------------------------------


class Notes:
    """Notes for the next start what is in force now. Used only from the event loop.

    Args:
        reading: the configuration with which the daemon starts: a later `[supervisor]` holds for the next one alone.
        root: the value of `--root`.
    """

    def __init__(self, reading: "Reading", root: Path | None, boot_id: str) -> None:
        self._root = root
        self._boot_id = boot_id
        self._supervisor = reading.places.main.tables.get("supervisor")
        self._run = reading.configuration.supervisor.paths.run
        self._lane = Lane(f"the folder {self._run}")
        self._noted: NextStart | None = None

    async def keep(self, reading: "Reading", *, in_force: bool) -> None:
        """Write down what is in force, if that has changed; nothing while the newest files are not in force."""
        same = in_force and reading.places.main.tables.get("supervisor") == self._supervisor
        note = self._note(reading) if same else None
        if note == self._noted:
            return
        try:
            await self._lane.run(lambda: _write(_path(self._run), note))
        except (OSError, Unanswered):  # the next start is a slower one
            return
        self._noted = note

    def _note(self, reading: "Reading") -> NextStart:
        supervisor = reading.configuration.supervisor
        marks = reading.identity[0]
        return NextStart(
            boot_id=self._boot_id,
            root=_text(self._root),
            files=marks if isinstance(marks, tuple) else (),
            sections=tuple(reading.configuration.serving("device-plugin")),
            run=str(self._run),
            exec_socket=str(supervisor.paths.exec_socket),
            device_plugins=str(supervisor.paths.device_plugins),
            plugins_registry=str(supervisor.paths.plugins_registry),
            registration=supervisor.device_registration,
            poll=supervisor.device_poll,
            log_level=supervisor.log_level,
            log_format=supervisor.log_format,
        )


def _write(path: Path, note: NextStart | None) -> None:
    if note is None:
        path.unlink(missing_ok=True)
        return
    write_whole(path, json.dumps(asdict(note)).encode())

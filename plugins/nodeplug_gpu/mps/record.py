"""Which process serves a card, and with which settings, as a file for the next start of nodeplug.

Owns: the file's format, including that of earlier versions, and whether the process is still the recorded one.
Refuses: to say whether the process works (`daemon` sends it a command for that).
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nodeplug_gpu.limits import Caps


@dataclass(frozen=True, slots=True)
class Record:
    """Which process serves a card.

    Attributes:
        pid: of the control daemon.
        started: when it started, in clock ticks since boot; unique together with the pid.
        exclusive: the card's compute mode was changed for it.
        shm: bytes of the tmpfs that it and its clients have as /dev/shm; None for the node's own, as daemons of an
            earlier version have it. A restart keeps it: containers may have the mount.
        multiuser: it serves clients of all users at a time.
        caps: what no client of it can exceed; None for a daemon of an earlier version, which has no caps.
    """

    pid: int
    started: str
    exclusive: bool
    shm: int | None = None
    multiuser: bool = False
    caps: Caps | None = None

    @staticmethod
    def read(file: Path) -> "Record | None":
        """Return the contents of a file, whether the process runs or not."""
        try:
            found = json.loads(file.read_text(encoding="ascii"))
            shm = found.get("shm")
            return Record(
                int(found["pid"]),
                str(found["started"]),
                bool(found.get("exclusive", True)),
                None if shm is None else int(shm),
                bool(found.get("multiuser")),
                _caps(found.get("caps")),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, file: Path) -> None:
        """Write it.

        Raises:
            OSError: the file cannot be written.
        """
        new = file.with_suffix(".new")  # a reader must not find half of it
        new.write_text(json.dumps(asdict(self)), encoding="ascii")
        new.rename(file)

    @property
    def runs(self) -> bool:
        """Whether the recorded process still runs."""
        return bool(self.started) and start_time(self.pid) == self.started


def _caps(found: Any) -> Caps | None:
    return None if found is None else Caps(int(found["memory"]), int(found["threads"]))


def recorded(file: Path) -> int | None:
    """Return the pid of a daemon that an earlier nodeplug started and that still runs."""
    record = Record.read(file)
    return record.pid if record is not None and record.runs else None


def start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot (proc(5), field 22); unique together with the pid."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]

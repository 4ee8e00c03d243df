"""What a migration has written down: a folder per volume, a file per step.

Owns: the files, durable before the step after them begins, and reading them again.
Refuses: to decide what comes next: that follows from the cluster (`exchange`). The first file alone is needed to go on
or to go back; the others say how far it came, and when.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import InvalidRequest, PluginError
from nodeplug.contract.journal import file_name, write_durably
from nodeplug.kubeapi.resources import Object

SAVED: Final = "saved.json"
FIRST: Final = "begun"
"""What is written before the first change: from then on, what was saved counts."""
DONE: Final = "done"
_VERSION: Final = 1
_UNDONE: Final = ".undone-"


def now() -> str:
    """Return the time as the API writes it (RFC 3339)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass(frozen=True, slots=True)
class Saved:
    """What was there before the first change.

    Attributes:
        folder: of this volume.
        before: the PersistentVolume as it was.
        after: as it is to be.
        claim: the claim as it was; empty if none had the volume.
    """

    folder: Path
    before: Object
    after: Object
    claim: Object

    @property
    def name(self) -> str:
        """The name of the volume."""
        return str(self.before["metadata"]["name"])

    def step(self, name: str, found: Mapping[str, Any] | None = None) -> None:
        """Write down that a step is done, and what was found then."""
        document = {"step": name, "at": now(), "found": found or {}}
        write_durably(self.folder / f"{name}.json", json.dumps(document, indent=2).encode())

    def found(self, name: str) -> Object:
        """Return what was found when a step was done; nothing if it was not."""
        try:
            document = json.loads(read_bounded(self.folder / f"{name}.json"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"cannot read {self.folder / name}.json: {error}") from error
        return dict(document["found"])

    def did(self, name: str) -> bool:
        """Whether a step is done."""
        return (self.folder / f"{name}.json").exists()

    def put_away(self) -> Path:
        """Move the record aside after it was undone, so that the volume can be migrated again; return where it is."""
        place = self.folder.with_name(f"{self.folder.name}{_UNDONE}{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
        try:
            self.folder.rename(place)
        except OSError as error:
            raise PluginError(f"cannot move {self.folder} to {place}: {error.strerror}") from error
        return place


def save(folder: Path, before: Object, after: Object, claim: Object) -> Saved:
    """Write down what is there, once: what an interrupted migration of the same object has saved stays.

    Raises:
        InvalidRequest: another volume of that name was migrated before; the message says what to do.
        PluginError: the folder cannot be written.
    """
    place = folder / file_name(before["metadata"]["name"])
    if (place / SAVED).exists():
        earlier = load(place)
        if earlier.before["metadata"].get("uid") != before["metadata"].get("uid"):
            text = f"{place} has an earlier migration of a volume of that name"
            raise InvalidRequest(f"{text}: move it away, or undo it first")
        if earlier.did(FIRST):
            return earlier
    made = Saved(place, before, after, claim)
    document = {"version": _VERSION, "before": before, "after": after, "claim": claim}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise PluginError(f"cannot write {place}: {error.strerror}; name another folder by --state") from error
    write_durably(place / SAVED, json.dumps(document, indent=2).encode())
    return made


def load(place: Path) -> Saved:
    """Read what was saved in the folder of one volume, or the file in it.

    Raises:
        InvalidRequest: there is nothing that a migration has saved.
    """
    file = place if place.is_file() else place / SAVED
    try:
        document = json.loads(read_bounded(file))
        if document["version"] != _VERSION:
            raise InvalidRequest(f"{file} was saved by another version of nodeplug ({document['version']})")
        return Saved(file.parent, document["before"], document["after"], document["claim"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no record of a migration"
        raise InvalidRequest(f"cannot read {file}: {why}") from error


def all_below(place: Path) -> list[Saved]:
    """Read one volume's record, or those of all volumes in a folder.

    Raises:
        InvalidRequest: there is none, or one cannot be read.
    """
    if place.is_file() or (place / SAVED).exists():
        return [load(place)]
    found = recorded(place)
    if not found:
        raise InvalidRequest(f"{place} has no records of a migration ({SAVED}): name the folder that --state named")
    return found


def recorded(place: Path) -> list[Saved]:
    """Read the records in a folder, in the order of names; those of migrations that were undone are left out."""
    folders = sorted(one.parent for one in place.glob(f"*/{SAVED}") if _UNDONE not in one.parent.name)
    return [load(one) for one in folders]

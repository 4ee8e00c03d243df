"""Python environments of plugins: made whole beside the one in use, exchanged in one step, and removed.

    FOLDER/NAME        a link to the environment in use; a section's `python` is FOLDER/NAME/bin/python
    FOLDER/.env-XXXX   an environment; one that no link leads to is what an interrupted `add` has left

Owns: that folder, what is installed in an environment, and which of them counts: what a link leads to.
Refuses: the configuration: sections are shown to the administrator, and asked about before an environment is removed.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, Final

from nodeplug.config import PluginSection
from nodeplug.contract.errors import Exhausted, InvalidRequest, NotFound, PluginError, TryAgain
from nodeplug.contract.mounts import mounts
from nodeplug.process.environment import copy_environment
from nodeplug.release import own_version

PLACE: Final = Path("/opt/nodeplug-plugins")
"""Where environments are, below the root; a section names its Python there."""
_PREFIX: Final = ".env-"
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_UMASK: Final = 0o022
"""A plugin's user must be able to read what is installed."""
_ASK: Final = """
import json, re, sys
from importlib.metadata import distributions
import nodeplug.worker.inside
found = []
for one in distributions():
    if one.read_text("REQUESTED") is not None and one.name != "nodeplug":
        points = [point.name for point in one.entry_points if point.group == sys.argv[1]]
        name = re.sub("[-_.]+", "-", one.name).lower()
        found.append({"name": name, "version": one.version, "plugins": sorted(points)})
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "distributions": found}))
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """One that is complete.

    Attributes:
        name: of its link.
        python: what a section names.
        distribution: with its version, as `nodeplug plugins` shows it.
        version: of its Python.
        plugins: the entry points that sections may use.
    """

    name: str
    python: Path
    distribution: str
    version: str
    plugins: Sequence[str]

    @property
    def sections(self) -> Mapping[str, Any]:
        """What to write into the configuration, by the name of each plugin."""
        return {"plugins": {one: {"isolation": "process", "python": str(self.python)} for one in self.plugins}}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to install.

    Attributes:
        spec: a folder or wheel, or a requirement as pip takes it.
        name: of the environment; empty: that of the distribution.
        python: a Python to make the environment with, by path or as PATH finds it.
        find_links: folders of wheels.
        no_index: ask no package index.
    """

    spec: str
    name: str = ""
    python: str = "python3"
    find_links: Sequence[str] = field(default_factory=tuple)
    no_index: bool = False

    def arguments(self) -> list[str]:
        """Return what pip is told."""
        links = [word for place in self.find_links for word in ("--find-links", str(Path(place).absolute()))]
        spec = str(Path(self.spec).absolute()) if Path(self.spec).exists() else self.spec
        return [*links, *(["--no-index"] if self.no_index else []), f"nodeplug=={own_version()}", spec]


def add(folder: Path, wanted: Wanted, group: str) -> Environment:
    """Make an environment, and put it in the place of one of the same name; what pip says goes to stderr.

    `group` is the group of entry points in which plugins are.

    Raises:
        InvalidRequest: the name is none, or what is installed has no plugin.
        PluginError: it cannot be made; the environment before it stays.
    """
    if wanted.spec.startswith("-") or (wanted.name and not _NAME.fullmatch(wanted.name)):
        raise InvalidRequest(
            f"{wanted.name or wanted.spec!r} cannot be a name: take letters, digits and single hyphens"
        )
    try:
        with _locked(folder):
            fresh = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
            try:
                fresh.chmod(0o777 & ~_UMASK)
                _install(fresh, wanted)
                made = _examined(fresh, folder, wanted, group)
                _exchange(folder / made.name, fresh)
            finally:
                _sweep(folder)
    except OSError as error:
        raise Exhausted(f"{folder} cannot be written: {error.strerror}: {error.filename}") from error
    return made


def remove(folder: Path, name: str, sections: Mapping[str, PluginSection]) -> None:
    """Remove an environment.

    Raises:
        NotFound: there is none of that name.
        TryAgain: an enabled section has its Python.
    """
    link = folder / name
    known = sorted(one.name for one in folder.iterdir() if one.is_symlink()) if folder.is_dir() else []
    if name not in known:
        raise NotFound(f"there is no environment {name!r} in {folder}; there is: {', '.join(known) or 'none'}")
    places = (link, link.resolve())
    used = [one for one, section in sections.items() if section.enabled and _is_in(section.python, places)]
    if used:
        raise TryAgain(f"{link} is the Python of {', '.join(used)}: disable or remove the section first")
    try:
        with _locked(folder):
            link.unlink()
            _sweep(folder)
    except OSError as error:
        raise PluginError(f"{link} cannot be removed: {error.strerror}") from error


def _is_in(python: str, places: Iterable[Path]) -> bool:
    return any(Path(python).is_relative_to(place) for place in places)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep every other `add` and `remove` out, so that nobody sweeps away what is just being made."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield


def _install(fresh: Path, wanted: Wanted) -> None:
    _run([wanted.python, "-m", "venv", str(fresh)], "make an environment")
    pip = [str(fresh / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    _run([*pip, *wanted.arguments()], f"install {wanted.spec}")


def _run(command: list[str], what: str) -> None:
    """Run a command whose output is for people."""
    sys.stderr.flush()
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=_surroundings(), umask=_UMASK, check=False
        )
    except OSError as error:
        raise PluginError(f"cannot {what}: {command[0]}: {error.strerror}") from error
    if done.returncode:
        raise PluginError(f"cannot {what}, see above; nothing was changed")


def _surroundings() -> dict[str, str]:
    """Return an environment in which no package but those of the new environment can be found."""
    return {name: text for name, text in copy_environment().items() if name not in {"PYTHONPATH", "PYTHONHOME"}}


def _examined(fresh: Path, folder: Path, wanted: Wanted, group: str) -> Environment:
    command = [str(fresh / "bin" / "python"), "-I", "-c", _ASK, group]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PluginError(f"nodeplug does not work there: {done.stderr.strip().rpartition(chr(10))[2]}")
    found = json.loads(done.stdout)
    able = [one for one in found["distributions"] if one["plugins"]]
    if len(able) != 1:
        raise InvalidRequest(f"{wanted.spec} has no plugin: no entry point in the group {group!r}; nothing was changed")
    name = wanted.name or able[0]["name"]
    distribution = f"{able[0]['name']} {able[0]['version']}"
    return Environment(name, folder / name / "bin" / "python", distribution, found["python"], able[0]["plugins"])


def _exchange(link: Path, fresh: Path) -> None:
    """Have the link lead to the new environment, in one step."""
    if link.exists() and not link.is_symlink():
        raise InvalidRequest(f"{link} is in the way, and nodeplug has not made it")
    new = fresh / ".link"
    new.symlink_to(fresh.name)
    new.rename(link)


def _sweep(folder: Path) -> None:
    """Remove environments to which no link leads. Nothing is removed in which something is mounted."""
    kept = {one.resolve() for one in folder.iterdir() if one.is_symlink()}
    points = [Path(mount.target) for mount in mounts()]
    for one in folder.glob(f"{_PREFIX}*"):
        place = one.resolve()
        if place not in kept and not any(point.is_relative_to(place) for point in points):
            shutil.rmtree(one, ignore_errors=True)

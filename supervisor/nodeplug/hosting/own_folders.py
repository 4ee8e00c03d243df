"""The daemon's own folders, and those that plugins are promised.

Owns: making them when the daemon starts, and again if they were removed, off the event loop; whose they are.
Refuses: to touch existing ones without need: mkdir(2) first asks for write access, which blocks on a frozen filesystem
even if the folder exists. A new owner gets what was the former one's: not what is mounted there or belongs to others.
"""

import logging
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.config import Paths
from nodeplug.config.privileges import Privileges
from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import file_name
from nodeplug.hosting.reach import check_reach
from nodeplug.process.lane import Lane, Unanswered

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class OwnFolders:
    """The folders below the state and the run folder. Used only from the event loop, except `make_for` and `give`."""

    paths: Paths
    _owners: dict[str, tuple[int, int]] = field(default_factory=dict)
    _lane: Lane = field(init=False)

    def __post_init__(self) -> None:
        self._lane = Lane(f"the state folder {self.paths.state}")

    async def make(self, then: Callable[[], None]) -> None:
        """Make the folders that the daemon needs, then call `then`; raise PluginError if one cannot be made.

        A disk that does not answer must not keep the daemon from starting: `then` runs when it answers.
        """

        def work() -> None:
            _make(self.paths.run, self.paths.state, self.paths.spool)
            then()

        try:
            await self._lane.run(work)
        except Unanswered as error:
            LOG.error("starting all the same: %s", error)

    def make_for(self, plugin: str) -> tuple[Path, Path]:
        """Make and return a plugin's state and run folder, in the thread that loads it; may raise PluginError."""
        state, run = self._of(plugin)
        _make(state, run)
        return state, run

    def give(self, plugin: str, privileges: Privileges) -> None:
        """Make a plugin's folders, and give them and what is in them to who runs it, and has to reach them. May block.

        Raises:
            TryAgain: a folder above keeps that user out.
            PluginError: they cannot be made or given.
        """
        if os.geteuid() != 0:  # the launcher of its process tells who cannot be another user
            return
        self._owners[plugin] = privileges.owner
        self._give(plugin, privileges.owner)
        with suppress(OSError):  # what is above is being moved; the plugin gets that error
            check_reach(plugin, self._of(plugin), privileges)

    def _give(self, plugin: str, owner: tuple[int, int]) -> None:
        for folder in self._of(plugin):
            try:
                _make(folder)
                if owner[0] != os.geteuid():
                    for above in (folder.parent, folder.parent.parent):
                        _let_through(above)
                _hand_over(folder, *owner)
            except OSError as error:
                raise PluginError(f"cannot give {folder} to user {owner[0]}: {error.strerror}") from error

    async def keep(self, plugins: Iterable[str]) -> None:
        """Make the plugins' folders again if they were removed: plugins are promised that they exist."""
        names = list(plugins)
        with suppress(Unanswered):  # the disk is frozen, and `StateDisk` reports that
            await self._lane.run(lambda: self._make_again(names))

    def _make_again(self, plugins: Iterable[str]) -> None:
        for plugin in plugins:
            gone = [folder for folder in self._of(plugin) if not folder.is_dir()]
            with suppress(PluginError):  # a plugin that writes there gets a better error
                _make(*gone)
                if gone and plugin in self._owners:
                    self._give(plugin, self._owners[plugin])

    def others(self, present: Iterable[str]) -> list[str]:
        """Return the file names of absent sections that have something here. May block, may raise OSError."""
        places = [self.paths.journal, self.paths.state / "plugins", self.paths.run / "plugins"]
        found = {one.name for place in places if place.is_dir() for one in place.iterdir() if one.is_dir()}
        return sorted(found - {file_name(name) for name in present})

    def _of(self, plugin: str) -> tuple[Path, Path]:
        state, run = (folder / "plugins" / file_name(plugin) for folder in (self.paths.state, self.paths.run))
        return state, run


def _make(*folders: Path) -> None:
    """Make folders that only root can enter, unless they exist. May block."""
    for folder in folders:
        try:
            if not folder.is_dir():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise PluginError(f"cannot make the folder {folder}: {error.strerror}; make its parent writable") from error


def _let_through(folder: Path) -> None:
    """Let other users reach what is below a folder, without seeing what is in it."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o011 != 0o011:
        folder.chmod(mode | 0o011)


def _hand_over(folder: Path, user: int, group: int) -> None:
    """Change the owner of a folder, last, and of what in it was the former owner's, wherever links lead."""
    former = folder.stat()
    if former.st_uid == user and (former.st_gid == group or user == os.geteuid()):
        return  # what the daemon's own has of other groups is so for a reason, such as fsGroup
    for _, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in list(folders) + files:
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if found.st_dev != former.st_dev:
                if name in folders:
                    folders.remove(name)  # mounted there
            elif found.st_uid == former.st_uid:
                os.chown(name, user, group, dir_fd=descriptor, follow_symlinks=False)
    os.chown(folder, user, group)

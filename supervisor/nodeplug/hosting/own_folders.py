"""The daemon's own folders, and those that plugins are promised.

Owns: making them when the daemon starts, and again if they were removed, off the event loop.
Refuses: to touch existing ones: mkdir(2) first asks for write access, which blocks on a frozen filesystem even if the
folder exists.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.config import Paths
from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import file_name
from nodeplug.process.lane import Lane, Unanswered

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class OwnFolders:
    """The folders below the state and the run folder. Used only from the event loop, except `make_for`."""

    paths: Paths
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

    async def keep(self, plugins: Iterable[str]) -> None:
        """Make the plugins' folders again if they were removed: plugins are promised that they exist."""
        folders = [folder for name in plugins for folder in self._of(name)]
        with suppress(Unanswered):  # the disk is frozen, and `StateDisk` reports that
            await self._lane.run(lambda: _make_again(folders))

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


def _make_again(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(PluginError):  # a plugin that writes there gets a better error
            _make(folder)

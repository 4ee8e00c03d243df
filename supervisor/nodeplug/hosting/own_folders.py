"""The daemon's own folders, and those that plugins are promised.

Owns: making them when the daemon starts, and again when somebody has removed them, beside the event loop.
Refuses: to touch what is there already: mkdir(2) takes the right to write first, and a frozen disk grants none, for a
folder that exists as little as for another.
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
    """The folders below the state and the run folder. Used from the event loop alone, but for `make_for`.

    Attributes:
        paths: of the node.
    """

    paths: Paths
    _lane: Lane = field(init=False)

    def __post_init__(self) -> None:
        self._lane = Lane(f"the state folder {self.paths.state}")

    async def make(self, then: Callable[[], None]) -> None:
        """Make what a daemon cannot be without, and do what needs it.

        A disk that does not answer keeps no daemon from starting: `then` is done when it does.

        Raises:
            PluginError: a folder cannot be made.
        """

        def work() -> None:
            _make(self.paths.run, self.paths.state, self.paths.spool)
            then()

        try:
            await self._lane.run(work)
        except Unanswered as error:
            LOG.error("starting all the same: %s", error)

    def make_for(self, plugin: str) -> tuple[Path, Path]:
        """Make the state and the run folder of a plugin, in the thread that loads it, and return them.

        Raises:
            PluginError: one cannot be made.
        """
        state, run = self._of(plugin)
        _make(state, run)
        return state, run

    async def keep(self, plugins: Iterable[str]) -> None:
        """Make the plugins' folders again when somebody has removed them: they were promised to exist."""
        folders = [folder for name in plugins for folder in self._of(name)]
        with suppress(Unanswered):  # the disk is frozen, and says so itself (`StateDisk`)
            await self._lane.run(lambda: _make_again(folders))

    def others(self, present: Iterable[str]) -> list[str]:
        """Name, as the files are, the sections that have something here and are not present. May block.

        Raises:
            OSError: a folder cannot be read.
        """
        places = [self.paths.journal, self.paths.state / "plugins", self.paths.run / "plugins"]
        found = {one.name for place in places if place.is_dir() for one in place.iterdir() if one.is_dir()}
        return sorted(found - {file_name(name) for name in present})

    def _of(self, plugin: str) -> tuple[Path, Path]:
        state, run = (folder / "plugins" / file_name(plugin) for folder in (self.paths.state, self.paths.run))
        return state, run


def _make(*folders: Path) -> None:
    """Make folders for root alone, unless they exist. May block."""
    for folder in folders:
        try:
            if not folder.is_dir():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise PluginError(f"cannot make the folder {folder}: {error.strerror}; make its parent writable") from error


def _make_again(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(PluginError):  # a plugin that writes there gets the error, and says it better
            _make(folder)

"""Cgroups for tests: a real one in each hierarchy, below that of this process, into which it moves."""

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeplug.worker.cgroup import enter
from nodeplug.worker.cgroups import PREFIX
from nodeplug.worker.hierarchies import UNIFIED, Hierarchy, hierarchies, members

MARK = "trusted.delegate"
WANTED = ("memory", "pids")
PATIENCE = 20.0


@dataclass(frozen=True)
class OwnCgroups:
    """Where this process is, by controller; with `unified` in version 2 alone."""

    folders: Mapping[str, Path]

    def of(self, controller: str) -> Path:
        folder = self.folders.get(controller) or self.folders.get(UNIFIED)
        if folder is None:
            pytest.skip(f"needs a cgroup hierarchy with the controller {controller}")
        return folder

    def is_unified(self, controller: str) -> bool:
        return controller not in self.folders

    def delegate(self) -> None:
        """Mark them as systemd does."""
        for folder in self.folders.values():
            os.setxattr(folder, MARK, b"1")

    def workers(self) -> list[Path]:
        return sorted(one for folder in set(self.folders.values()) for one in folder.glob(f"{PREFIX}*"))


def _above(own: Hierarchy) -> Path:
    """Return the nearest cgroup of version 2 whose children have what is wanted; the own one where nothing has it."""
    folder = own.folder
    for _ in own.path.parts:
        with suppress(OSError):
            if set(WANTED) <= set((folder / "cgroup.subtree_control").read_text(encoding="ascii").split()):
                return folder
        folder = folder.parent
    return own.folder


@contextmanager
def own_cgroups(*beside: int) -> Iterator[OwnCgroups]:
    """Move this process, and others, into cgroups of its own, and back."""
    name = f"nodeplug-test-{secrets.token_hex(4)}"
    homes: dict[str, Path] = {}
    made: dict[str, Path] = {}
    try:
        for controller, own in hierarchies().items():
            if controller in {*WANTED, "name=systemd", UNIFIED}:
                folder = (_above(own) if controller == UNIFIED else own.folder) / name
                try:
                    folder.mkdir()
                except OSError as error:
                    pytest.skip(f"needs a cgroup hierarchy that can be written: {error.strerror}")
                homes[controller], made[controller] = own.folder, folder
                for pid in (os.getpid(), *beside):
                    enter(folder, pid)
        yield OwnCgroups(made)
    finally:
        for controller, folder in made.items():
            _empty(folder, homes[controller])


def _empty(folder: Path, home: Path) -> None:
    end = time.monotonic() + PATIENCE
    while folder.exists() and time.monotonic() < end:
        for root, _, _ in os.walk(folder, topdown=False):
            for pid in members(Path(root)):
                enter(home, pid)
            with suppress(OSError):
                Path(root).rmdir()
        time.sleep(0.01)
    assert not folder.exists()


def skip_without(own: OwnCgroups, controller: str) -> None:
    """Skip where the kernel has not that controller."""
    if own.is_unified(controller):
        with suppress(OSError):
            if controller in (own.of(controller) / "cgroup.controllers").read_text(encoding="ascii").split():
                return
        pytest.skip(f"needs a cgroup hierarchy with the controller {controller}")

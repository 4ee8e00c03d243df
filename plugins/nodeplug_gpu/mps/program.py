"""The control program of MPS: where it is, and what it can do.

Owns: the search below the driver root and on PATH, and whether the program has an option.
Refuses: to run it.
"""

import errno
import os
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from nodeplug_gpu.cards import Card
from nodeplug_gpu.limits import before_volta

FOLDERS: Final = ("usr/bin", "bin", "usr/local/nvidia/bin")
"""Where a driver has its programs, below its root."""
MULTIUSER: Final = "multiuser-server"
"""The option by which one server serves clients of all users. NVIDIA does not say since which driver there is one, and
a program without it would not start: so the program is searched for the option's name."""


def path_of(name: str, driver_root: Path) -> str:
    """Return the program of the driver, if it has one of that name, else the name."""
    if "/" in name:
        return name
    places = [driver_root / folder / name for folder in FOLDERS]
    return next((str(place) for place in places if place.exists()), name)


def found(name: str, driver_root: Path, path: str) -> str:
    """Return the path of a program that can be executed.

    Raises:
        FileNotFoundError: there is none.
    """
    program = path_of(name, driver_root)
    executable = shutil.which(program, path=path)
    if executable is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
    return executable


def serves_all_users(wanted: Literal["auto", True], card: Card, program: str) -> bool:
    """Whether a daemon that is to serve clients of all users at a time can.

    Raises:
        OSError: it must, and the program or the card cannot; or the program cannot be read.
    """
    # On cards before Volta the option is accepted, and clients of other users than root fail.
    why = f"the card cannot: {before_volta(card)}" if before_volta(card) else _no_option(Path(program))
    if why and wanted is True:
        raise OSError(0, f'multiuser_server = true, and {why}; choose "auto" or false')
    return not why


def _no_option(program: Path) -> str:
    stat = program.stat()
    has = _mentions(program, MULTIUSER, (stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return "" if has else f"{program} has no option -{MULTIUSER}: the driver is too old for it"


@lru_cache(maxsize=8)
def _mentions(program: Path, word: str, identity: tuple[int, int, int]) -> bool:
    """Whether a file has a word in it; by its identity, a new file of the same name is another question."""
    del identity
    return word.encode() in program.read_bytes()

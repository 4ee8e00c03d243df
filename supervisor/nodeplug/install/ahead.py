"""Entrypoints that were compiled before nodeplug came to the node, for images: a node needs no compiler, and no Python.

Owns: where such programs are in an installation, and their names: what a program depends on is in its name, so that
one for other paths, another source or another machine is not found.
Refuses: to compile (`nodeplug.install.native`), and to trust a program by its name alone: it has to bear our mark.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import PluginError
from nodeplug.install.native import FREESTANDING, SOURCE, compile_one
from nodeplug.install.ownership import content
from nodeplug.install.scripts import find_scripts, is_ours

FOLDER: Final = "compiled"
"""Beside the folder of the scripts."""


def compile_ahead(socket: Path, spool: Path) -> list[Path]:
    """Compile both entrypoints for a daemon with these paths into this installation, and return the files.

    Raises:
        NotFound: there is no compiler, or no source.
        PluginError: the compiler fails, or the installation cannot be written.
    """
    made = []
    for flex in (False, True):
        path = _place(flex=flex, socket=socket, spool=spool)
        data = compile_one(flex=flex, socket=socket, spool=spool)
        try:
            path.parent.mkdir(mode=0o755, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            raise PluginError(f"cannot write {path}: {error.strerror}") from error
        made.append(path)
    return made


def compiled_ahead_of(*, flex: bool, socket: Path, spool: Path) -> bytes:
    """Return the program of one style that was compiled ahead for a daemon with these paths; empty: there is none."""
    try:
        data = content(_place(flex=flex, socket=socket, spool=spool))
    except (OSError, PluginError):
        return b""
    return data if is_ours(data) else b""


def _place(*, flex: bool, socket: Path, spool: Path) -> Path:
    scripts = find_scripts()
    sources = [(scripts / name).read_bytes() for name in (SOURCE, FREESTANDING)]
    depends = (sources, os.fsencode(socket), os.fsencode(spool), os.uname().machine)
    digest = hashlib.sha256(repr(depends).encode()).hexdigest()[:24]
    return scripts.parent / FOLDER / f"{'flex' if flex else 'cni'}-{digest}"

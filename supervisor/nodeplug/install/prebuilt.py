"""Compiled entrypoints that the distribution brings along: nodes rarely have a compiler.

Owns: finding those for this machine, and the comparison with the sha256 that the source is known to give
(`bin/prebuilt.sha256`, in the form of sha256sum(1)).
Refuses: other paths than the default ones, which are compiled in; to build them (see `deploy/platform_wheel.py`).
"""

import hashlib
from pathlib import Path
from typing import Final

from nodeplug.config import Paths, Supervisor
from nodeplug.contract.errors import NotFound, PluginError
from nodeplug.install.native import try_out
from nodeplug.install.scripts import find_scripts

LIST: Final = "prebuilt.sha256"
FOLDER: Final = "prebuilt"
STYLES: Final = ("cni", "flex")


def prebuilt(paths: Paths, machine: str) -> tuple[bytes, bytes]:
    """Return the programs for CNI and FlexVolume.

    Args:
        paths: of the node.
        machine: as uname(2) names it.

    Raises:
        NotFound: there are none for this machine, or for these paths.
        PluginError: one is damaged, is not what its source gives, or does not run.
    """
    folder = find_scripts() / FOLDER / machine
    if not all((folder / style).is_file() for style in STYLES):
        raise NotFound(f"this installation of nodeplug brings no compiled entrypoints for {machine}")
    usual = Supervisor().paths
    if (paths.exec_socket, paths.spool) != (usual.exec_socket, usual.spool):
        raise NotFound(f"the compiled entrypoints that nodeplug brings are for {usual.exec_socket} and {usual.spool}")
    cni, flex = (_checked(folder / style) for style in STYLES)
    if trouble := try_out(folder / STYLES[0]):
        raise PluginError(f"the compiled entrypoint {folder / STYLES[0]} does not run on this node: {trouble}")
    return cni, flex


def _checked(program: Path) -> bytes:
    name = f"{program.parent.name}/{program.name}"
    try:
        data = program.read_bytes()
        lines = (program.parents[2] / LIST).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"the compiled entrypoint {name} cannot be read: {error}; reinstall nodeplug") from error
    listed = {words[1]: words[0] for words in map(str.split, lines) if len(words) == 2}
    found = hashlib.sha256(data).hexdigest()
    if found != listed.get(name):
        raise PluginError(
            f"the compiled entrypoint {program} has the sha256 {found}, and {LIST} says {listed.get(name, 'nothing')}: "
            "reinstall nodeplug"
        )
    return data

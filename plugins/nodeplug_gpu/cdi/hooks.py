"""Which hooks make the linker of a container find the driver: NVIDIA's, where the node has them, or our own.

Owns: the search for NVIDIA's program, and the hooks as a spec has them.
Refuses: to run them: the runtime does, on the node, whether nodeplug runs or not.

Source: Container Device Interface, SPEC.md, "OCI Edits"; NVIDIA's container toolkit, cmd/nvidia-cdi-hook.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from nodeplug import NotReady
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cdi.driver_files import DriverFiles

SOURCE: Final = Path(__file__).with_name("own_hook.py").read_text(encoding="utf-8")
_PROGRAMS: Final = ("nvidia-cdi-hook", "nvidia-ctk")
_PYTHON: Final = Path("/usr/bin/python3")
_NEEDED: Final = (_PYTHON, Path("/sbin/ldconfig"), Path("/usr/bin/unshare"))
_TOOLKIT: Final = "usr/local/nvidia/toolkit"


def command(choice: str, driver_root: Path, paths: NodePaths) -> Sequence[str]:
    """Return program and first arguments of a hook; none where there is no hook.

    Args:
        choice: "auto", "nodeplug", "none", or the path of NVIDIA's program on the node.
        driver_root: where the driver's files are.
        paths: of the node.

    Raises:
        NotReady: what was chosen is not there.
    """
    if choice == "none":
        return ()
    if choice.startswith("/"):
        if paths.programs and not _runs(paths.node / choice[1:]):
            raise NotReady(f"cdi_hook: {choice} is no program; install it, or let nodeplug choose (cdi_hook = 'auto')")
        return _of_nvidia(choice)
    if choice == "auto" and (found := next(_found(driver_root, paths), None)) is not None:
        return _of_nvidia(paths.on_node(found))
    if choice == "auto" and not paths.programs:
        return ()
    missing = [str(path) for path in _NEEDED if paths.programs and not _runs(paths.node / path.relative_to("/"))]
    if not missing:
        return (str(_PYTHON), _PYTHON.name, "-IS", "-c", SOURCE)
    if choice == "nodeplug":
        raise NotReady(f"cdi_hook = 'nodeplug' needs {' and '.join(missing)} on the node; install what is missing")
    return ()


def hooks(program: Sequence[str], files: DriverFiles) -> Sequence[dict[str, Any]]:
    """Return the hooks that make links and the linker's cache for files.

    Args:
        program: as `command` returns it.
        files: of the driver.
    """
    if not program or not files.folders:
        return ()
    links = [word for target, path in files.links for word in ("--link", f"{target}::{path}")]
    folders = [word for folder in files.folders for word in ("--folder", folder)]
    path, *first = program
    if SOURCE in first:
        return (_hook(path, [*first, *links, *folders]),)
    made = [_hook(path, [*first, "create-symlinks", *links])] if links else []
    return (*made, _hook(path, [*first, "update-ldcache", *folders]))


def _hook(path: str, words: list[str]) -> dict[str, Any]:
    # A hook has no environment but its own, and the programs that it executes are looked for there.
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    return {"hookName": "createContainer", "path": path, "args": words, "env": env}


def _found(driver_root: Path, paths: NodePaths) -> Iterator[Path]:
    folders = (driver_root / "usr/bin", paths.node / "usr/bin", paths.node / _TOOLKIT)
    for name in _PROGRAMS:
        yield from filter(_runs, [folder / name for folder in folders])


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _of_nvidia(path: str) -> Sequence[str]:
    name = path.rpartition("/")[2]
    return (path, name, *(["hook"] if name == "nvidia-ctk" else []))

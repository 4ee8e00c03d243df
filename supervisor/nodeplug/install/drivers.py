"""Volume drivers in kubelet's plugin folder, one folder each.

Owns: the order in which a driver folder is created, updated and removed, and which drivers still have mounts.
Refuses: the contents of the files, and the folder of CNI executables (see `nodeplug.install.files`).

Kubelet probes a driver on every event in its folder whose name does not begin with a dot, and never again once `init`
has failed. So a driver folder appears complete or not at all.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeplug.contract.journal import sync_folder
from nodeplug.contract.mounts import mounts
from nodeplug.install.atomic import put_file, temporary_in, write_new
from nodeplug.install.ownership import CAPABILITIES, executable, folder_name, is_our_script, our_drivers, programs
from nodeplug.install.report import Report

_POD_VOLUME: Final = re.compile(r"/pods/[^/]+/volumes/([^/]+)/[^/]+$")
_STAGED_VOLUME: Final = re.compile(r"/kubernetes\.io/flexvolume/([^/]+(?:/[^/]+)?)/mounts/[^/]+$")
_NOT_HERE: Final = frozenset({errno.EXDEV, errno.EROFS, errno.EACCES, errno.EPERM})


def reprobe(flex: Path, drivers: Iterable[str]) -> None:
    """Touch our executables: kubelet probes the drivers again and forgets a cached "Not supported"."""
    for driver in drivers:
        script = flex / folder_name(driver) / executable(driver)
        with suppress(OSError):  # gone, or part of a read-only image, which kubelet probes when it starts
            if is_our_script(script):
                os.utime(script)


def drivers_in_use(targets: Iterable[str] | None = None) -> frozenset[str]:
    """Return the drivers of these mount points; by default those of this process's mount namespace.

    Kubelet has pods at `pods/<uid>/volumes/<vendor~driver>/<name>` and attached volumes at
    `plugins/kubernetes.io/flexvolume/<vendor/driver>/mounts/<name>`.
    """
    if targets is None:
        targets = [mount.target for mount in mounts()]
    found = (_POD_VOLUME.search(target) or _STAGED_VOLUME.search(target) for target in targets)
    return frozenset(match[1].replace("~", "/", 1) for match in found if match)


def put_driver(folder: Path, files: Mapping[str, bytes], report: Report, may_go: Callable[[Path], bool]) -> None:
    """Install one driver. `files` are in the order of an update, the executable last; `may_go` as in `put_file`."""
    modes = {name: 0o644 if name == CAPABILITIES else 0o755 for name in files}
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists() and _rename_in(folder, files, modes):
        report.created.append(str(folder))
        return
    for name, data in files.items():
        put_file(folder / name, data, modes[name], report, may_go)


def _rename_in(folder: Path, files: Mapping[str, bytes], modes: Mapping[str, int]) -> bool:
    """Build a driver folder elsewhere and rename it into place; False if another installation was faster.

    It is built beside the plugin folder or, if that is a mount point, inside it under a dot name, which kubelet
    ignores.
    """
    for place in (folder.parent.parent, folder.parent):
        temporary = temporary_in(place)
        try:
            temporary.mkdir(mode=0o755)
            temporary.chmod(0o755)  # regardless of the umask
            for name, data in files.items():
                write_new(temporary / name, data, modes[name])
            sync_folder(temporary)
            temporary.rename(folder)
            sync_folder(folder.parent)
            return True
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return False
            if error.errno not in _NOT_HERE or place == folder.parent:
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return False


def prune_drivers(flex: Path, wanted: frozenset[str], in_use: Collection[str], report: Report) -> None:
    """Remove our drivers that are neither wanted nor mounted."""
    busy = frozenset(map(folder_name, in_use))
    for folder in list(our_drivers(flex)):
        if folder.name in wanted:
            continue
        if folder.name in busy:
            report.kept.append(f"{folder}: its volumes are still mounted, and kubelet unmounts through it")
        else:
            _remove_driver(folder, report)


def _remove_driver(folder: Path, report: Report) -> None:
    """Unlink and rmdir. Never rename: kubelet takes a rename for an update, and then `init` fails forever."""
    script, answer = folder / executable(folder.name), folder / CAPABILITIES
    compiled = programs(folder)
    alone = set(folder.iterdir()) <= {script, answer, *compiled}
    # Kubelet takes the unlink of the executable for the removal of the driver: being killed after it does no harm. But
    # if the folder has to stay, no event may follow, or kubelet probes a driver without an executable.
    for path in (script, *compiled, answer) if alone else (answer, script, *compiled):
        path.unlink(missing_ok=True)
    if alone:
        folder.rmdir()
        report.removed.append(str(folder))
    else:
        report.kept.append(f"{folder}: holds files that nodeplug did not make")
    sync_folder(folder.parent)

"""Installing the entrypoint scripts where the runtime and kubelet look for them.

Owns: `nodeplug-cni` and one symlink per CNI claim in the CNI binary folder, `<vendor~driver>/` per volume claim in
kubelet's volume plugin folder, a compiled program beside each script that names one, and marked files in the CNI
configuration folder. Every step is one rename, symlink or unlink, so that a reader never sees half a file and a killed
installation is finished by the next one.
Refuses: to overwrite or remove what it did not make, and to choose paths: all of them are arguments.

libcni takes a symlink to a regular file for a plugin, and reads "text file busy" as success after six tries: so files
are replaced by rename, never written in place. Kubelet probes a driver at each event in its folder whose name does not
begin with a dot, and never again a driver whose first `init` failed: so a driver folder appears complete or not at all.
"""

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.errors import Exhausted, PluginError
from nodeplug.install.ownership import (
    CAPABILITIES,
    TEMPORARY,
    Folders,
    executable,
    folder_name,
    is_our_link,
    is_our_script,
    listed,
    marked_conflist,
    our_conflists,
    our_drivers,
    programs,
    refuse_foreign,
    superseded,
)
from nodeplug.install.scripts import CNI_SCRIPT, Scripts, led_by, program_name
from nodeplug.journal import sync_folder
from nodeplug.mounts import mounts

_LEFTOVER_AGE: Final = 60.0
_WRITER_TRIES: Final = 1000
_WRITER_PAUSE: Final = 0.002
_POD_VOLUME: Final = re.compile(r"/pods/[^/]+/volumes/([^/]+)/[^/]+$")
_STAGED_VOLUME: Final = re.compile(r"/kubernetes\.io/flexvolume/([^/]+(?:/[^/]+)?)/mounts/[^/]+$")
_NOT_HERE: Final = frozenset({errno.EXDEV, errno.EROFS, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Report:
    """What was done, as paths.

    Attributes:
        created: new.
        updated: there before with other bytes.
        unchanged: there before and left untouched.
        removed: ours and no longer wanted.
        kept: not wanted and not removed, each with the reason.
    """

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything on disk is different now."""
        return bool(self.created or self.updated or self.removed)

    def as_dict(self) -> dict[str, list[str]]:
        """Return the report for JSON."""
        return {name: list(paths) for name, paths in asdict(self).items()}

    def __str__(self) -> str:
        told = [f"{name} {', '.join(paths)}" for name, paths in asdict(self).items() if paths and name != "unchanged"]
        rest = [f"{len(self.unchanged)} unchanged"] if self.unchanged else []
        return "; ".join(told + rest) or "nothing to install"


@dataclass(slots=True)
class _Tally:
    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def report(self) -> Report:
        return Report(*(tuple(paths) for paths in asdict(self).values()))


def install(
    *,
    cni: Collection[str],
    drivers: Mapping[str, bytes],
    folders: Folders,
    scripts: Scripts,
    conflists: Mapping[str, bytes] | None = None,
    prune: bool = True,
    in_use: Collection[str] = (),
) -> Report:
    """Bring the folders to what the claims need; repeating it changes nothing.

    Args:
        cni: the names of the CNI claims.
        drivers: by volume claim (`vendor/driver`), the bytes that answer `init`.
        folders: where to install; made when they are missing and needed.
        scripts: the rendered scripts.
        conflists: by file name, network configuration lists for the runtime; written last, once their plugins exist.
        prune: remove what an earlier installation made and no claim needs any more.
        in_use: drivers with mounts on this node; they are never removed (see `drivers_in_use`).

    Raises:
        ForeignFile: a name is taken; the message lists every one. Nothing was changed.
        InvalidRequest: a name or a conflist cannot be installed. Nothing was changed.
        Exhausted: the disk is full.
        PluginError: a folder cannot be written; what was done stays and the next installation goes on.
    """
    lists = {name: marked_conflist(name, data) for name, data in (conflists or {}).items()}
    try:
        refuse_foreign(cni, drivers, lists, folders)
    except OSError as error:
        raise _failed("examine", error) from error
    cni_files = _entrypoint(folders.cni_bin, CNI_SCRIPT, scripts.cni, scripts.cni_program)
    places = {folders.flex / folder_name(driver): driver for driver in drivers}
    driver_files = {
        folder: {CAPABILITIES: drivers[driver]}
        | _entrypoint(folder, executable(driver), scripts.flex, scripts.flex_program)
        for folder, driver in places.items()
    }
    tally = _Tally()
    try:
        _sweep(folders)
        if cni:
            folders.cni_bin.mkdir(parents=True, exist_ok=True)
            for name, data in cni_files.items():
                _put_file(folders.cni_bin / name, data, 0o755, tally)
        for name in cni:
            _put_link(folders.cni_bin / name, tally)
        for folder, files in driver_files.items():
            _put_driver(folder, files, tally)
        for name, data in lists.items():
            folders.cni_conf.mkdir(parents=True, exist_ok=True)
            _put_file(folders.cni_conf / name, data, 0o644, tally)
        if prune:
            _prune_drivers(folders.flex, frozenset(map(folder_name, drivers)), in_use, tally)
            _prune_links(folders.cni_bin, frozenset(cni), tally)
    except OSError as error:
        raise _failed("install", error) from error
    return tally.report()


def uninstall(*, folders: Folders, in_use: Collection[str] = ()) -> Report:
    """Remove exactly what is ours; succeed when nothing is.

    Args:
        folders: where it was installed.
        in_use: drivers with mounts on this node; they are kept, because kubelet unmounts through them.

    Raises:
        PluginError: a folder cannot be written.
    """
    tally = _Tally()
    try:
        _sweep(folders)
        for path in our_conflists(folders.cni_conf):
            _remove(path, tally)
        _prune_links(folders.cni_bin, frozenset(), tally)
        _prune_drivers(folders.flex, frozenset(), in_use, tally)
    except OSError as error:
        raise _failed("remove", error) from error
    return tally.report()


def reprobe(flex: Path, drivers: Iterable[str]) -> None:
    """Touch our executables: kubelet probes the drivers anew and forgets what it took for "Not supported"."""
    for driver in drivers:
        script = flex / folder_name(driver) / executable(driver)
        with suppress(OSError):  # gone meanwhile; or part of a read-only image, which kubelet probes at its own start
            if is_our_script(script):
                os.utime(script)


def drivers_in_use(targets: Iterable[str] | None = None) -> frozenset[str]:
    """Return the drivers that own one of these mount points.

    Kubelet has pods at `pods/<uid>/volumes/<vendor~driver>/<name>` and attached volumes at
    `plugins/kubernetes.io/flexvolume/<vendor/driver>/mounts/<name>`.

    Args:
        targets: mount points, as in `nodeplug.Mount.target`; those of this process's mount namespace when None.
    """
    if targets is None:
        targets = [mount.target for mount in mounts()]
    found = (_POD_VOLUME.search(target) or _STAGED_VOLUME.search(target) for target in targets)
    return frozenset(match[1].replace("~", "/", 1) for match in found if match)


# --- steps -------------------------------------------------------------------------------------------------------


def _temporary(folder: Path) -> Path:
    """Name a new file: hidden from kubelet by its dot, and from runtimes by an ending that none of them reads."""
    return folder / f"{TEMPORARY}{os.urandom(6).hex()}.tmp"


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)  # whatever the umask
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)
    if mode & 0o111:
        _wait_for_writers(path)


def _wait_for_writers(path: Path) -> None:
    """Wait until nobody has a file open for writing: the kernel executes no such file (execve(2), ETXTBSY).

    A child that this process forked meanwhile has it open until its own exec. A read lease (fcntl(2), F_SETLEASE) is
    granted only when there is no writer left; a filesystem without leases is not waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(_WRITER_TRIES):
            try:
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except BlockingIOError:
                time.sleep(_WRITER_PAUSE)
            except OSError:
                return
            else:
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                return
    finally:
        os.close(descriptor)


def _put_file(path: Path, data: bytes, mode: int, tally: _Tally) -> None:
    there = path.exists()
    if there and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
        tally.unchanged.append(str(path))
        return
    temporary = _temporary(path.parent)
    try:
        _write(temporary, data, mode)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    (tally.updated if there else tally.created).append(str(path))


def _put_link(path: Path, tally: _Tally) -> None:
    if is_our_link(path):
        tally.unchanged.append(str(path))
        return
    # symlink(2) is atomic by itself and, unlike a rename, cannot replace what somebody made meanwhile.
    path.symlink_to(CNI_SCRIPT)
    sync_folder(path.parent)
    tally.created.append(str(path))


def _entrypoint(folder: Path, name: str, script: bytes, program: bytes) -> dict[str, bytes]:
    """Return the files of one entrypoint in the order in which they are put: the program before what names it."""
    if not program:
        return {name: script}
    return {program_name(program): program, name: led_by(script, folder / program_name(program))}


def _put_driver(folder: Path, files: Mapping[str, bytes], tally: _Tally) -> None:
    """Install one driver; `files` are in the order in which an existing driver is updated: the executable last."""
    modes = {name: 0o644 if name == CAPABILITIES else 0o755 for name in files}
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists() and _rename_in(folder, files, modes):
        tally.created.append(str(folder))
        return
    for name, data in files.items():
        _put_file(folder / name, data, modes[name], tally)


def _rename_in(folder: Path, files: Mapping[str, bytes], modes: Mapping[str, int]) -> bool:
    """Build a driver folder beside the plugin folder and rename it in; False when another installation was faster.

    Where the plugin folder is a mount of its own, it is built under a dot name inside: kubelet ignores that event.
    """
    for place in (folder.parent.parent, folder.parent):
        staging = _temporary(place)
        try:
            staging.mkdir(mode=0o755)
            staging.chmod(0o755)  # whatever the umask
            for name, data in files.items():
                _write(staging / name, data, modes[name])
            sync_folder(staging)
            staging.rename(folder)
            sync_folder(folder.parent)
            return True
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return False
            if error.errno not in _NOT_HERE or place == folder.parent:
                raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return False


def _prune_links(cni_bin: Path, wanted: frozenset[str], tally: _Tally) -> None:
    for path in listed(cni_bin):
        if path.name not in wanted and is_our_link(path):
            _remove(path, tally)
    script = cni_bin / CNI_SCRIPT
    if not wanted and is_our_script(script):
        _remove(script, tally)
    if not wanted:
        for path in programs(cni_bin):
            _remove(path, tally)


def _prune_drivers(flex: Path, wanted: frozenset[str], in_use: Collection[str], tally: _Tally) -> None:
    busy = frozenset(map(folder_name, in_use))
    for folder in list(our_drivers(flex)):
        if folder.name in wanted:
            continue
        if folder.name in busy:
            tally.kept.append(f"{folder}: its volumes are still mounted, and kubelet unmounts through it")
        else:
            _remove_driver(folder, tally)


def _remove_driver(folder: Path, tally: _Tally) -> None:
    """Unlink and rmdir, never rename away: kubelet takes a rename for an update and then fails `init` for ever."""
    script, answer = folder / executable(folder.name), folder / CAPABILITIES
    compiled = programs(folder)
    alone = set(folder.iterdir()) <= {script, answer, *compiled}
    # Kubelet takes the unlink of the executable for the removal. Killed after it, nothing fails; but if the folder has
    # to stay, no event may follow it, or kubelet probes a driver without executable.
    for path in (script, *compiled, answer) if alone else (answer, script, *compiled):
        path.unlink(missing_ok=True)
    if alone:
        folder.rmdir()
        tally.removed.append(str(folder))
    else:
        tally.kept.append(f"{folder}: holds files that nodeplug did not make")
    sync_folder(folder.parent)


def _remove(path: Path, tally: _Tally) -> None:
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
    tally.removed.append(str(path))


def _failed(what: str, error: OSError) -> PluginError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return Exhausted(f"cannot {what} the entrypoint scripts: {error.strerror}; free space there and try again")
    place = error.filename2 or error.filename or "an entrypoint"  # a failed read names no file
    return PluginError(f"cannot {what} {place}: {error.strerror}; make its folder writable, or name another")


def _sweep(folders: Folders) -> None:
    """Remove what a killed installation left; a young temporary name may belong to one that is running."""
    places = [folders.cni_bin, folders.cni_conf, folders.flex.parent, folders.flex, *our_drivers(folders.flex)]
    for place in places:
        for path in [path for path in listed(place) if path.name.startswith(TEMPORARY)]:
            with suppress(FileNotFoundError):
                if _is_old(path):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    scripts = [
        folders.cni_bin / CNI_SCRIPT,
        *(folder / executable(folder.name) for folder in our_drivers(folders.flex)),
    ]
    for script in scripts:
        # A call that began before the exchange may still be about to start the old program: it goes a minute later.
        for path in superseded(script.parent, script):
            with suppress(FileNotFoundError):
                if _is_old(path) and (not script.exists() or _is_old(script)):
                    path.unlink()


def _is_old(path: Path) -> bool:
    return time.time() - path.lstat().st_mtime > _LEFTOVER_AGE

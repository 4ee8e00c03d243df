"""Installing the entrypoints where the runtime and kubelet look for them.

Owns: one file per CNI claim, a `<vendor~driver>/` folder per volume claim, compiled programs beside their scripts, and
marked files in the CNI configuration folder. Every step is one rename, link or unlink: readers never see half a file,
and the next installation completes one that was killed.
Refuses: to overwrite or remove what it did not create, and to choose paths.

Each claim has a file of its own: if they were links, another installer that writes to one name would change them all.
"""

import shutil
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeplug.config import Paths
from nodeplug.install.atomic import failed, put_file, remove
from nodeplug.install.drivers import prune_drivers, put_driver
from nodeplug.install.ownership import (
    CAPABILITIES,
    TEMPORARY,
    executable,
    folder_name,
    listed,
    marked_conflist,
    may_go,
    our_conflists,
    our_drivers,
    our_entrypoints,
    programs,
    refuse_foreign,
    superseded,
)
from nodeplug.install.report import Report
from nodeplug.install.scripts import Scripts, led_by, program_name

_LEFTOVER_AGE: Final = 60.0


def install(
    *,
    cni: Collection[str],
    drivers: Mapping[str, bytes],
    paths: Paths,
    scripts: Scripts,
    conflists: Mapping[str, bytes] | None = None,
    prune: bool = True,
    in_use: Collection[str] = (),
    retake: Collection[Path] = (),
) -> Report:
    """Install what the claims need; repeating it changes nothing.

    Args:
        cni: the names of the CNI claims.
        drivers: what each volume claim (`vendor/driver`) answers to `init`.
        paths: of the node; missing folders are created.
        scripts: the rendered scripts.
        conflists: network configuration lists by file name. They are written last, once their plugins exist, and
            replace our other ones: of two, the runtime takes the first by name.
        prune: remove what no claim needs any more.
        in_use: drivers with mounts, which are never removed (see `drivers_in_use`).
        retake: foreign files that may be replaced because they were ours.

    Raises:
        ForeignFile: names are taken; the message lists them all. Nothing was changed, unless one was taken meanwhile.
        InvalidRequest: a name or a conflist cannot be installed. Nothing was changed.
        PluginError: a folder cannot be written, or the disk is full (Exhausted). The next installation continues.
    """
    lists = {name: marked_conflist(name, data) for name, data in (conflists or {}).items()}
    try:
        refuse_foreign(cni, drivers, lists, paths, retake)
    except OSError as error:
        raise failed("examine", error) from error
    report = Report()
    try:
        _sweep(paths)
        replaceable = lambda path: may_go(path) or (path in retake and path.is_file())  # noqa: E731
        _put(paths, cni, drivers, scripts, lists, report, replaceable)
        if lists:
            _prune_conflists(paths.cni_conf, lists, report)
        if prune:
            prune_drivers(paths.flexvolume, frozenset(map(folder_name, drivers)), in_use, report)
            _prune_entrypoints(paths.cni_bin, frozenset(cni), report)
    except OSError as error:
        raise failed("install", error) from error
    return report


def uninstall(paths: Paths, *, in_use: Collection[str] = ()) -> Report:
    """Remove exactly what is ours, except drivers `in_use`: kubelet unmounts through them."""
    report = Report()
    try:
        _sweep(paths)
        _prune_conflists(paths.cni_conf, (), report)
        _prune_entrypoints(paths.cni_bin, frozenset(), report)
        prune_drivers(paths.flexvolume, frozenset(), in_use, report)
    except OSError as error:
        raise failed("remove", error) from error
    return report


# --- steps -------------------------------------------------------------------------------------------------------


def _put(
    paths: Paths,
    cni: Collection[str],
    drivers: Mapping[str, bytes],
    scripts: Scripts,
    lists: Mapping[str, bytes],
    report: Report,
    replaceable: Callable[[Path], bool],
) -> None:
    """Write every file, network configurations last: runtimes act on them at once."""
    files: dict[str, bytes] = {}
    for name in cni:
        files |= _entrypoint(paths.cni_bin, name, scripts.cni, scripts.cni_program)
    _put_files(paths.cni_bin, files, 0o755, report, replaceable)
    for driver, answer in drivers.items():
        folder = paths.flexvolume / folder_name(driver)
        files = _entrypoint(folder, executable(driver), scripts.flex, scripts.flex_program)
        put_driver(folder, {CAPABILITIES: answer} | files, report, replaceable)
    _put_files(paths.cni_conf, lists, 0o644, report, replaceable)


def _put_files(
    folder: Path, files: Mapping[str, bytes], mode: int, report: Report, replaceable: Callable[[Path], bool]
) -> None:
    if files:
        folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        put_file(folder / name, data, mode, report, replaceable)


def _entrypoint(folder: Path, name: str, script: bytes, program: bytes) -> dict[str, bytes]:
    """Return the files of one entrypoint in the order to write them: the program before the script that names it."""
    if not program:
        return {name: script}
    return {program_name(program): program, name: led_by(script, folder / program_name(program))}


def _prune_conflists(conf: Path, wanted: Collection[str], report: Report) -> None:
    """Remove our superseded lists: of two, the runtime takes the first by name."""
    for path in our_conflists(conf):
        if path.name not in wanted:
            remove(path, report)


def _prune_entrypoints(cni_bin: Path, wanted: frozenset[str], report: Report) -> None:
    """Remove names that no claim needs and, with the last symlink of an older version, its target."""
    for path in our_entrypoints(cni_bin):
        if path.name not in wanted:
            remove(path, report)
    if not wanted:
        for path in programs(cni_bin):
            remove(path, report)


def _sweep(paths: Paths) -> None:
    """Remove what a killed installation left. A recent temporary file may belong to one that is still running."""
    places = [paths.cni_bin, paths.cni_conf, paths.flexvolume.parent, paths.flexvolume, *our_drivers(paths.flexvolume)]
    for place in places:
        for path in [path for path in listed(place) if path.name.startswith(TEMPORARY)]:
            with suppress(FileNotFoundError):
                if _is_old(path):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    _sweep_programs(paths.cni_bin, our_entrypoints(paths.cni_bin))
    for folder in our_drivers(paths.flexvolume):
        _sweep_programs(folder, [folder / executable(folder.name)])


def _sweep_programs(folder: Path, scripts: Collection[Path]) -> None:
    """Remove programs that no script names a minute after the last script changed: a call may still be starting one."""
    for path in superseded(folder, scripts):
        with suppress(FileNotFoundError):
            if _is_old(path) and all(_is_old(script) for script in scripts if script.exists()):
                path.unlink()


def _is_old(path: Path) -> bool:
    return time.time() - path.lstat().st_mtime > _LEFTOVER_AGE

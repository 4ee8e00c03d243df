"""Which files are nodeplug's, and which names are taken.

Owns: the marks of our files (the second line of a script, a key of a conflist, the target of a former symlink) and the
search for them in the folders of the runtime and kubelet.
Refuses: to change anything (see `nodeplug.install.files`).
"""

import errno
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from nodeplug.config import Paths
from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import InvalidRequest, PluginError
from nodeplug.install.scripts import CNI_SCRIPT, PROGRAM, is_ours, leader

CAPABILITIES: Final = "capabilities.json"
CONFLIST_KEY: Final = "installedBy"
"""A conflist with this key and the value "nodeplug" is ours; libcni ignores unknown keys."""
TEMPORARY: Final = ".nodeplug-"
"""Prefix of temporary names: the dot hides them from kubelet."""
LARGEST: Final = 4 << 20
"""Bytes. No larger file can be ours: a compiled entrypoint has about one million."""
NOT_OURS: Final = frozenset({errno.EFBIG, errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.ENODEV})
"""Read errors which show that a file is not ours: it is too large, or not a regular file."""
_PROGRAM: Final = re.compile(rf"{re.escape(PROGRAM)}[0-9a-f]{{12}}")


class ForeignFile(PluginError):
    """A name that nodeplug needs belongs to somebody else; nothing was changed."""


def marked_conflist(name: str, data: bytes) -> bytes:
    """Return the conflist with our mark.

    Raises:
        InvalidRequest: runtimes do not read files of this name, or it is not a JSON object with plugins. In containerd,
            one broken file that sorts first takes the node's network down.
    """
    if "/" in name or name.startswith(".") or not name.endswith(".conflist"):
        raise InvalidRequest(
            f"{name!r} is not a name for a network configuration: it must have the form 10-name.conflist"
        )
    document = _json_object(data)
    if not document or not document.get("name") or not document.get("plugins"):
        raise InvalidRequest(
            f"{name} is not a network configuration list: it needs a JSON object with name and plugins"
        )
    return json.dumps({**document, CONFLIST_KEY: "nodeplug"}, indent=2, ensure_ascii=False).encode() + b"\n"


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def folder_name(driver: str) -> str:
    """Return kubelet's folder for `vendor/driver`: `vendor~driver`."""
    return driver.replace("/", "~")


def executable(driver: str) -> str:
    """Return kubelet's name for the executable: the last part of `vendor/driver` or `vendor~driver`."""
    return folder_name(driver).rpartition("~")[2]


def refuse_foreign(
    cni: Collection[str],
    drivers: Mapping[str, bytes],
    lists: Mapping[str, bytes],
    paths: Paths,
    retake: Collection[Path] = (),
) -> None:
    """Refuse names that are taken, except those in `retake`; one message lists them all.

    Raises:
        ForeignFile: a file of another program is in the way.
        InvalidRequest: two of our own files would have the same name.
    """
    if CNI_SCRIPT in cni:
        raise InvalidRequest(f"{CNI_SCRIPT!r} was the script behind every CNI claim; no claim can have that name")
    if CAPABILITIES in map(executable, drivers):
        raise InvalidRequest(f"no driver can be called {CAPABILITIES!r}")
    taken = [paths.cni_bin / name for name in cni if is_foreign(paths.cni_bin / name)]
    taken += [path for driver in drivers for path in _foreign_in_driver(paths.flexvolume, driver)]
    taken += [path for name in lists if os.path.lexists(path := paths.cni_conf / name) and not our_list(path)]
    taken = [path for path in taken if path not in retake or not path.is_file()]
    if taken:
        names = ", ".join(map(str, taken))
        raise ForeignFile(
            f"not installed by nodeplug and in the way: {names}; move them away, or claim another name; "
            "`--force` takes back a name that was nodeplug's"
        )


def is_our_script(path: Path) -> bool:
    """Whether a path is itself a script of ours, not a folder or a symlink (a rename would replace only the link)."""
    return path.is_file() and not path.is_symlink() and is_ours(content(path))


def content(path: Path) -> bytes:
    """Read a file that can be ours; anything else, such as a pipe or a large program, reads as empty."""
    try:
        return read_bounded(path, LARGEST)
    except OSError as error:
        if error.errno in NOT_OURS:
            return b""
        raise


def is_our_link(path: Path) -> bool:
    """Whether a path is a symlink to our script in the same folder, as older versions created them."""
    return path.is_symlink() and os.readlink(path) in {CNI_SCRIPT, str(path.with_name(CNI_SCRIPT))}


def is_our_entrypoint(path: Path) -> bool:
    """Whether a path in the folder of CNI executables is one of our entrypoints."""
    return is_our_link(path) or is_our_script(path)


def our_entrypoints(cni_bin: Path) -> list[Path]:
    """Return our entrypoints in the folder of CNI executables, including links and their target."""
    compiled = set(programs(cni_bin))
    return [
        path
        for path in listed(cni_bin)
        if path not in compiled and not path.name.startswith(TEMPORARY) and is_our_entrypoint(path)
    ]


def our_list(path: Path) -> Mapping[str, Any]:
    """Return a network configuration list that bears our mark; anything else is returned as an empty one."""
    if not path.is_file() or path.is_symlink():
        return {}
    document = _json_object(content(path))
    return document if document.get(CONFLIST_KEY) == "nodeplug" else {}


def is_foreign(path: Path) -> bool:
    """Whether a path in the folder of CNI executables exists and is not one of our entrypoints."""
    return os.path.lexists(path) and not is_our_entrypoint(path)


def may_go(path: Path) -> bool:
    """Whether we may replace the file at a path."""
    if path.name == CAPABILITIES or _PROGRAM.fullmatch(path.name) or not os.path.lexists(path):
        return True
    return bool(our_list(path)) if path.suffix == ".conflist" else is_our_entrypoint(path)


def _foreign_in_driver(flex: Path, driver: str) -> list[Path]:
    """Return what is in the way of a driver: its executable if it is not ours, else other files in its place."""
    folder = flex / folder_name(driver)
    if not os.path.lexists(folder):
        return []
    if folder.is_symlink() or not folder.is_dir():
        return [folder]
    script = folder / executable(driver)
    if os.path.lexists(script):
        return [] if is_our_script(script) else [script]
    # No executable: our own removal was cut short, or the folder belongs to somebody else.
    ours = {CAPABILITIES, *(path.name for path in programs(folder))}
    return [path for path in folder.iterdir() if path.name not in ours and not path.name.startswith(TEMPORARY)]


def our_drivers(flex: Path) -> Iterator[Path]:
    """Yield the driver folders that nodeplug created, including half-removed ones."""
    for folder in listed(flex):
        if folder.name.startswith(".") or folder.is_symlink() or not folder.is_dir():
            continue
        if is_our_script(folder / executable(folder.name)) or _is_half_removed(folder):
            yield folder


def _is_half_removed(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()} - {path.name for path in programs(folder)}
    return names == {CAPABILITIES} and "status" in _json_object(content(folder / CAPABILITIES))


def programs(folder: Path) -> list[Path]:
    """Return the compiled programs in a folder."""
    return [path for path in listed(folder) if _PROGRAM.fullmatch(path.name) and not path.is_symlink()]


def superseded(folder: Path, scripts: Iterable[Path]) -> list[Path]:
    """Return the compiled programs in a folder that no script names any more."""
    named = {leader(content(script)).name for script in scripts if is_our_script(script)}
    return [path for path in programs(folder) if path.name not in named]


def installed_kind(paths: Paths) -> str:
    """Return "native", "script", "mixed" (during an exchange), "" (nothing), or "unreadable"."""
    try:
        scripts = our_entrypoints(paths.cni_bin)
        scripts += [folder / executable(folder.name) for folder in our_drivers(paths.flexvolume)]
        kinds = {_kind(content(path)) for path in scripts if is_our_script(path)}
    except OSError:
        return "unreadable"
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else ""


def _kind(data: bytes) -> str:
    return "script" if data.startswith(b"#!") and not _PROGRAM.fullmatch(leader(data).name) else "native"


def our_conflists(conf: Path) -> list[Path]:
    """Return the configuration lists that bear our mark."""
    return [path for path in listed(conf) if path.suffix == ".conflist" and our_list(path)]


def listed(folder: Path) -> list[Path]:
    """Return what a folder holds, sorted; nothing when it does not exist."""
    return sorted(folder.iterdir()) if folder.is_dir() else []

"""Whether the user of a plugin's process reaches the plugin's own folders.

Owns: finding the folder above that keeps the user out, and the sentence that says so.
Refuses: to open the way: what is above the daemon's folders is the administrator's. A folder with an access control
list counts as open, since its mode does not say whom it lets through.
"""

import os
import pwd
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeplug.config.privileges import CAPABILITIES, Privileges
from nodeplug.contract.errors import TryAgain

_FREE: Final = frozenset({CAPABILITIES["CAP_DAC_OVERRIDE"], CAPABILITIES["CAP_DAC_READ_SEARCH"]})
"""Who has one of them passes any folder."""


def check_reach(plugin: str, folders: Iterable[Path], privileges: Privileges) -> None:
    """Raise TryAgain if the user of a plugin does not reach one of its folders. May block, may raise OSError."""
    if privileges.capabilities is None or _FREE.intersection(privileges.capabilities):
        return
    user, group = privileges.owner
    for folder in folders:
        for above in sorted({*folder.parents, *folder.resolve().parents}):
            found = above.stat()
            letter, bit = _class_of(found, user, group)
            if not found.st_mode & bit and not _has_list(above):
                raise TryAgain(
                    f"user {privileges.name} of plugin {plugin!r} cannot reach its folder {folder}: {above} of user "
                    f"{_name(found.st_uid)} has mode {stat.S_IMODE(found.st_mode):o}; run `chmod {letter}+x {above}`, "
                    "or move `state_dir` or `run_dir` of [supervisor]"
                )


def _class_of(found: os.stat_result, user: int, group: int) -> tuple[str, int]:
    """Return as whom a user meets a folder, for chmod(1), and the bit that lets it through."""
    if found.st_uid == user:
        return "u", stat.S_IXUSR
    return ("g", stat.S_IXGRP) if found.st_gid == group else ("o", stat.S_IXOTH)


def _has_list(folder: Path) -> bool:
    with suppress(OSError):
        return "system.posix_acl_access" in os.listxattr(folder)
    return False


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)

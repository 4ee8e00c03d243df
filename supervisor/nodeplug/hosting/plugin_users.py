"""As whom the process of a plugin runs if its section names no user.

Owns: the user of its own that each such plugin has, and that no two have the same.
Refuses: a list of them: a plugin's folders belong to its user (`own_folders`), so they say who it is, also after a
restart. Also accounts: nobody logs in as one of these users, and passwd(5) need not know them.
"""

import hashlib
import os
import pwd
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.config import Paths, PluginSection
from nodeplug.config.privileges import OWN_USER, Privileges
from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import file_name

USERS: Final = range(60578, 61184)
"""The ids that systemd leaves unused between its own (its UIDS-GIDS.md); below those of containers, from 65536."""
_MAP: Final = Path("/proc/self/uid_map")


@dataclass(slots=True)
class PluginUsers:
    """Belongs to any thread; may block.

    Attributes:
        paths: of the node.
        default: `plugin_user` of `[supervisor]`.
    """

    paths: Paths
    default: str
    _given: dict[str, int] = field(default_factory=dict)
    _giving: threading.Lock = field(default_factory=threading.Lock)

    def privileges(self, plugin: str, section: PluginSection) -> Privileges:
        """Return what the process of a section's plugin runs with.

        A daemon that is no root has no other user to give, and one in a user namespace those alone that it has there.

        Raises:
            ValueError: its user or group is gone meanwhile.
            PluginError: no user is left.
        """
        if section.user or os.geteuid() != 0:
            return section.privileges
        if self.default != OWN_USER:
            return section.as_user(self.default, section.group)
        user = self._of(plugin)
        return section.as_user(str(user), str(user)) if _is_mapped(user) else section.privileges

    def _of(self, plugin: str) -> int:
        with self._giving:
            if plugin not in self._given:
                self._given[plugin] = self._found(plugin)
            return self._given[plugin]

    def _found(self, plugin: str) -> int:
        """Find the user that the plugin's folders belong to, or one that nobody has."""
        taken, name = set(self._given.values()), file_name(plugin)
        for folder, owner in self._owners():
            if folder == name and owner in USERS and owner not in taken:
                return owner
        taken |= {owner for folder, owner in self._owners() if folder != name}
        first = int.from_bytes(hashlib.sha256(plugin.encode()).digest()[:8], "big")
        for number in range(len(USERS)):
            user = USERS[(first + number) % len(USERS)]
            if user not in taken and not _is_known(user):
                return user
        raise PluginError(f"plugin {plugin!r} gets no user: all of {USERS[0]} to {USERS[-1]} are taken; name a `user`")

    def _owners(self) -> Iterator[tuple[str, int]]:
        for place in (self.paths.state / "plugins", self.paths.run / "plugins"):
            with suppress(OSError):
                for folder in sorted(place.iterdir()):
                    yield folder.name, folder.lstat().st_uid


def _is_known(user: int) -> bool:
    try:
        return bool(pwd.getpwuid(user))
    except KeyError:
        return False


def _is_mapped(user: int) -> bool:
    """Whether the user namespace of the daemon has a user (user_namespaces(7)): that of a container may lack it."""
    rows = [list(map(int, line.split())) for line in _MAP.read_text(encoding="ascii").splitlines()]
    return any(inside <= user < inside + count for inside, _, count in rows)

"""As whom a plugin's process runs, and what it may: the keys of a section and what they mean on this node.

Owns: users, groups and capabilities by name (passwd(5), group(5), capabilities(7)), and a sentence for unknown ones.
Refuses: to drop anything: `nodeplug/worker/launching.py` does, before the first line of the plugin's environment.
"""

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from nodeplug.config.mistakes import did_you_mean

_NAMES: Final = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
    SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
    MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
CAPABILITIES: Final[Mapping[str, int]] = {f"CAP_{name}": number for number, name in enumerate(_NAMES.split())}
"""Numbers by name (linux/capability.h)."""
OWN_USER: Final = "own"
"""Instead of a user: each plugin has one of its own."""
_IDS: Final = (1 << 32) - 1
"""The number that means "unchanged"; ids are below it."""
_EXEMPT: Final = frozenset({"CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"})
"""Who has one of them has as many tasks as it likes (setrlimit(2), RLIMIT_NPROC)."""


def _number(text: str) -> int | None:
    """Return an id that is written as a number; None for a name."""
    if not (text.isascii() and text.isdecimal()):
        return None
    if len(text) > len(str(_IDS)) or int(text) >= _IDS:
        raise ValueError(f"{text!r} is no id; ids are below {_IDS}")
    return int(text)


def _user(text: str) -> str:
    if text and _number(text) is None:
        try:
            pwd.getpwnam(text)
        except KeyError:
            raise ValueError(f"{text!r} is no user of this node; make it with useradd(8), or write a number") from None
    return text


def _group(text: str) -> str:
    if text and _number(text) is None:
        try:
            grp.getgrnam(text)
        except KeyError:
            raise ValueError(
                f"{text!r} is no group of this node; make it with groupadd(8), or write a number"
            ) from None
    return text


def _plugin_user(text: str) -> str:
    if text == OWN_USER:
        return text
    if not text:
        raise ValueError(f"is empty; write {OWN_USER!r}, or a user of this node, such as 'root'")
    if _number(_user(text)) is not None and _entry(text) is None:
        raise ValueError(f"user {text} is not in passwd(5), so its group is not known; make it with useradd(8)")
    return text


def _capability(text: str) -> str:
    if text not in CAPABILITIES:
        near = did_you_mean(text.upper(), CAPABILITIES)
        raise ValueError(f"{text!r} is no capability{near or ', see capabilities(7)'}")
    return text


def _in_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


User = Annotated[str, BeforeValidator(_in_text), AfterValidator(_user)]
"""A user of this node by name, or any number; empty: none is named."""
PluginUser = Annotated[str, BeforeValidator(_in_text), AfterValidator(_plugin_user)]
"""A user of this node by name or number, or OWN_USER."""
Group = Annotated[str, BeforeValidator(_in_text), AfterValidator(_group)]
"""A group of this node by name, or any number; empty: that of the user."""
Capability = Annotated[str, AfterValidator(_capability)]
"""A capability as capabilities(7) writes it."""


@dataclass(frozen=True, slots=True)
class Privileges:
    """What the process of a plugin runs with.

    Attributes:
        user: its id; None: the daemon's, and its groups.
        group: its id; None if and only if `user` is.
        name: of the user.
        home: its folder, for programs that ask the environment.
        capabilities: the only ones that it and its children have; None: those of the daemon.
        nice: its priority (setpriority(2)); None: that of the daemon.
        tasks: processes and threads that it may have, or where no cgroup counts them its user; None: as many as the
            daemon's may.
    """

    user: int | None = None
    group: int | None = None
    name: str = ""
    home: str = "/"
    capabilities: tuple[int, ...] | None = None
    nice: int | None = None
    tasks: int | None = None

    @classmethod
    def of(
        cls, user: str, group: str, capabilities: tuple[str, ...] | None, nice: int | None, tasks: int | None
    ) -> "Privileges":
        """Look up what a section says.

        Raises:
            ValueError: nothing says in which group it runs, or its user or group is gone.
        """
        numbers = tuple(CAPABILITIES[one] for one in capabilities) if capabilities is not None else None
        if not user:
            if group:
                raise ValueError("names a group without a user; add `user`")
            return cls(name=own_user(), capabilities=numbers, nice=nice, tasks=tasks)
        if user in {"root", "0"} and not group and os.geteuid() == 0 and numbers is None:
            return cls(name=own_user(), nice=nice, tasks=tasks)
        entry = _entry(user)
        if entry is None and not group:
            raise ValueError(f"user {user} is not in passwd(5), so its group is not known; add `group`")
        user_id = entry.pw_uid if entry is not None else int(user)
        group_id = _group_id(group) if group else entry.pw_gid if entry is not None else 0
        home = entry.pw_dir if entry is not None else "/"
        if numbers is None and user_id != 0:
            numbers = ()
        return cls(user_id, group_id, _name(user_id), home, numbers, nice, tasks)

    @property
    def uncounted(self) -> str:
        """Say why the kernel cannot count its tasks by user; nothing if it can."""
        exempt = [name for name in sorted(_EXEMPT) if CAPABILITIES[name] in (self.capabilities or ())]
        user = os.geteuid() if self.user is None else self.user
        if user == 0 or exempt:
            whom = exempt[0] if exempt else "root"
            return f"the kernel counts none of a user with {whom}; name another `user`, or no `tasks`"
        return "they would be those of the daemon, too; add a `user` of its own" if self.user is None else ""

    @property
    def own(self) -> bool:
        """Whether they differ from the daemon's."""
        return self.user is not None or self.capabilities is not None or self.nice is not None

    @property
    def owner(self) -> tuple[int, int]:
        """User and group of what the plugin keeps."""
        if self.user is None or self.group is None:
            return os.geteuid(), os.getegid()
        return self.user, self.group


def _entry(user: str) -> pwd.struct_passwd | None:
    number = _number(user)
    try:
        return pwd.getpwnam(user) if number is None else pwd.getpwuid(number)
    except KeyError:
        if number is None:
            raise ValueError(f"its user {user!r} is gone from this node") from None
        return None


def _group_id(group: str) -> int:
    number = _number(group)
    try:
        return grp.getgrnam(group).gr_gid if number is None else number
    except KeyError:
        raise ValueError(f"its group {group!r} is gone from this node") from None


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


@cache
def own_user() -> str:
    """Name the user of this process."""
    return _name(os.geteuid())

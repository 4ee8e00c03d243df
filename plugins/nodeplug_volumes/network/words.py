"""Mount options of a volume: those that are listed, with the values that are listed.

Owns: the tables for NFS (nfs(5)) and SMB (mount.cifs(8)), and the check against them.
Refuses: whatever is not listed: options that run on (`bg`), name credentials, take paths of the node, or change who is
believed (`multiuser`, `cruid`).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from nodeplug import InvalidRequest

_NUMBER: Final = "[0-9]{1,9}"
_OF_EVERY_MOUNT: Final = dict.fromkeys(
    ("ro", "rw", "noexec", "nosuid", "nodev", "noatime", "relatime", "nodiratime", "sync", "async"), ""
)
NFS: Final[Mapping[str, str]] = {
    **_OF_EVERY_MOUNT,
    **dict.fromkeys(("hard", "soft", "softerr", "softreval", "nosoftreval", "ac", "noac", "cto", "nocto"), ""),
    **dict.fromkeys(("lock", "nolock", "rdirplus", "nordirplus", "resvport", "noresvport", "sharecache"), ""),
    **dict.fromkeys(("timeo", "retrans", "rsize", "wsize", "port", "mountport", "actimeo", "nconnect"), _NUMBER),
    **dict.fromkeys(("acregmin", "acregmax", "acdirmin", "acdirmax", "max_connect"), _NUMBER),
    **dict.fromkeys(("vers", "nfsvers"), r"3|4|4\.[012]"),
    **dict.fromkeys(("proto", "mountproto"), "tcp|tcp6|rdma|udp|udp6"),
    "sec": "sys|krb5|krb5i|krb5p",
    "xprtsec": "none|tls|mtls",
    "lookupcache": "all|none|pos|positive",
    "local_lock": "all|flock|posix|none",
}
"""By name: what its value has to match; empty if it takes none."""
SMB: Final[Mapping[str, str]] = {
    **_OF_EVERY_MOUNT,
    **dict.fromkeys(("hard", "soft", "seal", "nobrl", "mfsymlinks", "serverino", "noserverino", "perm", "noperm"), ""),
    **dict.fromkeys(("nosharesock", "multichannel", "nounix", "cifsacl", "forceuid", "forcegid", "nostrictsync"), ""),
    **dict.fromkeys(("rsize", "wsize", "actimeo", "acdirmax", "acregmax", "closetimeo", "echo_interval"), _NUMBER),
    **dict.fromkeys(("uid", "gid", "max_channels", "port"), _NUMBER),
    **dict.fromkeys(("file_mode", "dir_mode"), "0?[0-7]{3,4}"),
    "vers": r"default|2\.1|3|3\.0|3\.02|3\.1\.1",
    "sec": "ntlmssp|ntlmsspi|krb5|krb5i|none",
    "cache": "none|strict|loose",
    "iocharset": "[a-z0-9-]{1,32}",
}


def checked(known: Mapping[str, str], words: Iterable[str]) -> list[str]:
    """Return mount options that are all allowed.

    Args:
        known: NFS or SMB.
        words: such as "vers=4.1".

    Raises:
        InvalidRequest: one is not known, or has a value that is not allowed.
    """
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        pattern = known.get(name)
        if pattern is None:
            raise InvalidRequest(
                f"mount option {name[:40]!r} is not one that volumes may have; those are {', '.join(sorted(known))}"
            )
        if bool(pattern) != bool(equals) or not re.fullmatch(pattern, value):
            raise InvalidRequest(f"mount option {name} has a value that is not allowed; {_expected(name, pattern)}")
        found.append(word)
    return found


def split(text: str) -> list[str]:
    """Split a list of mount options as fstab(5) has them."""
    return [word for word in text.split(",") if word]


def _expected(name: str, pattern: str) -> str:
    return f"it has to match {pattern!r}" if pattern else f"write {name} alone"

"""The namespaces of a call that came without descriptors: a spooled DEL, or one that the daemon itself makes.

Owns: where such a DEL runs. The entrypoint passes its own network namespace as a descriptor, which no file can store.
So the device and inode of the one that ADD used are recorded, and looked up among the processes and mounts of the node.
If they are not found, the kernel has destroyed the namespace with all its links. The DEL then runs in the daemon's own,
where it releases addresses and records: nothing else of the attachment exists.
Refuses: to fail a DEL, and to trust a path in `/proc`: the process id may have been reused.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import InvalidNetns
from nodeplug.contract.mounts import mounts
from nodeplug.contract.netns import Netns
from nodeplug.exec.frame import Frame

LOG: Final = logging.getLogger(__name__)
Identity = tuple[int, int]
"""Device and inode of a namespace."""
UNKNOWN: Final[Identity] = (0, 0)


def reopen(frame: Frame, host: Identity = UNKNOWN) -> tuple[Netns, ...]:
    """Open ADD's host namespace, then that of CNI_NETNS if it still exists.

    A path in `/proc` counts as gone, since the process id may have been reused; so does the host namespace, which
    would always be refused.
    """
    outside = host_or_own(host)
    path = frame.env.get("CNI_NETNS", "")
    inside = _open(path)
    if inside is None:
        return (outside,)
    if path.startswith("/proc/") or inside.identity == outside.identity:
        inside.close()
        return (outside,)
    return outside, inside


def find_host(wanted: Identity) -> Netns | None:
    """Open the host namespace of an ADD, or None if it is gone; the daemon's own if it was not recorded."""
    own = Netns.current()
    if wanted in {UNKNOWN, own.identity}:
        return own
    own.close()
    for path in _candidates(wanted[1]):
        found = _open(path)
        if found is not None and found.identity == wanted:
            return found
        if found is not None:
            found.close()
    return None


def host_or_own(wanted: Identity) -> Netns:
    """Open the host namespace of an ADD, or the daemon's own."""
    found = find_host(wanted)
    if found is None:
        LOG.info("a DEL runs in the daemon's network namespace: that of its ADD, inode %d, is gone", wanted[1])
    return found or Netns.current()


def _candidates(inode: int) -> Iterator[str]:
    """Yield paths by which a namespace may be open: mounts (`ip netns`), then processes (namespaces(7))."""
    name = f"net:[{inode}]"
    yield from (mount.target for mount in mounts() if mount.fs_type == "nsfs" and mount.root == name)
    for entry in Path("/proc").iterdir():
        path = f"{entry}/ns/net"
        try:
            if entry.name.isdecimal() and os.readlink(path) == name:
                yield path
        except OSError:  # the process has ended, or is a zombie
            continue


def _open(path: str) -> Netns | None:
    try:
        # O_NONBLOCK: a FIFO at that path must not block the event loop.
        return Netns.adopt(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), path)
    except (OSError, ValueError, InvalidNetns):
        return None

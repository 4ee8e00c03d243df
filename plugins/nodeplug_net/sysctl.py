"""Settings of the kernel's network, in the namespace that the calling thread is in.

Owns: reading and writing one of `/proc/sys/net`.
Refuses: to know any setting. Those that a network's administrator chooses are the plugin tuning's.
"""

import os
from contextlib import suppress


def set_sysctl(path: str, value: str) -> None:
    """Write `/proc/sys/net/<path>` of the calling thread's namespace; a kernel without it (no IPv6) needs no setting.

    Raises:
        OSError: the setting cannot be written.
    """
    with suppress(FileNotFoundError):
        descriptor = os.open(f"/proc/sys/net/{path}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)


def get_sysctl(path: str) -> str | None:
    """Read `/proc/sys/net/<path>` of the calling thread's namespace; None when this kernel has no such setting."""
    try:
        descriptor = os.open(f"/proc/sys/net/{path}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, 256).decode("ascii").strip()
    finally:
        os.close(descriptor)

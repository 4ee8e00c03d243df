"""Making a tap interface: by /dev/net/tun, or by ip(8) where SELinux labels it.

Owns: the ioctls of tun(4) and the flags that the reference uses, by whichever of its two ways it would go.
Refuses: names, the MTU and whatever else netlink sets on any interface.

SELinux labels a tap as the process that makes it, and lets no thread of a daemon change its own label. So there the
program ip(8) is executed under the label, as the reference does it.
"""

import fcntl
import os
import struct
import subprocess
from pathlib import Path
from typing import Final

from nodeplug import PluginError
from nodeplug_net.tap.config import TapConfig

LABEL: Final = Path("/proc/thread-self/attr/exec")
"""The label of the next program that the thread executes."""
_TUN: Final = "/dev/net/tun"
_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE: Final = 10.0
_TUNSETIFF: Final = 0x400454CA
_TUNSETPERSIST: Final = 0x400454CB
_TUNSETOWNER: Final = 0x400454CC
_TUNSETGROUP: Final = 0x400454CE
_IFF_TAP: Final = 0x0002
_IFF_MULTI_QUEUE: Final = 0x0100
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000
_IFF_TUN_EXCL: Final = 0x8000


def make_tap(name: str, config: TapConfig) -> None:
    """Make a tap that stays without a program, in the calling thread's namespace.

    Raises:
        OSError: there is no /dev/net/tun, the name is taken, or the kernel refuses.
    """
    descriptor = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("=16sH22x", name.encode(), _flags(config)))
        for number, value in ((_TUNSETOWNER, config.owner), (_TUNSETGROUP, config.group)):
            if value is not None:
                fcntl.ioctl(descriptor, number, value)
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)


def _flags(config: TapConfig) -> int:
    """The frames' format: the reference makes a tap with an owner and a group in another way than one without."""
    flags = _IFF_TAP | _IFF_TUN_EXCL | (_IFF_MULTI_QUEUE if config.multi_queue else 0)
    if config.owner is None or config.group is None:
        return flags | _IFF_NO_PI
    return flags | _IFF_VNET_HDR | (_IFF_NO_PI if config.multi_queue else 0)


def make_labelled_tap(name: str, config: TapConfig, label: Path = LABEL) -> None:
    """Make a tap as `make_tap` does, with a label of SELinux.

    Args:
        name: of the tap.
        config: with the label.
        label: the file that takes it.

    Raises:
        PluginError: there is no SELinux or no such label, or ip(8) fails.
    """
    try:
        _write(label, config.context)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise PluginError(
            f"failed set socket label: write {label}: {reason}", details="SELinux is off, or has no such label"
        ) from error
    words = ["ip", "tuntap", "add", "mode", "tap", "name", name, *(["multi_queue"] if config.multi_queue else [])]
    for key, value in (("user", config.owner), ("group", config.group)):
        words += [] if value is None else [key, str(value)]
    try:
        done = subprocess.run(
            words, env={"PATH": _PATH}, capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginError(f"failed to run command ip: {error}", details="ip(8) of iproute2 is needed here") from error
    finally:
        _write(label, "")
    if done.returncode:
        raise PluginError(f"failed to run command {done.stdout}{done.stderr}: exit status {done.returncode}")


def _write(label: Path, context: str) -> None:
    """Write the label at once; an empty one takes it away, in a write of no bytes (setexeccon(3))."""
    descriptor = os.open(label, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, context.encode())
    finally:
        os.close(descriptor)

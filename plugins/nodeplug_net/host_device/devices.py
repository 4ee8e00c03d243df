"""Which interface of the host a network is about.

Owns: the five ways to name it, and the reference's words for what is not there.
Refuses: moving it (see `moving`).

sysfs lists the interfaces of the namespace in which it was mounted: the daemon's, as with the reference the runtime's.
"""

import os
import re
from pathlib import Path
from typing import Final

from nodeplug import InvalidRequest
from nodeplug_net.host_device.config import AUXILIARY, PCI, DeviceConfig, joined
from nodeplug_net.netlink.links import Link, Links

_MAC: Final = re.compile(
    r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2})+|[0-9A-Fa-f]{2}(-[0-9A-Fa-f]{2})+|[0-9A-Fa-f]{4}(\.[0-9A-Fa-f]{4})+"
)
_MAC_LENGTHS: Final = frozenset({6, 8, 20})
_DEVICES: Final = "/sys/devices/"


def find_device(links: Links, config: DeviceConfig, sysfs: Path) -> Link:
    """Find the interface of a network on the host.

    Args:
        links: of the host namespace.
        config: that names it.
        sysfs: where sysfs is mounted.

    Raises:
        InvalidRequest: there is none.
    """
    link = _find(links, config, sysfs)
    if link is None:
        raise _missing("failed to find physical interface" if _is_by_address(config) else "Link not found")
    return link


def _is_by_address(config: DeviceConfig) -> bool:
    return bool(config.hwaddr and not config.device)


def _missing(words: str) -> InvalidRequest:
    return InvalidRequest(
        f"failed to find host device: {words}", details="it is not on the host: maybe a container has it"
    )


def _find(links: Links, config: DeviceConfig, sysfs: Path) -> Link | None:
    if config.device:
        return links.get(config.device)
    if config.hwaddr:
        mac = _parse_mac(config.hwaddr)
        return next((link for link in links.all() if link.mac == mac), None)
    if config.kernelpath:
        if not config.kernelpath.startswith(_DEVICES.replace("/sys", str(sysfs))):
            raise _missing(f'kernel device path "{config.kernelpath}" must be absolute and begin with {_DEVICES}')
        return _first(links, joined(config.kernelpath, "net"))
    if config.pci:
        return _first(links, _folder_of(joined(sysfs, PCI, config.pci), config.pci))
    return _first(links, joined(sysfs, AUXILIARY, config.auxiliary, "net"))


def _parse_mac(text: str) -> str:
    digits = re.sub(r"[:.-]", "", text.lower())
    if not _MAC.fullmatch(text) or len(digits) // 2 not in _MAC_LENGTHS:
        words = "invalid MAC address"
        raise _missing(f'failed to parse MAC address "{text}": address {text}: {words}')
    return bytes.fromhex(digits).hex(":")


def _folder_of(function: Path, address: str) -> Path:
    """Return where the interfaces of a PCI function are: below the virtio device, if it is one."""
    folder = function / "net"
    if os.path.lexists(folder):
        return folder
    folders = sorted(function.glob("virtio*/net"))
    if not folders:
        raise _missing(f"no net directory under pci device {address}")
    return folders[0]


def _first(links: Links, folder: Path) -> Link | None:
    try:
        names = sorted(one.name for one in folder.iterdir())
    except OSError as error:
        words = (error.strerror or "").lower()
        raise _missing(f'failed to read directory {folder}: "open {folder}: {words}"') from error
    if not names:
        raise _missing(f"failed to find network device in path {folder}")
    return links.get(names[0])

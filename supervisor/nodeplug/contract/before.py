"""What the contract had before version 1, and what to write instead.

Owns: the table of both, for messages at load and for the page of hooks.
Refuses: to make anything old work.
"""

from collections.abc import Mapping
from typing import Final

GROUP: Final = "nodeplug"
"""The entry-point group of plugins for the contract before version 1."""
PLACE: Final = "docs/hooks.md, From 0.1 to 1.0"
NAMES: Final[Mapping[str, str]] = {
    "VolumeExpandFs": "`VolumeExpand` has `mount_path` where the filesystem is mounted",
    "VolumeCapabilities": "its fields are keywords of VolumeClaim, as in `VolumeClaim(name, fs_group='driver')`",
}
"""Names that could be imported from `nodeplug`."""
HOOKS: Final[Mapping[str, str]] = {
    "volume_expand_fs": "`volume_expand(self, request: VolumeExpand)` with `request.mount_path`",
}
"""Hooks."""
ARGUMENTS: Final[Mapping[tuple[str, str], str]] = {
    ("device_list", "resource"): "`device_list(self, request: DeviceList)` with `request.resource`",
    ("volume_id", "driver"): "`volume_id(self, request: VolumeIdentify)` with `request.driver`",
    ("volume_id", "options"): "`volume_id(self, request: VolumeIdentify)` with `request.options`",
}
"""Arguments of hooks."""


def told(name: str) -> str:
    """Return the message for a removed name; empty for one that never existed."""
    return f"{name} was removed in API 1: {NAMES[name]}; see {PLACE}" if name in NAMES else ""

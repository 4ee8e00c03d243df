"""What the contract had before version 1, and what to write instead.

Owns: the table of both, for messages at load and for the page of hooks.
Refuses: to make anything old work.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

GROUP: Final = "nodeplug"
"""The entry-point group of plugins for the contract before version 1."""
PLACE: Final = "docs/hooks.md, From 0.1 to 1.0"
NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "VolumeExpandFs": "`VolumeExpand` has `mount_path` where the filesystem is mounted",
        "VolumeCapabilities": "its fields are keywords of VolumeClaim, as in `VolumeClaim(name, fs_group='driver')`",
    }
)
"""Names that could be imported from `nodeplug`."""
HOOKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "volume_expand_fs": "`volume_expand(self, request: VolumeExpand)` with `request.mount_path`",
    }
)
"""Hooks."""
ARGUMENTS: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("device_list", "resource"): "`device_list(self, request: DeviceList)` with `request.resource`",
        ("volume_id", "driver"): "`volume_id(self, request: VolumeIdentify)` with `request.driver`",
        ("volume_id", "options"): "`volume_id(self, request: VolumeIdentify)` with `request.options`",
    }
)
"""Arguments of hooks."""
OTHERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        '`Claim("cni", name)`': "`CniClaim(name)`",
        '`Claim("device", name)`': "`DeviceClaim(name)`",
        '`Claim("volume", name)`': "`VolumeClaim(name)`",
        "`DeviceAllocate(resource, ids, devices)` and other requests by position": "by keyword",
        '`Device(id, True, "")`, `Grant(env)`, `CniResult((link,), ips)`': "all but the obvious first field by keyword",
        '`[project.entry-points."nodeplug"]`': '`[project.entry-points."nodeplug.v1"]`',
        "`volume_attach` that answers the device's path": "`return VolumeAttached(device=path)`",
        "`VolumeDetach.volume_id`": "`VolumeDetach.volume_name`, which it always was",
        "`request.options` of detach, unpublish, unstage": "never held anything, and is gone",
        "`fold(request.config)`, then looking for keys": "`request.parse(Model)`; `fold` stays",
    }
)
"""Everything else that changed, as one writes it."""


def told(name: str) -> str:
    """Return the sentence for a name that is gone; empty for one that never was."""
    return f"{name} was removed in API 1: {NAMES[name]}; see {PLACE}" if name in NAMES else ""

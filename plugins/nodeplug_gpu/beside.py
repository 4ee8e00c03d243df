"""Devices that a container gets beside its cards: of GDRCopy, GPUDirect Storage, InfiniBand, and IMEX channels.

Owns: which device nodes those are, and what comes with them.
Refuses: to make nodes or load modules, and what is on a container's image: libraries come with that.

Sources: NVIDIA, container toolkit 1.20 (internal/discover) and k8s-device-plugin 0.20 (internal/imex), for the names.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeplug import DeviceMount, DeviceNode, Grant, NotReady
from nodeplug_gpu.config import Access, Beside

if TYPE_CHECKING:
    from nodeplug_gpu.access import NodePaths

_PATTERNS: Final[Mapping[Beside, Sequence[str]]] = {
    "gdrcopy": ("gdrdrv",),
    "gds": ("nvidia-fs*",),
    "mofed": ("infiniband/uverbs*", "infiniband/rdma_cm"),
}
_CHANNEL: Final = "nvidia-caps-imex-channels/channel"
_GDS_FILES: Final = ("etc/cufile.json", "run/udev")
"""The configuration of libcufile, and what udev knows of disks."""


def beside(access: Access, paths: "NodePaths") -> Grant:
    """Return what a container gets beside its cards.

    Raises:
        NotReady: a channel is missing and required.
    """
    if access.imex_required and (missing := [one for one in _channels(access) if not _found(one, paths)]):
        raise NotReady(
            f"/dev/{missing[0]} does not exist, and imex_required refuses containers without it; does nvidia-imex run, "
            "and was the channel made (nvidia-modprobe, or NVreg_CreateImexChannel0=1)?"
        )
    patterns = [*(one for name in access.beside for one in _PATTERNS[name]), *_channels(access)]
    nodes = dict.fromkeys(node for one in patterns for node in _found(one, paths))
    mounts = _gds_files(paths) if "gds" in access.beside and _found(_PATTERNS["gds"][0], paths) else ()
    return Grant(nodes=tuple(nodes), mounts=tuple(mounts))


def missing(access: Access, paths: "NodePaths") -> Sequence[str]:
    """Return a sentence for all that is asked for and is not on the node."""
    wanted: dict[str, str] = {name: _PATTERNS[name][0] for name in access.beside}
    channels = {f"IMEX channel {number}": f"{_CHANNEL}{number}" for number in access.imex_channels}
    return [
        f"containers get no {name}: the node has no /dev/{pattern}"
        for name, pattern in {**wanted, **channels}.items()
        if not _found(pattern, paths)
    ]


def _channels(access: Access) -> Sequence[str]:
    return [f"{_CHANNEL}{number}" for number in access.imex_channels]


def _found(pattern: str, paths: "NodePaths") -> Sequence[DeviceNode]:
    """Return the nodes of a pattern: those of the driver's /dev, else those of the node's."""
    for folder in dict.fromkeys((paths.dev, paths.host_dev)):
        found = [one for one in folder.glob(pattern) if not one.is_dir()]
        if found:
            return [_node(one, folder, paths) for one in sorted(found, key=lambda one: (len(one.name), one.name))]
    return []


def _node(node: Path, folder: Path, paths: "NodePaths") -> DeviceNode:
    return DeviceNode(paths.on_node(node), f"/dev/{node.relative_to(folder)}", permissions="rw")


def _gds_files(paths: "NodePaths") -> Iterator[DeviceMount]:
    for name in _GDS_FILES if paths.programs else ():
        if (file := paths.node / name).exists():
            yield DeviceMount(paths.on_node(file), f"/{name}")

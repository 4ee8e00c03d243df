"""One CDI spec as a document: devices by UUID and `all`, and what every container with one of them gets.

Owns: the shape of the document, and its version: the least that has what it uses, for runtimes refuse a later one than
they know.
Refuses: to touch files.

Source: Container Device Interface, SPEC.md, "Released versions" and "CDI JSON Specification".
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nodeplug_gpu.access import VISIBLE, GpuDevice, NodePaths, device_nodes
from nodeplug_gpu.cdi.driver_files import DriverFiles

ALL: Final = "all"
"""The name of all devices of a kind together, as in NVIDIA's specs."""
LIBRARIES: Final = "/usr/local/nvidia/lib64"
"""Where NVIDIA's images look for the driver (their LD_LIBRARY_PATH)."""
_FILE: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET: Final = ("nosuid", "nodev", "noexec", "rbind", "rprivate")

Document = Mapping[str, Any]


def specification(kind: str, devices: Sequence[Document], edits: Document) -> Document:
    """Return the document.

    Args:
        kind: vendor and class.
        devices: as `device` and `all_devices` describe them.
        edits: of every container that gets one of them.
    """
    return {
        "cdiVersion": _least_version(kind, devices),
        "kind": kind,
        "devices": list(devices),
        "containerEdits": dict(edits),
    }


def device(gpu: GpuDevice, paths: NodePaths) -> Document:
    """Describe a card or an instance by its UUID.

    Raises:
        NotReady: a device node is missing.
    """
    return {"name": gpu.uuid, "containerEdits": {"deviceNodes": _nodes([gpu], paths)}}


def all_devices(gpus: Sequence[GpuDevice], paths: NodePaths) -> Document:
    """Describe devices that can be described one by one as one device.

    Raises:
        NotReady: a device node is missing.
    """
    return {"name": ALL, "containerEdits": {"deviceNodes": _nodes(gpus, paths)}}


def edits(
    files: DriverFiles,
    sonames: Mapping[str, Path],
    hooks: Sequence[Document],
    paths: NodePaths,
    *,
    hidden: bool,
) -> Document:
    """Return what every container gets.

    Args:
        files: of the driver, each of which is mounted at its own path.
        sonames: libraries that are found by LD_LIBRARY_PATH alone, since no hook makes the linker find them.
        hooks: that make the linker find libraries.
        paths: of the node.
        hidden: whether NVIDIA's runtime is to be told that there is nothing for it to do: it would add to the container
            every card that a variable of the image names.
    """
    found_by_name = {f"{LIBRARIES}/{name}": host for name, host in sonames.items()}
    plain = {**files.libraries, **files.others, **found_by_name}
    mounts = [_mount(paths.on_node(host), inside, _FILE) for inside, host in plain.items()]
    mounts += [_mount(paths.on_node(host), inside, _SOCKET) for inside, host in files.sockets.items()]
    found: dict[str, Any] = {"mounts": sorted(mounts, key=lambda mount: mount["containerPath"])} if mounts else {}
    found |= {"env": [f"{VISIBLE}=void"]} if hidden else {}
    return found | ({"hooks": list(hooks)} if hooks else {})


def _mount(host: str, inside: str, options: Iterable[str]) -> dict[str, Any]:
    return {"hostPath": host, "containerPath": inside, "options": list(options)}


def _nodes(gpus: Sequence[GpuDevice], paths: NodePaths) -> list[Mapping[str, str]]:
    return [
        {"path": node.container_path, "permissions": "rw"}
        | ({"hostPath": node.host_path} if node.host_path != node.container_path else {})
        for node in device_nodes(gpus, paths)
    ]


def _least_version(kind: str, devices: Sequence[Document]) -> str:
    nodes = [node for one in devices for node in one["containerEdits"]["deviceNodes"]]
    if "." in kind.rpartition("/")[2]:
        return "0.6.0"
    if any("hostPath" in node for node in nodes) or any(one["name"][0].isdigit() for one in devices):
        return "0.5.0"
    return "0.3.0"

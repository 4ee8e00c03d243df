"""The files of the installed driver that a container needs, and where they belong in it.

Owns: the search below the driver's root, and the links between libraries. Only libraries of the version that runs are
taken: those of another one would not talk to the kernel's driver.
Refuses: to open what it finds, but for the first bytes of a library.

Source: what NVIDIA's container toolkit lists (pkg/nvcdi/driver-nvml.go, internal/discover/graphics.go).
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug_gpu.driver.folders import FOLDERS

_FOLDERS: Final = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib")
_WANTED: Final = re.compile(
    r"(libcuda|libnvidia-ml|libnvidia-ptxjitcompiler|libnvidia-nvvm|libcudadebugger|libnvidia-encode|libnvcuvid"
    r"|libnvidia-opencl)\.so\.(1|4)"
)
_BELOW: Final = ("", "nvidia/current", "vdpau")
"""Where distributions put the driver's libraries, below a folder of libraries."""
_OWN_VERSION: Final = re.compile(r"libnvidia-(egl-(gbm|wayland2?|xcb|xlib)\.so\.[0-9]+\.[0-9.]+|nvvm70\.so\.[0-9]+)")
"""Libraries of the driver that do not carry its version."""
_PROGRAMS: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_PROGRAM_FOLDERS: Final = ("usr/bin", "bin", "usr/sbin", "sbin", "usr/local/bin", "usr/local/nvidia/bin")
_FIRMWARE_FOLDERS: Final = ("lib/firmware", "usr/lib/firmware")
_SOCKETS: Final = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_CONFIGURATION: Final = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "OpenCL/vendors/nvidia.icd",
    "nvidia/nvoptix.bin",
)
_ELF_32: Final = b"\x7fELF\x01"
_LIBCUDA: Final = re.compile(r"libcuda\.so\.[0-9]{3,}(\.[0-9]+)+")
_VERSION: Final = re.compile(r"[0-9]{3,}(\.[0-9]+)+")


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What belongs to the running driver.

    Attributes:
        libraries: the path of each in a container, and on this node.
        others: the same for programs, firmware and configuration.
        sockets: the same for sockets of the driver's daemons.
        links: target and path of each link between libraries, in a container.
    """

    libraries: Mapping[str, Path]
    others: Mapping[str, Path]
    sockets: Mapping[str, Path]
    links: tuple[tuple[str, str], ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the libraries in a container."""
        return tuple(dict.fromkeys(inside.rpartition("/")[0] for inside in self.libraries))


def find(root: Path, version: str) -> DriverFiles:
    """Return the files of a version below the driver's root; without libraries of that version, nothing.

    Args:
        root: of the driver.
        version: of the running driver.
    """
    found = {folder: _libraries(folder, version) for folder in _unique(root)} if version else {}
    libraries = {_inside(root, path): path for paths in found.values() for path in paths}
    if not any(path.name.endswith(f".so.{version}") for path in libraries.values()):
        return DriverFiles({}, {}, {}, ())
    links = [link for folder, paths in found.items() if paths for link in _links(folder, _inside(root, folder), paths)]
    others = [*_programs(root), *_firmware(root, version), *_configuration(root)]
    return DriverFiles(
        libraries,
        {_inside(root, path): path for path in others},
        {f"/{name}": root / name for name in _SOCKETS if (root / name).is_socket()},
        tuple(dict.fromkeys(links)),
    )


def other_version(root: Path, version: str) -> str:
    """Return a sentence if libcuda is installed in other versions alone than the running one; else an empty text."""
    if not _VERSION.fullmatch(version):
        return ""
    paths = [folder / name for folder in _unique(root) for name in _names(folder) if _LIBCUDA.fullmatch(name)]
    others = sorted({path.name for path in paths if not _is_for_32_bits(path)})
    if not others or f"libcuda.so.{version}" in others:
        return ""
    return (
        f"the running driver has version {version}, and below {root} is {', '.join(others)} alone: load the kernel "
        "driver that was installed, or install the libraries of the running one"
    )


def libraries(root: Path) -> Mapping[str, Path]:
    """Return the driver's libraries for CUDA by their SONAMEs, whatever their version."""
    found: dict[str, Path] = {}
    for folder in _FOLDERS:
        for path in sorted((root / folder).glob("lib*.so.*")):
            if _WANTED.fullmatch(path.name):
                found.setdefault(path.name, path)
    return dict(sorted(found.items()))


def _inside(root: Path, path: Path) -> str:
    return f"/{path.relative_to(root)}"


def _unique(root: Path) -> Iterator[Path]:
    """Yield the folders of libraries; where /lib is a link to /usr/lib, one of the two."""
    seen: set[Path] = set()
    for folder in (root / folder / below for folder in FOLDERS if folder for below in _BELOW):
        if folder.is_dir() and (real := folder.resolve()) not in seen:
            seen.add(real)
            yield folder


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(one.name for one in entries if one.name.startswith("lib") and ".so" in one.name)
    except OSError:
        return []


def _libraries(folder: Path, version: str) -> list[Path]:
    wanted = [name for name in _names(folder) if name.endswith(f".so.{version}") or _OWN_VERSION.fullmatch(name)]
    return [path for name in wanted if (path := folder / name).is_file() and not _is_for_32_bits(path)]


def _is_for_32_bits(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_ELF_32)) == _ELF_32
    except OSError:
        return True  # what cannot be read cannot be used


def _links(folder: Path, inside: str, chosen: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield the links of a folder to its chosen libraries as the node has them, and those that programs rely on."""
    files = {path.resolve(): path.name for path in chosen}
    for name in _names(folder):
        link = folder / name
        if link.is_symlink() and name not in files.values() and (file := files.get(link.resolve())):
            target = os.readlink(link)
            yield (target if "/" not in target else file), f"{inside}/{name}"
    for file in files.values():
        stem, _, version = file.partition(".so.")
        for target, name in _RELIED_ON.get(stem, ()):
            yield target.format(version=version), f"{inside}/{name}"


_RELIED_ON: Final = {
    "libcuda": (("libcuda.so.{version}", "libcuda.so.1"), ("libcuda.so.1", "libcuda.so")),
    "libnvidia-ml": (("libnvidia-ml.so.{version}", "libnvidia-ml.so.1"),),
    "libnvidia-opticalflow": (
        ("libnvidia-opticalflow.so.{version}", "libnvidia-opticalflow.so.1"),
        ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"),
    ),
    "libGLX_nvidia": (("libGLX_nvidia.so.{version}", "libGLX_indirect.so.0"),),
    "libnvidia-allocator": (
        ("libnvidia-allocator.so.{version}", "libnvidia-allocator.so.1"),
        ("../libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so"),
    ),
}
"""Links that programs open by name and that a driver's package may lack: target and name by library."""


def _programs(root: Path) -> Iterator[Path]:
    for name in _PROGRAMS:
        yield from [path for folder in _PROGRAM_FOLDERS if (path := root / folder / name).is_file()][:1]


def _firmware(root: Path, version: str) -> Iterator[Path]:
    for folder in _FIRMWARE_FOLDERS:
        if found := sorted((root / folder / "nvidia" / version).glob("gsp*.bin")):
            yield from found
            return


def _configuration(root: Path) -> Iterator[Path]:
    for name in _CONFIGURATION:
        yield from [path for folder in ("etc", "usr/share") if (path := root / folder / name).is_file()][:1]

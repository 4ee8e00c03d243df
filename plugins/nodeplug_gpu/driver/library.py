"""Which libnvidia-ml.so.1 is loaded, and whether it is still the one on disk.

Owns: the search below the driver root, and the identity of a file.
Refuses: NVML calls.
"""

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pynvml

from nodeplug_gpu.driver.folders import FOLDERS

SONAME: Final = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded library: the path under which it was found, and which file that was."""

    path: Path
    identity: tuple[int, int, int, int]

    @property
    def replaced(self) -> str:
        """Why the file is no longer the loaded one, as a sentence; empty while it is."""
        try:
            now = identity(self.path)
        except OSError:
            return f"{self.path} was removed"
        return "" if now == self.identity else f"{self.path} was replaced by another version"


def identity(path: Path) -> tuple[int, int, int, int]:
    """Return device, inode, size and modification time (ns) of the file behind a path, links followed."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def load(root: Path) -> Library:
    """Load the library below a root into pynvml, once per process.

    The dynamic loader's own search comes last, and only for the root `/`: a configured root is meant literally.

    Raises:
        FileNotFoundError: there is none; the message is a sentence.
        OSError: what is there cannot be loaded; the message is a sentence.
    """
    faults = []
    for path in (root / folder / SONAME for folder in FOLDERS):
        if not path.exists():
            continue
        try:
            found = Library(path, identity(path))  # before the load: a replacement in between is noticed
            pynvml.nvmlLib = ctypes.CDLL(str(path))
        except OSError as error:
            faults.append(str(error))  # such as a foreign architecture: the next folder may have ours
            continue
        return found
    if root == Path("/"):
        try:
            return _from_loader()
        except OSError as error:
            if "cannot open shared object file" not in str(error):
                faults.append(str(error))
    if faults:
        raise OSError(f"{SONAME} cannot be loaded: {'; '.join(faults)}")
    raise FileNotFoundError(
        f"there is no {SONAME} below {root}; is the NVIDIA driver installed, and is driver_root where it is?"
    )


def _from_loader() -> Library:
    pynvml.nvmlLib = ctypes.CDLL(SONAME)
    maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    paths = [line.split(maxsplit=5)[5] for line in maps if "libnvidia-ml.so" in line]
    if not paths:
        raise OSError(f"{SONAME} was loaded and is not among the mapped files")
    path = Path(paths[0])
    return Library(path, identity(path))

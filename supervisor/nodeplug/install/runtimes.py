"""Which container runtime the node has, and which version.

Owns: where the sockets and programs of runtimes are, and how to ask for the version: over the socket (CRI's Version,
which containerd and CRI-O both have), else by running the program.
Refuses: to draw conclusions (see `nodeplug.install.conflists` and `nodeplug.install.needs`).
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from nodeplug.config import Paths

_SOCKETS: Final = {
    "/run/containerd/containerd.sock": "containerd",
    "/run/k3s/containerd/containerd.sock": "containerd",
    "/run/crio/crio.sock": "cri-o",
}
_PROGRAMS: Final = {"containerd": "containerd", "crio": "cri-o"}
_VERSION: Final = re.compile(r"\bv?(\d+)\.(\d+)(?:\.\d+)?")
_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """A container runtime.

    Attributes:
        name: "containerd" or "cri-o".
        version: major and minor; (0, 0) if unknown.
        how: where it was found.
    """

    name: str
    version: tuple[int, int]
    how: str

    def __str__(self) -> str:
        number = ".".join(map(str, self.version)) if any(self.version) else "of unknown version"
        return f"{self.name} {number} ({self.how})"


def sockets(paths: Paths) -> dict[Path, str]:
    """Return the runtime sockets on the node, each with the runtime's name."""
    places = {paths.root / socket.lstrip("/"): name for socket, name in _SOCKETS.items()}
    return {path: name for path, name in places.items() if path.is_socket()}


def find(paths: Paths) -> list[Runtime]:
    """Return the running runtimes, else those whose program is on PATH."""
    running = [Runtime(name, _ask(path), str(path)) for path, name in sockets(paths).items()]
    if running or paths.root != Path("/"):
        return running
    programs = ((shutil.which(program), name) for program, name in _PROGRAMS.items())
    return [Runtime(name, _version_of(path), path) for path, name in programs if path]


def _version_of(program: str) -> tuple[int, int]:
    try:
        command = [program, "--version"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    return _number(done.stdout)


def _number(text: str) -> tuple[int, int]:
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _ask(socket: Path) -> tuple[int, int]:
    """Ask for the version over CRI (runtime/v1 api.proto: VersionResponse.runtime_version is field 3)."""
    try:
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            call: Any = channel.unary_unary("/runtime.v1.RuntimeService/Version")  # without serializers: bytes
            return _number(_field(call(b"", timeout=_TIMEOUT), 3))
    except grpc.RpcError:
        return 0, 0


def _field(message: bytes, wanted: int) -> str:
    """Return a string field of a protobuf message that has only strings shorter than 128 bytes, as this one does."""
    while len(message) >= 2 and message[0] & 7 == 2:
        number, size = message[0] >> 3, message[1]
        if number == wanted:
            return message[2 : 2 + size].decode("utf-8", "replace")
        message = message[2 + size :]
    return ""

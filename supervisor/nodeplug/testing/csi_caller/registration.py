"""How kubelet gets to know a CSI driver: the plugin watcher, for one driver (pkg/kubelet/pluginmanager).

Owns: the search for the driver's socket, the handshake, and the verdict that the driver is told.
Refuses: the CSINode object, and other drivers: their sockets are asked for their names alone.
"""

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from nodeplug.pb import pluginregistration_v1_pb2 as pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as pb_grpc
from nodeplug.testing.csi_caller.calls import OPTIONS, CsiFailure, CsiTimeouts, NodeCalls, answered

_PAUSE: Final = 0.05
_MAJOR: Final = "1."


@dataclass(frozen=True, slots=True)
class Registered:
    """A driver that kubelet knows.

    Attributes:
        socket: of its registration.
        inode: of that socket: another one at the path is another registration.
        endpoint: where it is called.
        node_id: what it calls this node.
        max_volumes: how many volumes the scheduler may place here; 0 means no limit.
    """

    socket: Path
    inode: int
    endpoint: Path
    node_id: str
    max_volumes: int

    @property
    def lasts(self) -> bool:
        """Whether its socket is still there: kubelet forgets the driver with it."""
        return _inode(self.socket) == self.inode


def register(folder: Path, driver: str, timeouts: CsiTimeouts, made: list[str]) -> Registered:
    """Find a driver in the plugin watcher's folder, ask it as kubelet does, and tell it the verdict.

    Args:
        folder: `plugins_registry`.
        driver: its name.
        timeouts: of each step.
        made: takes the names of the RPCs.

    Raises:
        CsiFailure: it never appears, or kubelet refuses it; then it has been told so.
    """
    end, seen = time.monotonic() + timeouts.appear, "no socket"
    while True:
        for path in _sockets(folder):
            with closing(grpc.insecure_channel(f"unix:{path}", OPTIONS)) as channel:
                stub = pb_grpc.RegistrationStub(channel)
                try:
                    grpc.channel_ready_future(channel).result(timeouts.dial)
                    info = answered("GetInfo", partial(stub.GetInfo, pb.InfoRequest(), timeout=timeouts.info))
                except (CsiFailure, grpc.FutureTimeoutError) as error:
                    seen = f"{path.name}: {error or 'nobody listens'}"
                    continue
                if (info.type, info.name) == ("CSIPlugin", driver):
                    made.append("GetInfo")
                    return _decide(stub, path, info, timeouts, made)
                seen = f"{info.type} {info.name}"
        if time.monotonic() > end:
            raise CsiFailure(
                "registration",
                f"driver name {driver} not found in the list of registered CSI drivers; found {seen} in {folder}",
            )
        time.sleep(_PAUSE)


def _decide(
    stub: pb_grpc.RegistrationStub, path: Path, info: pb.PluginInfo, timeouts: CsiTimeouts, made: list[str]
) -> Registered:
    inode = _inode(path)
    try:
        if not any(version.startswith(_MAJOR) for version in info.supported_versions):
            raise CsiFailure("GetInfo", f"None of the versions specified {list(info.supported_versions)} are supported")
        if not info.endpoint:
            raise CsiFailure("GetInfo", "the driver names no socket")
        told = NodeCalls(Path(info.endpoint), timeouts.call, made).info()
    except CsiFailure as error:
        _notify(stub, timeouts, made, str(error))
        raise
    _notify(stub, timeouts, made)
    return Registered(path, inode, Path(info.endpoint), told.node_id, told.max_volumes_per_node)


def _notify(stub: pb_grpc.RegistrationStub, timeouts: CsiTimeouts, made: list[str], error: str = "") -> None:
    made.append("NotifyRegistrationStatus")
    verdict = pb.RegistrationStatus(plugin_registered=not error, error=error)
    with suppress(grpc.RpcError):  # kubelet only logs that a driver cannot be told
        stub.NotifyRegistrationStatus(verdict, timeout=timeouts.notify)


def _sockets(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        with suppress(OSError):
            if path.is_socket() and not path.name.startswith("."):
                yield path


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0

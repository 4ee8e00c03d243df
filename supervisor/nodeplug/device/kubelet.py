"""Kubelet's side of a registration: the folders in which it looks, the socket on which it listens, and the call.

Owns: what tells one kubelet from the next, how each of both ways announces a server, and the one thread that looks into
kubelet's folders for all resources: a folder that does not answer holds up nobody but what needs it.
Refuses: to decide when to register (`registration` does).
"""

import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

import grpc
import grpc.aio

from nodeplug.contract.errors import TryAgain
from nodeplug.device.binding import Binding
from nodeplug.device.codec import encode_options
from nodeplug.device.server import API_VERSION, ResourceServer
from nodeplug.device.sockets import remove_dead_sockets
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.process.lane import Lane

Mode = Literal["register", "watcher"]
"""`register`: dial kubelet.sock. `watcher`: lie in plugins_registry until kubelet dials. Never both for a resource."""

REGISTER_DEADLINE: Final = 15.0
"""Seconds. Kubelet dials back inside the call and gives that 10 s: a shorter deadline would hide its reason."""
# Own subchannels: gRPC shares them by address, and a new kubelet would inherit the back-off of the dead one.
_CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class KubeletFolders:
    """Where kubelet looks and listens.

    Attributes:
        device_plugins: the folder of kubelet.sock; fixed in kubelet, `--root-dir` does not move it.
        plugins_registry: the plugin watcher's folder; moves with `--root-dir`.
        lane: all work in them, one piece at a time: what removes dead sockets meets none that is just being bound.
        succeeding: another daemon served before, and kubelet keeps its connections. Its sockets in plugins_registry
            stay: kubelet finds the plugin of a socket that goes by its resource, and would disconnect the successor.
    """

    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    plugins_registry: Path = Path("/var/lib/kubelet/plugins_registry")
    lane: Lane = field(default_factory=lambda: Lane("kubelet's folder of sockets"), compare=False)
    succeeding: bool = False

    def folder(self, mode: Mode) -> Path:
        """Return the folder in which sockets of that mode lie."""
        return self.device_plugins if mode == "register" else self.plugins_registry

    def sweep(self) -> None:
        """Remove our sockets behind which nobody listens, of both modes: the mode may have changed. May block."""
        remove_dead_sockets(self.device_plugins)
        if not self.succeeding:
            remove_dead_sockets(self.plugins_registry)


Identity = tuple[int, ...]


class Target(Protocol):
    """The side of a registration that is kubelet's."""

    folder: Path
    absent: str

    def identity(self) -> Identity | None:
        """What must not change while a registration holds; None while there is nothing to register with."""

    async def announce(self, server: ResourceServer, binding: Binding) -> None:
        """Make kubelet come to the server; raises PluginError when it refuses."""


@dataclass(slots=True)
class KubeletSocket:
    """Registration by a call on kubelet.sock."""

    folder: Path
    absent: str = "kubelet.sock is not there; waiting for kubelet"

    def identity(self) -> Identity | None:
        """Return device, inode and change time of kubelet.sock: a restarted kubelet can get the same inode again."""
        try:
            found = (self.folder / "kubelet.sock").stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino, found.st_ctime_ns) if stat.S_ISSOCK(found.st_mode) else None

    async def announce(self, server: ResourceServer, binding: Binding) -> None:
        """Call Register and wait: kubelet dials back before it answers. TryAgain has the reason of a failure."""
        request = pb.RegisterRequest(
            version=API_VERSION,
            endpoint=server.path.name,
            resource_name=binding.resource,
            options=encode_options(binding.route.hooks),
        )
        try:
            async with grpc.aio.insecure_channel(f"unix:{self.folder / 'kubelet.sock'}", _CHANNEL_OPTIONS) as channel:
                await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_DEADLINE)
        except grpc.aio.AioRpcError as error:
            raise TryAgain(f"kubelet did not register it: {error.code().name}: {error.details()}") from error


@dataclass(slots=True)
class PluginWatcherFolder:
    """Registration by being there: kubelet dials every socket of the folder, and again after its restarts."""

    folder: Path
    absent: str = "the plugin watcher's folder is not there; waiting for kubelet"

    def identity(self) -> Identity | None:
        """Return device and inode of the folder."""
        try:
            found = self.folder.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None

    async def announce(self, server: ResourceServer, binding: Binding) -> None:
        """Do nothing: the bound socket is the announcement."""

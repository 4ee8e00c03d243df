"""How kubelet gets to know DRA drivers, by the sockets of its plugin watcher, and whom of several it asks.

Owns: finding sockets and noticing their removal, the handshake, tries every second, and since when a driver is gone.
Refuses: claims: whoever calls a driver asks here which instance to call.

Source: kubernetes 1.36, pkg/kubelet/pluginmanager; pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from nodeplug.pb import pluginregistration_v1_pb2 as pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as pb_grpc
from nodeplug.testing.dra.timeouts import DraTimeouts

OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
)
VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""What kubelet knows. The first of a driver's own list that is among them is what it speaks."""
_PREFIX: Final = "k8s.io.kubelet.pkg.apis.dra."
_OTHERS: Final = frozenset({"CSIPlugin", "DevicePlugin"})
"""Types whose sockets are somebody else's in kubelet."""
Identity = tuple[int, int]


@dataclass(frozen=True)
class Instance:
    """One registered instance of a driver.

    Attributes:
        driver: its name.
        registration: the socket by which it was found.
        endpoint: where it is called.
        service: what it is called by, such as `k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin`.
    """

    driver: str
    registration: Path
    endpoint: Path
    service: str

    @property
    def connected(self) -> bool:
        """Whether somebody listens at its endpoint."""
        return alive(self.endpoint)


@dataclass
class Instances:
    """All that are registered.

    Attributes:
        folder: `plugins_registry`.
        gone: called with a driver whose last instance has been gone for `timeouts.wipe`.
        added: called with each new instance.
        timeouts: of the handshake and of the pauses.
        known: by registration socket, in the order of registration.
        refusals: why sockets were refused, in order.
        asked: how often GetInfo was answered, by driver.
    """

    folder: Path
    gone: Callable[[str], object]
    added: Callable[[Instance], object]
    timeouts: DraTimeouts
    known: dict[Path, Instance] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    _seen: dict[Path, Identity] = field(default_factory=dict)
    _due: dict[Path, float] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Look at the folder from now on, knowing nobody."""
        for store in (self.known, self._seen, self._due, self._last):
            store.clear()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name="plugin watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def of(self, driver: str) -> list[Instance]:
        """Return the instances of a driver, in the order of their registration."""
        return [one for one in list(self.known.values()) if one.driver == driver]

    def chosen(self, driver: str) -> Instance | None:
        """Return whom kubelet asks: the last registered of those that are connected, or else the last registered."""
        found = self.of(driver)
        return next((one for one in reversed(found) if one.connected), found[-1] if found else None)

    def _run(self) -> None:
        while not self._stopped.wait(self.timeouts.poll):
            self._look()
            self._notice_those_gone()

    def _look(self) -> None:
        present = self._present()
        for path in [path for path, identity in self._seen.items() if present.get(path) != identity]:
            self.known.pop(path, None)
            self._due.pop(path, None)
        self._seen = present
        for path in sorted(present):
            if path not in self.known and time.monotonic() >= self._due.get(path, 0):
                self._due[path] = time.monotonic() + self.timeouts.retry
                self._greet(path)

    def _present(self) -> dict[Path, Identity]:
        found: dict[Path, Identity] = {}
        for path in self.folder.rglob("*"):
            with suppress(OSError):
                if path.is_socket() and not path.name.startswith("."):
                    status = path.stat()
                    found[path] = (status.st_ino, status.st_ctime_ns)
        return found

    def _notice_those_gone(self) -> None:
        now = time.monotonic()
        for driver in {one.driver for one in list(self.known.values())}:
            if any(one.connected for one in self.of(driver)):
                self._last[driver] = now
        for driver, last in list(self._last.items()):
            if now - last > self.timeouts.wipe:
                del self._last[driver]
                self.gone(driver)

    def _greet(self, path: Path) -> None:
        if not alive(path):
            self.refusals.append(f"RegisterPlugin error -- dial failed at socket {path}, err: connection refused")
            return
        with closing(grpc.insecure_channel(f"unix:{path}", OPTIONS)) as channel:
            stub = pb_grpc.RegistrationStub(channel)
            try:
                info = stub.GetInfo(pb.InfoRequest(), timeout=self.timeouts.info)
            except grpc.RpcError as error:
                why = f"failed to get plugin info using RPC GetInfo at socket {path}, err: {error}"
                self.refusals.append(f"RegisterPlugin error -- {why}")
                return
            if info.type in _OTHERS:
                return
            self.asked[info.name] = self.asked.get(info.name, 0) + 1
            why = self._why_not(info, path)
            if why:
                self.refusals.append(why)
            else:
                self._register(info, path)
            verdict = pb.RegistrationStatus(plugin_registered=not why, error=why)
            with suppress(grpc.RpcError):  # kubelet only logs that a plugin cannot be told
                stub.NotifyRegistrationStatus(verdict, timeout=self.timeouts.notify)

    def _why_not(self, info: pb.PluginInfo, path: Path) -> str:
        """Return what kubelet tells a plugin that it refuses; empty if it does not."""
        prefix = "RegisterPlugin error -- "
        if info.type != "DRAPlugin":
            return f"{prefix}no handler registered for plugin type: {info.type} at socket {path}"
        if not info.endpoint:
            return f"{prefix}plugin validation failed with err: endpoint of DRA driver {info.name} is empty"
        if not any(one in VERSIONS for one in info.supported_versions):
            theirs, ours = (" ".join(f'"{one}"' for one in names) for names in (info.supported_versions, VERSIONS))
            return (
                f"{prefix}plugin validation failed with err: none of services supported by the plugin ([{theirs}]) are "
                f"supported by the kubelet ([{ours}])"
            )
        if any(str(one.endpoint) == info.endpoint for one in self.of(info.name)):
            return (
                f"{prefix}plugin registration failed with err: endpoint {info.endpoint} already registered for "
                f"DRA driver plugin {info.name}"
            )
        return ""

    def _register(self, info: pb.PluginInfo, path: Path) -> None:
        version = next(one for one in info.supported_versions if one in VERSIONS)
        instance = Instance(info.name, path, Path(info.endpoint), _PREFIX + version)
        self.known[path] = instance
        self._last[info.name] = time.monotonic()
        self.added(instance)


def alive(path: Path) -> bool:
    """Return whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.settimeout(1)
        probe.connect(str(path))
        return True
    return False

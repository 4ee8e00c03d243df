"""What drivers tell of the health of devices, by a stream.

Owns: a stream for each registered instance, opened again after a pause, and when what was told is old.
Refuses: whose devices these are: that is in the claims.

Source: kubernetes 1.36, pkg/kubelet/cm/dra/{plugin/dra_plugin_manager.go,healthinfo.go}.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from nodeplug.pb import dra_health_v1alpha1_pb2 as pb
from nodeplug.pb import dra_health_v1alpha1_pb2_grpc as pb_grpc
from nodeplug.testing.dra.instances import OPTIONS, Instance
from nodeplug.testing.dra.timeouts import DraTimeouts

_LONGEST: Final = 1024
"""Characters of a message; kubelet cuts off the rest."""
_WORDS: Final = {pb.HEALTHY: "Healthy", pb.UNHEALTHY: "Unhealthy"}
Key = tuple[str, str, str]
"""Driver, pool and device."""


@dataclass(frozen=True)
class Told:
    """What was said of a device.

    Attributes:
        health: `Healthy`, `Unhealthy` or `Unknown`.
        message: why.
        until: when that is old, by the monotonic clock.
    """

    health: str
    message: str
    until: float


@dataclass
class Health:
    """What all drivers have told.

    Attributes:
        timeouts: of streams and of what they tell.
        streams: how many were opened, by driver.
    """

    timeouts: DraTimeouts
    streams: dict[str, int] = field(default_factory=dict)
    _told: dict[Key, Told] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _calls: list[Any] = field(default_factory=list)

    def follow(self, instance: Instance) -> None:
        """Open a stream to an instance, again and again until it has no such service."""
        thread = threading.Thread(target=self._run, args=(instance,), name=f"health of {instance.driver}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def of(self, key: Key) -> Told:
        """Return what is known of a device now; nobody is healthy by default."""
        told = self._told.get(key)
        return told if told is not None and time.monotonic() < told.until else Told("Unknown", "", 0)

    def stop(self) -> None:
        """End every stream and forget what was told."""
        self._stopped.set()
        for call in self._calls:
            call.cancel()
        for thread in self._threads:
            thread.join(5)
        self._threads, self._calls, self._told, self._stopped = [], [], {}, threading.Event()

    def _run(self, instance: Instance) -> None:
        stopped = self._stopped
        while not stopped.is_set():
            try:
                for answer in self._stream(instance):
                    self._keep(instance.driver, answer)
            except grpc.RpcError as error:
                failed: Any = error
                if failed.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
            if not instance.registration.exists():
                return
            stopped.wait(self.timeouts.health)

    def _stream(self, instance: Instance) -> Iterator[pb.NodeWatchResourcesResponse]:
        with closing(grpc.insecure_channel(f"unix:{instance.endpoint}", OPTIONS)) as channel:
            call = pb_grpc.DRAResourceHealthStub(channel).NodeWatchResources(pb.NodeWatchResourcesRequest())
            self._calls.append(call)
            self.streams[instance.driver] = self.streams.get(instance.driver, 0) + 1
            try:
                yield from call
            finally:
                with suppress(ValueError):
                    self._calls.remove(call)

    def _keep(self, driver: str, answer: pb.NodeWatchResourcesResponse) -> None:
        """Keep a full list: of devices that it leaves out, what was told before gets old."""
        for one in answer.devices:
            seconds = one.health_check_timeout_seconds or self.timeouts.stale
            key = (driver, one.device.pool_name, one.device.device_name)
            health = _WORDS.get(one.health, "Unknown")
            self._told[key] = Told(health, one.message[:_LONGEST], time.monotonic() + seconds)

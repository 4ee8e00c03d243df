"""A device plugin's own socket, called directly: kubelet's stand-in chooses ids by itself, rules must choose.

Owns: one connection to the socket that the daemon registered, and the calls that kubelet makes there.
Refuses: kubelet's tables; `Kubelet` has them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import grpc

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.verdict import Broken

_REFUSALS: Final = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT})
"""What Exhausted and InvalidRequest are on the wire."""


class Refused(Broken):
    """An Allocate was refused for what it asks: Exhausted or InvalidRequest. Not every refusal breaks a rule."""


class PluginSocket:
    """A connection.

    Args:
        path: the registered socket.
        patience: seconds for one call; an Allocate has twice as many, so that the daemon, which ends it after ten
            seconds, says why.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}")
        self._stub = pb_grpc.DevicePluginStub(self._channel)
        self._patience = patience

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def devices(self) -> dict[str, bool]:
        """Return the first list of a stream: by id, whether it is healthy.

        Raises:
            Broken: no list came.
        """
        stream = self._stub.ListAndWatch(pb.Empty(), timeout=self._patience)
        try:
            return {device.ID: device.health == "Healthy" for device in next(iter(stream)).devices}
        except (grpc.RpcError, StopIteration) as error:
            raise Broken(f"ListAndWatch ended with {_told(error)}") from None
        finally:
            stream.cancel()

    def choose(self, ids: Sequence[str], size: int) -> list[str]:
        """Choose devices as kubelet does: those that the plugin prefers, filled up in the order given.

        Args:
            ids: what is free.
            size: how many, at most as many as there are.

        Raises:
            Broken: the plugin has preferences and failed to tell them.
        """
        preferred: Sequence[str] = ()
        try:
            if self._stub.GetDevicePluginOptions(pb.Empty(), timeout=self._patience).get_preferred_allocation_available:
                asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=size)
                request = pb.PreferredAllocationRequest(container_requests=[asked])
                answer = self._stub.GetPreferredAllocation(request, timeout=self._patience)
                preferred = answer.container_responses[0].deviceIDs if answer.container_responses else ()
        except grpc.RpcError as error:
            raise Broken(f"GetPreferredAllocation of {size} ended with {_told(error)}") from None
        free = frozenset(ids)
        return list(dict.fromkeys((*(name for name in preferred if name in free), *ids)))[:size]

    def allocate(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Allocate devices to a container.

        Raises:
            Refused: the plugin does not grant these, with Exhausted or InvalidRequest.
            Broken: it failed otherwise.
        """
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            return self._stub.Allocate(request, timeout=2 * self._patience).container_responses[0]
        except grpc.RpcError as error:
            kind = Refused if _code(error) in _REFUSALS else Broken
            raise kind(f"Allocate of {few(ids)} ended with {_told(error)}") from None

    def prestart(self, ids: Sequence[str]) -> None:
        """Do what kubelet does before each start of a container.

        Raises:
            Broken: it was refused.
        """
        try:
            self._stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=self._patience)
        except grpc.RpcError as error:
            raise Broken(f"PreStartContainer of {few(ids)} ended with {_told(error)}") from None


def _code(error: BaseException) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call) else None


def _told(error: BaseException) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return type(error).__name__

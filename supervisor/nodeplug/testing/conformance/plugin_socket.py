"""A device plugin's own socket, called directly: kubelet's stand-in chooses ids by itself, rules must choose.

Owns: one connection to the socket that the daemon registered, and the calls that kubelet makes there.
Refuses: kubelet's tables; `Kubelet` has them.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.testing.conformance.rules import Broken


class PluginSocket:
    """A connection.

    Args:
        path: the registered socket.
        patience: seconds for one call.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._channel = grpc.insecure_channel(f"unix:{path}")
        self._stub = pb_grpc.DevicePluginStub(self._channel)
        self._patience = patience

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def allocate(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Allocate devices to a container.

        Raises:
            Broken: it was refused.
        """
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            return self._stub.Allocate(request, timeout=self._patience).container_responses[0]
        except grpc.RpcError as error:
            raise Broken(f"Allocate of {', '.join(ids)} ended with {_told(error)}") from None

    def prestart(self, ids: Sequence[str]) -> None:
        """Do what kubelet does before each start of a container.

        Raises:
            Broken: it was refused.
        """
        try:
            self._stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=self._patience)
        except grpc.RpcError as error:
            raise Broken(f"PreStartContainer of {', '.join(ids)} ended with {_told(error)}") from None


def _told(error: BaseException) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return type(error).__name__

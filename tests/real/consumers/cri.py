"""The container runtime interface, as far as pod sandboxes go (CRI runtime/v1, api.proto).

Owns: the message types, in a descriptor pool of their own so that no other copy of CRI in the process collides with
them, and one method per call.
Refuses: containers and images: `ctr` and kubelet deal with those.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import grpc
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

# A map is a list of pairs on the wire, and declared so here.
_SCHEMA: Final = """
Pair: string key=1, string value=2
VersionRequest: string version=1
VersionResponse: string version=1, string runtime_name=2, string runtime_version=3, string runtime_api_version=4
StatusRequest: bool verbose=1
RuntimeCondition: string type=1, bool status=2, string reason=3, string message=4
RuntimeStatus: RuntimeCondition* conditions=1
StatusResponse: RuntimeStatus status=1, Pair* info=2
PodSandboxMetadata: string name=1, string uid=2, string namespace=3, uint32 attempt=4
DNSConfig: string* servers=1, string* searches=2, string* options=3
PortMapping: int32 protocol=1, int32 container_port=2, int32 host_port=3, string host_ip=4
LinuxPodSandboxConfig: string cgroup_parent=1
PodSandboxConfig: PodSandboxMetadata metadata=1, string hostname=2, string log_directory=3, DNSConfig dns_config=4, \
PortMapping* port_mappings=5, Pair* labels=6, Pair* annotations=7, LinuxPodSandboxConfig linux=8
RunPodSandboxRequest: PodSandboxConfig config=1, string runtime_handler=2
RunPodSandboxResponse: string pod_sandbox_id=1
StopPodSandboxRequest: string pod_sandbox_id=1
StopPodSandboxResponse:
RemovePodSandboxRequest: string pod_sandbox_id=1
RemovePodSandboxResponse:
PodSandboxNetworkStatus: string ip=1
PodSandboxStatus: string id=1, PodSandboxMetadata metadata=2, int32 state=3, int64 created_at=4, \
PodSandboxNetworkStatus network=5
PodSandboxStatusRequest: string pod_sandbox_id=1, bool verbose=2
PodSandboxStatusResponse: PodSandboxStatus status=1, Pair* info=2
PodSandbox: string id=1, PodSandboxMetadata metadata=2, int32 state=3
ListPodSandboxRequest:
ListPodSandboxResponse: PodSandbox* items=1
"""
_SCALARS: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
}


def _fields(text: str) -> Iterator[FieldDescriptorProto]:
    for part in filter(None, map(str.strip, text.split(","))):
        kind, _, rest = part.partition(" ")
        name, _, number = rest.partition("=")
        field = FieldDescriptorProto(name=name, number=int(number), label=FieldDescriptorProto.LABEL_OPTIONAL)
        if kind.endswith("*"):
            field.label = FieldDescriptorProto.LABEL_REPEATED
        if (scalar := _SCALARS.get(kind.rstrip("*"))) is not None:
            field.type = scalar
        else:
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".runtime.v1.{kind.rstrip('*')}"
        yield field


@cache
def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name="cri.proto", package="runtime.v1", syntax="proto3")
    for line in _SCHEMA.strip().splitlines():
        name, _, fields = line.partition(":")
        file.message_type.add(name=name).field.extend(_fields(fields))
    pool = DescriptorPool()
    pool.Add(file)
    return pool


def _type(name: str) -> Any:
    found = _pool().FindMessageTypeByName(f"runtime.v1.{name}")
    return GetMessageClass(found)


class Cri:
    """A client of one runtime.

    Args:
        socket: the runtime's socket.
        cgroup: the cgroup of every sandbox, as an absolute path in each hierarchy.
        deadline: seconds for each call; kubelet gives twice its runtimeRequestTimeout of two minutes to a sandbox.

    Every method raises grpc.RpcError as the runtime answers it.
    """

    def __init__(self, socket: Path, cgroup: str, deadline: float = 240.0) -> None:
        self._cgroup, self._deadline = cgroup, deadline
        self._channel = grpc.insecure_channel(f"unix://{socket}")

    def call(self, verb: str, **fields: Any) -> Any:
        """Call a verb with the fields of its request and return its response message."""
        answer = _type(f"{verb}Response")
        method: Callable[..., Any] = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{verb}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return method(_type(f"{verb}Request")(**fields), timeout=self._deadline, wait_for_ready=True)

    def run(
        self,
        name: str,
        *,
        annotations: Mapping[str, str] | None = None,
        ports: Sequence[Mapping[str, Any]] = (),
        servers: Sequence[str] = (),
    ) -> str:
        """Make a sandbox, network included.

        Args:
            name: the pod's name; its UID follows from it.
            annotations: of the pod.
            ports: fields of PortMapping, such as `container_port`.
            servers: DNS servers.

        Returns:
            The sandbox's id.
        """
        config = {
            "metadata": {"name": name, "uid": f"uid-{name}", "namespace": "default", "attempt": 0},
            "hostname": name,
            "dns_config": {"servers": list(servers)},
            "port_mappings": [dict(port) for port in ports],
            "annotations": [{"key": key, "value": value} for key, value in (annotations or {}).items()],
            "linux": {"cgroup_parent": self._cgroup},
        }
        return str(self.call("RunPodSandbox", config=config).pod_sandbox_id)

    def stop(self, sandbox: str) -> None:
        """Stop a sandbox: the first DEL."""
        self.call("StopPodSandbox", pod_sandbox_id=sandbox)

    def remove(self, sandbox: str) -> None:
        """Remove a sandbox: the second DEL."""
        self.call("RemovePodSandbox", pod_sandbox_id=sandbox)

    def address(self, sandbox: str) -> str:
        """Return the sandbox's first address, as kubelet learns it."""
        return str(self.call("PodSandboxStatus", pod_sandbox_id=sandbox).status.network.ip)

    def sandboxes(self) -> list[str]:
        """Return the ids of all sandboxes, stopped ones included."""
        return [item.id for item in self.call("ListPodSandbox").items]

    def conditions(self) -> dict[str, tuple[bool, str]]:
        """Return each condition of the runtime: whether it holds, and the message."""
        return {entry.type: (entry.status, entry.message) for entry in self.call("Status").status.conditions}

    def loaded(self) -> str:
        """Return the network configuration that the runtime has loaded, in JSON."""
        info = {pair.key: str(pair.value) for pair in self.call("Status", verbose=True).info}
        return info["cniconfig"]

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Device values and kubelet's v1beta1 messages, in both directions.

Owns: every rule of the device-plugin API that can be checked without a node: ids, sizes, options, what an Allocate may
name, what a preference may answer.
Refuses: I/O, asyncio, gRPC. Pure functions; each either answers or raises a PluginError.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nodeplug.contract.errors import Exhausted, InvalidRequest, NotFound, NotReady, PluginError
from nodeplug.contract.values.devices import (
    Device,
    DeviceAllocate,
    DeviceId,
    DeviceMount,
    DeviceNode,
    DevicePrefer,
    DevicePrestart,
    Grant,
    ResourceName,
)
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
ID_LIMIT: Final = 63
"""Characters of a device id, as the device-plugin API documents it."""
LIST_LIMIT: Final = 1 << 20
"""Bytes of a device list when all devices are unhealthy.

Kubelet receives at most 4 MiB and ends the stream otherwise. A quarter of that leaves room for its checkpoint and for
the pod status, which carry every id again.
"""
_INT64_MAX: Final = (1 << 63) - 1
_DESCRIBING: Final = (str, int, bool)


def encode_options(hooks: frozenset[str]) -> pb.DevicePluginOptions:
    """Derive the options that kubelet gets for a plugin from the hooks that it has.

    The same message belongs in RegisterRequest (read only by old kubelets) and in the answer of
    GetDevicePluginOptions (read only by new kubelets).
    """
    return pb.DevicePluginOptions(
        pre_start_required="device_prestart" in hooks,
        get_preferred_allocation_available="device_prefer" in hooks,
    )


def encode_list(resource: ResourceName, devices: Sequence[Device]) -> pb.ListAndWatchResponse:
    """Write a full list.

    Raises:
        InvalidRequest: an empty, over-long, repeated or unencodable id, a negative NUMA node, a field of a wrong type.
        Exhausted: the list would exceed LIST_LIMIT with every device unhealthy.
    """
    try:
        _check_ids(resource, devices)
        _check_nodes(resource, devices)
        _check_descriptions(resource, devices)
        message = _all_unhealthy(devices)
    except (TypeError, AttributeError, ValueError) as error:
        raise InvalidRequest(f"a device of {resource} has a field of a wrong type: {error}") from error
    if (size := message.ByteSize()) <= LIST_LIMIT:
        for encoded, device in zip(message.devices, devices, strict=True):
            if device.healthy:
                encoded.health = HEALTHY
        return message
    raise Exhausted(
        f"the list of {resource} has {len(devices)} devices and up to {size} bytes, at most {LIST_LIMIT} are sent "
        "(kubelet ends the stream at 4194304); offer fewer, larger units or shorter ids"
    )


def overlapping(resource: ResourceName, devices: Sequence[Device]) -> str:
    """Say why kubelet may get none of a list: it would give away at once what devices have in common; else empty."""
    for name, of in ((one.id, one.counters.of) for one in devices if one.counters is not None):
        return (
            f"{resource} lists {name!r}, which overlaps other devices of counter set {of!r}, and kubelet's device "
            'plugins cannot count what these take of one another: serve the section by claims (serve = "dra")'
        )
    return ""


def _check_nodes(resource: ResourceName, devices: Sequence[Device]) -> None:
    for device in devices:
        if not all(0 <= node <= _INT64_MAX for node in device.numa_nodes):
            raise InvalidRequest(
                f"device {device.id!r} of {resource} names NUMA nodes {device.numa_nodes}; nodes count from 0, "
                "leave numa_nodes empty where the kernel says -1"
            )


def _check_descriptions(resource: ResourceName, devices: Sequence[Device]) -> None:
    """Refuse what a device says of itself in words or numbers that could not be shown."""
    for device in devices:
        amounts = [device.capacity] if device.part is None else [device.capacity, device.part.amount]
        wrong = [f"attribute {name!r}" for name, value in device.attributes.items() if type(value) not in _DESCRIBING]
        wrong += [
            f"capacity {name!r}"
            for capacity in amounts
            for name, amount in capacity.items()
            if type(amount) is not int or amount < 0
        ]
        if wrong:
            raise InvalidRequest(
                f"device {device.id!r} of {resource} has no usable {wrong[0]}: an attribute is text, integer or bool, "
                "a capacity counts from 0"
            )


def worst_case_size(devices: Sequence[Device]) -> int:
    """Return the bytes of a list in which every device is unhealthy: the longest health word.

    Kubelet's limit must hold at the moment when a whole card fails, not only on a good day.
    """
    return _all_unhealthy(devices).ByteSize()


def _check_ids(resource: ResourceName, devices: Sequence[Device]) -> None:
    seen: set[str] = set()
    for device in devices:
        name = device.id
        if not name:
            raise InvalidRequest(f"a device of {resource} has an empty id; give each one a name that lasts")
        if len(name) > ID_LIMIT:
            raise InvalidRequest(
                f"device {name!r} of {resource} has an id of {len(name)} characters; the API allows {ID_LIMIT}"
            )
        if not _is_encodable(name):
            raise InvalidRequest(f"device {name!r} of {resource} has an id that is not valid UTF-8 text")
        if name in seen:
            raise InvalidRequest(f"device {name!r} of {resource} is listed twice; ids are unique in a resource")
        seen.add(name)


def _is_encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _all_unhealthy(devices: Sequence[Device]) -> pb.ListAndWatchResponse:
    message = pb.ListAndWatchResponse()
    for device in devices:
        added = message.devices.add(ID=device.id, health=UNHEALTHY)
        # Only touch topology when there is a node: old kubelets take an empty one for "no possible hint" and reject
        # pods.
        for node in device.numa_nodes:
            added.topology.nodes.add(ID=node)
    return message


def decode_allocate(
    resource: ResourceName, request: pb.AllocateRequest, devices: Mapping[DeviceId, Device]
) -> tuple[DeviceAllocate, ...]:
    """Read an Allocate against the list that kubelet got last: one value per container (kubelet sends one per call).

    Raises:
        InvalidRequest: no container, a container without ids, or an id named twice.
        NotFound: an id that is not listed.
        NotReady: an id whose device is unhealthy, and not withheld.
    """
    if not request.container_requests:
        raise InvalidRequest(f"Allocate for {resource} names no container")
    taken: set[str] = set()
    values = []
    for container in request.container_requests:
        ids = _decode_ids("Allocate", resource, container.devices_ids)
        for name in ids:
            if name in taken:
                raise InvalidRequest(f"Allocate for {resource} names device {name!r} for two containers")
        taken.update(ids)
        values.append(
            DeviceAllocate(resource=resource, ids=ids, devices=tuple(_usable(resource, name, devices) for name in ids))
        )
    return tuple(values)


def _decode_ids(verb: str, resource: ResourceName, names: Sequence[str]) -> tuple[DeviceId, ...]:
    if not names:
        raise InvalidRequest(f"{verb} for {resource} names no device")
    ids = tuple(DeviceId(name) for name in names)
    if len(set(ids)) != len(ids):
        twice = next(name for name, count in Counter(ids).items() if count > 1)
        raise InvalidRequest(f"{verb} for {resource} names device {twice!r} twice")
    return ids


def _usable(resource: ResourceName, name: DeviceId, devices: Mapping[DeviceId, Device]) -> Device:
    device = devices.get(name)
    if device is None:
        raise NotFound(f"device {name!r} is not among the {len(devices)} devices of {resource}; it may have gone")
    if not device.healthy and not device.withheld:
        reason = device.reason or "the plugin gave no reason"
        raise NotReady(f"device {name!r} of {resource} is unhealthy: {reason}")
    return device


def encode_allocate(grants: Sequence[Grant]) -> pb.AllocateResponse:
    """Write the answer of an Allocate, one grant per container of the request.

    Raises:
        PluginError: a grant that kubelet or the runtime would refuse later and less clearly.
    """
    return pb.AllocateResponse(container_responses=[_encode_grant(grant) for grant in grants])


def _encode_grant(grant: Grant) -> pb.ContainerAllocateResponse:
    try:
        return pb.ContainerAllocateResponse(
            envs=_checked_pairs("env", grant.env),
            mounts=[_encode_mount(mount) for mount in grant.mounts],
            devices=[_encode_node(node) for node in grant.nodes],
            annotations=_checked_pairs("annotation", grant.annotations),
            cdi_devices=[pb.CDIDevice(name=_checked_cdi(name)) for name in grant.cdi],
        )
    except (TypeError, ValueError) as error:
        raise PluginError(f"the grant cannot be sent to kubelet: {error}") from error


def _checked_pairs(what: str, pairs: Mapping[str, str]) -> dict[str, str]:
    for name in pairs:
        if not name or "\0" in name or (what == "env" and "=" in name):
            raise PluginError(f"the grant has an {what} named {name!r}; names are not empty and hold no '=' and no NUL")
    return dict(pairs)


def _encode_mount(mount: DeviceMount) -> pb.Mount:
    return pb.Mount(
        container_path=_absolute("mount", mount.container_path),
        host_path=_absolute("mount", mount.host_path),
        read_only=mount.read_only,
    )


def _encode_node(node: DeviceNode) -> pb.DeviceSpec:
    if not node.permissions or set(node.permissions) - set("rwm"):
        raise PluginError(
            f"the grant gives {node.host_path} the permissions {node.permissions!r}; any of r, w, m are known"
        )
    return pb.DeviceSpec(
        container_path=_absolute("device", node.container_path or node.host_path),
        host_path=_absolute("device", node.host_path),
        permissions=node.permissions,
    )


def _absolute(what: str, path: str) -> str:
    if not path.startswith("/"):
        raise PluginError(f"the grant names the {what} path {path!r}; paths of grants are absolute")
    return path


def _checked_cdi(name: str) -> str:
    kind, equals, device = name.partition("=")
    vendor, slash, cls = kind.partition("/")
    if not (equals and slash and vendor and cls and device):
        raise PluginError(f"the grant names the CDI device {name!r}; the form is vendor.com/class=name")
    return name


def decode_prefer(resource: ResourceName, request: pb.PreferredAllocationRequest) -> tuple[DevicePrefer, ...]:
    """Read a GetPreferredAllocation: one value per container.

    Nothing is refused: an error here rejects the pod, while kubelet can do without an answer.
    """
    return tuple(
        DevicePrefer(
            resource=resource,
            available=tuple(DeviceId(name) for name in container.available_deviceIDs),
            must_include=tuple(DeviceId(name) for name in container.must_include_deviceIDs),
            size=container.allocation_size,
        )
        for container in request.container_requests
    )


@dataclass(frozen=True, slots=True)
class Preference:
    """What of a plugin's preference kubelet can use, and what was wrong with the rest."""

    ids: tuple[DeviceId, ...]
    complaint: str = ""


def usable_preference(request: DevicePrefer, answer: Sequence[DeviceId] | None) -> Preference:
    """Keep what kubelet can use of an answer: available ids, each once, at most `size` of them.

    Kubelet fills up a short answer at random and old ones stumble over foreign ids, so these are dropped here and
    named in the complaint, for the log.
    """
    if answer is None:
        return Preference(())
    available = set(request.available)
    usable = tuple(dict.fromkeys(name for name in answer if name in available))
    foreign = [name for name in answer if name not in available]
    complaints = []
    if foreign:
        complaints.append(f"{len(foreign)} ids that are not available, such as {foreign[0]!r}")
    if len(usable) + len(foreign) != len(answer):
        complaints.append("ids named twice")
    if len(usable) != request.size:
        complaints.append(f"{len(usable)} usable ids where {request.size} were asked for")
    missing = [name for name in request.must_include if name not in usable]
    if missing:
        complaints.append(f"no {missing[0]!r}, which must be included")
    return Preference(usable[: request.size], "; ".join(complaints))


def encode_prefer(answers: Sequence[Sequence[DeviceId]]) -> pb.PreferredAllocationResponse:
    """Write the answer of a GetPreferredAllocation; an empty answer leaves the choice to kubelet."""
    return pb.PreferredAllocationResponse(
        container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in answers]
    )


def decode_prestart(resource: ResourceName, request: pb.PreStartContainerRequest) -> DevicePrestart:
    """Read a PreStartContainer.

    Unhealthy and vanished devices pass: the container holds them already, and the plugin decides.

    Raises:
        InvalidRequest: no id, or an id named twice.
    """
    return DevicePrestart(resource=resource, ids=_decode_ids("PreStartContainer", resource, request.devices_ids))

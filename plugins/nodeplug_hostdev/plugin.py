"""The plugin itself: configured groups in, devices out.

Owns: which nodes are devices of which resource, the shares of each, and what a container gets with them.
Refuses: to count who holds what (kubelet does), and to forget a node that vanished while a container may still hold it.

A node that was listed and vanished stays listed as unhealthy until it comes back, until kubelet reports that a
container released it, until thousands vanished after it, or until the daemon restarts: kubelet shows a device that is
no longer listed as healthy in the status of the pod that holds it. A node that was never there is not listed.
"""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import ClassVar, Final

from nodeplug import (
    Claim,
    Device,
    DeviceAllocate,
    DeviceClaim,
    DeviceId,
    DeviceList,
    DeviceMount,
    DeviceNode,
    DevicePrefer,
    DeviceReleased,
    Example,
    Grant,
    Host,
    InvalidRequest,
    ResourceName,
    hookimpl,
)
from nodeplug_hostdev import nodes, watch
from nodeplug_hostdev.config import Group, HostDevConfig, Node, Resource

_SHARE: Final = "::"
_REMEMBERED: Final = 4096
"""Vanished devices that stay listed, per resource; at most a third of the bytes that a list may have.

Nodes with a new name at each plugging, such as USB, would otherwise fill the list, and a list that is too long is not
sent at all.
"""
_Listed = dict[DeviceId, tuple[Device, str]]
"""By id, a device and the path of its node."""


class HostDev:
    """Device nodes of the host as extended resources."""

    Config = HostDevConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "config": {
            "resources": [{"resource": "example.com/zero", "groups": [{"nodes": [{"path": "/dev/zero"}], "count": 4}]}]
        }
    }

    def __init__(self, config: HostDevConfig, host: Host) -> None:
        self._host = host
        self._watch = config.watch
        self._resources = {ResourceName(entry.resource): entry for entry in config.resources}
        self._lock = threading.Lock()  # a listing and a release run in threads of their own
        self._present: dict[ResourceName, _Listed] = {name: {} for name in self._resources}
        self._gone: dict[ResourceName, _Listed] = {name: {} for name in self._resources}
        self._watcher: watch.Watcher | None = None

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim every configured resource."""
        return [DeviceClaim(name) for name in self._resources]

    @hookimpl
    def start(self) -> None:
        """Start watching; without inotify the daemon's poll still finds every change."""
        if not self._watch:
            return
        patterns = {
            str(name): [node.path for group in entry.groups for node in group.nodes]
            for name, entry in self._resources.items()
        }
        try:
            self._watcher = watch.Watcher(patterns, self._host.refresh, self._host.log)
        except OSError as error:
            self._host.log.warning("cannot watch for nodes: %s; the poll goes on", error.strerror)

    @hookimpl
    def stop(self) -> None:
        """End the watching thread."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    @hookimpl
    def device_list(self, request: DeviceList) -> Sequence[Device]:
        """List every node that matches now, and those that vanished and may still be held."""
        resource, entry = request.resource, self._resources[request.resource]
        present: _Listed = {}
        taken: set[str] = set()
        unmountable = _unmountable(entry)
        for group in entry.groups:
            paths = [path for path in nodes.matches(group.nodes[0].path) if path not in taken][: group.limit]
            taken.update(paths)
            for path in paths:
                present.update(_shares(entry, group, path, unmountable))
        with self._lock:
            before = self._gone[resource] | self._present[resource]  # the oldest losses first
            gone = {name: known for name, known in before.items() if name not in present}
            gone = dict(list(gone.items())[-_REMEMBERED:])
            self._present[resource], self._gone[resource] = present, gone
        return [*(device for device, _ in present.values()), *(_unlisted(*one) for one in gone.values())]

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant:
        """Return the grants of the devices.

        Raises:
            InvalidRequest: two nodes would have one path in the container.
        """
        grant = Grant.merged([device.grant for device in request.devices])
        places: dict[str, str] = {}
        for node in grant.nodes:
            other = places.setdefault(node.container_path, node.host_path)
            if other != node.host_path:
                raise InvalidRequest(
                    f"{other} and {node.host_path} would both be {node.container_path} in the container; ask for one "
                    f"{request.resource}, or write {{name}} into its container_path"
                )
        return grant

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId]:
        """Spread: different nodes for one container, first those with the most free shares."""
        chosen = dict.fromkeys(request.must_include)
        used = Counter(map(_node, chosen))
        free: dict[str, deque[DeviceId]] = {}
        for name in request.available:
            if name not in chosen:
                free.setdefault(_node(name), deque()).append(name)
        while free and len(chosen) < request.size:
            # Once per node, not per share: a few nodes may have tens of thousands of shares.
            best = min(free, key=lambda node: (used[node], -len(free[node])))
            chosen[free[best].popleft()] = None
            used[best] += 1
            if not free[best]:
                del free[best]
        return list(chosen)

    @hookimpl
    def device_released(self, request: DeviceReleased) -> None:
        """Forget vanished nodes that nobody holds any more."""
        resource = request.resource
        with self._lock:
            present, gone = self._present[resource], self._gone[resource]
            dropped = [name for name in request.ids if name in gone]
            dropped += [name for name in request.ids if name in present and not nodes.exists(present[name][1])]
            for name in dropped:
                present.pop(name, None)
                gone.pop(name, None)
        if dropped:
            self._host.refresh(resource)


def _node(name: DeviceId) -> str:
    return name.partition(_SHARE)[0]


def _unlisted(device: Device, path: str) -> Device:
    reason = "is beyond the limit of its group now" if nodes.exists(path) else "was there and is gone"
    return replace(device, healthy=False, reason=f"{path} {reason}")


def _unmountable(entry: Resource) -> str:
    """Return why a container could not be started with the mounts of its resource, or an empty text."""
    reasons = (nodes.absence(mount.host_path) for mount in entry.mounts)
    return next(
        (f"{reason}; each container of {entry.resource} gets it as a mount" for reason in reasons if reason), ""
    )


def _shares(entry: Resource, group: Group, path: str, unmountable: str) -> _Listed:
    reason, granted = _granted(group, path)
    reason = reason or unmountable
    grant = Grant(
        env=entry.env,
        nodes=granted,
        mounts=tuple(DeviceMount(one.host_path, one.container_path, read_only=one.read_only) for one in entry.mounts),
    )
    numa, attributes = nodes.numa_nodes(path), {"path": path}
    ids = [nodes.device_id(path, share) for share in range(group.count)]
    return {
        name: (
            Device(name, healthy=not reason, reason=reason, numa_nodes=numa, grant=grant, attributes=attributes),
            path,
        )
        for name in ids
    }


def _granted(group: Group, path: str) -> tuple[str, tuple[DeviceNode, ...]]:
    """Probe a node and its companions; return the first fault, and the nodes that a container gets."""
    first, *companions = group.nodes
    faults = [nodes.fault(path, first.permissions, first.probe)]
    granted = [_device_node(first, path)]
    for node in companions:
        paths = nodes.matches(node.path)
        if not paths and not node.optional:
            faults.append(f"{node.path}, which goes along with {path}, matches no device node")
        faults += [nodes.fault(companion, node.permissions, node.probe) for companion in paths]
        granted += [_device_node(node, companion) for companion in paths]
    return next(filter(None, faults), ""), tuple(granted)


def _device_node(node: Node, path: str) -> DeviceNode:
    place = node.container_path.replace("{name}", PurePosixPath(path).name) or path
    return DeviceNode(path, place, permissions=node.permissions)

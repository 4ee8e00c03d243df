"""What the daemon reports about itself, as one JSON object.

Owns: the shape of `nodeplug status --json`.
Refuses: rendering, and calls to plugins: status must work while plugins hang.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from nodeplug.cni.attachments import Attachment, Key
from nodeplug.config.privileges import own_user
from nodeplug.contract.errors import clip
from nodeplug.contract.values import Device, DeviceId, ResourceName
from nodeplug.device.holders import Holder
from nodeplug.device.resource import ResourceStatus
from nodeplug.hosting.call import Call
from nodeplug.hosting.slot import Instance, Slot
from nodeplug.observe.processes import Usage
from nodeplug.observe.recorder import described
from nodeplug.volumes.ledger import Staged, Target


def unready(slots: Iterable[Slot], resources: Iterable[ResourceStatus]) -> dict[str, str]:
    """Return why plugins do not serve, by section name: not running, not healthy, or no devices listed.

    A kubelet that is down does not count: it comes back, and the plugin is not at fault.
    """
    reasons = {
        slot.name: clip(slot.reason) or f"it is {slot.state}"
        for slot in slots
        if slot.state != "running" or slot.reason
    }
    for resource in resources:
        if resource.error and not resource.listed:
            reasons.setdefault(resource.plugin, f"{resource.resource}: {clip(resource.error)}")
    return reasons


def plugins(slots: Iterable[Slot], reasons: Mapping[str, str], used: Mapping[int, Usage]) -> list[dict[str, Any]]:
    """Describe every configured plugin: claims, state and reason (see `unready`), and its process if it has one."""
    return [
        {
            "name": slot.name,
            "uses": slot.instance.uses,
            "distribution": slot.instance.distribution,
            "state": slot.state,
            "reason": clip("; ".join(filter(None, (slot.reason, slot.quarantined))))
            or (reasons.get(slot.name, "") if slot.state == "running" else ""),
            "claims": [str(claim) for claim in slot.loaded.claims] if slot.loaded else [],
            "hooks": sorted(slot.loaded.hooks) if slot.loaded else [],
            "quarantined": bool(slot.quarantined),
            "isolation": slot.instance.isolation,
            "user": _user(slot.instance),
            "python": slot.instance.section.python,
            "process": _process(slot.instance, used),
            "restarts": slot.restarts.count,
            "restarted": clip(slot.restarts.why),
        }
        for slot in slots
    ]


def _user(instance: Instance) -> str:
    """Name the user as whom a plugin runs or is to run: without a `user` the daemon's."""
    return instance.privileges.name if instance.privileges is not None else instance.section.user or own_user()


def _process(instance: Instance, used: Mapping[int, Usage]) -> dict[str, Any] | None:
    worker = instance.worker
    if worker is None or not worker.alive:
        return None
    usage = used.get(worker.pid, Usage())
    return {
        "pid": worker.pid,
        "uptime_seconds": round(time.monotonic() - worker.started, 3),
        "memory_bytes": usage.memory,
        "cpu_seconds": usage.cpu,
    }


def resources(
    statuses: Iterable[ResourceStatus],
    holders: Mapping[ResourceName, Mapping[DeviceId, Holder]],
    unconfirmed: Mapping[ResourceName, Collection[DeviceId]],
) -> list[dict[str, Any]]:
    """Describe every resource: its devices, their holders, and how many devices have an unconfirmed holder."""
    rows = []
    for status in statuses:
        held, unsure = holders.get(status.resource, {}), unconfirmed.get(status.resource, ())
        row = {
            "resource": status.resource,
            "plugin": status.plugin,
            "registered": status.registered,
            "devices": len(status.devices),
            "healthy": status.healthy,
            "allocated": sum(device.id in held for device in status.devices),
            "unconfirmed": sum(device.id in unsure for device in status.devices),
            "streams": status.streams,
            "socket": str(status.socket or ""),
            "error": clip(status.error),
            "absent": status.absent,
            "units": [_unit(device, held.get(device.id)) for device in status.devices],
        }
        rows.append(row)
    return rows


def drivers_of_claims(
    drivers: Iterable[Mapping[str, Any]], users: Callable[[str, str], Iterable[tuple[str, str]]]
) -> list[dict[str, Any]]:
    """Describe the drivers of Dynamic Resource Allocation, with the containers that use each of their claims.

    Args:
        drivers: as they describe themselves.
        users: returns the pods and containers that use a claim, by its namespace and name.
    """

    def told(claim: Mapping[str, Any]) -> dict[str, Any]:
        namespace, _, name = claim["claim"].partition("/")
        return {**claim, "containers": [f"{pod}/{container}" for pod, container in users(namespace, name)]}

    return [{**one, "claims": [told(claim) for claim in one["claims"]]} for one in drivers]


def _unit(device: Device, holder: Holder | None) -> dict[str, Any]:
    unit: dict[str, Any] = {
        "id": device.id,
        "healthy": device.healthy,
        "reason": clip(device.reason),
        "holder": f"{holder.namespace}/{holder.pod}/{holder.container}" if holder else "",
    }
    if device.attributes:
        unit["attributes"] = dict(device.attributes)
    if device.capacity:
        unit["capacity"] = dict(device.capacity)
    if device.part is not None:
        unit["part"] = {"of": device.part.of, "amount": dict(device.part.amount)}
    return unit


def attachments(records: Iterable[Attachment]) -> list[dict[str, Any]]:
    """Describe every network attachment; `by` is whose plugin asked for it, if no runtime did."""
    return [
        {
            **asdict(record.key),
            "by": record.by,
            "addresses": [str(ip.address) for ip in record.result.ips],
            "since": record.time,
        }
        for record in records
    ]


def stranded(waiting: Iterable[tuple[Key, str]]) -> list[dict[str, Any]]:
    """Describe every deferred DEL whose plugin no enabled section serves."""
    return [asdict(key) | {"reason": reason} for key, reason in waiting]


def volumes(staged: Iterable[Staged], targets: Iterable[Target]) -> list[dict[str, Any]]:
    """Describe every volume: staged ones, and published ones of drivers without staging."""
    published = list(targets)
    phases = {(item.volume.driver, item.volume.volume_id): (item.volume, item.phase) for item in staged}
    for target in published:
        phases.setdefault((target.volume.driver, target.volume.volume_id), (target.volume, target.phase))
    return [
        {
            "driver": volume.driver,
            "volume_id": volume.volume_id,
            "phase": phase,
            "staging_path": volume.staging_path,
            "targets": [target.path for target in published if (target.volume.driver, target.volume.volume_id) == key],
        }
        for key, (volume, phase) in phases.items()
    ]


def calls(in_flight: Iterable[tuple[Call, bool]]) -> list[dict[str, Any]]:
    """Describe every call in flight and whether it is overdue."""
    return [described(call) | {"age_seconds": round(call.age, 3), "overdue": overdue} for call, overdue in in_flight]

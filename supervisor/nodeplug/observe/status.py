"""What the daemon tells about itself, as one JSON object.

Owns: the shape of `nodeplug status --json`.
Refuses: rendering, and any question that costs a call into a plugin: a status must answer while plugins hang.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from nodeplug.cni.attachments import Attachment, Key
from nodeplug.contract.errors import clip
from nodeplug.contract.values import DeviceId, ResourceName
from nodeplug.device.holders import Holder
from nodeplug.device.resource import ResourceStatus
from nodeplug.flex.ledger import Staged, Target
from nodeplug.hosting.plugin_state import PluginState
from nodeplug.hosting.runner import Runner

_NAME_LIMIT: Final = 256


def unready(states: Iterable[PluginState], resources: Iterable[ResourceStatus]) -> dict[str, str]:
    """Return why plugins do not serve, by section name: one that is not running or not well, or lists no devices.

    A kubelet that is away is no reason: it comes back, and nobody on the node could do anything about it here.
    """
    reasons = {
        state.name: clip(state.reason) or f"it is {state.state}"
        for state in states
        if state.state != "running" or state.reason
    }
    for resource in resources:
        if resource.error and not resource.listed:
            reasons.setdefault(resource.plugin, f"{resource.resource}: {clip(resource.error)}")
    return reasons


def plugins(states: Iterable[PluginState], runner: Runner, reasons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Describe every configured plugin: what it answers to, and how it is or why it is not (see `unready`)."""
    return [
        {
            "name": state.name,
            "uses": state.uses,
            "distribution": state.distribution,
            "state": state.state,
            "reason": clip(state.reason) or (reasons.get(state.name, "") if state.state == "running" else ""),
            "claims": [str(claim) for claim in state.loaded.claims] if state.loaded else [],
            "hooks": sorted(state.loaded.hooks) if state.loaded else [],
            "quarantined": runner.quarantined(state.name),
        }
        for state in states
    ]


def resources(
    statuses: Iterable[ResourceStatus],
    holders: Mapping[ResourceName, Mapping[DeviceId, Holder]],
    unconfirmed: Mapping[ResourceName, Collection[DeviceId]],
) -> list[dict[str, Any]]:
    """Describe every resource, its devices, and who holds them, and of how many that is not confirmed."""
    return [
        _resource(status, holders.get(status.resource, {}), unconfirmed.get(status.resource, ())) for status in statuses
    ]


def _resource(
    status: ResourceStatus, holders: Mapping[DeviceId, Holder], unconfirmed: Collection[DeviceId]
) -> dict[str, Any]:
    return {
        "resource": status.resource,
        "plugin": status.plugin,
        "registered": status.registered,
        "devices": status.total,
        "healthy": status.healthy,
        "allocated": sum(device.id in holders for device in status.devices),
        "unconfirmed": sum(device.id in unconfirmed for device in status.devices),
        "streams": status.streams,
        "socket": str(status.socket or ""),
        "error": clip(status.error),
        "absent": status.absent,
        "units": [
            {
                "id": device.id,
                "healthy": device.healthy,
                "reason": clip(device.reason),
                "holder": _holder(holders.get(device.id)),
            }
            for device in status.devices
        ],
    }


def _holder(holder: Holder | None) -> str:
    return f"{holder.namespace}/{holder.pod}/{holder.container}" if holder else ""


def attachments(records: Iterable[Attachment]) -> list[dict[str, Any]]:
    """Describe every network attachment."""
    return [
        {
            "network": record.key.network,
            "container_id": record.key.container_id,
            "ifname": record.key.ifname,
            "claim": record.key.claim,
            "addresses": [str(ip.address) for ip in record.result.ips],
            "since": record.time,
        }
        for record in records
    ]


def stranded(waiting: Iterable[tuple[Key, str]]) -> list[dict[str, Any]]:
    """Describe every deferred DEL whose plugin no enabled section serves."""
    return [
        {
            "network": key.network,
            "container_id": key.container_id,
            "ifname": key.ifname,
            "claim": key.claim,
            "reason": reason,
        }
        for key, reason in waiting
    ]


def volumes(staged: Iterable[Staged], targets: Iterable[Target]) -> list[dict[str, Any]]:
    """Describe every volume: staged ones, and published ones of drivers that do not stage."""
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


def calls(runner: Runner) -> list[dict[str, Any]]:
    """Describe every call in flight."""
    return [
        {
            "id": call.id,
            "verb": clip(call.verb, _NAME_LIMIT),
            "claim": clip(call.claim, _NAME_LIMIT),
            "key": clip(call.key, _NAME_LIMIT),
            "about": clip(call.about or call.key, _NAME_LIMIT),
            "age_seconds": round(call.age, 3),
            "overdue": call.id in runner.overdue,
        }
        for call in runner.in_flight.values()
    ]

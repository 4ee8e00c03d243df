"""`nodeplug try` for devices that are allocated by claims: what scheduler, kubelet and a container see of them.

Owns: the steps of one claim, and how each is shown.
Refuses: the node and its configuration (`trial`), and the stand-ins themselves (`nodeplug.testing.dra`).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nodeplug.cli.effective import examine
from nodeplug.config import read
from nodeplug.contract.values import DeviceClaim
from nodeplug.dra.names import DOMAIN, RESOURCE
from nodeplug.fields import parse_quantity, write_quantity
from nodeplug.testing.dra import DraCluster, Edits
from nodeplug.testing.scratch_node import ScratchNode

_DEVICES: Final = 4
_LOST: Final = "cannot pass on "
Told = Iterator[tuple[str, str]]


def by_claim(node: ScratchNode, resource: str, _example: Mapping[str, Any]) -> Told:
    """Offer the devices of a resource to a scheduler, and show a claim of one from its allocation to its end.

    Raises:
        NotReady: there is no device, or something is left of the claim.
        Pending: the scheduler cannot allocate one.
        PrepareFailed: the plugin does not grant it.
    """
    if resource in counted(node):
        yield "count", f"{resource} is only counted: there are no claims of it"
        return
    with DraCluster(node) as cluster:
        devices = cluster.until_offered(resource)
        row, pool = next(
            (row, pool) for row in cluster.drivers() for pool in row["pools"] if pool["resource"] == resource
        )
        yield "driver", f"kubelet has registered {row['driver']}, and the scheduler sees its pool {pool['pool']}"
        for one in devices[:_DEVICES]:
            yield "device", ": ".join((one["name"], *filter(None, ["; ".join(_described(one))])))
        if more := devices[_DEVICES:]:
            yield "device", f"and {len(more)} more"
        yield from _one_claim(cluster, resource, devices)
    for lost in dict.fromkeys(line.partition(_LOST)[2] for line in node.log.splitlines() if _LOST in line):
        yield "lost", lost


def counted(node: ScratchNode) -> set[str]:
    """Return the resources of a node that nobody is allocated."""
    loaded = examine(read(node.config_path, node.root)).registry
    return {claim.name for claim, _ in loaded.claimed(DeviceClaim) if claim.counted}


def _one_claim(cluster: DraCluster, resource: str, devices: list[Mapping[str, Any]]) -> Told:
    asked = _some_of(next((one for one in devices if not one.get("taints")), devices[0]))
    cluster.claim("claim", resource, asked, pod="pod")
    (claim,) = cluster.scheduler.place("pod", ["claim"])
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    consumed = ", ".join(f"{amount} of {name}" for name, amount in result.get("consumedCapacity", {}).items())
    wanted = ", ".join(f"{amount} of {name}" for name, amount in asked.items())
    what = f"a claim for {wanted} of" if wanted else "a claim for"
    yield "claim", f"{what} one {resource} gets {f'{consumed} of ' if consumed else ''}{result['device']}"
    granted = list(_granted(cluster.start("pod", "claim")))
    yield "pod", f"a container with that claim gets{'' if granted else ' nothing'}"
    yield from granted
    cluster.end("pod")
    cluster.until_released()
    yield "end", "the pod is gone, and nothing is left of its claim: no CDI spec, no record, nothing to tell the plugin"


def _some_of(device: Mapping[str, Any]) -> dict[str, str]:
    """Return about half of what a shared device has; nothing for one that is whole."""
    found = {}
    for name, capacity in device.get("capacity", {}).items() if device.get("allowMultipleAllocations") else ():
        part = parse_quantity(_policy(capacity)["min"])
        count = parse_quantity(capacity["value"]) // part
        found[name] = str(write_quantity((count + 1) // 2 * part))
    return found


def _policy(capacity: Mapping[str, Any]) -> Mapping[str, str]:
    policy = capacity.get("requestPolicy") or {}
    found: Mapping[str, str] = policy.get("validRange") or {"min": policy.get("default", capacity["value"])}
    return found


def _described(device: Mapping[str, Any]) -> Iterator[str]:
    for name, capacity in device.get("capacity", {}).items():
        steps = f" in parts of {_policy(capacity)['min']}" if device.get("allowMultipleAllocations") else ""
        yield f"{name} {capacity['value']}{steps}"
    for consumed in device.get("consumesCounters", ()):
        takes = ", ".join(f"{name} {one['value']}" for name, one in consumed["counters"].items())
        yield f"takes {takes} of {consumed['counterSet']}"
    told = [f"{name}={_written(value)}" for name, value in device["attributes"].items() if name != RESOURCE]
    if told:
        yield ", ".join(told)
    for taint in device.get("taints", ()):
        yield f"taint {taint['key']}={taint.get('value', '')}:{taint['effect']}"


def _written(value: Mapping[str, Any]) -> str:
    (one,) = value.values()
    return str(one).lower() if isinstance(one, bool) else str(one)


def _granted(edits: Edits) -> Told:
    for node in edits.device_nodes.values():
        yield "node", f"{node.get('hostPath', node['path'])} as {node['path']} ({node.get('permissions', 'rwm')})"
    for mount in edits.mounts.values():
        options = "ro" if "ro" in mount.get("options", ()) else "rw"
        yield "mount", f"{mount['hostPath']} as {mount['containerPath']} ({options})"
    for name, value in sorted(edits.env.items()):
        yield "env", f"{name}={value}"
    for name in edits.names:
        if not name.partition("/")[0].endswith(f".{DOMAIN}"):
            yield "cdi", name

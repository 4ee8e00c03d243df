"""Rules for the lists of device plugins: kubelet's device-plugin API v1beta1.

Owns: lists and registration, and the sockets that kubelet was told of.
Refuses: grants and preferences (`grants`), and timing; how long a list takes is told, not judged.
"""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nodeplug.device.codec import ID_LIMIT, LIST_LIMIT
from nodeplug.testing.conformance.plugin_socket import PluginSocket
from nodeplug.testing.conformance.rehearsal import Act
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.stage import DEVICE_POLL, Stage
from nodeplug.testing.conformance.verdict import Broken

_API: Final = "device-plugin API v1beta1"


# --- lists, without kubelet


def _lists(stage: Stage) -> Iterator[tuple[str, Act, list[str]]]:
    """Each resource with the act of its first list and the ids of that."""
    seen = stage.rehearsal()
    for resource in stage.claims["device"]:
        act = seen.act(f"list {resource} 1")
        yield resource, act, seen.document["devices"][resource]["ids"] if act.error is None and not act.hung else []


@rule("device", _API, "Answer what there is; a device that fails stays listed with `healthy=False`.")
def list_succeeds(stage: Stage) -> str:
    """Every claimed resource can be listed."""
    told = []
    for resource, act, ids in _lists(stage):
        act.succeed()
        told.append(f"{resource}: {len(ids)} devices in {act.seconds * 1e3:.1f} ms")
    return ", ".join(told)


@rule("device", _API, "Make the id from what tells the devices apart, such as a serial number.")
def ids_are_unique(stage: Stage) -> str:
    """The ids of a resource are unique and not empty."""
    for resource, _, ids in _lists(stage):
        if twice := [name for name, count in Counter(ids).items() if count > 1 or not name]:
            raise Broken(f"{resource} lists {twice[0]!r} {ids.count(twice[0])} times")
    return ""


@rule("device", f"{_API}: Device.ID", "Shorten it, or take a digest.")
def ids_are_short(stage: Stage) -> str:
    """An id has at most 63 characters."""
    for resource, _, ids in _lists(stage):
        if long := [name for name in ids if len(name) > ID_LIMIT]:
            raise Broken(f"{resource} lists {long[0]!r}, which has {len(long[0])} characters")
    return ""


@rule("device", "kubelet receives at most 4 MiB, and its checkpoint carries the list again", "Offer fewer units.")
def list_fits(stage: Stage) -> str:
    """A list stays below 1 MiB even when every device is unhealthy."""
    told = []
    for resource, _, _ids in _lists(stage):
        size = stage.rehearsal().document["devices"][resource]["size"]
        if size > LIST_LIMIT:
            raise Broken(f"the list of {resource} can have {size} bytes, at most {LIST_LIMIT} are sent")
        told.append(f"{resource}: {size} bytes")
    return ", ".join(told)


@rule("device", _API, "The message says what is wrong.")
def list_can_be_sent(stage: Stage) -> str:
    """Kubelet's message can carry the list: texts, and NUMA nodes from 0."""
    for resource, _, _ids in _lists(stage):
        if refused := stage.rehearsal().document["devices"][resource]["refused"]:
            raise Broken(refused)
    return ""


@rule("device", "kubelet takes an id that vanishes and comes back for another device", "Compute ids, draw none.")
def lists_are_alike(stage: Stage) -> str:
    """Two lists in a row have the same ids."""
    stage.require_passed("list-succeeds")
    for resource, _, ids in _lists(stage):
        again = stage.rehearsal().act(f"list {resource} 2").succeed().answer
        if set(again) != set(ids):
            raise Broken(f"{resource}: {few(set(again) ^ set(ids))} are in one of two lists alone")
    return ""


# --- with kubelet


def sockets(stage: Stage) -> dict[str, Path]:
    """Wait until every resource is registered and listed; return the socket of each.

    Raises:
        Broken: one is not, in time.
        NotApplicable: that rule, or listing alone, failed before.
    """
    stage.require_passed("list-succeeds")
    stage.require_passed("registers-with-kubelet")
    kubelet = stage.kubelet
    resources = stage.claims["device"]
    try:
        kubelet.until(
            lambda: all(
                kubelet.stand_in.streams(resource) == 1 and kubelet.stand_in.listed(resource) for resource in resources
            ),
            stage.patience,
        )
    except TimeoutError:
        raise Broken(
            f"kubelet waited {stage.patience:g} s for {', '.join(resources)}; "
            f"registered: {', '.join(one.resource_name for one in kubelet.registrations) or 'nothing'}{_reasons(stage)}"
        ) from None
    newest = {one.resource_name: one.endpoint for one in kubelet.registrations}
    return {resource: stage.node.paths.device_plugins / newest[resource] for resource in resources}


def _reasons(stage: Stage) -> str:
    rows = stage.node.status()["resources"]
    return "".join(f"; {row['resource']}: {why}" for row in rows if (why := row["error"] or row["absent"]))


def _listed(stage: Stage) -> dict[str, frozenset[str]]:
    found = {}
    for resource, path in sockets(stage).items():
        with PluginSocket(path, stage.patience) as socket:
            found[resource] = frozenset(socket.devices())
    return found


@rule(
    "device", "kubelet (device manager)", "Offer a list that kubelet can take; what was seen has the daemon's reason."
)
def registers_with_kubelet(stage: Stage) -> str:
    """Kubelet gets a registration and a list for every claimed resource."""
    return ", ".join(f"{resource}: {len(ids)} devices" for resource, ids in _listed(stage).items())


@rule("device", "kubelet forgets every plugin when it restarts", "Keep running; the daemon registers again.")
def registers_again_after_kubelet_restarts(stage: Stage) -> str:
    """A restarted kubelet gets the same devices again."""
    before = _listed(stage)
    stage.kubelet.restart()
    _listed(stage)
    time.sleep(3 * DEVICE_POLL * stage.slowness)  # a plugin that watches for kubelet has noticed by then
    if (after := _listed(stage)) != before:
        raise Broken(f"before {_shown(before)}, after {_shown(after)}")
    return ""


@rule("device", "kubelet keeps allocations by id", "Compute ids from the devices themselves, never from the process.")
def ids_survive_a_restart(stage: Stage) -> str:
    """The ids are the same after the daemon was killed and started again."""
    before = _listed(stage)
    seen = len(stage.kubelet.registrations)
    stage.restart_after_kill()
    stage.kubelet.until(lambda: len(stage.kubelet.stand_in.registrations) >= seen + len(before), stage.patience)
    if (after := _listed(stage)) != before:
        raise Broken(f"before {_shown(before)}, after {_shown(after)}")
    return ""


def _shown(found: dict[str, frozenset[str]]) -> str:
    return "; ".join(f"{resource}: {few(ids)}" for resource, ids in found.items())

"""Rules for the lists of device plugins: kubelet's device-plugin API v1beta1.

Owns: lists and registration, and the sockets that were registered.
Refuses: grants and preferences (`grants`), and timing; how long a list takes is reported, not judged.
"""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nodeplug.device.codec import ID_LIMIT, LIST_LIMIT
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.plugin_socket import PluginSocket
from nodeplug.testing.conformance.rehearsal import Act
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.rig import DEVICE_POLL

_API: Final = "device-plugin API v1beta1"


# --- lists, without kubelet


def _lists(exam: Examination) -> Iterator[tuple[str, Act, list[str]]]:
    """Each resource with the act of its first list and the ids of that."""
    seen = exam.rehearsal()
    for resource in exam.claims["device"]:
        act = seen.act(f"list {resource} 1")
        yield resource, act, seen.document["devices"][resource]["ids"] if act.error is None and not act.hung else []


@rule("device", _API, "Return what exists; a device that fails stays listed with `healthy=False`.")
def list_succeeds(exam: Examination) -> str:
    """Every claimed resource can be listed."""
    told = []
    for resource, act, ids in _lists(exam):
        act.succeed()
        told.append(f"{resource}: {len(ids)} devices in {act.seconds * 1e3:.1f} ms")
    return ", ".join(told)


@rule("device", _API, "Make the id of what distinguishes the devices, such as a serial number.")
def ids_are_unique(exam: Examination) -> str:
    """The ids of a resource are unique and not empty."""
    for resource, _, ids in _lists(exam):
        if twice := [name for name, count in Counter(ids).items() if count > 1 or not name]:
            raise Broken(f"{resource} lists {twice[0]!r} {ids.count(twice[0])} times")
    return ""


@rule("device", f"{_API}: Device.ID", "Shorten it, or use a digest.")
def ids_are_short(exam: Examination) -> str:
    """An id has at most 63 characters."""
    for resource, _, ids in _lists(exam):
        if long := [name for name in ids if len(name) > ID_LIMIT]:
            raise Broken(f"{resource} lists {long[0]!r}, which has {len(long[0])} characters")
    return ""


@rule("device", "kubelet receives at most 4 MiB, and its checkpoint carries the list again", "Offer fewer units.")
def list_fits(exam: Examination) -> str:
    """A list stays below 1 MiB even when every device is unhealthy."""
    told = []
    for resource, _, _ids in _lists(exam):
        size = exam.rehearsal().document["devices"][resource]["size"]
        if size > LIST_LIMIT:
            raise Broken(f"the list of {resource} can have {size} bytes, at most {LIST_LIMIT} are sent")
        told.append(f"{resource}: {size} bytes")
    return ", ".join(told)


@rule("device", _API, "The message says what is wrong.")
def list_can_be_sent(exam: Examination) -> str:
    """Kubelet's message can carry the list: strings, and NUMA nodes from 0."""
    for resource, _, _ids in _lists(exam):
        if refused := exam.rehearsal().document["devices"][resource]["refused"]:
            raise Broken(refused)
    return ""


@rule(
    "device",
    "kubelet takes an id that vanishes and comes back for another device",
    "Compute ids, without random parts.",
)
def lists_are_alike(exam: Examination) -> str:
    """Two lists in a row have the same ids."""
    exam.require_passed("list-succeeds")
    for resource, _, ids in _lists(exam):
        again = exam.rehearsal().act(f"list {resource} 2").succeed().answer
        if set(again) != set(ids):
            raise Broken(f"{resource}: {few(set(again) ^ set(ids))} are in one of two lists alone")
    return ""


# --- with kubelet


def sockets(exam: Examination) -> dict[str, Path]:
    """Wait until every resource is registered and listed; return the socket of each.

    Raises:
        Broken: one is not, in time.
        NotApplicable: that rule, or listing alone, failed before, or kubelet's device plugins cannot have the devices.
    """
    exam.require_passed("list-succeeds")
    exam.require_passed("registers-with-kubelet")
    resources = exam.claims["device"]
    if any(one["counters"] for name in resources for one in exam.rehearsal().document["devices"][name]["described"]):
        raise NotApplicable("devices overlap, which kubelet's device plugins cannot count: it serves claims alone")
    kubelet = exam.kubelet
    try:
        kubelet.until(
            lambda: all(
                kubelet.stand_in.streams(resource) == 1 and kubelet.stand_in.listed(resource) for resource in resources
            ),
            exam.patience,
        )
    except TimeoutError:
        raise Broken(
            f"kubelet waited {exam.patience:g} s for {', '.join(resources)}; "
            f"registered: {', '.join(one.resource_name for one in kubelet.registrations) or 'nothing'}{_reasons(exam)}"
        ) from None
    newest = {one.resource_name: one.endpoint for one in kubelet.registrations}
    return {resource: exam.node.paths.device_plugins / newest[resource] for resource in resources}


def _reasons(exam: Examination) -> str:
    rows = exam.node.status()["resources"]
    return "".join(f"; {row['resource']}: {why}" for row in rows if (why := row["error"] or row["absent"]))


def _listed(exam: Examination) -> dict[str, frozenset[str]]:
    found = {}
    for resource, path in sockets(exam).items():
        with PluginSocket(path, exam.patience) as socket:
            found[resource] = frozenset(socket.devices())
    return found


@rule(
    "device", "kubelet (device manager)", "Return a list that kubelet accepts; what was seen has the daemon's reason."
)
def registers_with_kubelet(exam: Examination) -> str:
    """Kubelet gets a registration and a list for every claimed resource."""
    return ", ".join(f"{resource}: {len(ids)} devices" for resource, ids in _listed(exam).items())


@rule("device", "kubelet forgets every plugin when it restarts", "Keep running; the daemon registers again.")
def registers_again_after_kubelet_restarts(exam: Examination) -> str:
    """A restarted kubelet gets the same devices again."""
    before = _listed(exam)
    exam.kubelet.restart()
    _listed(exam)
    time.sleep(3 * DEVICE_POLL * exam.slowness)  # a plugin that watches for kubelet has noticed by then
    if (after := _listed(exam)) != before:
        raise Broken(f"before {_shown(before)}, after {_shown(after)}")
    return ""


@rule("device", "kubelet keeps allocations by id", "Compute ids from the devices themselves, never from the process.")
def ids_survive_a_restart(exam: Examination) -> str:
    """The ids are the same after the daemon was killed and restarted."""
    before = _listed(exam)
    seen = len(exam.kubelet.registrations)
    exam.restart_after_kill()
    exam.kubelet.until(lambda: len(exam.kubelet.stand_in.registrations) >= seen + len(before), exam.patience)
    if (after := _listed(exam)) != before:
        raise Broken(f"before {_shown(before)}, after {_shown(after)}")
    return ""


def _shown(found: dict[str, frozenset[str]]) -> str:
    return "; ".join(f"{resource}: {few(ids)}" for resource, ids in found.items())

"""Rules for device plugins whose devices are allocated by claims: Dynamic Resource Allocation.

Owns: what scheduler and kubelet do with one claim and with two, repetitions, a kill, observers, and what of a grant a
CDI spec can say.
Refuses: lists (`device_pools`), and kubelet's device plugins (`device`, `grants`), which the plugin serves on another
node.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from nodeplug.contract.errors import NotReady
from nodeplug.contract.values import Grant
from nodeplug.fields import parse_quantity
from nodeplug.testing.conformance.claimed_node import ClaimedNode, Device, Got, part_of, resources
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.dra import PrepareFailed, UnresolvableDevices
from nodeplug.testing.rig import DEVICE_POLL

_KUBELET: Final = "kubelet (DRA manager)"
_ALIKE: Final = "claims-are-granted-again-alike"
_POD, _OTHER = "pod", "other"
_AGAIN: Final = " is told again: "
_MOMENT: Final = 0.5
"""When the daemon is killed, as a part of the time that it takes to prepare a claim."""
_PERMISSIONS: Final = frozenset("rwm")


def _released(exam: Examination) -> ClaimedNode:
    for name in ("a-claim-is-granted", "release-of-a-claim-is-repeatable", "ended-claims-are-released"):
        exam.require_passed(name)
    return ClaimedNode.of(exam)


def _node(exam: Examination, *more: str) -> ClaimedNode:
    """Return the node if what every rule here builds on was kept, and more."""
    for name in ("held-devices-stay-offered", *more):
        exam.require_passed(name)
    return _released(exam)


def _each(node: ClaimedNode) -> Iterator[tuple[str, list[Device]]]:
    """Each resource with its healthy devices, of which there is one at least.

    Raises:
        NotApplicable: there is none of any.
    """
    found = [(resource, devices) for resource in node.resources if (devices := node.healthy(resource))]
    if not found:
        raise NotApplicable("there is no healthy device here")
    return iter(found)


def _differs(first: Got, second: Got) -> Broken:
    return Broken(f"a container got {_line(first)}, then {_line(second)}")


def _line(got: Got) -> str:
    env, nodes, mounts = got
    told = [*(f"{name}={value}" for name, value in sorted(env.items())), *sorted(nodes), *sorted(mounts)]
    return ", ".join(told) or "nothing"


# --- one claim


@rule(
    "device",
    "resource.k8s.io/v1: ResourceSlice",
    "Return a list of which slices can be made; what was seen has the daemon's reason.",
)
def devices_are_offered_to_claims(exam: Examination) -> str:
    """Kubelet registers a driver of the plugin, and the scheduler sees devices of every resource that has some."""
    node = ClaimedNode.of(exam)
    return ", ".join(f"{resource}: {len(node.offered(resource))} devices" for resource in node.resources)


@rule(
    "device",
    f"{_KUBELET}: a pod whose claim is refused never starts",
    "Grant each device that is listed as healthy; claim with `counted=True` what is there to be counted alone.",
)
def a_claim_is_granted(exam: Examination) -> str:
    """A pod with a claim starts: of one device, or of one part where devices have parts."""
    node, told = ClaimedNode.of(exam), []
    for resource, devices in _each(node):
        amount = part_of(devices[0])
        node.give(_POD, resource, amount)
        node.cluster.end(_POD)
        told.append(f"{resource}: {', '.join(f'{one} of {name}' for name, one in amount.items()) or 'a device'}")
    return "; ".join(told)


@rule(
    "device",
    "the daemon tells it again after a kill, and no pod is known",
    "Forget what is not held, whoever held it; `pod` and `container` are empty, and `claim` says whose it was.",
    "device_released",
)
def release_of_a_claim_is_repeatable(exam: Examination) -> str:
    """The release of a claim without a pod's name succeeds for what was never held, and when repeated."""
    resources(exam)
    acts = [act for name, act in exam.rehearsal().acts.items() if name.startswith("end of claim ")]
    if not acts:
        raise NotApplicable("there is no healthy device here")
    for act in acts:
        act.succeed()
    return ""


@rule(
    "device",
    "the daemon: no claim gets an id again before its plugin has heard of the end",
    "Forget the claim; never raise, and do not wait for anybody.",
)
def ended_claims_are_released(exam: Examination) -> str:
    """The end of a claim is heard of: nothing of it is left on the node."""
    exam.require_passed("a-claim-is-granted")
    exam.require_passed("release-of-a-claim-is-repeatable")
    node = ClaimedNode.of(exam)
    for resource, devices in _each(node):
        node.give(_POD, resource, part_of(devices[0]))
        try:
            node.end(_POD)
        except NotReady as error:
            raise Broken(f"{error.message}: {_told_last(node)}") from None
    return ""


def _told_last(node: ClaimedNode) -> str:
    """Return what the daemon logged last of a release."""
    told = [line.partition(_AGAIN)[2] for line in node.node.log.splitlines() if _AGAIN in line]
    return told[-1] if told else "the daemon says nothing"


@rule(
    "device",
    "the scheduler subtracts itself what claims have",
    "List what is held as before: healthy, and with all its parts.",
)
def held_devices_stay_offered(exam: Examination) -> str:
    """A device of which a claim has something is listed as before: nothing of it is missing or unhealthy."""
    node = _released(exam)
    for resource, devices in _each(node):
        _listed_again(exam)  # after the claim of the rule before
        before = {str(one["name"]): _offer(one) for one in node.offered(resource)}
        node.give(_POD, resource, part_of(devices[0]))
        _listed_again(exam)
        after = {str(one["name"]): _offer(one) for one in node.cluster.offered(resource)}
        node.end(_POD)
        for name, was in before.items():
            if (now := after.get(name, "not there")) != was:
                raise Broken(f"{resource}: {name} was {was}; while a claim has it, it is {now}")
    return ""


def _listed_again(exam: Examination) -> None:
    time.sleep(3 * DEVICE_POLL * exam.slowness)


def _offer(device: Device) -> str:
    """Return what matters to the scheduler; since when something is so does not."""
    has = [f"{one['value']} of {name}" for name, one in device.get("capacity", {}).items()]
    return ", ".join([*has, *(f"{one['key']}={one.get('value', '')}" for one in device.get("taints", ()))]) or "whole"


@rule("device", "resource.k8s.io/v1: a claim without an amount is for all of a device", "Grant any number of parts.")
def all_parts_are_granted(exam: Examination) -> str:
    """A claim without an amount gets all parts of a device."""
    node, told = _node(exam), []
    for resource, devices in _each(node):
        if part_of(devices[0]):
            node.give(_POD, resource)
            node.end(_POD)
            told.append(resource)
    if not told:
        raise NotApplicable("no device has parts")
    return ", ".join(told)


def _lives(node: ClaimedNode, change: Callable[[ClaimedNode], Got]) -> str:
    """Let each resource serve a claim, do something, and compare what the container gets then."""
    for resource, devices in _each(node):
        first = node.give(_POD, resource, part_of(devices[0]))
        second = change(node)
        node.end(_POD)
        if second != first:
            raise _differs(first, second)
    return ""


@rule(
    "device",
    f"{_KUBELET}: it prepares a claim again after its restart",
    "Compute the grant from the request alone; count nothing.",
)
def claims_are_granted_again_alike(exam: Examination) -> str:
    """A claim that is prepared again gets the same."""
    return _lives(_node(exam), lambda node: node.again(_POD)[_POD])


@rule(
    "device",
    "the daemon may be killed at any instruction",
    "Compute the grant from the request alone, not from what the process has seen.",
)
def claims_are_granted_alike_after_a_restart(exam: Examination) -> str:
    """A claim gets the same from a daemon that was killed and started again."""

    def change(node: ClaimedNode) -> Got:
        node.restart_after_kill()
        return node.again(_POD)[_POD]

    return _lives(_node(exam, _ALIKE), change)


@rule(
    "device",
    "the daemon may be killed at any instruction",
    "Begin with what a killed predecessor left, and go on from there.",
)
def a_grant_goes_on_after_a_kill(exam: Examination) -> str:
    """A claim during whose grant the daemon is killed is granted by the next one, and its end is heard of."""
    node = _node(exam)
    resource, devices = next(_each(node))
    amount = part_of(devices[0])
    seconds = min(_time_of_a_claim(node, resource, amount) for _ in range(2))  # the first may wait for more
    node.place(_POD, resource, amount)
    kill = threading.Timer(seconds * _MOMENT, node.node.kill)
    kill.start()
    with suppress(PrepareFailed, UnresolvableDevices):
        node.cluster.kubelet.admit(_POD, [_POD])
    kill.join()
    node.start()
    node.begin(_POD)
    node.end(_POD)
    return ""


# --- two claims


def _time_of_a_claim(node: ClaimedNode, resource: str, amount: Mapping[str, str]) -> float:
    node.place(_POD, resource, amount)
    begun = time.monotonic()
    node.begin(_POD)
    seconds = time.monotonic() - begun
    node.end(_POD)
    return seconds


@rule(
    "device",
    f"{_KUBELET}: it prepares the claims of different pods at once",
    "Keep nothing of a request in the plugin itself; hooks run in threads of their own.",
)
def claims_at_once_get_what_each_gets_alone(exam: Examination) -> str:
    """Two claims that are prepared at once get what each of them gets alone."""
    node, told = _node(exam, _ALIKE), []
    for resource, devices in _each(node):
        amount = part_of(devices[0])
        if _at_once(devices) < len((_POD, _OTHER)):
            continue
        for pod in (_POD, _OTHER):
            node.place(pod, resource, amount)
        with ThreadPoolExecutor() as kubelets:
            at_once = dict(zip((_POD, _OTHER), kubelets.map(node.begin, (_POD, _OTHER)), strict=True))
        alone = node.again(_POD, _OTHER)
        node.end(_POD, _OTHER)
        for pod, got in at_once.items():
            if got != alone[pod]:
                raise _differs(got, alone[pod])
        told.append(resource)
    if not told:
        raise NotApplicable("there is but one device here")
    return ", ".join(told)


def _at_once(devices: list[Device]) -> int:
    """Return how many claims there is room for, whichever devices they get: one for those that overlap each other."""
    sets = {one["counterSet"] for device in devices for one in device.get("consumesCounters", ())}
    return len(sets) + sum(_shares(device) for device in devices if not device.get("consumesCounters"))


def _shares(device: Device) -> int:
    amounts = part_of(device)
    return min(
        (parse_quantity(device["capacity"][name]["value"]) // parse_quantity(one) for name, one in amounts.items()),
        default=1,
    )


@rule(
    "device",
    "resource.k8s.io/v1: adminAccess",
    "Several claims may have the same ids: never refuse what another has, and count nothing per claim.",
)
def observers_take_nothing(exam: Examination) -> str:
    """A claim for observation gets a device that another claim has, and its end changes nothing for that one."""
    node = _node(exam, _ALIKE, "all-parts-are-granted")
    for resource, devices in _each(node):
        first = node.give(_POD, resource, part_of(devices[0]))
        node.give(_OTHER, resource, admin=True)
        node.cluster.end(_OTHER)
        second = node.again(_POD)[_POD]
        node.end(_POD)
        if second != first:
            raise _differs(first, second)
    return ""


# --- what is granted


def _granted(exam: Examination, judge: Callable[[Grant], str]) -> str:
    """Judge what a claim of each resource is granted; a non-empty text breaks the rule."""
    node = _node(exam)
    for resource, devices in _each(node):
        node.give(_POD, resource, part_of(devices[0]))
        grants = node.grants()
        node.end(_POD)
        if wrong := judge(grants[_POD]):
            raise Broken(f"the grant of {resource} for a claim {wrong}")
    return ""


@rule(
    "device",
    "CDI SPEC: containerEdits",
    "Use absolute paths, permissions of the letters r, w and m, and names of variables without `=`.",
)
def claims_get_legal_edits(exam: Examination) -> str:
    """What a claim gets can be said in a CDI spec, and a runtime takes it."""

    def judge(grant: Grant) -> str:
        for node in grant.nodes:
            if not node.permissions or set(node.permissions) - _PERMISSIONS:
                return f"has the permissions {node.permissions!r} for {node.host_path}"
        paths = [path for node in grant.nodes for path in (node.host_path, node.container_path or node.host_path)]
        paths += [path for mount in grant.mounts for path in (mount.host_path, mount.container_path)]
        if relative := [path for path in paths if not path.startswith("/")]:
            return f"has the path {relative[0]!r}, which is not absolute"
        odd = [name for name, value in grant.env.items() if not name or "=" in name or "\0" in f"{name}{value}"]
        return f"sets the variable {odd[0]!r}" if odd else ""

    return _granted(exam, judge)


@rule(
    "device",
    "resource.k8s.io/v1: it has none",
    "Say it by CDI names, variables or nodes where `request.claim` is set.",
)
def claims_get_no_annotations(exam: Examination) -> str:
    """What a claim is granted has no annotations: no container would get them."""

    def judge(grant: Grant) -> str:
        return f"has the annotation {min(grant.annotations)!r}, which is lost" if grant.annotations else ""

    return _granted(exam, judge)

"""Rules for device plugins: kubelet's device-plugin API v1beta1.

Owns: lists, registration, grants, preferences, pre-start and release.
Refuses: timing; how long a list takes is told, not judged.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from nodeplug.device.codec import ID_LIMIT, LIST_LIMIT
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing.conformance.plugin_socket import PluginSocket
from nodeplug.testing.conformance.rehearsal import Act
from nodeplug.testing.conformance.rules import Broken, NotApplicable, rule
from nodeplug.testing.conformance.stage import DEVICE_POLL, Stage

_API: Final = "device-plugin API v1beta1"
_MANY: Final = 64
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CDI_NAME: Final = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)
"""`vendor/class=name` (CDI SPEC, "Kind" and "CDI device names")."""


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
    for resource, _, ids in _lists(stage):
        again = stage.rehearsal().act(f"list {resource} 2").succeed().answer
        if set(again) != set(ids):
            raise Broken(f"{resource}: {sorted(set(again) ^ set(ids))[:4]} are in one of two lists alone")
    return ""


# --- with kubelet


def _sockets(stage: Stage) -> dict[str, Path]:
    """Wait until every resource is registered and listed."""
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
            f"registered: {', '.join(one.resource_name for one in kubelet.registrations) or 'nothing'}"
        ) from None
    newest = {one.resource_name: one.endpoint for one in kubelet.registrations}
    return {resource: stage.node.paths.device_plugins / newest[resource] for resource in resources}


def _listed(stage: Stage) -> dict[str, frozenset[str]]:
    found = {}
    for resource, path in _sockets(stage).items():
        with PluginSocket(path, stage.patience) as socket:
            found[resource] = frozenset(socket.devices())
    return found


def _with_devices(stage: Stage, work: Callable[[str, PluginSocket, list[str]], None]) -> str:
    """Do something with the healthy devices of each resource that has some."""
    told = []
    for resource, path in _sockets(stage).items():
        with PluginSocket(path, stage.patience) as socket:
            healthy = sorted(name for name, well in socket.devices().items() if well)[:_MANY]
            if healthy:
                work(resource, socket, healthy)
                told.append(f"{resource}: {len(healthy)} devices")
    if not told:
        raise NotApplicable("there is no healthy device here")
    return ", ".join(told)


@rule("device", "kubelet (device manager)", "See what the daemon's log says about the resource.")
def registers_with_kubelet(stage: Stage) -> str:
    """Kubelet gets a registration and a list for every claimed resource."""
    return ", ".join(f"{resource}: {len(ids)} devices" for resource, ids in _listed(stage).items())


@rule("device", "kubelet forgets every plugin when it restarts", "Keep running; the daemon registers again.")
def registers_again_after_kubelet_restarts(stage: Stage) -> str:
    """A restarted kubelet gets the same devices again."""
    before = _listed(stage)
    stage.kubelet.restart()
    _listed(stage)
    time.sleep(3 * DEVICE_POLL)  # a plugin that watches for kubelet has noticed by then
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
    return "; ".join(f"{resource}: {', '.join(sorted(ids)[:4])} of {len(ids)}" for resource, ids in found.items())


@rule("device", "kubelet (Allocate)", "Look at what `device_allocate` raises; without it, at the devices' grants.")
def one_device_is_granted(stage: Stage) -> str:
    """Allocate of each device alone succeeds."""

    def work(_: str, socket: PluginSocket, ids: list[str]) -> None:
        for name in ids:
            socket.allocate([name])

    return _with_devices(stage, work)


@rule("device", "kubelet (Allocate)", "Grant any number of listed devices at once; merge what they have in common.")
def all_devices_are_granted_together(stage: Stage) -> str:
    """Allocate of all devices for one container succeeds."""

    def work(_: str, socket: PluginSocket, ids: list[str]) -> None:
        socket.allocate(ids)

    return _with_devices(stage, work)


@rule("device", "kubelet repeats Allocate, and there is no Deallocate", "Compute the grant from the ids alone.")
def grants_are_repeatable(stage: Stage) -> str:
    """Allocate of the same devices gives the same grant again."""

    def work(resource: str, socket: PluginSocket, ids: list[str]) -> None:
        for chosen in (ids[:1], ids):
            first, second = socket.allocate(chosen), socket.allocate(chosen)
            if first != second:
                raise Broken(f"{resource}: {_line(first)}, then {_line(second)}")

    return _with_devices(stage, work)


def _line(grant: pb.ContainerAllocateResponse) -> str:
    return " ".join(str(grant).split())


def _grants(stage: Stage, judge: Callable[[pb.ContainerAllocateResponse], str]) -> str:
    """Judge the grant of each device and of all; a non-empty sentence breaks the rule."""

    def work(resource: str, socket: PluginSocket, ids: list[str]) -> None:
        for chosen in (*([name] for name in ids), ids):
            if wrong := judge(socket.allocate(chosen)):
                raise Broken(f"the grant of {resource} for {', '.join(chosen[:4])} {wrong}")

    return _with_devices(stage, work)


@rule("device", "the runtime: it refuses to start the container", "List a device without its node as unhealthy.")
def granted_nodes_exist(stage: Stage) -> str:
    """Every device node of a grant is a device on the host."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        missing = [node.host_path for node in grant.devices if not _is_device(Path(node.host_path))]
        return f"names the node {missing[0]}, which is no device here" if missing else ""

    return _grants(stage, judge)


def _is_device(path: Path) -> bool:
    # A directory stands for every node in it (runc, containerd).
    return path.is_char_device() or path.is_block_device() or path.is_dir()


@rule("device", "the runtime: it refuses to start the container", "Make the path in `start`, or list as unhealthy.")
def granted_mounts_exist(stage: Stage) -> str:
    """Every host path that a grant mounts exists."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        missing = [mount.host_path for mount in grant.mounts if not Path(mount.host_path).exists()]
        return f"mounts {missing[0]}, which does not exist" if missing else ""

    return _grants(stage, judge)


@rule("device", "the runtime: the later of the two wins or fails", "Give each device a container path of its own.")
def container_paths_are_distinct(stage: Stage) -> str:
    """No two host paths of one grant appear at the same path of the container."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        pairs = {(node.container_path, node.host_path) for node in grant.devices}
        pairs |= {(mount.container_path, mount.host_path) for mount in grant.mounts}
        counts = Counter(path for path, _ in pairs)
        twice = [path for path, count in counts.items() if count > 1]
        return f"puts two things at {twice[0]}" if twice else ""

    return _grants(stage, judge)


@rule("device", "environ(7)", "Use letters, digits and underscores.")
def env_names_are_valid(stage: Stage) -> str:
    """Variables of a grant have names that every shell knows."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        wrong = [name for name in grant.envs if not _ENV_NAME.fullmatch(name)]
        return f"sets {wrong[0]!r}" if wrong else ""

    return _grants(stage, judge)


@rule("device", "CDI SPEC: vendor/class=name", "Write `vendor.com/class=name`.")
def cdi_names_are_well_formed(stage: Stage) -> str:
    """CDI names of a grant are fully qualified."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        wrong = [one.name for one in grant.cdi_devices if not _CDI_NAME.fullmatch(one.name)]
        return f"names the CDI device {wrong[0]!r}" if wrong else ""

    return _grants(stage, judge)


# --- preferences, pre-start, release


def _preferences(stage: Stage, *names: str) -> Iterator[tuple[Act, list[str], list[str], int, list[str]]]:
    """Each act with what was available, what had to be included, how many were asked for, and what was answered."""
    any_asked = False
    for resource in stage.claims["device"]:
        for name in names:
            act = stage.rehearsal().acts.get(f"prefer {name} {resource}")
            if act is None:
                continue
            any_asked = True
            available, must, size = act.asked
            if act.succeed().answer is not None:
                yield act, available, must, size, act.answer
    if not any_asked:
        raise NotApplicable("there is no healthy device here")


@rule("device", "kubelet fills up a short answer at random", "Answer exactly `size` ids.", "device_prefer")
def preferences_have_the_asked_size(stage: Stage) -> str:
    """A preference has as many ids as were asked for."""
    for _, available, _must, size, answer in _preferences(stage, "one", "with", "all"):
        if len(answer) != size:
            raise Broken(f"{size} of {available} were asked for, {answer} is the answer")
    return ""


@rule("device", "kubelet stumbles over foreign ids", "Choose out of `available`, each id once.", "device_prefer")
def preferences_are_available(stage: Stage) -> str:
    """A preference names available ids alone, each once."""
    for _, available, _must, _size, answer in _preferences(stage, "one", "with", "all", "short"):
        if set(answer) - set(available) or len(set(answer)) != len(answer):
            raise Broken(f"out of {available} the answer is {answer}")
    return ""


@rule("device", "kubelet (topology manager)", "Begin with `must_include`, then fill up.", "device_prefer")
def preferences_include_what_they_must(stage: Stage) -> str:
    """A preference contains what must be included."""
    for _, available, must, _size, answer in _preferences(stage, "with"):
        if set(must) - set(answer):
            raise Broken(f"{must} of {available} must be included, {answer} is the answer")
    return ""


@rule("device", "kubelet rejects the pod for an error", "Answer what there is, or None.", "device_prefer")
def preference_of_too_few_is_no_error(stage: Stage) -> str:
    """Asked for more than there is, a preference is no error."""
    list(_preferences(stage, "short"))
    return ""


@rule("device", "kubelet calls it before each start", "Make it idempotent.", "device_prestart")
def prestart_is_repeatable(stage: Stage) -> str:
    """PreStartContainer succeeds when repeated."""

    def work(_: str, socket: PluginSocket, ids: list[str]) -> None:
        socket.allocate(ids[:1])
        for _turn in range(2):
            socket.prestart(ids[:1])

    return _with_devices(stage, work)


@rule("device", "the daemon tells it again after a restart", "Forget what is not held; never raise.", "device_released")
def release_is_repeatable(stage: Stage) -> str:
    """A release succeeds for what was never held, and when repeated."""
    acts = [act for name, act in stage.rehearsal().acts.items() if name.startswith("release ")]
    if not acts:
        raise NotApplicable("there is no healthy device here")
    for act in acts:
        act.succeed()
    return ""

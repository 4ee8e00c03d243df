"""Rules for what device plugins grant: Allocate, preferences, pre-start and release.

Owns: Allocate as kubelet does it, of one device, two, and more up to all, each set chosen by the plugin's preference.
Refuses: lists and registration (`device`).

A plugin may refuse sets: units of one card only, one share per container. Kubelet then rejects the pod, and its user
reads the reason. So refusing more than one device with Exhausted or InvalidRequest breaks no rule where one is granted,
and neither does a resource that refuses each of its devices beside one that grants: it only counts.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing.conformance.device import sockets
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.plugin_socket import PluginSocket, Refused
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable

_SAMPLE: Final = 64
_NO_DEVICE: Final = "there is no healthy device here"
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CDI_NAME: Final = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)
"""`vendor/class=name` (CDI SPEC, "Kind" and "CDI device names")."""


# --- asking


@dataclass(frozen=True, slots=True)
class Allocation:
    """The outcome of one Allocate.

    Attributes:
        ids: the devices.
        grant: what the container would get; None when it was refused.
        refusal: why it was refused, with Exhausted or InvalidRequest.
        failure: why it failed otherwise.
    """

    ids: Sequence[str]
    grant: pb.ContainerAllocateResponse | None = None
    refusal: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Allocations:
    """The outcome of every Allocate of one resource.

    Attributes:
        count: how many healthy devices there are.
        single: for single devices, at most 64, evenly chosen.
        several: for two, four, eight and so on, and all; nothing after a refusal.
    """

    count: int
    single: Sequence[Allocation]
    several: Sequence[Allocation]

    @property
    def grants(self) -> Iterator[tuple[Sequence[str], pb.ContainerAllocateResponse]]:
        """Each set that was granted, with its grant."""
        return ((one.ids, one.grant) for one in (*self.single, *self.several) if one.grant is not None)

    @property
    def refusal(self) -> str:
        """Why every single device is refused; empty unless all are."""
        return self.single[0].refusal if all(one.refusal for one in self.single) else ""

    @property
    def nothing(self) -> str:
        """Why there is no grant; empty when there is one."""
        return "" if any(True for _ in self.grants) else self.single[0].refusal or self.single[0].failure


def _ask(socket: PluginSocket, ids: Sequence[str]) -> Allocation:
    try:
        return Allocation(ids, socket.allocate(ids))
    except Refused as refused:
        return Allocation(ids, refusal=str(refused))
    except Broken as broken:
        return Allocation(ids, failure=str(broken))


def _several(socket: PluginSocket, ids: Sequence[str]) -> Iterator[Allocation]:
    size = 2
    while size < 2 * len(ids):
        answer = _ask(socket, socket.choose(ids, min(size, len(ids))))
        yield answer
        if answer.grant is None:
            return
        size *= 2


def _healthy(socket: PluginSocket) -> list[str]:
    return sorted(name for name, well in socket.devices().items() if well)


def _answers(exam: Examination) -> Mapping[str, Allocations]:
    """Ask for the healthy devices of each resource that has some; once for all rules on one node.

    Raises:
        NotApplicable: there are none.
    """
    paths = sockets(exam)
    if exam.granted is None:
        found = {}
        for resource, path in paths.items():
            with PluginSocket(path, exam.patience) as socket:
                if ids := _healthy(socket):
                    sample = ids[:: -(-len(ids) // _SAMPLE)]
                    single = [_ask(socket, [name]) for name in sample]
                    found[resource] = Allocations(len(ids), single, list(_several(socket, ids)))
        exam.granted = found
    if not exam.granted:
        raise NotApplicable(_NO_DEVICE)
    answers: Mapping[str, Allocations] = exam.granted
    return answers


def _each(exam: Examination, work: Callable[[str, Allocations], str]) -> str:
    """Judge each resource that grants something; another rule reports why the others do not.

    Raises:
        NotApplicable: no resource grants anything.
    """
    exam.require_passed("one-device-is-granted")
    told, refused = [], []
    for resource, answers in _answers(exam).items():
        if answers.nothing:
            refused.append((resource, answers.nothing))
        else:
            told.append(f"{resource}: {work(resource, answers) or f'{answers.count} devices'}")
    if not told:
        raise NotApplicable("; ".join(f"{resource} refuses: {why}" for resource, why in refused))
    return "; ".join((*told, *(f"{resource}: does not apply" for resource, _ in refused)))


# --- Allocate


@rule("device", "kubelet (Allocate)", "Grant what is listed as healthy; list what is unavailable as unhealthy.")
def one_device_is_granted(exam: Examination) -> str:
    """Allocate of each single healthy device succeeds, or a resource that only counts refuses every one of them."""
    told, refused = [], []
    for resource, answers in _answers(exam).items():
        if answers.refusal:
            refused.append((resource, answers.refusal))
            continue
        for one in answers.single:
            if one.grant is None:
                raise Broken(one.failure or one.refusal)
        told.append(f"{resource}: {answers.count} devices")
    if not told:
        raise Broken(f"no resource of the plugin grants a device: {refused[0][1]}")
    return "; ".join((*told, *(f"{name}: does not apply, the resource refuses: {why}" for name, why in refused)))


@rule("device", "kubelet (Allocate)", "Grant any number, or raise Exhausted or InvalidRequest with the reason.")
def several_devices_are_granted_or_refused(exam: Examination) -> str:
    """Allocate of two devices, and of more up to all, succeeds, or is refused with Exhausted or InvalidRequest."""

    def work(_: str, answers: Allocations) -> str:
        if failed := [one.failure for one in answers.several if one.failure]:
            raise Broken(failed[0])
        most = max((len(one.ids) for one in answers.several if one.grant is not None), default=1)
        refusal = next((f", more are refused: {one.refusal}" for one in answers.several if one.refusal), "")
        return f"{most} of {answers.count} together{refusal}"

    return _each(exam, work)


@rule("device", "kubelet repeats Allocate, and there is no Deallocate", "Compute the grant only from the ids.")
def grants_are_repeatable(exam: Examination) -> str:
    """Allocate of the same devices returns the same grant again."""
    paths = sockets(exam)

    def work(resource: str, answers: Allocations) -> str:
        with PluginSocket(paths[resource], exam.patience) as socket:
            for ids, first in answers.grants:
                if (second := socket.allocate(ids)) != first:
                    raise Broken(f"{resource}: {_line(first)}, then {_line(second)}")
        return ""

    return _each(exam, work)


def _line(grant: pb.ContainerAllocateResponse) -> str:
    return " ".join(str(grant).split())


def _judge(exam: Examination, judge: Callable[[pb.ContainerAllocateResponse], str]) -> str:
    """Judge each grant; a non-empty text breaks the rule."""

    def work(resource: str, answers: Allocations) -> str:
        for ids, grant in answers.grants:
            if wrong := judge(grant):
                raise Broken(f"the grant of {resource} for {few(ids)} {wrong}")
        return ""

    return _each(exam, work)


@rule("device", "the runtime: it refuses to start the container", "List a device without its node as unhealthy.")
def granted_nodes_exist(exam: Examination) -> str:
    """Every device node of a grant is a device on the host."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        missing = [node.host_path for node in grant.devices if not _is_device(Path(node.host_path))]
        return f"names the node {missing[0]}, which is not a device here" if missing else ""

    return _judge(exam, judge)


def _is_device(path: Path) -> bool:
    # A directory means every node in it (runc, containerd).
    return path.is_char_device() or path.is_block_device() or path.is_dir()


@rule(
    "device",
    "the runtime: it refuses to start the container",
    "Create the path in `start`, or list it as unhealthy.",
)
def granted_mounts_exist(exam: Examination) -> str:
    """Every host path that a grant mounts exists."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        missing = [mount.host_path for mount in grant.mounts if not Path(mount.host_path).exists()]
        return f"mounts {missing[0]}, which does not exist" if missing else ""

    return _judge(exam, judge)


@rule("device", "the runtime: the later of the two wins or fails", "Give each device a container path of its own.")
def container_paths_are_distinct(exam: Examination) -> str:
    """No two host paths of one grant appear at the same path of the container."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        pairs = {(node.container_path, node.host_path) for node in grant.devices}
        pairs |= {(mount.container_path, mount.host_path) for mount in grant.mounts}
        counts = Counter(path for path, _ in pairs)
        twice = [path for path, count in counts.items() if count > 1]
        return f"puts two things at {twice[0]}" if twice else ""

    return _judge(exam, judge)


@rule("device", "environ(7)", "Use letters, digits and underscores.")
def env_names_are_valid(exam: Examination) -> str:
    """Variables of a grant have names that every shell accepts."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        wrong = [name for name in grant.envs if not _ENV_NAME.fullmatch(name)]
        return f"sets {wrong[0]!r}" if wrong else ""

    return _judge(exam, judge)


@rule("device", "CDI SPEC: vendor/class=name", "Write `vendor.com/class=name`.")
def cdi_names_are_well_formed(exam: Examination) -> str:
    """CDI names of a grant are fully qualified."""

    def judge(grant: pb.ContainerAllocateResponse) -> str:
        wrong = [one.name for one in grant.cdi_devices if not _CDI_NAME.fullmatch(one.name)]
        return f"names the CDI device {wrong[0]!r}" if wrong else ""

    return _judge(exam, judge)


# --- preferences, pre-start, release


@dataclass(frozen=True, slots=True)
class _Preference:
    """What was available, what had to be included, how many were requested, and the result."""

    resource: str
    available: Sequence[str]
    must: Sequence[str]
    size: int
    answer: Sequence[str]

    @property
    def filled(self) -> Sequence[str]:
        """What kubelet uses: the result, filled up."""
        return list(dict.fromkeys((*self.answer, *self.available)))[: self.size]


def _preferences(exam: Examination, *names: str) -> Iterator[_Preference]:
    """Each preference of the rehearsal that the plugin had."""
    any_asked = False
    for resource in exam.claims["device"]:
        for name in names:
            act = exam.rehearsal().acts.get(f"prefer {name} {resource}")
            if act is None:
                continue
            any_asked = True
            if act.succeed().answer is not None:
                available, must, size = act.asked
                yield _Preference(resource, available, must, size, act.answer)
    if not any_asked:
        raise NotApplicable(_NO_DEVICE)


@rule("device", "kubelet fills up a short result at random", "Return exactly `size` ids.", "device_prefer")
def preferences_have_the_asked_size(exam: Examination) -> str:
    """A preference has as many ids as requested, unless Allocate refuses so many anyway."""
    for one in _preferences(exam, "one", "with", "all"):
        wrong = f"{one.size} of {few(one.available)} were asked for, the answer is {few(one.answer) or 'empty'}"
        if len(one.answer) > one.size or (len(one.answer) < one.size and not _refuses(exam, one)):
            raise Broken(wrong)
    return ""


def _refuses(exam: Examination, one: _Preference) -> bool:
    """Whether Allocate refuses what kubelet makes of a short answer."""
    with PluginSocket(sockets(exam)[one.resource], exam.patience) as socket:
        return bool(_ask(socket, one.filled).refusal)


@rule("device", "kubelet stumbles over foreign ids", "Choose from `available`, each id once.", "device_prefer")
def preferences_are_available(exam: Examination) -> str:
    """A preference contains only available ids, each once."""
    for one in _preferences(exam, "one", "with", "all", "short"):
        if set(one.answer) - set(one.available) or len(set(one.answer)) != len(one.answer):
            raise Broken(f"out of {few(one.available)} the answer is {few(one.answer)}")
    return ""


@rule("device", "kubelet (topology manager)", "Start with `must_include`, then fill up.", "device_prefer")
def preferences_include_what_they_must(exam: Examination) -> str:
    """A preference contains what must be included."""
    for one in _preferences(exam, "with"):
        if set(one.must) - set(one.answer):
            raise Broken(f"{few(one.must)} must be included, the answer is {few(one.answer) or 'empty'}")
    return ""


@rule("device", "kubelet rejects the pod for an error", "Return what is available, or None.", "device_prefer")
def preference_of_too_few_is_no_error(exam: Examination) -> str:
    """A preference for more than there is does not fail."""
    list(_preferences(exam, "short"))
    return ""


@rule("device", "kubelet calls it before each start", "Make it idempotent.", "device_prestart")
def prestart_is_repeatable(exam: Examination) -> str:
    """PreStartContainer succeeds when repeated."""
    paths = sockets(exam)

    def work(resource: str, answers: Allocations) -> str:
        ids, _ = next(answers.grants)
        with PluginSocket(paths[resource], exam.patience) as socket:
            for _turn in range(2):
                socket.prestart(ids)
        return ""

    return _each(exam, work)


@rule("device", "the daemon tells it again after a restart", "Forget what is not held; never raise.", "device_released")
def release_is_repeatable(exam: Examination) -> str:
    """A release succeeds for what was never held, and when repeated."""
    acts = [act for name, act in exam.rehearsal().acts.items() if name.startswith("release ")]
    if not acts:
        raise NotApplicable(_NO_DEVICE)
    for act in acts:
        act.succeed()
    return ""

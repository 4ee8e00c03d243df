"""A node of its own on which the plugin serves claims: Dynamic Resource Allocation, acted out around the real daemon.

Owns: the node with its cluster, the devices that are offered there, and one claim from its allocation to its end.
Refuses: to judge more than that a step fails; `grants_by_claim` has the rules.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from nodeplug.contract.errors import NotReady, PluginError
from nodeplug.contract.journal import Journal, read_boot_id
from nodeplug.contract.values import Grant
from nodeplug.dra.records import read_record
from nodeplug.hosts import CLAIMS
from nodeplug.testing.conformance.examination import SECTION, Examination
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.dra import DraCluster, Edits, Pending, PrepareFailed, UnresolvableDevices
from nodeplug.testing.waiting import until

if TYPE_CHECKING:
    from nodeplug.testing.scratch_node import ScratchNode

_FOLDER: Final = "d"
_PRESTART: Final = "device_prestart"
Device = Mapping[str, Any]
Got = tuple[Mapping[str, str], Mapping[str, Any], Mapping[str, Any]]
"""What a container has: environment, device nodes and mounts."""


def resources(exam: Examination) -> list[str]:
    """Return the resources that claims can be for, and of which there is a device here.

    Raises:
        NotApplicable: there are none.
    """
    if _PRESTART in exam.hooks:
        raise NotApplicable(f"it has {_PRESTART}, which nobody calls for claims: it serves device plugins alone")
    document = exam.rehearsal().document
    offered = [one for one in exam.claims["device"] if one not in document["counted"]]
    if not offered:
        raise NotApplicable("its resources are only counted")
    found = [one for one in offered if document["devices"].get(one, {}).get("ids")]
    if not found:
        raise NotApplicable("there is no device here")
    return found


class ClaimedNode:
    """The node, running.

    Args:
        exam: of which plugin.

    Raises:
        NotApplicable: the plugin serves no claims.
        Broken: the daemon or the plugin does not come up.
    """

    def __init__(self, exam: Examination) -> None:
        self.exam = exam
        self.resources = resources(exam)
        exam.require_passed("daemon-runs-it")
        if exam.isolation == "process" and exam.rehearsal().document.get("wrappers"):
            raise NotApplicable("it wraps hooks of other plugins, so it runs as a thread of the daemon")
        exam.asked = True
        self._rig, subject = exam.another_rig(_FOLDER)
        self.node: ScratchNode = self._rig.place(exam.sections(subject, serve="dra"))
        self.cluster = DraCluster(self.node)
        self.cluster.kubelet.start()  # first: until it has said who holds what, no claim is served
        exam.closing.callback(self.cluster.close)
        self.start()

    @staticmethod
    def of(exam: Examination) -> "ClaimedNode":
        """Return that of an examination, with every device offered.

        Raises:
            NotApplicable: the plugin serves no claims, or none is offered, as another rule says.
        """
        exam.require_passed("list-succeeds")
        exam.require_passed("parts-of-one-thing-agree")
        exam.require_passed("counter-sets-agree")
        exam.require_passed("devices-are-offered-to-claims")
        if not isinstance(exam.claimed, ClaimedNode):
            exam.claimed = ClaimedNode(exam)
        exam.asked = True
        found: ClaimedNode = exam.claimed
        for resource in found.resources:
            found.offered(resource)
        return found

    def start(self) -> None:
        """Start the daemon.

        Raises:
            Broken: it does not come up, or the plugin does not.
        """
        try:
            self._rig.on_host(self.node.start)
            until(lambda: self._state() != "starting", self.exam.patience)
        except (PluginError, AssertionError) as error:
            raise Broken(f"where it serves claims, {error}") from None

    def _state(self) -> str:
        row = next(one for one in self.node.status()["plugins"] if one["name"] == SECTION)
        return "running" if row["state"] == "running" else "starting"

    def restart_after_kill(self) -> None:
        """Kill the daemon and start it again."""
        self.node.kill()
        self.start()

    def offered(self, resource: str) -> list[Device]:
        """Return the devices of a resource, once they are offered.

        Raises:
            Broken: they are not.
        """
        try:
            return self.cluster.until_offered(resource, self.exam.patience)
        except NotReady as error:
            raise Broken(error.message) from None

    def healthy(self, resource: str) -> list[Device]:
        """Return the devices that a claim may get.

        Raises:
            Broken: none is offered at all.
        """
        return [one for one in self.offered(resource) if not one.get("taints")]

    # --- pods

    def give(self, pod: str, resource: str, amount: Mapping[str, str] | None = None, *, admin: bool = False) -> Got:
        """Have a pod with a claim of the same name start, and return what its container gets.

        Raises:
            Broken: it does not start.
        """
        self.place(pod, resource, amount, admin=admin)
        return self.begin(pod)

    def place(self, pod: str, resource: str, amount: Mapping[str, str] | None = None, *, admin: bool = False) -> None:
        """Create a pod with a claim of the same name, and have it scheduled.

        Raises:
            Broken: it waits.
        """
        try:
            self.cluster.claim(pod, resource, amount, pod=pod, admin=admin)
            self.cluster.scheduler.place(pod, [pod])
        except Pending as error:
            raise Broken(f"a claim of {resource} is not allocated: {error}") from None

    def begin(self, pod: str) -> Got:
        """Start a pod that is scheduled, as often as it takes.

        Raises:
            Broken: it does not start.
        """
        try:
            return _got(self.cluster.start(pod, pod, seconds=self.exam.patience))
        except (PrepareFailed, UnresolvableDevices) as error:
            raise Broken(str(error)) from None

    def again(self, *pods: str) -> dict[str, Got]:
        """Have kubelet restart and create the sandboxes of pods anew, one after the other, so that all is asked again.

        Raises:
            Broken: it is not granted again.
        """
        self.cluster.kubelet.restart()
        for resource in self.resources:
            self.offered(resource)
        return {pod: self.begin(pod) for pod in pods}

    def end(self, *pods: str) -> None:
        """End pods, and wait until nothing is left of their claims, unless another rule says that something is.

        Raises:
            NotReady: something is left.
        """
        for pod in pods:
            self.cluster.end(pod)
        self.cluster.until_released(self.exam.patience)

    def grants(self) -> dict[str, Grant]:
        """Return what the plugin has granted, by the name of the claim."""
        entries = Journal(self.node.paths.journal / CLAIMS, read_boot_id()).entries()
        records = [read_record(one) for one in entries]
        return {record.claim.name: grant for record in records for grant in record.grants.values()}


def part_of(device: Device) -> dict[str, str]:
    """Return the smallest amount of a device that is shared; nothing for one that is whole."""
    if not device.get("allowMultipleAllocations"):
        return {}
    return {name: one["requestPolicy"]["validRange"]["min"] for name, one in device["capacity"].items()}


def _got(edits: Edits) -> Got:
    return edits.env, edits.device_nodes, edits.mounts

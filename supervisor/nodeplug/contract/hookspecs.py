"""THE CONTRACT between the host and plugins.

Owns: the name, arguments and result of every hook, and the default if a plugin lacks it.
Refuses: behaviour. A plugin is a class with `@hookimpl` methods; it is constructed once as `Plugin(config, host)` with
its validated `Config` (a pydantic model, attribute `Config`) and a `nodeplug.Host`. Implement any subset; a method may
name any subset of the arguments. Hooks are synchronous and each call runs in a thread of its own. A call goes to the
one plugin that owns the claim, plus every plugin's `@hookimpl(wrapper=True)` for the same hook.

Every verb must be idempotent: callers repeat calls after a crash, a timeout or a lost answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, NewType, Protocol, cast, get_args, get_origin, get_type_hints

import pluggy

from nodeplug.contract import values as v

__all__ = ["hookimpl"]

hookspec: Final = pluggy.HookspecMarker("nodeplug")
hookimpl: Final = pluggy.HookimplMarker("nodeplug")


class Contract(Protocol):
    """Every hook, grouped by style. `self` is not part of a hook's signature."""

    # --- life cycle ---------------------------------------------------------------------------------------------

    def claims(self) -> Sequence[v.Claim]:
        """Name what this plugin serves. Called once after construction; required."""

    def prepare(self) -> None:
        """Get ready beside the instance that still serves: what takes long, and touches nothing that it uses."""

    def start(self) -> None:
        """Begin: take over or undo what a killed predecessor left. Raising disables only this plugin, with retries."""

    def stop(self) -> None:
        """End threads and files of this plugin. May never run: a start must not depend on it."""

    def health(self) -> None:
        """Raise NotReady with the reason when the plugin cannot serve. Default: healthy once started."""

    def inspect(self) -> Mapping[str, Any]:
        """Report what the plugin knows, for `nodeplug inspect` and the plugin's own command; JSON, no secrets."""

    def metrics(self) -> Sequence[v.Metric]:
        """Measure, for Prometheus. Called on a timer, not by the scrape."""

    def cluster_report(self) -> v.ClusterReport:
        """Say what of the plugin belongs into the cluster's objects of this node. Default: nothing."""

    # --- devices (kubelet device plugin v1beta1) ----------------------------------------------------------------

    def device_list(self, request: v.DeviceList) -> Sequence[v.Device]:
        """Return every device of the resource as it is now. Called on a timer and after `host.refresh(resource)`."""

    def device_allocate(self, request: v.DeviceAllocate) -> v.Grant | None:
        """Grant devices to a container. Default, and for None: the merged grants of the devices themselves."""

    def device_prefer(self, request: v.DevicePrefer) -> Sequence[v.DeviceId] | None:
        """Choose among available devices. Default, and for None: kubelet chooses. An error rejects the pod."""

    def device_prestart(self, request: v.DevicePrestart) -> None:
        """Prepare devices before each container start. Leaving it out keeps restarts independent of this daemon."""

    def device_released(self, request: v.DeviceReleased) -> None:
        """Learn that a container no longer holds its devices; may come late, and again after a restart."""

    # --- CNI (specification 1.1.0) ------------------------------------------------------------------------------

    def cni_add(self, request: v.CniAdd) -> v.CniResult:
        """Attach a container. A repeated ADD returns what the first did; a failed one leaves nothing behind."""

    def cni_del(self, request: v.CniDel) -> None:
        """Detach a container. Succeeds when repeated, without namespace or result, and after half an ADD."""

    def cni_check(self, request: v.CniCheck) -> None:
        """Raise when the attachment is not as the result says. Default: success."""

    def cni_gc(self, request: v.CniGc) -> None:
        """Release what belongs to no valid attachment. Default: success. `valid` None: do nothing destructive."""

    def cni_status(self, request: v.CniStatus) -> None:
        """Raise NotReady when an ADD would fail. Default: what `health` says."""

    # --- volumes (FlexVolume, CSI) -----------------------------------------------------------------------------------

    def volume_id(self, request: v.VolumeIdentify) -> v.VolumeId:
        """Name the volume that the options mean. Default: a digest of them, and if staged a mark of secrets."""

    def volume_attach(self, request: v.VolumeAttach) -> v.VolumeAttached:
        """Attach a volume to a node. Having it makes kubelet call the attach verbs."""

    def volume_detach(self, request: v.VolumeDetach) -> None:
        """Detach a volume from a node; succeeds when it is not attached."""

    def volume_is_attached(self, request: v.VolumeIsAttached) -> bool:
        """Return whether a volume is attached to a node. Default: Not supported."""

    def volume_wait_attached(self, request: v.VolumeWaitAttached) -> str:
        """Wait for a device and return its path. Default: the path that attach returned."""

    def volume_stage(self, request: v.VolumeStage) -> None:
        """Mount the volume once for the node at `staging_path`. Default: the driver does not stage."""

    def volume_publish(self, request: v.VolumePublish) -> None:
        """Mount the volume for a pod at `target_path`. Default: a bind mount of `staging_path`."""

    def volume_unpublish(self, request: v.VolumeUnpublish) -> None:
        """Unmount the volume for a pod; the host unmounts whatever is still there afterwards. Default: unmount."""

    def volume_unstage(self, request: v.VolumeUnstage) -> None:
        """Undo `volume_stage`; the host unmounts whatever is still there afterwards. Default: unmount."""

    def volume_expand(self, request: v.VolumeExpand) -> int:
        """Grow the volume, and the filesystem if it is mounted; return the size in bytes. Default: Not supported."""

    def volume_stats(self, request: v.VolumeStatsRequest) -> v.VolumeStats:
        """Measure the volume. Default: statfs of the mount path."""

    def volume_refresh(self, request: v.VolumePublish) -> None:
        """Renew what expires in a mounted volume, such as tokens (CSI). A failure undoes nothing. Default: success."""

    # --- creating volumes (CSI) ----------------------------------------------------------------------------------

    def volume_create(self, request: v.VolumeCreate) -> v.ProvisionedVolume:
        """Create a volume. Having it makes the driver a provisioner. Default: Not supported, as for all that follow.

        A call for a name that was made returns that volume. One whose id is not its name is found by this alone, until
        the daemon has recorded its id: one that nobody wants any more is asked for once more, and then deleted.
        """

    def volume_delete(self, request: v.VolumeDelete) -> None:
        """Delete a volume and its data; succeeds if it does not exist. Required beside `volume_create`."""

    def volume_list(self, request: v.VolumeList) -> Sequence[v.ProvisionedVolume]:
        """List every volume that this node can reach; else one that was begun is never known to be absent.

        Without it nobody knows, when `volume_create` raises Exhausted, whether a volume that was begun is there: its
        record stays, as a problem in the status, until a creation finds the volume.
        """

    def volume_capacity(self, request: v.VolumeCapacity) -> int | v.VolumeRoom:
        """Return how many bytes are left for new volumes."""

    def volume_snapshot(self, request: v.VolumeSnapshot) -> v.Snapshot:
        """Create a snapshot of a volume."""

    def volume_snapshot_delete(self, request: v.VolumeSnapshotDelete) -> None:
        """Delete a snapshot; succeeds if it does not exist. Required beside `volume_snapshot`."""

    def volume_snapshot_list(self, request: v.VolumeSnapshotList) -> Sequence[v.Snapshot]:
        """List every snapshot that this node can reach."""

    # --- scheduler extenders (kube-scheduler, extender/v1) --------------------------------------------------------

    def extender_filter(self, request: v.ExtenderFilter) -> v.ExtenderVerdict:
        """Return the nodes that can run a pod, and why others cannot. Default: an error for the scheduler."""

    def extender_prioritize(self, request: v.ExtenderPrioritize) -> Mapping[str, int]:
        """Score nodes for a pod, 0 to 10 by name. Default: an error, which the scheduler ignores."""

    def extender_preempt(self, request: v.ExtenderPreempt) -> Mapping[str, v.ExtenderVictims]:
        """Choose nodes, and victims on each, from what the scheduler would evict. Default: an error."""

    def extender_bind(self, request: v.ExtenderBind) -> None:
        """Bind a pod to a node; succeeds when it is bound there already. Default: an error."""

    # --- reserved: no front calls these yet; their requests and results stay ------------------------------------

    def cni_repair(self, request: v.CniRepair) -> Sequence[v.CniDifference]:
        """Compare a network with what its attachments say, and repair it if asked. Default: nothing differs."""

    def device_place(self, request: v.DevicePlace) -> Sequence[v.DeviceId] | None:
        """Choose devices as `device_prefer` would, on any node; None if no choice fits. A pure function."""

    def device_container(self, request: v.DeviceContainer) -> None:
        """Prepare a container whose process is about to start. Default: success."""


HOOKS: Final[Mapping[str, Callable[..., Any]]] = {
    name: hook for name, hook in vars(Contract).items() if not name.startswith("_")
}
for _hook in HOOKS.values():
    hookspec(firstresult=True)(_hook)  # only the owner of the claim is called
RESERVED: Final = frozenset({"cni_repair", "device_place", "device_container"})
"""Hooks that nothing calls yet."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a hook may return, checked at the boundary.

    Attributes:
        types: the accepted classes.
        items: for sequences, the class of every item.
    """

    types: tuple[type[Any], ...]
    items: type[Any] | None = None


def _class_of(annotation: Any) -> type[Any]:
    """Return the class whose instances an annotation means, without its parameters; that of a NewType is its base."""
    plain = get_origin(annotation) or annotation
    return _class_of(plain.__supertype__) if isinstance(plain, NewType) else cast("type[Any]", plain)


def _answer_of(hook: Callable[..., Any]) -> Answer:
    """Read what a hook may return from its signature."""
    annotation = get_type_hints(hook)["return"]
    choices = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    items = [_class_of(get_args(choice)[0]) for choice in choices if get_origin(choice) is Sequence]
    return Answer(tuple(map(_class_of, choices)), *items)


ANSWERS: Final[Mapping[str, Answer]] = {name: _answer_of(hook) for name, hook in HOOKS.items()}
"""What every hook may return, in the order of the contract."""

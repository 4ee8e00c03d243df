"""Rules for volume drivers, as kubelet uses them: through the executable of FlexVolume, and the same lives over CSI.

Owns: mount, unmount, read-only, crashes, secrets, attach and expand of one volume.
Refuses: opinions on filesystems: what a volume can hold is the plugin's own test.
"""

import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from nodeplug.contract.mounts import mounts
from nodeplug.flex import commands as cmd
from nodeplug.testing.conformance.driver import NAME, PODS, Volume, over_both
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.inventory import Inventory

_FLEX: Final = "kubernetes/community flexvolume.md"
_KUBELET: Final = "kubelet (volume/flexvolume)"
_GIB: Final = 1 << 30
_SECRET: Final = b"conformance-secret-4711"
_STRAY: Final = " raised "
"""In the message that the daemon makes of an error that is not a PluginError."""


def _end(volume: Volume, before: Inventory | None = None) -> None:
    """Unmount for the first pod, and see that nothing is left."""
    volume.unmount()
    volume.release()
    if before is not None:
        nothing_left(volume.exam, before)


def nothing_left(exam: Examination, before: Inventory) -> None:
    """Raise Broken with what is on the node that was not there before."""
    if left := [line for line in exam.left_since(before) if not line[2:].startswith("file ")]:
        raise Broken(f"left on the node: {few(left)}")


def _mounts_at(target: Path) -> int:
    return sum(mount.target == str(target) for mount in mounts())


@rule("volume", _FLEX, "See the message; give the driver what it needs in `example`: volume_options, secrets.")
def mount_succeeds(exam: Examination) -> str:
    """Mount makes the pod's directory a mount point, for every driver that the plugin claims."""

    def life(volume: Volume) -> None:
        target = volume.mount()
        if not _mounts_at(target):
            raise Broken(f"nothing is mounted at {target}")
        _end(volume)

    told = {driver: over_both(exam, life, driver) for driver in exam.claims["volume"]}
    return ", ".join(f"{driver} ({why})" if why else driver for driver, why in told.items())


@rule("volume", _KUBELET, "Succeed if the volume is already there.")
def repeated_mount_succeeds(exam: Examination) -> str:
    """A repeated mount succeeds without a second mount on top of the first."""

    def life(volume: Volume) -> None:
        target = volume.mount()
        volume.mount_again(target)
        if (count := _mounts_at(target)) != 1:
            raise Broken(f"{count} mounts are stacked on {target}")
        _end(volume)

    return over_both(exam, life)


@rule("volume", _KUBELET, "Undo everything that stage and publish did, loop devices and helper mounts included.")
def nothing_is_left_after_unmount(exam: Examination) -> str:
    """After mount and unmount no mount and no loop device is left."""

    def life(volume: Volume) -> None:
        before = exam.inventory()
        volume.mount()
        _end(volume, before)

    return over_both(exam, life)


@rule("volume", f"{_KUBELET}: it repeats unmount", "Succeed if nothing is there.")
def unmount_is_repeatable(exam: Examination) -> str:
    """Unmount succeeds, also when repeated."""

    def life(volume: Volume) -> None:
        target = volume.mount()
        volume.unmount_twice(target)
        _end(volume)

    return over_both(exam, life)


@rule("volume", f"{_KUBELET}: it repeats unmount", "Succeed if nothing is there.", "volume_unpublish", root=False)
def unpublish_of_nothing_succeeds(exam: Examination) -> str:
    """volume_unpublish succeeds for what was never published: its record may be older than its mount."""
    for driver in exam.claims["volume"]:
        exam.rehearsal().act(f"unpublish {driver}").succeed()
    return ""


@rule(
    "volume",
    "the daemon: it unstages again after a crash",
    "Succeed if nothing is there.",
    "volume_unstage",
    root=False,
)
def unstage_of_nothing_succeeds(exam: Examination) -> str:
    """volume_unstage succeeds for what was never staged, as after a kill between two steps."""
    for driver in exam.claims["volume"]:
        exam.rehearsal().act(f"unstage {driver}").succeed()
    return ""


@rule("volume", "the contract of `volume_id`", "Compute it from the options' values alone.", "volume_id", root=False)
def volume_ids_are_stable(exam: Examination) -> str:
    """The same options mean the same volume, in whatever order they come."""
    for driver in exam.claims["volume"]:
        first, second = (exam.rehearsal().act(f"name {driver} {turn}").succeed().answer for turn in (1, 2))
        if first != second:
            raise Broken(f"{driver}: first {first!r}, then {second!r}")
    return ""


@rule("volume", _KUBELET, "Undo in unpublish only what belongs to that pod.")
def pods_do_not_disturb_each_other(exam: Examination) -> str:
    """Two pods can use the volume at once, and one keeps it when the other is gone."""

    def life(volume: Volume) -> None:
        before = exam.inventory()
        volume.mount()
        other = volume.mount(PODS[1])
        volume.unmount(PODS[0])
        if not _mounts_at(other):
            raise Broken("the second pod lost its mount when the first had gone")
        volume.unmount(PODS[1])
        _end(volume, before)

    return over_both(exam, life)


@rule("volume", "the contract of `volume_stage`", "Publish what was staged, not a copy.", "volume_stage")
def pods_share_a_staged_volume(exam: Examination) -> str:
    """Two pods with the same options see the same files."""

    def life(volume: Volume) -> None:
        target, other = volume.mount(), volume.mount(PODS[1])
        write(target, lambda: _end_both(volume))
        if not (other / NAME).exists():
            raise Broken("a file that one pod wrote is not there for the other")
        _end_both(volume)

    return over_both(exam, life)


def _end_both(volume: Volume) -> None:
    volume.unmount(PODS[1])
    _end(volume)


def write(target: Path, give_up: Callable[[], object]) -> None:
    """Write a file into a volume; where that is not possible, unmount by `give_up` and raise NotApplicable."""
    try:
        (target / NAME).write_text(NAME, encoding="utf-8")
    except OSError as error:
        give_up()
        raise NotApplicable(f"the volume cannot be written to: {error.strerror}") from None


@rule("volume", f"{_FLEX}: kubernetes.io/readwrite", "Mount with `read_only=request.read_only`.")
def read_only_is_read_only(exam: Examination) -> str:
    """A pod that asks for a read-only volume cannot write to it."""

    def life(volume: Volume) -> None:
        target = volume.mount(read_only=True)
        try:
            (target / NAME).write_text(NAME, encoding="utf-8")
            wrote = True
        except OSError:
            wrote = False
        _end(volume)
        if wrote:
            raise Broken("a file could be written")

    return over_both(exam, life)


@rule("volume", "the daemon may be killed at any instruction", "Look up what is mounted in mountinfo, not in memory.")
def unmount_after_a_crash_succeeds(exam: Examination) -> str:
    """Unmount succeeds and leaves nothing when the daemon was killed after mount."""

    def life(volume: Volume) -> None:
        before = exam.inventory()
        target = volume.mount()
        exam.restart_after_kill()
        if not _mounts_at(target):
            raise Broken("the pod lost its mount when the daemon was killed")
        _end(volume, before)

    return over_both(exam, life)


@rule("volume", "the promise of the driver (`keeps_data`)", "Keep the data when the last pod goes.")
def data_outlives_the_pod(exam: Examination) -> str:
    """A later pod finds what an earlier pod wrote, if the driver promises that."""
    if not exam.subject.keeps_data:
        raise NotApplicable("nobody said keeps_data=True")

    def life(volume: Volume) -> None:
        write(volume.mount(), lambda: _end(volume))
        _end(volume)
        again = volume.mount(PODS[1])
        found = (again / NAME).exists()
        volume.unmount(PODS[1])
        volume.release()
        if not found:
            raise Broken("the file of the first pod is gone")

    return over_both(exam, life)


# --- failures


@rule("volume", "users write options", "Raise InvalidRequest with the option's name and what is allowed.")
def wrong_options_are_answered(exam: Examination) -> str:
    """Missing and unknown options are accepted, or refused with a message, and never crash the driver."""
    volume = Volume(exam, exam.claims["volume"][0])
    told = []
    for what, options in _wrong(volume):
        error = _try(volume, options)
        if _STRAY in error:
            raise Broken(f"{what}: {error}")
        told.append(f"{what}: {error or 'accepted'}")
    return "; ".join(told)


def _wrong(volume: Volume) -> list[tuple[str, dict[str, str]]]:
    own = dict(volume.asked.options)
    broken = dict.fromkeys(own, "\u2026not what you expect/../ 0")
    return [("no options", {}), ("an unknown option", {**own, "conformance-unknown": "x"}), ("odd values", broken)]


def _try(volume: Volume, options: dict[str, str], secrets: dict[str, bytes] | None = None) -> str:
    """Mount and unmount; the error, or nothing."""
    try:
        volume.mount(options=options, secrets=secrets)
    except Broken as error:
        volume.release()
        return str(error)
    _end(volume)
    return ""


@rule("volume", f"{_KUBELET}: it takes a mount point at the target for success", "Undo what was done before raising.")
def failed_mount_leaves_nothing(exam: Examination) -> str:
    """A mount that fails leaves no mount and no loop device."""
    volume = Volume(exam, exam.claims["volume"][0])
    before = exam.inventory()
    failed = [what for what, options in _wrong(volume) if _try(volume, options)]
    if not failed:
        raise NotApplicable("no wrong options made a mount fail")
    nothing_left(exam, before)
    return ", ".join(failed)


@rule("volume", "kubelet logs what a driver answers", "Never log, write or return what is in `request.secrets`.")
def secrets_stay_secret(exam: Examination) -> str:
    """No answer, log or file of the daemon or the plugin contains a secret, whether mount succeeds or fails."""

    def life(volume: Volume) -> None:
        given = {**volume.asked.secrets, NAME: _SECRET}
        for _, options in (("", dict(volume.asked.options)), *_wrong(volume)):
            if _SECRET.decode() in _try(volume, options, given):
                raise Broken("the answer of the driver contains it")

    told, node = over_both(exam, life), exam.node
    for path in (node.log_path, *_files(node.paths.state), *_files(node.paths.run)):
        if path.is_file() and any(form in path.read_bytes() for form in (_SECRET, b64encode(_SECRET))):
            raise Broken(f"{path.relative_to(exam.folder)} contains it")
    return told


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names)


# --- attach and expand


@rule("volume", _FLEX, "Return the same device for a volume that is already attached.", "volume_attach")
def attach_is_repeatable(exam: Examination) -> str:
    """Attach of an attached volume returns the same device."""
    volume = Volume(exam, exam.claims["volume"][0])
    first, second = (
        volume.call("attach", cmd.Attach(volume.options, volume.caller.node)).get("device") for _ in range(2)
    )
    volume.call("detach", cmd.Detach(NAME, volume.caller.node))
    if first != second:
        raise Broken(f"first {first!r}, then {second!r}")
    return str(first)


@rule("volume", _FLEX, "Succeed if it is not attached.", "volume_detach")
def detach_is_repeatable(exam: Examination) -> str:
    """Detach succeeds when repeated, and for what was never attached."""
    volume = Volume(exam, exam.claims["volume"][0])
    volume.call("detach of what was never attached", cmd.Detach("conformance-never", volume.caller.node))
    volume.call("attach", cmd.Attach(volume.options, volume.caller.node))
    for turn in ("detach", "a second detach"):
        volume.call(turn, cmd.Detach(NAME, volume.caller.node))
    return ""


@rule(
    "volume",
    _FLEX,
    "Query the storage system, not the memory of this process.",
    "volume_attach",
    "volume_is_attached",
)
def attached_volumes_are_known(exam: Examination) -> str:
    """An attached volume is reported as attached, even after the daemon was killed."""
    volume = Volume(exam, exam.claims["volume"][0])
    volume.call("attach", cmd.Attach(volume.options, volume.caller.node))
    for when in ("after attach", "after a crash"):
        if not volume.call("isattached", cmd.IsAttached(volume.options, volume.caller.node)).get("attached"):
            raise Broken(f"isattached says no {when}")
        exam.restart_after_kill()
    volume.call("detach", cmd.Detach(NAME, volume.caller.node))
    return ""


@rule("volume", _FLEX, "Return at once if the device exists.", "volume_attach", "volume_wait_attached")
def waiting_is_repeatable(exam: Examination) -> str:
    """Waiting for an attached device returns the same device each time."""
    volume = Volume(exam, exam.claims["volume"][0])
    device = str(volume.call("attach", cmd.Attach(volume.options, volume.caller.node)).get("device", ""))
    first, second = (
        volume.call("waitforattach", cmd.WaitForAttach(device, volume.options)).get("device") for _ in range(2)
    )
    volume.call("detach", cmd.Detach(NAME, volume.caller.node))
    if first != second:
        raise Broken(f"first {first!r}, then {second!r}")
    return str(first)


@rule("volume", f"{_FLEX}: expandvolume", "Return the current size of the volume.", "volume_expand")
def expanding_answers_a_size(exam: Examination) -> str:
    """Expand returns at least the requested size, also when repeated."""

    def life(volume: Volume) -> None:
        target = volume.mount()
        for what in ("expandvolume", "a second expandvolume"):
            if (answer := volume.expand(target, 2 * _GIB, what)) < 2 * _GIB:
                raise Broken(f"{what} to {2 * _GIB} bytes answered {answer}")
        _end(volume)

    return over_both(exam, life)

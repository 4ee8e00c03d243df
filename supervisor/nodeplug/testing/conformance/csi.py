"""Rules for volume drivers over CSI, where kubelet asks more than over FlexVolume.

Owns: targets that the driver removes, repetitions that differ, volumes that were provisioned, refreshes, pods of both
fronts at once, and a kill during a publish.
Refuses: what both fronts ask alike: `volume` has it, and lets each life happen over both.
"""

import threading
import time
from typing import Final

from nodeplug.contract.mounts import mounted_at
from nodeplug.testing.conformance.driver import NAME, PODS, Volume, VolumeOverCsi
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.conformance.volume import nothing_left, write
from nodeplug.testing.csi_caller import CsiFailure, CsiVolume

_SPEC: Final = "CSI specification"
_KUBELET: Final = "kubelet (volume/csi)"
_MOMENTS: Final = (0.3, 0.7)
"""When the daemon is killed, as parts of the time that a publish takes."""


def _volume(exam: Examination) -> VolumeOverCsi:
    return VolumeOverCsi(exam, exam.claims["volume"][0])


@rule("volume", f"{_SPEC}: NodeUnpublishVolume", "Leave no file in `target_path` below the mount.")
def unpublish_removes_the_target(exam: Examination) -> str:
    """Over CSI the target is gone after unpublish: the driver has made it, and its pod cannot end before."""
    volume = _volume(exam)
    target = volume.mount()
    volume.ask("unpublish", lambda: volume.over_csi.unpublish(PODS[0], volume.volume()))
    left = target.exists()
    volume.unmount()
    if left:
        raise Broken(f"{target} is still there")
    return ""


@rule("volume", f"{_SPEC}: NodePublishVolume", "Unmount only in unpublish and unstage; look up in mountinfo before.")
def other_read_only_is_refused(exam: Examination) -> str:
    """Over CSI a repetition with another read-only is refused with ALREADY_EXISTS, and the mount stays as it is."""
    volume = _volume(exam)
    target = volume.mount()
    before = mounted_at(str(target))
    code = _code(volume, volume.volume(read_only=True))
    after = mounted_at(str(target))
    volume.unmount()
    if code != "ALREADY_EXISTS":
        raise Broken(f"it was answered with {code}")
    if after != before:
        raise Broken("the pod has another mount now" if after else "the pod lost its mount")
    return ""


def _code(volume: VolumeOverCsi, wanted: CsiVolume) -> str:
    """Publish for the first pod; return the code of the answer, "OK" if it succeeds."""
    try:
        volume.exam.on_host(lambda: volume.over_csi.mount(PODS[0], wanted))
    except CsiFailure as error:
        return error.code or error.message
    return "OK"


@rule(
    "volume",
    "the contract of `must_exist`",
    "With `request.must_exist` raise NotFound instead of creating the volume: it is on another node, or deleted.",
)
def provisioned_volumes_are_not_created(exam: Examination) -> str:
    """A PersistentVolume that is not on the node is NOT_FOUND, if the driver keeps data: none is made."""
    if not (exam.subject.keeps_data or "volume_create" in exam.hooks):
        raise NotApplicable("nobody said keeps_data=True")
    known = _volume(exam)
    if known.inline:
        raise NotApplicable("its volumes are the pods' own")
    exam.renew()  # a node on which nobody has made it
    fresh = VolumeOverCsi(exam, exam.claims["volume"][0], handle=known.handle)
    code = _code(fresh, fresh.volume())
    if code == "INVALID_ARGUMENT":
        raise NotApplicable("the volume's id depends on the node's folder")
    if code == "OK":
        fresh.unmount()
    if code != "NOT_FOUND":
        raise Broken(f"a volume that nobody had made was answered with {code}")
    return ""


@rule(
    "volume",
    "the contract of `volume_refresh`",
    "Renew in place; when that fails raise, and leave the mount alone.",
    "volume_refresh",
)
def refresh_keeps_the_mount(exam: Examination) -> str:
    """A volume that is published again stays mounted, whether its refresh succeeds or fails."""
    volume = _volume(exam)
    target = volume.mount()
    before = mounted_at(str(target))
    told = []
    for what, secrets in (("the same secrets", volume.asked.secrets), ("none", {})):
        asked = volume.volume()
        code = _code(volume, CsiVolume(NAME, asked.attributes, asked.handle, secrets))
        if mounted_at(str(target)) != before:
            raise Broken(f"with {what} the answer was {code}, and the pod lost its mount")
        told.append(f"with {what} {code}")
    volume.unmount()
    return ", ".join(told)


@rule(
    "volume",
    "the daemon: it serves one volume over both",
    "Publish what was staged, however it is asked for.",
    "volume_stage",
)
def flex_and_csi_pods_share_a_volume(exam: Examination) -> str:
    """A FlexVolume pod and a CSI pod have one volume at once, and the last of them leaves nothing."""
    volume = _volume(exam)
    if volume.asked.secrets and "volume_id" not in exam.hooks:
        raise NotApplicable("its FlexVolumes are named by their secrets, too: the plugin has no volume_id")
    flexible = Volume(exam, exam.claims["volume"][0])
    before = exam.inventory()
    one, other = flexible.mount(), volume.mount(PODS[1])

    def give_up() -> None:
        flexible.unmount()
        volume.unmount(PODS[1])

    write(one, give_up)
    seen = (other / NAME).exists()
    flexible.unmount()
    if mounted_at(str(other)) is None:
        raise Broken("the CSI pod lost its mount when the FlexVolume pod had gone")
    volume.unmount(PODS[1])
    if not seen:
        raise Broken("a file that the FlexVolume pod wrote is not there for the CSI pod")
    nothing_left(exam, before)
    return ""


@rule(
    "volume",
    "the daemon may be killed at any instruction",
    "Begin stage and publish by looking at what a killed predecessor left, and go on from there.",
)
def publish_after_a_kill_succeeds(exam: Examination) -> str:
    """A publish during which the daemon is killed succeeds when it is repeated, and unpublish leaves nothing."""
    volume = _volume(exam)
    before = exam.inventory()
    for moment in _MOMENTS:
        seconds = _publish_time(volume)
        _killed_while_publishing(volume, seconds * moment)
        volume.mount()
        volume.unmount()
        nothing_left(exam, before)
    return ""


def _publish_time(volume: VolumeOverCsi) -> float:
    begun = time.monotonic()
    volume.mount()
    seconds = time.monotonic() - begun
    volume.unmount()
    return seconds


def _killed_while_publishing(volume: VolumeOverCsi, seconds: float) -> None:
    """Publish, and kill the daemon some time after the beginning; then start it again."""
    kill = threading.Timer(seconds, volume.exam.node.kill)
    kill.start()
    _code(volume, volume.volume())
    kill.join()
    volume.exam.start()

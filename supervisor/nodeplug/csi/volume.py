"""What each call of kubelet's does, in the thread of its request.

Owns: what kubelet expects around a publish: the target is made before and removed after, and so is the folder for
staging that kubelet makes and forgets; and the id under which all fronts know a volume.
Refuses: messages and statuses (`node`), and the steps themselves (`nodeplug.volumes`).
"""

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import (
    AlreadyExists,
    InUse,
    InvalidRequest,
    NotFound,
    NotSupported,
    PluginError,
    TryAgain,
)
from nodeplug.contract.mounts import mounted_at
from nodeplug.contract.values import (
    Secrets,
    VolumeExpand,
    VolumeId,
    VolumePublish,
    VolumeStage,
    VolumeStats,
    VolumeStatsRequest,
)
from nodeplug.csi import codec
from nodeplug.volumes.compose import Steps
from nodeplug.volumes.ledger import PUBLISHED

_MAPPED: Final = re.compile(r"(.*/volumeDevices)/([^/]+)/dev/([^/]+)")
"""Kubelet's own place for a pod's device, by PersistentVolume and pod (csi_plugin.go, NewBlockVolumeMapper)."""


def publish(steps: Steps, wanted: VolumePublish) -> None:
    """Publish a volume at a target that is made for it, and stage it before if no pod has it yet.

    Raises:
        InvalidRequest: the options mean another volume than the caller's id, or the target is something else.
    """
    try:
        _publish(steps, wanted)
    except (AlreadyExists, InUse, TryAgain):
        raise
    except PluginError as error:
        if not _is_live(steps, wanted.target_path):
            raise
        # Kubelet takes other errors for final, and some remove the mount of a running pod (kubernetes#121271).
        raise TryAgain(f"the volume stays as it is for its pod, although: {error.message}") from error


def _is_live(steps: Steps, path: str) -> bool:
    found = steps.ledger.target(path)
    return found is not None and found.phase == PUBLISHED and mounted_at(path) is not None


def _publish(steps: Steps, wanted: VolumePublish) -> None:
    wanted = replace(wanted, volume_id=_identify(steps, wanted))
    stage = VolumeStage(
        driver=wanted.driver,
        volume_id=wanted.volume_id,
        options=wanted.options,
        staging_path="",
        fs_type=wanted.fs_type,
        fs_group=wanted.fs_group,
        secrets=wanted.secrets,
        access_mode=wanted.access_mode,
        block=wanted.block,
        mount_flags=wanted.mount_flags,
        publish_context=wanted.publish_context,
        must_exist=wanted.must_exist,
    )
    with steps.at_target(wanted.target_path):
        made = _make_target(wanted)
        try:
            steps.publish(wanted, stage, renew=True)
        except PluginError:
            if made and mounted_at(wanted.target_path) is None:
                with suppress(TryAgain):
                    _remove_target(wanted.target_path)
            raise


def _identify(steps: Steps, wanted: VolumePublish) -> VolumeId:
    """Return the id under which all fronts know the volume."""
    if not wanted.ephemeral and not steps.composition.has("volume_id"):
        return wanted.volume_id
    named = steps.identify(wanted.options, _marking(wanted))
    if not wanted.ephemeral and named != wanted.volume_id:
        raise InvalidRequest(
            f"the volume attributes mean volume {named!r} of {wanted.driver}, and the volumeHandle is "
            f"{wanted.volume_id!r}: give the PersistentVolume the first as volumeHandle"
        )
    return named


def _marking(wanted: VolumePublish) -> Secrets:
    """Return the secrets that name a volume besides its options: who has other ones gets another volume.

    Tokens change with every call, but not the account that they are of.
    """
    secrets = {name: value for name, value in wanted.secrets.items() if name != codec.TOKENS}
    if codec.TOKENS in wanted.secrets:
        secrets[codec.TOKENS] = f"{wanted.pod.namespace}/{wanted.pod.service_account}".encode()
    return Secrets(secrets)


def _make_target(wanted: VolumePublish) -> bool:
    """Make what the volume is mounted on: a directory, or a file for a block device; return whether it is new."""
    path = Path(wanted.target_path)
    try:
        if wanted.block:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        else:
            path.mkdir(mode=0o750)
    except FileExistsError:
        return False  # not looked at: a dead filesystem may be mounted there
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidRequest(f"the target {wanted.target_path!r} has no folder: its caller has to make that") from error
    except OSError as error:
        raise TryAgain(f"the target {wanted.target_path!r} cannot be made: {error.strerror}") from error
    return True


def unpublish(steps: Steps, path: str, folder: Path, *, trusted: bool) -> None:
    """Unpublish a volume, remove the target, and the empty folder that kubelet made to stage it in.

    With `trusted`, a mount without a record is one of the driver's, as it is where kubelet puts those of its pods.
    """
    with steps.at_target(path):
        steps.unpublish(path, trusted=trusted or "/volumes/kubernetes.io~csi/" in path)
        _remove_target(path)
    # Kubelet does not know that it made it: it writes no record there for a driver that does not stage.
    for empty in (folder, folder.parent):
        with suppress(OSError):
            empty.rmdir()


def _remove_target(path: str) -> None:
    """Remove an unmounted target; what is in it is not removed.

    Raises:
        TryAgain: it cannot be removed yet; kubelet cannot either, and the pod would stay.
    """
    target = Path(path)
    try:
        if target.is_dir() and not target.is_symlink():
            target.rmdir()
        else:
            target.unlink(missing_ok=True)
    except FileNotFoundError:
        return
    except OSError as error:
        raise TryAgain(f"the target {path!r} is unmounted and cannot be removed: {error.strerror}") from error


def measure(steps: Steps, path: str) -> VolumeStats:
    """Return the usage of a published volume.

    Raises:
        NotFound: no volume of the driver is published there.
    """
    target = steps.ledger.target(path) or steps.ledger.target(_published(path))
    if target is None or target.volume.driver != steps.driver or mounted_at(target.path) is None:
        raise NotFound(f"no volume of {steps.driver} is published at {path!r}")
    path = target.path
    if steps.composition.has("volume_stats"):
        volume = target.volume
        request = VolumeStatsRequest(
            driver=steps.driver, volume_id=volume.volume_id, mount_path=path, staging_path=volume.staging_path
        )
        answer: VolumeStats = steps.composition.hook("volume_stats", request=request)
        return answer
    # One at a time: kubelet asks every minute, and the look at a server that is gone may never end.
    with steps.locks.held("usage", path, patience=0):
        steps.composition.step("the look at its usage")
        if Path(path).is_block_device():
            with Path(path).open("rb") as device:
                size = device.seek(0, os.SEEK_END)
            # Its size alone: "all used" would set off KubePersistentVolumeFillingUp of the kubernetes-mixin.
            return VolumeStats(total=size, used=0, available=0)
        found = os.statvfs(path)
    unit = found.f_frsize
    return VolumeStats(
        total=found.f_blocks * unit,
        used=(found.f_blocks - found.f_bfree) * unit,
        available=found.f_bavail * unit,
        inodes=found.f_files,
        inodes_used=found.f_files - found.f_ffree,
    )


def _published(path: str) -> str:
    """Return where a device is published that kubelet measures where it has mapped it (csi_plugin.go)."""
    found = _MAPPED.fullmatch(path)
    return f"{found[1]}/publish/{found[2]}/{found[3]}" if found else path


def expand(steps: Steps, path: str, size: int, limit: int) -> int:
    """Grow a published volume and its filesystem; return its bytes.

    Raises:
        NotFound: no volume of the driver is published there.
        NotSupported: the driver's volumes do not grow.
    """
    target = steps.ledger.target(path)
    if target is None or target.volume.driver != steps.driver:
        raise NotFound(f"no volume of {steps.driver} is published at {path!r}")
    if not steps.composition.has("volume_expand"):
        raise NotSupported(
            f"volumes of {steps.driver} do not grow: plugin {steps.composition.route.plugin!r} has no hook"
        )
    request = VolumeExpand(
        driver=steps.driver,
        volume_id=target.volume.volume_id,
        options=target.options,
        new_size=size,
        limit=limit,
        mount_path=path,
    )
    answer: int = steps.on_volume("volume_expand", request)
    return answer


def globalmount(folders: Path, driver: str, handle: str) -> Path:
    """Return where kubelet makes a folder to stage a PersistentVolume in (kubelet, pkg/volume/csi/csi_util.go)."""
    return folders / driver / hashlib.sha256(handle.encode()).hexdigest() / "globalmount"

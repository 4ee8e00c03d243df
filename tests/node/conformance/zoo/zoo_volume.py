"""Volume drivers that break the rules of FlexVolume and CSI, one each."""

import logging
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final

from nodeplug import (
    Claim,
    Host,
    InvalidRequest,
    NotFound,
    NotReady,
    VolumeAttach,
    VolumeAttached,
    VolumeClaim,
    VolumeDetach,
    VolumeExpand,
    VolumeId,
    VolumeIdentify,
    VolumeIsAttached,
    VolumePublish,
    VolumeStage,
    VolumeUnpublish,
    VolumeUnstage,
    VolumeWaitAttached,
    bind,
    hookimpl,
    mount,
    mounted_at,
    mounts,
    unmount,
)

_NUMBERS: Final = count()


class Tame:
    """Breaks nothing: memory that pods with the same options share."""

    example: ClassVar[dict[str, Any]] = {"volume_options": {"name": "v", "size": "1m"}}

    def __init__(self, config: object, host: Host) -> None:
        self.host = host

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("example/tame")]

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        return VolumeId(f"{request.options.get('name')}")

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        if set(request.options) != {"name", "size"}:
            raise InvalidRequest("the options are name and size")
        mount("tmpfs", request.staging_path, "tmpfs", options=[f"size={request.options['size']}"])

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        unmount(request.staging_path)

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        bind(request.staging_path, request.target_path, read_only=request.read_only)

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        unmount(request.target_path)

    @hookimpl
    def volume_expand(self, request: VolumeExpand) -> int:
        return request.new_size


class Attached(Tame):
    """Breaks nothing either, and attaches: who holds what is a file, as it would be a server's answer."""

    def attachment(self, name: str) -> Path:
        return self.host.state_dir / f"attached-{name}"

    @hookimpl
    def volume_attach(self, request: VolumeAttach) -> VolumeAttached:
        self.attachment("v").touch()
        return VolumeAttached(device=self.device())

    def device(self) -> str:
        return "/dev/null"

    @hookimpl
    def volume_detach(self, request: VolumeDetach) -> None:
        self.attachment("v").unlink(missing_ok=True)

    @hookimpl
    def volume_is_attached(self, request: VolumeIsAttached) -> bool:
        return self.attachment("v").exists()

    @hookimpl
    def volume_wait_attached(self, request: VolumeWaitAttached) -> str:
        return request.device


class NeverMounts(Tame):
    breaks = "mount-succeeds", "out of order"

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        raise NotReady("out of order")


class NamesByChance(Tame):
    breaks = "repeated-mount-succeeds", "a second mount failed"

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        return VolumeId(f"v{next(_NUMBERS)}")


class LeavesMount(Tame):
    breaks = "nothing-is-left-after-unmount", "mount tmpfs on"

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        place = self.host.state_dir / "place"
        place.mkdir(exist_ok=True)
        mount("tmpfs", str(place), "tmpfs")
        super().volume_stage(request)


class UnmountsNothing(Tame):
    breaks = "unmount-is-repeatable", "nothing to unpublish"

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        raise NotFound("nothing to unpublish")


class UnpublishesOnce(Tame):
    breaks = "unpublish-of-nothing-succeeds", "is not published"

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        if mounted_at(request.target_path) is None:
            raise NotFound(f"{request.target_path} is not published")
        super().volume_unpublish(request)


class UnstagesOnce(Tame):
    breaks = "unstage-of-nothing-succeeds", "is not staged"

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        if mounted_at(request.staging_path) is None:
            raise NotFound(f"{request.staging_path} is not staged")
        super().volume_unstage(request)


class NamesByOrder(Tame):
    breaks = "volume-ids-are-stable", "first 'v,1m', then '1m,v'"

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        return VolumeId(",".join(request.options.values()))


class UnpublishesEverybody(Tame):
    breaks = "pods-do-not-disturb-each-other", "lost its mount"

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        name = Path(request.target_path).name
        for found in mounts():
            if Path(found.target).name == name and "/pods/" in found.target:
                unmount(found.target)


class PublishesCopies(Tame):
    breaks = "pods-share-a-staged-volume", "is not there for the other"

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        mount("tmpfs", request.target_path, "tmpfs", read_only=request.read_only)


class PublishesWritable(Tame):
    breaks = "read-only-is-read-only", ""

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        bind(request.staging_path, request.target_path)


class Remembers(Tame):
    breaks = "unmount-after-a-crash-succeeds", "published by nobody"

    def __init__(self, config: object, host: Host) -> None:
        super().__init__(config, host)
        self.published: set[str] = set()

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        self.published.add(request.target_path)
        super().volume_publish(request)

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        if request.target_path not in self.published:
            raise NotFound(f"{request.target_path} was published by nobody")
        super().volume_unpublish(request)


class Forgets(Tame):
    breaks = "data-outlives-the-pod", "is gone"
    example: ClassVar[dict[str, Any]] = {**Tame.example, "keeps_data": True}


class TrustsOptions(Tame):
    breaks = "wrong-options-are-answered", "raised KeyError"

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        return VolumeId(request.options["name"])


class FailsTooLate(Tame):
    breaks = "failed-mount-leaves-nothing", "mount tmpfs on"

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        if "conformance-unknown" in request.options:
            place = self.host.state_dir / "place"
            place.mkdir(exist_ok=True)
            mount("tmpfs", str(place), "tmpfs")
        super().volume_stage(request)


class TellsSecrets(Tame):
    breaks = "secrets-stay-secret", "contains it"

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        logging.getLogger("acme").warning("mounting with %s", dict(request.secrets))  # `host.log` would mask them
        super().volume_stage(request)


class AnswersSecrets(Tame):
    """Never mounts, and answers what nobody may read."""

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        raise InvalidRequest(f"the password {request.secrets['password'].decode()} is wrong")


class AttachesAnew(Attached):
    breaks = "attach-is-repeatable", "then"

    def device(self) -> str:
        return f"/dev/loop{next(_NUMBERS)}"


class DetachesOnce(Attached):
    breaks = "detach-is-repeatable", "is not attached"

    @hookimpl
    def volume_detach(self, request: VolumeDetach) -> None:
        if not self.attachment("v").exists():
            raise NotFound("it is not attached")
        super().volume_detach(request)


class ForgetsAttachments(Attached):
    breaks = "attached-volumes-are-known", "says no after a crash"

    def __init__(self, config: object, host: Host) -> None:
        super().__init__(config, host)
        self.attached = False

    @hookimpl
    def volume_attach(self, request: VolumeAttach) -> VolumeAttached:
        self.attached = True
        return super().volume_attach(request)

    @hookimpl
    def volume_is_attached(self, request: VolumeIsAttached) -> bool:
        return self.attached


class WaitsForAnother(Attached):
    breaks = "waiting-is-repeatable", "then"

    @hookimpl
    def volume_wait_attached(self, request: VolumeWaitAttached) -> str:
        return f"/dev/loop{next(_NUMBERS)}"


class NeverGrows(Tame):
    breaks = "expanding-answers-a-size", "answered 1073741824"

    @hookimpl
    def volume_expand(self, request: VolumeExpand) -> int:
        return request.new_size // 2


# --- over CSI


class Renews(Tame):
    """Breaks nothing: it renews, and refuses to without a password."""

    example: ClassVar[dict[str, Any]] = {**Tame.example, "secrets": {"password": b"conformance"}}

    @hookimpl
    def volume_refresh(self, request: VolumePublish) -> None:
        if "password" not in request.secrets:
            raise InvalidRequest("there is no password")


class Inline(Tame):
    """Breaks nothing: pods may name its volumes themselves."""

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("example/tame", inline=True)]


class MarksTarget(Tame):
    breaks = "unpublish-removes-the-target", "Directory not empty"

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        (Path(request.target_path) / "mounted").touch()
        super().volume_publish(request)


class TidiesUp(Tame):
    breaks = "other-read-only-is-refused", "answered with OK"

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        for found in mounts():
            if "/kubernetes.io~csi/" in found.target and str(self.host.state_dir.parents[3]) in found.target:
                unmount(found.target)
        return super().volume_id(request)


class CreatesAlways(Tame):
    breaks = "provisioned-volumes-are-not-created", "answered with OK"
    example: ClassVar[dict[str, Any]] = {**Tame.example, "keeps_data": True}


class RefreshesByUnmounting(Tame):
    breaks = "refresh-keeps-the-mount", "lost its mount"

    @hookimpl
    def volume_refresh(self, request: VolumePublish) -> None:
        unmount(request.target_path)
        raise NotReady("the server is away")


class CopiesForCsi(Tame):
    breaks = "flex-and-csi-pods-share-a-volume", "is not there for the CSI pod"

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        if request.access_mode is None:
            bind(request.staging_path, request.target_path, read_only=request.read_only)
        else:
            mount("tmpfs", request.target_path, "tmpfs")


class NeverGoesOn(Tame):
    breaks = "publish-after-a-kill-succeeds", "is begun already"
    calls = count()

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        begun = self.host.state_dir / "begun"
        if begun.exists():
            raise NotReady("the volume is begun already")
        begun.touch()
        time.sleep(1 if next(self.calls) == 0 else 5)  # the kill follows the time of the first call, and may be late
        super().volume_stage(request)
        begun.unlink()


class Reads(Tame):
    """Breaks nothing: nobody can write to it, as to an image."""

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        bind(request.staging_path, request.target_path, read_only=True)

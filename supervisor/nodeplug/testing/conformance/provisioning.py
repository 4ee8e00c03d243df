"""Rules for volume drivers that create volumes: what a provisioner does, over CSI's Controller.

Owns: creation again, a pod on what was created, devices, deletion again, lists, and snapshots.
Refuses: sizes and parameters beyond those of `example`, which only the driver knows.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.testing.conformance.driver import NAME, PODS, VolumeOverCsi
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.conformance.volume import nothing_left, write
from nodeplug.testing.csi_caller import CsiVolume
from nodeplug.testing.csi_caller.controller import created

_SPEC: Final = "CSI specification"
_BYTES: Final = b"conformance".ljust(512, b"\n")
"""What is written to a device: one sector."""
_MODE: Final = pb.VolumeCapability.AccessMode
_CAPABILITY: Final = pb.VolumeCapability(
    mount=pb.VolumeCapability.MountVolume(), access_mode=_MODE(mode=_MODE.SINGLE_NODE_WRITER)
)


class _Controller:
    """The driver's Controller, as a provisioner calls it."""

    def __init__(self, exam: Examination, driver: VolumeOverCsi, channel: grpc.Channel) -> None:
        self.exam, self.driver = exam, driver
        self.stub = pb_grpc.ControllerStub(channel)

    def ask(self, what: str, work: Callable[[float], Any]) -> Any:
        """Call the driver within the patience of the run; Broken if it fails."""
        try:
            return self.exam.on_host(lambda: work(max(self.exam.patience, 30.0)))
        except grpc.RpcError as error:
            raise Broken(f"{what} failed: {error.code().name}: {error.details()}") from None

    def create(self, name: str, **more: Any) -> pb.Volume:
        request = pb.CreateVolumeRequest(name=name, volume_capabilities=[_CAPABILITY], **more)
        made: pb.Volume = self.ask("create", lambda limit: self.stub.CreateVolume(request, timeout=limit).volume)
        return made

    def delete(self, volume_id: str, what: str = "delete") -> None:
        request = pb.DeleteVolumeRequest(volume_id=volume_id)
        self.ask(what, lambda limit: self.stub.DeleteVolume(request, timeout=limit))

    def use(self, volume: pb.Volume, work: Callable[[Any], None]) -> None:
        """Let a pod do something with a volume."""
        asked = CsiVolume(NAME, dict(volume.volume_context), volume.volume_id, self.driver.asked.secrets)
        target = self.driver.ask("publish", lambda: self.driver.over_csi.mount(PODS[0], asked))
        try:
            work(target)
        finally:
            self.driver.unmount()


@contextmanager
def _controller(exam: Examination) -> Iterator[_Controller]:
    driver = VolumeOverCsi(exam, exam.claims["volume"][0])
    with grpc.insecure_channel(f"unix:{driver.over_csi.register().endpoint}") as channel:
        yield _Controller(exam, driver, channel)


@rule(
    "volume",
    f"{_SPEC}: CreateVolume",
    "Find the volume by `request.name`: a caller that lost the answer asks again.",
    "volume_create",
)
def a_volume_is_created_once(exam: Examination) -> str:
    """A volume that is created again by its name is the same volume, with what a pod has written to it."""
    with _controller(exam) as controller:
        first = controller.create(NAME)
        controller.use(first, lambda target: write(target, lambda: None))
        again = controller.create(NAME)
        if again.volume_id != first.volume_id:
            raise Broken(f"created again it is {again.volume_id!r}, and was {first.volume_id!r}")
        kept: list[bool] = []
        controller.use(again, lambda target: kept.append((target / NAME).exists()))
        controller.delete(again.volume_id)
        if not kept[0]:
            raise Broken("created again it is empty")
    return ""


@rule(
    "volume",
    f"{_SPEC}: DeleteVolume",
    "Remove the volume and its data; succeed if there is none.",
    "volume_create",
)
def a_deleted_volume_is_gone(exam: Examination) -> str:
    """A deletion succeeds, also when repeated, and a new volume of the same name is empty."""
    with _controller(exam) as controller:
        volume = controller.create(NAME)
        controller.use(volume, lambda target: write(target, lambda: None))
        controller.delete(volume.volume_id)
        controller.delete(volume.volume_id, "a second delete")
        fresh = controller.create(NAME)
        left: list[bool] = []
        controller.use(fresh, lambda target: left.append((target / NAME).exists()))
        controller.delete(fresh.volume_id)
        if left[0]:
            raise Broken("a new volume of the same name has the data of the deleted one")
    return ""


@rule(
    "volume",
    f"{_SPEC}: ListVolumes",
    "List what exists now, by the ids that volume_create returned.",
    "volume_create",
    "volume_list",
)
def a_list_has_what_was_created(exam: Examination) -> str:
    """A volume is in the list from its creation until its deletion."""
    with _controller(exam) as controller:

        def listed(volume_id: str) -> bool:
            entries = controller.ask(
                "list", lambda limit: controller.stub.ListVolumes(pb.ListVolumesRequest(), timeout=limit).entries
            )
            return volume_id in {entry.volume.volume_id for entry in entries}

        volume = controller.create(NAME)
        there = listed(volume.volume_id)
        controller.delete(volume.volume_id)
        if not there:
            raise Broken(f"{volume.volume_id!r} was created, and is not in the list")
        if listed(volume.volume_id):
            raise Broken(f"{volume.volume_id!r} was deleted, and is in the list")
    return ""


@rule(
    "volume",
    "CSI specification: NodePublishVolume; kubelet (volume/csi, csi_block.go)",
    "With `request.block` bind the device on `target_path`, which is a file, and never format it.",
    "volume_create",
)
def a_block_volume_keeps_its_bytes(exam: Examination) -> str:
    """A block volume is a device for its pods, with what the one before has written, and kubelet measures its size."""
    driver = VolumeOverCsi(exam, exam.claims["volume"][0])
    if not driver.block:
        raise NotApplicable("its claim has no block=True")
    before, kubelet = exam.inventory(), driver.over_csi

    def life() -> str:
        with created(kubelet, f"{NAME}-device", block=True) as volume:
            device = kubelet.mount(PODS[0], volume)
            size = _write(device)
            measured = kubelet.stats(PODS[0], volume.name)
            kubelet.unmount(PODS[0], volume.name)
            kept = _begins(kubelet.mount(PODS[1], volume))
            kubelet.unmount(PODS[1], volume.name)
        if not kept:
            raise Broken("the next pod does not find what the one before has written to the device")
        if measured is not None and measured.get("BYTES", {}).get("total") != size:
            raise Broken(f"the device has {size} bytes, and kubelet is told {measured}")
        if measured is not None and measured["BYTES"]["used"] and not measured["BYTES"]["available"]:
            raise Broken(f"kubelet is told {measured}: a device that looks full sets off alerts; answer its size alone")
        return f"{size} bytes"

    seen: str = driver.ask("a block volume", life)
    nothing_left(exam, before)
    return seen


def _begins(device: Path) -> bool:
    with device.open("rb", buffering=0) as stream:
        return stream.read(len(_BYTES)) == _BYTES


def _write(device: Path) -> int:
    """Write to a device, past the page cache of its node; return its size in bytes."""
    with device.open("r+b", buffering=0) as stream:
        stream.write(_BYTES)
        os.fsync(stream.fileno())
        return stream.seek(0, os.SEEK_END)


@rule(
    "volume",
    f"{_SPEC}: CreateSnapshot",
    "Copy what the volume has at that moment, and give it to a volume that is created with `request.snapshot`.",
    "volume_create",
    "volume_snapshot",
)
def a_snapshot_is_restored(exam: Examination) -> str:
    """A volume that is created from a snapshot has what the volume had when it was taken."""
    with _controller(exam) as controller:
        volume = controller.create(NAME)
        controller.use(volume, lambda target: write(target, lambda: None))
        request = pb.CreateSnapshotRequest(source_volume_id=volume.volume_id, name=NAME)
        taken = controller.ask(
            "snapshot", lambda limit: controller.stub.CreateSnapshot(request, timeout=limit).snapshot
        )
        source = pb.VolumeContentSource(snapshot=pb.VolumeContentSource.SnapshotSource(snapshot_id=taken.snapshot_id))
        restored = controller.create(f"{NAME}-restored", volume_content_source=source)
        found: list[bool] = []
        controller.use(restored, lambda target: found.append((target / NAME).exists()))
        for volume_id in (restored.volume_id, volume.volume_id):
            controller.delete(volume_id)
        gone = pb.DeleteSnapshotRequest(snapshot_id=taken.snapshot_id)
        for what in ("delete of the snapshot", "a second delete of the snapshot"):
            controller.ask(what, lambda limit: controller.stub.DeleteSnapshot(gone, timeout=limit))
        if not found[0]:
            raise Broken("the restored volume lacks what its source had")
    return ""

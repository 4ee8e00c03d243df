"""The Controller of a driver on a real daemon, beside pods: what csi-sanity does not look at."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from nodeplug import Pod
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.testing import CsiCaller, CsiVolume

MODES = pb.VolumeCapability.AccessMode
LOOPFILE = "loopfile.nodeplug"
MIB = 1 << 20
pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]


def capability(*, block: bool = False) -> pb.VolumeCapability:
    mode = MODES(mode=MODES.SINGLE_NODE_WRITER)
    if block:
        return pb.VolumeCapability(block=pb.VolumeCapability.BlockVolume(), access_mode=mode)
    return pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume(), access_mode=mode)


@pytest.fixture(params=["thread", "process"])
def kubelet(start_kubelet: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    return start_kubelet(f'[plugins.loopfile]\nisolation = "{request.param}"\n')


def controller(kubelet: Any) -> Any:
    return pb_grpc.ControllerStub(kubelet.channel(Path(kubelet.info(LOOPFILE).endpoint)))


def create(kubelet: Any, name: str, *, block: bool = False) -> Any:
    request = pb.CreateVolumeRequest(
        name=name,
        volume_capabilities=[capability(block=block)],
        capacity_range=pb.CapacityRange(required_bytes=16 * MIB),
    )
    return controller(kubelet).CreateVolume(request, timeout=60, wait_for_ready=True).volume


def delete(kubelet: Any, volume_id: str) -> None:
    controller(kubelet).DeleteVolume(pb.DeleteVolumeRequest(volume_id=volume_id), timeout=60, wait_for_ready=True)


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_volume_that_a_pod_has_is_not_deleted(kubelet: Any) -> None:
    volume = create(kubelet, "pvc-1")
    target = kubelet.publish(LOOPFILE, volume.volume_id, "a", dict(volume.volume_context))
    (target / "file").write_text("kept")
    with pytest.raises(grpc.RpcError) as refused:
        delete(kubelet, volume.volume_id)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert str(target) in str(refused.value.details())
    kubelet.unpublish(LOOPFILE, volume.volume_id, "a")
    delete(kubelet, volume.volume_id)
    with pytest.raises(grpc.RpcError) as gone:
        kubelet.publish(LOOPFILE, volume.volume_id, "a", dict(volume.volume_context))
    assert gone.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.programs("mkfs.ext4")
def test_a_volume_says_on_which_node_it_is_and_kubelet_hears_the_same(kubelet: Any) -> None:
    (here,) = create(kubelet, "pvc-1").accessible_topology
    told = kubelet.driver(LOOPFILE).NodeGetInfo(pb.NodeGetInfoRequest(), timeout=60)
    assert dict(here.segments) == dict(told.accessible_topology.segments) == {f"{LOOPFILE}/node": told.node_id}


def test_a_pod_gets_a_block_volume_as_a_device_that_outlives_a_killed_daemon(kubelet: Any) -> None:
    volume = create(kubelet, "pvc-raw", block=True)
    target = kubelet.target("raw")
    request = pb.NodePublishVolumeRequest(
        volume_id=volume.volume_id,
        target_path=str(target),
        volume_capability=capability(block=True),
        volume_context=volume.volume_context,
    )
    kubelet.driver(LOOPFILE).NodePublishVolume(request, timeout=60)
    assert stat.S_ISBLK(target.stat().st_mode)
    kubelet.node.kill()
    kubelet.node.start()
    with target.open("r+b", buffering=0) as device:
        device.write(b"mine")
    asked = pb.NodeGetVolumeStatsRequest(volume_id=volume.volume_id, volume_path=str(target))
    stats = kubelet.driver(LOOPFILE).NodeGetVolumeStats(asked, timeout=60, wait_for_ready=True)
    assert [one.total for one in stats.usage] == [16 * MIB]
    kubelet.unpublish(LOOPFILE, volume.volume_id, "raw")
    assert not target.exists()
    delete(kubelet, volume.volume_id)


def test_kubelets_stand_in_gives_pods_a_block_volume_and_takes_it_again(kubelet: Any) -> None:
    made = create(kubelet, "pvc-raw", block=True)
    volume = CsiVolume("pv-raw", dict(made.volume_context), handle=made.volume_id, block=True)
    caller = CsiCaller(kubelet.root, LOOPFILE)
    one, two = Pod(name="one", uid="uid-1"), Pod(name="two", uid="uid-2")
    device = caller.mount(one, volume)
    device.write_bytes(b"mine")
    with caller.mount(two, volume).open("rb") as other:
        assert other.read(4) == b"mine"
    # Of a device nobody knows what is used: a figure would set off the alerts of volumes that fill up.
    assert caller.stats(two, "pv-raw") == {"BYTES": {"total": 16 * MIB, "used": 0, "available": 0}}
    caller.unmount(one, "pv-raw")
    caller.unmount(two, "pv-raw")
    assert (caller.volumes(), kubelet.mounted()) == ([], [])
    delete(kubelet, made.volume_id)


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_one_volume_is_not_a_filesystem_for_one_pod_and_a_device_for_another(kubelet: Any) -> None:
    volume = create(kubelet, "pvc-1")
    kubelet.publish(LOOPFILE, volume.volume_id, "a", dict(volume.volume_context))
    request = pb.NodePublishVolumeRequest(
        volume_id=volume.volume_id,
        target_path=str(kubelet.target("b")),
        volume_capability=capability(block=True),
        volume_context=volume.volume_context,
    )
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.driver(LOOPFILE).NodePublishVolume(request, timeout=60)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "volumeMode" in str(refused.value.details())
    kubelet.unpublish(LOOPFILE, volume.volume_id, "a")


@pytest.mark.programs("mkfs.ext4")
def test_volumes_that_were_created_are_there_after_a_kill(kubelet: Any) -> None:
    for number in range(3):
        create(kubelet, f"pvc-{number}")
        kubelet.node.kill()
        kubelet.node.start()
        assert create(kubelet, f"pvc-{number}").volume_id == f"pvc-{number}"
    found = controller(kubelet).ListVolumes(pb.ListVolumesRequest(), timeout=60, wait_for_ready=True)
    assert [one.volume.volume_id for one in found.entries] == ["pvc-0", "pvc-1", "pvc-2"]

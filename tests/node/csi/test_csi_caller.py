"""The kubelet stand-in for CSI judges drivers as kubelet does; the drivers here are servers of the test."""

import json
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from nodeplug import Pod, mount, mounted_at, unmount
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.pb import pluginregistration_v1_pb2 as watcher_pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as watcher_grpc
from nodeplug.testing import CsiCaller, CsiDriverSpec, CsiFailure, CsiTimeouts, CsiVolume
from nodeplug.testing.folders import unmount_below

pytestmark = pytest.mark.node
DRIVER = "disk.acme"
POD = Pod(name="web", namespace="shop", uid="11111111-2222", service_account="shopper")
INLINE = CsiVolume("data", {"size": "1Mi"}, secrets={"token": b"s3cr3t"})
CLAIMED = CsiVolume("pv-1", {"size": "1Mi"}, handle="disk-1")
RAW = CsiVolume("pv-raw", {"size": "1Mi"}, handle="disk-raw", block=True)
OTHER = Pod(name="job", uid="33333333-4444")
QUICK = CsiTimeouts(appear=0.5)


class Disk(pb_grpc.NodeServicer):
    """A driver that mounts a tmpfs, and does what else a test sets."""

    def __init__(self) -> None:
        self.capabilities = ["GET_VOLUME_STATS", "SINGLE_NODE_MULTI_WRITER"]
        self.code = ""
        self.mounts = True
        self.removes = True
        self.usage = [pb.VolumeUsage(unit=pb.VolumeUsage.BYTES, total=9, used=4, available=5)]
        self.published: list[pb.NodePublishVolumeRequest] = []
        self.found: list[bool] = []
        self.measured: list[str] = []

    def NodeGetInfo(self, request: Any, context: Any) -> pb.NodeGetInfoResponse:  # noqa: N802 - the RPC's name
        return pb.NodeGetInfoResponse(node_id="node-1", max_volumes_per_node=7)

    def NodeGetCapabilities(self, request: Any, context: Any) -> pb.NodeGetCapabilitiesResponse:  # noqa: N802 - as above
        kinds = pb.NodeServiceCapability.RPC
        found = [pb.NodeServiceCapability(rpc=kinds(type=kinds.Type.Value(name))) for name in self.capabilities]
        return pb.NodeGetCapabilitiesResponse(capabilities=found)

    def NodePublishVolume(self, request: Any, context: Any) -> pb.NodePublishVolumeResponse:  # noqa: N802 - as above
        self.published.append(request)
        self.found.append((Path(request.target_path).parent / "vol_data.json").exists())
        if self.code:
            context.abort(grpc.StatusCode[self.code], "not today")
        if self.mounts and request.volume_capability.HasField("block"):
            Path(request.target_path).unlink(missing_ok=True)
            os.mknod(request.target_path, stat.S_IFBLK | 0o600, os.makedev(7, 0))
        elif self.mounts and mounted_at(request.target_path) is None:
            Path(request.target_path).mkdir()
            mount("tmpfs", request.target_path, "tmpfs")
        return pb.NodePublishVolumeResponse()

    def NodeUnpublishVolume(self, request: Any, context: Any) -> pb.NodeUnpublishVolumeResponse:  # noqa: N802 - as above
        if self.removes and not Path(request.target_path).is_dir():
            Path(request.target_path).unlink(missing_ok=True)
        elif self.removes:
            unmount(request.target_path)
        return pb.NodeUnpublishVolumeResponse()

    def NodeStageVolume(self, request: Any, context: Any) -> pb.NodeStageVolumeResponse:  # noqa: N802 - as above
        raise NotImplementedError

    def NodeUnstageVolume(self, request: Any, context: Any) -> pb.NodeUnstageVolumeResponse:  # noqa: N802 - as above
        raise NotImplementedError

    def NodeGetVolumeStats(self, request: Any, context: Any) -> pb.NodeGetVolumeStatsResponse:  # noqa: N802 - as above
        self.measured.append(f"{request.volume_id} {request.volume_path}")
        return pb.NodeGetVolumeStatsResponse(usage=self.usage)

    def NodeExpandVolume(self, request: Any, context: Any) -> pb.NodeExpandVolumeResponse:  # noqa: N802 - as above
        if self.code:
            context.abort(grpc.StatusCode[self.code], "too large")
        return pb.NodeExpandVolumeResponse(capacity_bytes=request.capacity_range.required_bytes)


class Registrar(watcher_grpc.RegistrationServicer):
    """What announces it."""

    def __init__(self, endpoint: Path) -> None:
        self.info = watcher_pb.PluginInfo(
            type="CSIPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=["1.0.0"]
        )
        self.verdicts: list[tuple[bool, str]] = []

    def GetInfo(self, request: Any, context: Any) -> watcher_pb.PluginInfo:  # noqa: N802 - the RPC's name
        return self.info

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> watcher_pb.RegistrationStatusResponse:  # noqa: N802 - as above
        self.verdicts.append((request.plugin_registered, request.error))
        return watcher_pb.RegistrationStatusResponse()


@pytest.fixture
def serve() -> Iterator[Callable[[Path, Callable[[grpc.Server], None]], grpc.Server]]:
    with ExitStack() as stack:

        def begin(path: Path, add: Callable[[grpc.Server], None]) -> grpc.Server:
            server = grpc.server(stack.enter_context(ThreadPoolExecutor(2)))
            add(server)
            path.parent.mkdir(parents=True, exist_ok=True)
            server.add_insecure_port(f"unix:{path}")
            server.start()
            stack.callback(lambda: server.stop(None).wait())
            return server

        yield begin


@pytest.fixture
def short(short_path: Path) -> Iterator[Path]:
    """A folder with a short path, without mounts afterwards."""
    yield short_path
    unmount_below(short_path)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def registrar(short: Path) -> Registrar:
    return Registrar(short / "disk.sock")


@pytest.fixture
def caller(short: Path, disk: Disk, registrar: Registrar, serve: Any) -> CsiCaller:
    serve(short / "disk.sock", lambda server: pb_grpc.add_NodeServicer_to_server(disk, server))
    serve(
        short / "plugins_registry" / "x-reg.sock",
        lambda server: watcher_grpc.add_RegistrationServicer_to_server(registrar, server),
    )
    return CsiCaller(short, DRIVER, timeouts=QUICK)


def failure(call: Callable[[], object]) -> CsiFailure:
    with pytest.raises(CsiFailure) as caught:
        call()
    return caught.value


def test_a_driver_is_found_by_name_asked_for_its_node_and_told_the_verdict(
    caller: CsiCaller, registrar: Registrar
) -> None:
    found = caller.register()
    assert (found.node_id, found.max_volumes) == ("node-1", 7)
    assert caller.calls == ["GetInfo", "NodeGetInfo", "NotifyRegistrationStatus"]
    assert registrar.verdicts == [(True, "")]


def test_a_driver_of_another_version_is_refused_and_told_so(caller: CsiCaller, registrar: Registrar) -> None:
    registrar.info.supported_versions[:] = ["0.3.0"]
    assert "None of the versions" in failure(caller.register).message
    assert [registered for registered, _ in registrar.verdicts] == [False]


def test_a_driver_that_never_appears_is_told_with_what_is_there(caller: CsiCaller) -> None:
    caller.driver = "other.acme"
    assert "driver name other.acme not found" in failure(caller.register).message
    assert f"found CSIPlugin {DRIVER}" in failure(caller.register).message


def test_a_driver_whose_socket_is_replaced_is_asked_again(
    caller: CsiCaller, registrar: Registrar, short: Path, serve: Any
) -> None:
    caller.register()
    path = short / "plugins_registry" / "x-reg.sock"
    path.unlink()
    serve(path, lambda server: watcher_grpc.add_RegistrationServicer_to_server(registrar, server))
    caller.mount(POD, INLINE)
    assert caller.calls.count("GetInfo") == 2
    caller.unmount(POD, "data")


def test_an_inline_volume_has_a_handle_of_kubelets_and_the_pod_in_its_context(caller: CsiCaller, disk: Disk) -> None:
    target = caller.mount(POD, INLINE)
    assert str(target).endswith("pods/11111111-2222/volumes/kubernetes.io~csi/data/mount")
    (asked,) = disk.published
    assert asked.volume_id.startswith("csi-")
    assert len(asked.volume_id) == 68
    context = dict(asked.volume_context)
    assert (context["size"], context["csi.storage.k8s.io/ephemeral"]) == ("1Mi", "true")
    assert context["csi.storage.k8s.io/pod.uid"] == POD.uid
    assert dict(asked.secrets) == {"token": "s3cr3t"}
    caller.unmount(POD, "data")


def test_the_folder_and_the_record_are_there_before_the_driver_is_called_and_gone_afterwards(
    caller: CsiCaller, disk: Disk
) -> None:
    target = caller.mount(POD, CLAIMED)
    assert target.parent.stat().st_mode & 0o777 == 0o750
    record = json.loads((target.parent / "vol_data.json").read_text())
    assert (record["volumeHandle"], record["volumeLifecycleMode"]) == ("disk-1", "Persistent")
    assert disk.found == [True]
    caller.unmount(POD, "pv-1")
    assert not target.parent.exists()


def test_capabilities_are_asked_before_nearly_every_call(caller: CsiCaller) -> None:
    caller.register()
    caller.calls.clear()
    caller.mount(POD, CLAIMED)
    caller.stats(POD, "pv-1")
    caller.unmount(POD, "pv-1")
    ask = "NodeGetCapabilities"
    publish, stats = [ask] * 4 + ["NodePublishVolume"], [ask, "NodeGetVolumeStats"]
    assert caller.calls == [*publish, *stats, "NodeUnpublishVolume"]
    assert caller.global_mount("disk-1").is_dir()


@pytest.mark.parametrize(
    ("capable", "mode", "sent"),
    [
        (True, "ReadWriteOnce", "SINGLE_NODE_MULTI_WRITER"),
        (True, "ReadWriteOncePod", "SINGLE_NODE_SINGLE_WRITER"),
        (False, "ReadWriteOnce", "SINGLE_NODE_WRITER"),
        (False, "ReadWriteOncePod", "SINGLE_NODE_WRITER"),
        (True, "ReadOnlyMany", "MULTI_NODE_READER_ONLY"),
    ],
)
def test_access_modes_are_told_as_the_driver_knows_them(
    caller: CsiCaller, disk: Disk, capable: bool, mode: str, sent: str
) -> None:
    disk.capabilities = ["SINGLE_NODE_MULTI_WRITER"] if capable else []
    caller.mount(POD, CsiVolume("pv-1", handle="disk-1", access_mode=mode))
    asked = disk.published[0].volume_capability.access_mode.mode
    assert pb.VolumeCapability.AccessMode.Mode.Name(asked) == sent
    caller.unmount(POD, "pv-1")


def test_a_group_is_changed_by_kubelet_or_passed_to_a_driver_that_takes_it(caller: CsiCaller, disk: Disk) -> None:
    target = caller.mount(POD, INLINE, fs_group=4711)
    assert target.stat().st_gid == 4711
    caller.unmount(POD, "data")
    disk.capabilities = ["VOLUME_MOUNT_GROUP"]
    target = caller.mount(POD, INLINE, fs_group=4711)
    assert (target.stat().st_gid, disk.published[1].volume_capability.mount.volume_mount_group) == (0, "4711")
    caller.unmount(POD, "data")


def test_a_final_failure_removes_the_folder_and_an_uncertain_one_leaves_it_to_be_unpublished(
    caller: CsiCaller, disk: Disk
) -> None:
    disk.code = "INTERNAL"
    assert failure(lambda: caller.mount(POD, INLINE)).final
    target = caller.target(POD, "data")
    assert not target.parent.exists()
    disk.code = "UNAVAILABLE"
    assert not failure(lambda: caller.mount(POD, INLINE)).final
    assert caller.uncertain == {target}
    assert (target.parent / "vol_data.json").exists()
    caller.unmount(POD, "data")
    assert (caller.uncertain, target.parent.exists()) == (set(), False)


def test_a_final_failure_leaves_what_is_mounted_and_its_record(caller: CsiCaller, disk: Disk) -> None:
    target = caller.mount(POD, INLINE)
    disk.code = "INTERNAL"
    failure(lambda: caller.mount(POD, INLINE))
    assert mounted_at(str(target))
    caller.unmount(POD, "data")


def test_each_publish_brings_a_new_token_where_the_driver_wants_it(caller: CsiCaller, disk: Disk) -> None:
    caller.spec = CsiDriverSpec(token_requests=("vault",))
    key = "csi.storage.k8s.io/serviceAccount.tokens"
    for _ in range(2):
        caller.mount(POD, INLINE)
    first, second = (json.loads(asked.volume_context[key])["vault"]["token"] for asked in disk.published)
    assert first != second
    caller.spec = CsiDriverSpec(token_requests=("vault",), service_account_token_in_secrets=True)
    caller.mount(POD, INLINE)
    assert (key in disk.published[2].volume_context, key in disk.published[2].secrets) == (False, True)
    caller.unmount(POD, "data")


def test_a_target_that_the_driver_leaves_mounted_is_a_failure(caller: CsiCaller, disk: Disk) -> None:
    target = caller.mount(POD, INLINE)
    disk.removes = False
    assert "still mounted" in failure(lambda: caller.unmount(POD, "data")).message
    unmount(str(target))
    (target / "below").write_text("x")
    assert "failed to clean mount dir" in failure(lambda: caller.unmount(POD, "data")).message
    (target / "below").unlink()


def test_an_unmount_is_repeated_with_kubelets_waits_until_the_target_is_gone(caller: CsiCaller, disk: Disk) -> None:
    caller.backoff.scale = 0
    target = caller.mount(POD, INLINE)
    disk.removes = False
    with pytest.raises(CsiFailure):
        caller.unmount_until(POD, "data", 3)
    assert caller.backoff.waits == [0.5, 1.0]
    disk.removes = True
    caller.unmount_until(POD, "data", 1)
    assert not target.exists()


def test_an_answer_without_usage_is_a_failure(caller: CsiCaller, disk: Disk) -> None:
    caller.mount(POD, INLINE)
    assert caller.stats(POD, "data") == {"BYTES": {"total": 9, "used": 4, "available": 5}}
    disk.usage = []
    assert "usage is nil" in failure(lambda: caller.stats(POD, "data")).message
    disk.capabilities = []
    assert caller.stats(POD, "data") is None
    caller.unmount(POD, "data")


def test_growing_is_asked_of_a_driver_that_can_and_given_up_after_an_infeasible_answer(
    caller: CsiCaller, disk: Disk
) -> None:
    assert "does not support" in failure(lambda: caller.expand(POD, CLAIMED, 9)).message
    disk.capabilities = ["EXPAND_VOLUME"]
    assert caller.expand(POD, CLAIMED, 9) == 9
    for code, gives_up in (("OUT_OF_RANGE", True), ("UNAVAILABLE", False), ("INTERNAL", False)):
        disk.code = code
        assert failure(lambda: caller.expand(POD, CLAIMED, 9)).infeasible is gives_up


def test_a_driver_is_not_called_for_a_kind_of_volume_that_its_object_does_not_name(caller: CsiCaller) -> None:
    caller.spec = CsiDriverSpec(volume_lifecycle_modes=("Persistent",))
    assert 'volume mode "Ephemeral" not supported' in failure(lambda: caller.mount(POD, INLINE)).message
    assert "NodePublishVolume" not in caller.calls


def test_a_driver_that_stages_is_refused_with_what_this_caller_lacks(caller: CsiCaller, disk: Disk) -> None:
    disk.capabilities = ["STAGE_UNSTAGE_VOLUME"]
    assert "stages at kubelet's path" in failure(lambda: caller.mount(POD, CLAIMED)).message


def test_a_block_volume_is_a_device_at_kubelets_path_and_nothing_is_left_after_the_last_pod(
    caller: CsiCaller, disk: Disk, short: Path
) -> None:
    folder = short / "plugins" / "kubernetes.io" / "csi" / "volumeDevices"
    device = caller.mount(POD, RAW, fs_group=2000)
    assert device == folder / "publish" / "pv-raw" / POD.uid
    assert device.is_block_device()
    (request,) = disk.published
    assert (request.volume_capability.HasField("block"), request.volume_capability.HasField("mount")) == (True, False)
    assert request.staging_target_path == str(folder / "staging" / "pv-raw")
    assert request.volume_context["csi.storage.k8s.io/pod.name"] == "web"
    caller.mount(OTHER, RAW)
    assert sorted(pod.uid for pod, _ in caller.volumes()) == [POD.uid, OTHER.uid]
    caller.unmount(POD, "pv-raw")
    assert [pod.uid for pod, _ in caller.volumes()] == [OTHER.uid]
    assert (folder / "pv-raw" / "data" / "vol_data.json").exists()
    caller.unmount(OTHER, "pv-raw")
    assert [path for path in folder.rglob("*") if not path.is_dir()] == []
    caller.unmount(OTHER, "pv-raw")


def test_a_device_is_measured_where_kubelet_maps_it(caller: CsiCaller, disk: Disk, short: Path) -> None:
    caller.mount(POD, RAW)
    assert caller.stats(POD, "pv-raw") == {"BYTES": {"total": 9, "used": 4, "available": 5}}
    folder = short / "plugins" / "kubernetes.io" / "csi" / "volumeDevices"
    assert disk.measured == [f"disk-raw {folder}/pv-raw/dev/{POD.uid}"]
    caller.unmount(POD, "pv-raw")


def test_a_block_volume_that_is_no_device_is_a_failure(caller: CsiCaller, disk: Disk) -> None:
    disk.mounts = False
    assert "is no block device" in failure(lambda: caller.mount(POD, RAW)).message


def test_a_device_that_the_driver_leaves_is_a_failure(caller: CsiCaller, disk: Disk) -> None:
    caller.mount(POD, RAW)
    disk.removes = False
    assert "is still there" in failure(lambda: caller.unmount(POD, "pv-raw")).message
    disk.removes = True
    caller.unmount(POD, "pv-raw")
    assert caller.volumes() == []


def test_a_device_of_an_uncertain_publish_is_to_be_unpublished(caller: CsiCaller, disk: Disk) -> None:
    disk.code = "ABORTED"
    failure(lambda: caller.mount(POD, RAW))
    (target,) = caller.uncertain
    disk.code = ""
    caller.unmount(POD, "pv-raw")
    assert (caller.uncertain, target.exists()) == (set(), False)


def test_a_pods_own_volume_is_no_block_device(caller: CsiCaller) -> None:
    assert "cannot be a block device" in failure(lambda: caller.mount(POD, CsiVolume("data", block=True))).message

"""The CSI front over a real daemon, called as kubelet calls it."""

import hashlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from nodeplug import Pod, mounted_at
from nodeplug.contract.mounts import Mount
from nodeplug.csi.drivers import INTERVAL
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.testing import FlexCaller, FlexVolume
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
TMPFS = "tmpfs.nodeplug"
INLINE = {"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "web"}
READERS = pb.VolumeCapability.AccessMode.MULTI_NODE_READER_ONLY
ALONE = pb.VolumeCapability.AccessMode.SINGLE_NODE_SINGLE_WRITER
HOSTDIR = """
[plugins.hostdir.config.roots.data]
path = "{data}"
create = true
"""


@pytest.fixture
def kubelet(start_kubelet: Callable[..., Any]) -> Any:
    return start_kubelet("[plugins.tmpfs]\n")


@pytest.fixture
def directories(start_kubelet: Callable[..., Any], tmp_path: Path) -> Any:
    (tmp_path / "one").mkdir()
    return start_kubelet(HOSTDIR.format(data=tmp_path))


def mount_at(path: Path) -> Mount:
    found = mounted_at(str(path))
    assert found is not None
    return found


def answered(call: Callable[[], object]) -> tuple[str, str]:
    """The code and the message with which a call ends."""
    try:
        call()
    except grpc.RpcError as failure:
        error: Any = failure
        return error.code().name, error.details()
    return "OK", ""


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """The same of a call that must not succeed."""
    code, text = answered(call)
    assert code != "OK"
    return code, text


def test_kubelet_learns_the_drivers_name_and_socket_from_the_plugin_watchers_folder(kubelet: Any) -> None:
    info = kubelet.info(TMPFS)
    assert (info.type, info.name, list(info.supported_versions)) == ("CSIPlugin", TMPFS, ["1.0.0"])
    assert info.endpoint == str(kubelet.root / "plugins" / TMPFS / "csi.sock")
    assert Path(info.endpoint).stat().st_mode & 0o777 == 0o600
    found = kubelet.driver(TMPFS).NodeGetInfo(pb.NodeGetInfoRequest(), timeout=60)
    assert found.node_id == kubelet.node.status()["node"]


def test_who_the_driver_is_and_whether_it_is_ready(kubelet: Any) -> None:
    identity = pb_grpc.IdentityStub(kubelet.channel(Path(kubelet.info(TMPFS).endpoint)))
    assert identity.GetPluginInfo(pb.GetPluginInfoRequest(), timeout=60).name == TMPFS
    assert identity.Probe(pb.ProbeRequest(), timeout=60).ready.value


def test_staging_is_not_announced(kubelet: Any) -> None:
    answer = kubelet.driver(TMPFS).NodeGetCapabilities(pb.NodeGetCapabilitiesRequest(), timeout=60)
    kinds = {pb.NodeServiceCapability.RPC.Type.Name(one.rpc.type) for one in answer.capabilities}
    assert kinds >= {"GET_VOLUME_STATS", "SINGLE_NODE_MULTI_WRITER"}
    assert "STAGE_UNSTAGE_VOLUME" not in kinds


def test_an_inline_volume_lives_from_publish_to_unpublish(kubelet: Any) -> None:
    target = kubelet.publish(TMPFS, "csi-0123", "a", INLINE | {"size": "8Mi"})
    assert mount_at(target).fs_type == "tmpfs"
    kubelet.publish(TMPFS, "csi-0123", "a", INLINE | {"size": "8Mi"})
    kubelet.unpublish(TMPFS, "csi-0123", "a")
    assert (target.exists(), kubelet.mounted()) == (False, [])
    kubelet.unpublish(TMPFS, "csi-0123", "a")


def test_kubelets_own_keys_are_not_the_drivers_options(kubelet: Any) -> None:
    context = INLINE | {"size": "8Mi", "storage.kubernetes.io/csiProvisionerIdentity": "1-2-x"}
    kubelet.publish(TMPFS, "csi-0123", "a", context)
    code, text = refused(lambda: kubelet.publish(TMPFS, "csi-0124", "b", INLINE | {"colour": "red"}))
    assert code == "INVALID_ARGUMENT"
    assert "colour" in text
    assert not kubelet.target("b").exists()
    kubelet.unpublish(TMPFS, "csi-0123", "a")


def test_a_repetition_with_another_read_only_is_refused_and_changes_nothing(directories: Any) -> None:
    context = {"root": "data", "path": "one"}
    target = directories.publish("hostdir.nodeplug", "data/one", "a", context)
    code, _ = refused(lambda: directories.publish("hostdir.nodeplug", "data/one", "a", context, readonly=True))
    assert code == "ALREADY_EXISTS"
    assert not mount_at(target).read_only
    directories.unpublish("hostdir.nodeplug", "data/one", "a")


def test_a_handle_must_be_the_id_of_what_the_attributes_mean(directories: Any) -> None:
    """Otherwise a FlexVolume pod of the same volume would not share it."""
    context = {"root": "data", "path": "one"}
    code, text = refused(lambda: directories.publish("hostdir.nodeplug", "pv-1", "a", context))
    assert code == "INVALID_ARGUMENT"
    assert "'data/one'" in text
    assert "'pv-1'" in text


def test_a_volume_for_one_pod_alone_is_refused_to_a_second(directories: Any) -> None:
    context = {"root": "data", "path": "one"}
    directories.publish("hostdir.nodeplug", "data/one", "a", context, mode=ALONE)
    code, _ = refused(lambda: directories.publish("hostdir.nodeplug", "data/one", "b", context, mode=ALONE))
    assert code == "FAILED_PRECONDITION"
    directories.unpublish("hostdir.nodeplug", "data/one", "a")
    directories.publish("hostdir.nodeplug", "data/one", "b", context, mode=ALONE)
    directories.unpublish("hostdir.nodeplug", "data/one", "b")


def test_usage_is_that_of_the_published_volume(kubelet: Any) -> None:
    target = kubelet.publish(TMPFS, "csi-0123", "a", INLINE | {"size": "8Mi"})
    node = kubelet.driver(TMPFS)
    answer = node.NodeGetVolumeStats(pb.NodeGetVolumeStatsRequest(volume_id="csi-0123", volume_path=str(target)))
    assert [(one.unit, one.total) for one in answer.usage][:1] == [(pb.VolumeUsage.BYTES, 8 << 20)]
    assert not answer.volume_condition.abnormal
    for path in ("relative", "/elsewhere"):
        request = pb.NodeGetVolumeStatsRequest(volume_id="csi-0123", volume_path=path)
        assert refused(partial(node.NodeGetVolumeStats, request))[0] == "NOT_FOUND"
    kubelet.unpublish(TMPFS, "csi-0123", "a")


@pytest.mark.parametrize(
    ("request_", "missing"),
    [
        (pb.NodePublishVolumeRequest(), "volume_id"),
        (pb.NodePublishVolumeRequest(volume_id="x"), "volume_capability"),
    ],
)
def test_what_is_missing_is_named(kubelet: Any, request_: Any, missing: str) -> None:
    code, text = refused(lambda: kubelet.driver(TMPFS).NodePublishVolume(request_, timeout=60))
    assert code == "INVALID_ARGUMENT"
    assert missing in text


@pytest.mark.programs("mkfs.xfs", "xfs_growfs")
@pytest.mark.usefixtures("has_loop_devices")
def test_a_flex_pod_and_a_csi_pod_share_one_staged_volume_and_the_last_unstages(
    start_kubelet: Callable[..., Any],
) -> None:
    supervisor = 'listen = ""\ncsi = true\nnative_entrypoints = false'
    kubelet = start_kubelet("[plugins.loopfile]\n[plugins.loopfile.config]\nfs_type = 'xfs'\n", supervisor=supervisor)
    name, context = "loopfile.nodeplug", {"name": "shared"}
    assert refused(lambda: kubelet.publish(name, "shared", "a", context))[0] == "NOT_FOUND"
    assert kubelet.node.run("install").returncode == 0
    flex = FlexCaller(kubelet.node.paths.flexvolume, kubelet.root, "nodeplug/loopfile")
    pod, volume = Pod(uid="flex-pod"), FlexVolume("data", {"name": "shared", "size": "320Mi"})
    flexible = flex.mount(pod, volume)
    target = kubelet.publish(name, "shared", "a", context)
    (flexible / "x").write_text("written by the one")
    assert (target / "x").read_text() == "written by the one"
    handle = hashlib.sha256(b"shared").hexdigest()
    left = kubelet.root / "plugins" / "kubernetes.io" / "csi" / name / handle / "globalmount"
    left.mkdir(parents=True)
    flex.unmount(pod, volume.name)
    assert (target / "x").read_text() == "written by the one"
    request = pb.NodeExpandVolumeRequest(
        volume_id="shared",
        volume_path=str(target),
        capacity_range=pb.CapacityRange(required_bytes=400 << 20),
    )
    assert kubelet.driver(name).NodeExpandVolume(request, timeout=60).capacity_bytes == 400 << 20
    kubelet.unpublish(name, "shared", "a")
    assert (kubelet.mounted(), left.parent.exists()) == ([], False)


def test_volumes_and_paths_survive_a_killed_daemon(kubelet: Any) -> None:
    target = kubelet.publish(TMPFS, "csi-0123", "a", INLINE | {"size": "8Mi"})
    (target / "x").write_text("still there")
    kubelet.node.kill()
    assert kubelet.registration(TMPFS).exists()
    kubelet.node.start()
    kubelet.publish(TMPFS, "csi-0123", "a", INLINE | {"size": "8Mi"})
    assert (target / "x").read_text() == "still there"
    kubelet.unpublish(TMPFS, "csi-0123", "a")
    assert kubelet.mounted() == []


def test_a_refused_registration_is_withdrawn_and_made_again(kubelet: Any) -> None:
    kubelet.info(TMPFS)
    kubelet.judge(TMPFS, registered=False, error="not today")
    until(lambda: not kubelet.registration(TMPFS).exists())
    until(lambda: kubelet.registration(TMPFS).exists())
    (told,) = kubelet.node.status()["csi"]
    assert (told["driver"], told["registered"], told["problem"]) == (TMPFS, False, "kubelet refused it: not today")
    assert "kubelet refused it: not today" in kubelet.node.run("status").stdout
    kubelet.judge(TMPFS, registered=True)
    until(lambda: [one["registered"] for one in kubelet.node.status()["csi"]] == [True])


def test_a_socket_that_somebody_removes_is_served_again(kubelet: Any) -> None:
    for path in (Path(kubelet.info(TMPFS).endpoint), kubelet.registration(TMPFS)):
        path.unlink()
        until(path.exists)
    assert kubelet.driver(TMPFS).NodeGetInfo(pb.NodeGetInfoRequest(), timeout=60, wait_for_ready=True).node_id


def test_a_section_that_goes_takes_its_driver_along(kubelet: Any) -> None:
    kubelet.info(TMPFS)
    kubelet.node.configure("")
    until(lambda: not kubelet.registration(TMPFS).exists())


def test_without_the_key_nothing_is_served_over_csi(start_kubelet: Callable[..., Any]) -> None:
    kubelet = start_kubelet("[plugins.tmpfs]\n", supervisor='listen = ""')
    until(lambda: kubelet.node.status()["ready"])
    time.sleep(2 * INTERVAL)
    assert list((kubelet.root / "plugins_registry").iterdir()) == []
    assert kubelet.node.status()["csi"] == []


def test_a_driver_without_a_plugin_stays_until_its_last_pod_has_ended(kubelet: Any) -> None:
    """Kubelet asks the driver to unmount, and the pod stays until it does."""
    target = kubelet.publish(TMPFS, "csi-0123", "a", INLINE | {"size": "8Mi"})
    kubelet.node.configure("")
    until(lambda: kubelet.node.status()["plugins"] == [])
    kubelet.node.kill()
    kubelet.node.start()
    assert mount_at(target).fs_type == "tmpfs"
    code, _ = refused(lambda: kubelet.publish(TMPFS, "csi-0124", "b", INLINE))
    assert code == "UNAVAILABLE"
    kubelet.unpublish(TMPFS, "csi-0123", "a")
    assert kubelet.mounted() == []
    until(lambda: not kubelet.registration(TMPFS).exists())


def test_sockets_that_an_earlier_daemon_served_are_removed_when_csi_is_switched_off(kubelet: Any) -> None:
    sockets = [Path(kubelet.info(TMPFS).endpoint), kubelet.registration(TMPFS)]
    kubelet.node.stop()
    assert all(path.exists() for path in sockets)
    text = kubelet.node.config_path.read_text()
    kubelet.node.config_path.write_text(text.replace("csi = true", "csi = false"))
    kubelet.node.start()
    until(lambda: not any(path.exists() for path in sockets))


def test_a_pods_author_cannot_name_what_is_not_the_pods_own(directories: Any) -> None:
    """With an inline volume anybody who may create a pod would have every volume of the node."""
    context = INLINE | {"root": "data", "path": "one"}
    code, text = refused(lambda: directories.publish("hostdir.nodeplug", "csi-0123", "a", context))
    assert (code, "has no inline volumes" in text) == ("INVALID_ARGUMENT", True)
    assert directories.mounted() == []


def test_a_volume_for_readers_is_read_only_whatever_the_pod_says(directories: Any) -> None:
    context = {"root": "data", "path": "one"}
    target = directories.publish("hostdir.nodeplug", "data/one", "a", context, mode=READERS)
    assert mount_at(target).read_only
    directories.unpublish("hostdir.nodeplug", "data/one", "a")


def test_a_mount_of_a_running_pod_stays_when_its_repetition_is_refused(directories: Any, tmp_path: Path) -> None:
    """After its own restart kubelet publishes every volume again, and takes other answers for final."""
    context = {"root": "data", "path": "one"}
    target = directories.publish("hostdir.nodeplug", "data/one", "a", context)
    (tmp_path / "two").mkdir()
    directories.node.configure(HOSTDIR.format(data=tmp_path / "two").replace("roots.data", "roots.other"))
    again = partial(directories.publish, "hostdir.nodeplug", "data/one", "a", context)
    until(lambda: answered(again)[0] != "OK")
    code, text = answered(again)
    assert (code, "this node allows: other" in text) == ("UNAVAILABLE", True)
    assert mount_at(target)
    directories.unpublish("hostdir.nodeplug", "data/one", "a")


def test_options_of_mount_are_heeded_or_refused(kubelet: Any, directories: Any) -> None:
    target = kubelet.publish(TMPFS, "csi-0123", "a", INLINE | {"size": "8Mi"}, flags=["noatime", "suid"])
    assert {"noatime", "nosuid"} <= set(mount_at(target).options)
    context = {"root": "data", "path": "one"}
    call = partial(directories.publish, "hostdir.nodeplug", "data/one", "a", context, flags=["noexec"])
    assert refused(call)[0] == "INVALID_ARGUMENT"


def make_unbound(kubelet: Any) -> Path:
    """Put a folder in the place of the driver's socket; return its path when the daemon has tried to listen there."""
    path = Path(kubelet.info(TMPFS).endpoint)
    path.unlink()
    path.mkdir()
    until(lambda: "cannot listen on" in kubelet.node.status()["csi"][0]["problem"])
    return path


def test_a_socket_that_cannot_be_bound_is_told_and_made_when_it_can(kubelet: Any) -> None:
    path = make_unbound(kubelet)
    path.rmdir()
    until(path.exists)


@pytest.mark.whole
def test_a_socket_that_cannot_be_bound_costs_no_descriptor(kubelet: Any) -> None:
    make_unbound(kubelet)
    descriptors = Path(f"/proc/{kubelet.node.pid}/fd")
    before = len(list(descriptors.iterdir()))
    time.sleep(5 * INTERVAL)
    assert len(list(descriptors.iterdir())) < before + 4


def test_pods_keep_their_volumes_and_drivers_while_the_daemon_is_replaced(kubelet: Any) -> None:
    target = kubelet.publish(TMPFS, "csi-0123", "a", INLINE | {"size": "8Mi"})
    (target / "x").write_text("still there")
    done = kubelet.node.run("replace")
    assert done.returncode == 0, done.stderr
    assert kubelet.registration(TMPFS).exists()
    publish = partial(kubelet.publish, TMPFS, "csi-0124", "b", INLINE | {"size": "8Mi"})
    until(lambda: answered(publish)[0] == "OK", 60)
    assert (target / "x").read_text() == "still there"
    for handle, pod in (("csi-0123", "a"), ("csi-0124", "b")):
        kubelet.unpublish(TMPFS, handle, pod)
    assert kubelet.mounted() == []


def test_a_disk_that_keeps_drivers_from_being_noted_is_told_with_what_to_check(kubelet: Any) -> None:
    notes = kubelet.node.paths.state / "csi-drivers.json"
    kubelet.info(TMPFS)
    kubelet.node.stop()
    notes.unlink()
    notes.mkdir()
    kubelet.node.start()
    until(lambda: "check the disks of" in kubelet.node.status()["reasons"].get("CSI", ""))
    notes.rmdir()
    until(lambda: kubelet.node.status()["ready"])

"""Volumes that a daemon has begun and not completed, because it was killed or its object is another's."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from tests.real.consumers import ControlPlane
from tests.real.consumers.claims import CORE, DRIVER, Cluster, Object, provisioning

from nodeplug.contract.journal import Journal

pytestmark = pytest.mark.programs("mkfs.ext4")

MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster(cluster: ControlPlane) -> Iterator[Cluster]:
    """A daemon with loopfile and a provisioner."""
    with provisioning(cluster) as made:
        yield made


def begun(cluster: Cluster, claim: str, **parameters: str) -> str:
    """Note a claim's volume as begun, as a daemon does that is killed before the volume's object; return its name."""
    uid = cluster.get(claim)["metadata"]["uid"]
    data = {"driver": DRIVER, "namespace": "default", "claim": claim, "uid": uid}
    wanted: Object = {"name": f"pvc-{uid}", "size": 32 * MIB, "limit": 0, "block": False, "fs_type": "ext4"}
    wanted |= {"parameters": parameters, "source": "", "snapshot": "", "access_modes": ["SINGLE_NODE_WRITER"]}
    journal(cluster).write(f"pvc-{uid}", phase="creating", data=data, request=wanted)
    return f"pvc-{uid}"


def journal(cluster: Cluster) -> Journal:
    return Journal(cluster.daemon.paths.journal / "csi-provisioner")


@pytest.mark.parametrize("parameters", [{}, {"former": "1"}], ids=["as asked for", "as this version refuses to make"])
def test_a_volume_whose_claim_went_while_the_daemon_was_away_is_deleted(
    cluster: Cluster, parameters: dict[str, str]
) -> None:
    cluster.daemon.kill()
    cluster.claim("short")
    image = cluster.images / f"{begun(cluster, 'short', **parameters)}.img"
    image.write_bytes(b"")
    os.truncate(image, 32 * MIB)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    image.with_suffix(".json").write_text("{}")
    cluster.delete("short")
    cluster.daemon.start()
    cluster.until("the end", lambda: not journal(cluster).entries())
    assert cluster.names() == []


@pytest.mark.parametrize("name", ["retried", "abandoned"])
def test_a_volume_that_was_begun_is_not_forgotten_while_its_disk_is_away(cluster: Cluster, name: str) -> None:
    cluster.claim("before")
    before = cluster.bound("before")["spec"]["csi"]["volumeHandle"]  # from now on the folder has a marker
    cluster.daemon.kill()
    cluster.claim(name)
    handle = begun(cluster, name)
    for suffix in (".img", ".json"):
        shutil.copyfile(cluster.images / f"{before}{suffix}", cluster.images / f"{handle}{suffix}")
    away = cluster.images.with_name("away")
    cluster.images.rename(away)
    cluster.images.mkdir()
    if name == "abandoned":
        cluster.delete(name)
    cluster.daemon.start()

    def decided() -> bool:
        return "are away" in str(cluster.daemon.status()["provisioner"]) or not journal(cluster).entries()

    cluster.until("a decision", decided)
    noted = [one.key for one in journal(cluster).entries()]
    cluster.daemon.kill()
    cluster.images.rmdir()
    away.rename(cluster.images)
    cluster.daemon.start()
    assert noted == [handle]
    if name == "retried":
        assert cluster.bound(name)["spec"]["csi"]["volumeHandle"] == handle
        cluster.delete(name)
    cluster.until("its end", lambda: cluster.names() == [f"{before}.img"])
    cluster.delete("before")
    cluster.until("the end", lambda: not cluster.names())
    assert journal(cluster).entries() == ()


def volume_object(cluster: Cluster, name: str, handle: str, node: str) -> None:
    """Write a PersistentVolume by hand that keeps its data."""
    match = {"key": f"{DRIVER}/node", "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": "32Mi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "csi": {"driver": DRIVER, "volumeHandle": handle},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [match]}]}},
    }
    cluster.call("POST", f"{CORE}/persistentvolumes", {"metadata": {"name": name}, "spec": spec})


def left_behind(cluster: Cluster, claim: str) -> str:
    """Make the volume of a claim that is gone, with its record but without its object; return its name."""
    cluster.claim("model")
    model = cluster.bound("model")["spec"]["csi"]["volumeHandle"]
    cluster.daemon.kill()
    cluster.claim(claim)
    handle = begun(cluster, claim)
    for suffix in (".img", ".json"):
        shutil.copyfile(cluster.images / f"{model}{suffix}", cluster.images / f"{handle}{suffix}")
    cluster.delete(claim)
    cluster.delete("model")
    return handle


def test_a_volume_that_was_begun_is_kept_when_another_object_has_its_data(cluster: Cluster) -> None:
    handle = left_behind(cluster, "imported")
    volume_object(cluster, "imported-data", handle, cluster.node)
    cluster.daemon.start()
    cluster.until("a decision", lambda: not journal(cluster).entries())
    cluster.until("the model's end", lambda: len(cluster.volumes()) == 1)
    assert cluster.names() == [f"{handle}.img"]
    cluster.call("DELETE", f"{CORE}/persistentvolumes/imported-data")
    for path in cluster.images.glob("pvc-*"):
        path.unlink()
    cluster.until("the end", lambda: not cluster.volumes())


def test_a_volume_that_was_begun_is_deleted_when_its_claim_has_one_of_another_node(cluster: Cluster) -> None:
    handle = left_behind(cluster, "moved")
    volume_object(cluster, handle, handle, "another")
    cluster.daemon.start()
    cluster.until("a decision", lambda: not journal(cluster).entries())
    cluster.until("the end", lambda: not cluster.names())
    cluster.call("DELETE", f"{CORE}/persistentvolumes/{handle}")
    cluster.until("no object", lambda: not cluster.volumes())


def test_a_volume_that_is_to_be_kept_is_not_deleted_once_its_object_may_have_been_there(cluster: Cluster) -> None:
    handle = left_behind(cluster, "retained")
    entry = journal(cluster).read(handle)
    assert entry is not None
    data = {**entry.data, "reclaim_policy": "Retain", "handle": handle}
    journal(cluster).write(handle, phase="made", data=data, request=entry.request)
    cluster.daemon.start()
    why = "is to be kept"
    cluster.until(
        "a word", lambda: why in str(cluster.daemon.status()["provisioner"]) or not journal(cluster).entries()
    )
    assert [one.key for one in journal(cluster).entries()] == [handle]
    cluster.until("the model's end", lambda: cluster.names() == [f"{handle}.img"])
    for path in cluster.images.glob("pvc-*"):
        path.unlink()
    journal(cluster).remove(handle)
    cluster.until("its end", lambda: why not in str(cluster.daemon.status()["provisioner"]))


def test_a_copy_that_was_begun_is_given_up_without_its_source(cluster: Cluster) -> None:
    cluster.claim("source")
    source = cluster.bound("source")["spec"]["csi"]["volumeHandle"]
    loop = cluster.control.node.run("losetup", "--find", "--show", str(cluster.images / f"{source}.img")).strip()
    place = cluster.control.node.folder / "busy"
    place.mkdir()
    cluster.control.node.run("mount", loop, str(place))  # as under a pod: it cannot be copied now
    cluster.control.node.run("losetup", "--detach", loop)
    cluster.daemon.kill()
    cluster.claim("copied")
    handle = begun(cluster, "copied")
    entry = journal(cluster).read(handle)
    assert entry is not None
    journal(cluster).write(handle, phase="creating", data=entry.data, request={**entry.request, "source": source})
    cluster.delete("copied")
    cluster.daemon.start()
    problem = f"begun {handle}"

    def decided() -> bool:
        return problem in str(cluster.daemon.status()["provisioner"]) or not journal(cluster).entries()

    cluster.until("a decision", decided)
    left = [one.key for one in journal(cluster).entries()]
    cluster.control.node.run("umount", str(place))
    assert left == []
    cluster.delete("source")
    cluster.until("the end", lambda: not cluster.names())

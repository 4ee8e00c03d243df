"""Claims of a real cluster, and the volumes that a daemon makes for them: made, used, grown, copied and deleted.

The API server and the controllers are real; which node a claim's first pod will run on is written by hand, as the
scheduler would.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.real.consumers import ControlPlane
from tests.real.consumers.claims import CORE, DRIVER, STORAGE, Cluster, Object, plugins, provisioning

pytestmark = pytest.mark.programs("mkfs.ext4")

MIB = 1 << 20
EVERYWHERE = """
[plugins.everywhere]
uses = "everywhere:Everywhere"
config = {{ folder = "{folder}" }}
"""


@pytest.fixture(scope="module")
def cluster(cluster: ControlPlane) -> Iterator[Cluster]:
    """A daemon with loopfile and a provisioner."""
    with provisioning(cluster, env={"PYTHONPATH": str(Path(__file__).parent)}) as made:
        yield made


def test_a_claim_gets_a_volume_that_goes_with_it(cluster: Cluster) -> None:
    cluster.claim("plain")
    volume = cluster.bound("plain")
    assert volume["spec"]["capacity"]["storage"] == "32Mi"
    assert volume["spec"]["csi"]["driver"] == DRIVER
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": f"{DRIVER}/node", "operator": "In", "values": [cluster.node]}]
    assert cluster.names() == [f"{volume['spec']['csi']['volumeHandle']}.img"]
    cluster.until("the event", lambda: "ProvisioningSucceeded" in cluster.events("plain"))
    cluster.delete("plain")
    cluster.until("the volume's end", lambda: volume["metadata"]["name"] not in cluster.volumes())
    assert cluster.names() == []


def test_a_claim_grows_and_kubelet_is_told_to_do_the_rest(cluster: Cluster) -> None:
    cluster.claim("growing")
    cluster.bound("growing")
    cluster.patch("growing", {"resources": {"requests": {"storage": "64Mi"}}})
    cluster.until("growth", lambda: cluster.volume_of("growing")["spec"]["capacity"]["storage"] == "64Mi")

    def told() -> bool:
        status = cluster.get("growing")["status"]
        pending = [one["type"] for one in status.get("conditions", ())]
        return status.get("allocatedResourceStatuses") == {"storage": "NodeResizePending"} and pending == [
            "FileSystemResizePending"
        ]

    cluster.until("the word for kubelet", told)
    assert [path.stat().st_size for path in cluster.images.glob("*.img")] == [64 * MIB]
    cluster.delete("growing")
    cluster.until("the end", lambda: not cluster.names())


def test_a_claim_that_copies_another_has_its_contents(cluster: Cluster) -> None:
    cluster.claim("source")
    handle = cluster.bound("source")["spec"]["csi"]["volumeHandle"]
    mark(cluster.images / f"{handle}.img")
    cluster.claim("copy", "48Mi", dataSource={"kind": "PersistentVolumeClaim", "name": "source"})
    copied = cluster.bound("copy")["spec"]["csi"]["volumeHandle"]
    assert marked(cluster.images / f"{copied}.img")
    for name in ("source", "copy"):
        cluster.delete(name)
    cluster.until("the end", lambda: not cluster.names())


def mark(image: Path) -> None:
    with image.open("r+b") as stream:
        stream.seek(20 * MIB)
        stream.write(b"marked")


def marked(image: Path) -> bool:
    with image.open("rb") as stream:
        stream.seek(20 * MIB)
        return stream.read(6) == b"marked"


def test_a_claim_that_only_names_somebodys_volume_is_no_source(cluster: Cluster) -> None:
    cluster.claim("victim")
    name = cluster.bound("victim")["metadata"]["name"]
    cluster.claim("pretender", node="another", volumeName=name)
    cluster.claim("thief", dataSource={"kind": "PersistentVolumeClaim", "name": "pretender"})
    cluster.until("the refusal", lambda: "is not bound to a volume" in cluster.events("thief"))
    assert cluster.names() == [f"{name}.img"]
    for one in ("thief", "pretender", "victim"):
        cluster.delete(one)
    cluster.until("the end", lambda: not cluster.names())


def test_a_volume_that_is_kept_stays_and_its_object_may_go(cluster: Cluster) -> None:
    kept = {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Retain"}
    cluster.call("POST", f"{STORAGE}/storageclasses", {"metadata": {"name": "kept"}, **kept})
    cluster.claim("precious", storageClassName="kept")
    volume = cluster.bound("precious")
    image = f"{volume['spec']['csi']['volumeHandle']}.img"
    cluster.delete("precious")
    cluster.call("DELETE", f"{CORE}/persistentvolumes/{volume['metadata']['name']}")
    cluster.until("the end of the object", lambda: volume["metadata"]["name"] not in cluster.volumes())
    assert cluster.names() == [image]
    for path in cluster.images.glob("pvc-*"):
        path.unlink()
    cluster.call("DELETE", f"{STORAGE}/storageclasses/kept")
    cluster.until("one class", lambda: len(cluster.capacities()) == 1)


def test_a_claim_for_another_node_is_left_to_it(cluster: Cluster) -> None:
    cluster.claim("elsewhere", node="another")
    cluster.claim("here")
    cluster.bound("here")
    assert cluster.get("elsewhere")["status"]["phase"] == "Pending"
    for name in ("elsewhere", "here"):
        cluster.delete(name)
    cluster.until("the end", lambda: not cluster.names())


@pytest.fixture
def everywhere(cluster: Cluster) -> Iterator[Path]:
    """The folder of a driver whose volumes are on no node, with a class of its name."""
    folder = cluster.daemon.root / "everywhere"
    driver = "everywhere.acme"
    cluster.daemon.configure(plugins(cluster.control, EVERYWHERE.format(folder=folder)))
    cluster.until("the driver", lambda: driver in {one["driver"] for one in cluster.daemon.status()["csi"]})
    made = {"metadata": {"name": driver}, "provisioner": driver, "volumeBindingMode": "WaitForFirstConsumer"}
    cluster.call("POST", f"{STORAGE}/storageclasses", made)
    yield folder
    cluster.daemon.configure(plugins(cluster.control))
    cluster.call("DELETE", f"{STORAGE}/storageclasses/{driver}")
    cluster.until("its end", lambda: len(cluster.daemon.status()["csi"]) == 1)


def test_a_volume_that_is_on_no_node_is_deleted_by_another_than_its_maker(cluster: Cluster, everywhere: Path) -> None:
    cluster.claim("anywhere", storageClassName="everywhere.acme")
    volume = cluster.bound("anywhere")
    name = volume["metadata"]["name"]
    assert "nodeAffinity" not in volume["spec"]
    volume["metadata"]["annotations"]["provisioner.nodeplug/node"] = "lost"  # which made it
    cluster.call("PUT", f"{CORE}/persistentvolumes/{name}", volume)
    assert (everywhere / name).is_dir()
    cluster.delete("anywhere")
    cluster.until("the end", lambda: name not in cluster.volumes() and not (everywhere / name).exists())


def test_a_claim_for_which_there_is_no_room_may_go_to_another_node(cluster: Cluster) -> None:
    with room(cluster, 8 * MIB):
        cluster.claim("large", "64Mi")
        selected = "volume.kubernetes.io/selected-node"
        cluster.until("the way out", lambda: selected not in cluster.get("large")["metadata"]["annotations"])
    cluster.until("the event", lambda: "another node is chosen" in cluster.events("large"))
    cluster.delete("large")
    assert cluster.names() == []


def test_a_claim_that_is_larger_than_this_node_allows_may_go_to_another_node(cluster: Cluster) -> None:
    cluster.until("the largest", lambda: cluster.capacities("maximumVolumeSize") == ["512Mi"])
    cluster.claim("huge", resources={"requests": {"storage": "1Gi"}})
    selected = "volume.kubernetes.io/selected-node"
    cluster.until("the way out", lambda: selected not in cluster.get("huge")["metadata"]["annotations"])
    why = "at most 512Mi is allowed on this node; another node is chosen"
    cluster.until("the event", lambda: why in cluster.events("huge"))
    cluster.delete("huge")
    assert cluster.names() == []


SELECTED = "volume.kubernetes.io/selected-node"


def test_a_copy_for_which_there_is_no_room_stays_with_its_source(cluster: Cluster) -> None:
    cluster.claim("source")
    cluster.bound("source")
    cluster.claim("copy", "1Gi", dataSource={"kind": "PersistentVolumeClaim", "name": "source"})
    cluster.until("the event", lambda: "at most 512Mi is allowed on this node" in cluster.events("copy"))
    assert "another node is chosen" not in cluster.events("copy")
    assert cluster.get("copy")["metadata"]["annotations"][SELECTED] == cluster.node
    for name in ("copy", "source"):
        cluster.delete(name)
    cluster.until("the end", lambda: not cluster.names())


def test_a_copy_whose_source_is_on_another_node_may_go_there(cluster: Cluster) -> None:
    cluster.claim("source")
    handle = cluster.bound("source")["spec"]["csi"]["volumeHandle"]
    for path in cluster.images.glob(f"{handle}.*"):
        path.unlink()  # acts as another node's
    cluster.claim("copy", dataSource={"kind": "PersistentVolumeClaim", "name": "source"})
    cluster.until("the way out", lambda: SELECTED not in cluster.get("copy")["metadata"]["annotations"])
    cluster.until("the event", lambda: "another node is chosen" in cluster.events("copy"))
    for name in ("copy", "source"):
        cluster.delete(name)
    cluster.until("the end", lambda: not cluster.names())


@contextmanager
def room(cluster: Cluster, left: int) -> Iterator[None]:
    """Configure that so many bytes are left, and no limit afterwards."""
    cluster.daemon.configure(plugins(cluster.control, f"max_total = {left}\n"))
    cluster.until("the limit", lambda: cluster.capacities() == [f"{left >> 20}Mi"])
    yield
    cluster.daemon.configure(plugins(cluster.control))
    cluster.until("no limit", lambda: cluster.capacities() != [f"{left >> 20}Mi"])


def test_the_scheduler_is_told_how_much_room_there_is(cluster: Cluster) -> None:
    cluster.until("a figure", lambda: len(cluster.capacities()) == 1)
    with room(cluster, 64 * MIB):
        cluster.claim("part", "32Mi")
        cluster.bound("part")
        cluster.until("less room", lambda: cluster.capacities() == ["32Mi"])
        cluster.delete("part")
        cluster.until("all room", lambda: cluster.capacities() == ["64Mi"])


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"accessModes": ["ReadWriteMany"]}, "use ReadWriteOnce"),
        ({"dataSource": {"kind": "PersistentVolumeClaim", "name": "none"}}, "none"),
    ],
)
def test_what_cannot_be_made_is_told_to_its_owner_and_in_the_status(cluster: Cluster, more: Object, why: str) -> None:
    cluster.claim("wrong", **more)
    cluster.until("the event", lambda: why in cluster.events("wrong"))
    cluster.until("the status", lambda: "claim default/wrong" in str(cluster.daemon.status()["provisioner"]))
    assert "The provisioner tries again" in cluster.daemon.run("status").stdout
    cluster.delete("wrong")
    cluster.until("its end", lambda: "wrong" not in str(cluster.daemon.status()["provisioner"]))


@pytest.mark.soak
def test_a_daemon_that_is_killed_again_and_again_leaves_nothing_undone_nor_behind(cluster: Cluster) -> None:
    names = [f"kill-{number}" for number in range(6)]
    for name in names:
        cluster.claim(name)
    for pause in (0.3, 0.6, 0.9):
        time.sleep(pause)
        cluster.daemon.kill()
        cluster.daemon.start()
    handles = {cluster.bound(name)["spec"]["csi"]["volumeHandle"] for name in names}
    assert cluster.names() == sorted(f"{handle}.img" for handle in handles)
    for name in names:
        cluster.delete(name)
    for pause in (0.2, 0.5):
        time.sleep(pause)
        cluster.daemon.kill()
        cluster.daemon.start()
    cluster.until("the end of all", lambda: not cluster.names())
    cluster.until("no volume", lambda: not cluster.volumes())


def test_an_api_server_that_goes_away_and_comes_back_is_no_end(cluster: Cluster) -> None:
    cluster.control.kill_api()
    cluster.until("the word", lambda: "API server" in str(cluster.daemon.status()["provisioner"]))
    cluster.control.start_api()
    cluster.claim("after")
    cluster.bound("after")
    cluster.delete("after")
    cluster.until("the end", lambda: not cluster.names())


def test_a_volume_that_is_mounted_is_deleted_when_its_pod_has_ended(cluster: Cluster) -> None:
    cluster.claim("used")
    volume = cluster.bound("used")
    handle = volume["spec"]["csi"]["volumeHandle"]
    loop = cluster.control.node.run("losetup", "--find", "--show", str(cluster.images / f"{handle}.img")).strip()
    place = cluster.control.node.folder / "used"
    place.mkdir()
    cluster.control.node.run("mount", loop, str(place))
    cluster.control.node.run("losetup", "--detach", loop)  # when it is unmounted
    cluster.delete("used")
    cluster.until("the reason", lambda: "end its pods first" in str(cluster.daemon.status()["provisioner"]))
    assert cluster.names() == [f"{handle}.img"]
    cluster.control.node.run("umount", str(place))
    cluster.until("the end", lambda: not cluster.names())


@pytest.mark.soak
def test_a_lost_node_is_forgotten_but_for_what_claims_still_have(cluster: Cluster) -> None:
    control, daemon = cluster.control, cluster.daemon
    program = [sys.executable, "-m", "nodeplug", "csi", "forget-node", cluster.node, "--json"]
    command = control.node.command(*program, f"--kubeconfig={control.folder}/kubeconfig")
    cluster.claim("held")
    cluster.claim("released")
    names = {name: cluster.bound(name)["metadata"]["name"] for name in ("held", "released")}
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (refused.returncode, "only a lost node is forgotten" in refused.stderr) == (1, True)
    daemon.kill()
    cluster.delete("released")
    control.call("DELETE", f"{CORE}/nodes/{cluster.node}")
    cluster.until("its release", lambda: phase(cluster, names["released"]) == "Released")

    def left(*arguments: str) -> dict[str, str]:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
        return {
            one["name"]: one["fate"] for one in json.loads(done.stdout)["left"] if one["kind"] == "PersistentVolume"
        }

    assert left() == {names["held"]: "kept", names["released"]: "would be forgotten"}
    assert left("--apply") == {names["held"]: "kept", names["released"]: "forgotten"}
    cluster.until("its end", lambda: names["released"] not in cluster.volumes())
    cluster.delete("held")
    cluster.until("the release", lambda: phase(cluster, names["held"]) == "Released")
    assert left("--apply") == {names["held"]: "forgotten"}
    assert cluster.capacities() == []
    assert left() == {}


def phase(cluster: Cluster, volume: str) -> str:
    return str(cluster.call("GET", f"{CORE}/persistentvolumes/{volume}")["status"]["phase"])

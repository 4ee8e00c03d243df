"""kubelet with an API server, and pods whose volumes come over CSI: inline and claimed, beside FlexVolume.

The API server is a stand-in in memory; kubelet, containerd and the daemon are the real ones.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import ApiServer, Lab
from tests.real.consumers.api_server import Where

GROUP = 4242
LOOPFILE, TMPFS, RENEWED = "loopfile.nodeplug", "tmpfs.nodeplug", "renewed.acme"
INLINE = {"csi": {"driver": TMPFS, "volumeAttributes": {"size": "8Mi"}}}
NETWORKS = Path(__file__).parent / "networks"
Difference = Callable[[], list[str]]


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    with make_kubelet_lab(*sorted(NETWORKS.glob("*.conflist"))[:1], with_api=True) as made:
        assert made.api is not None
        for name in (LOOPFILE, TMPFS):
            announce(made, name)
        yield made


def announce(lab: Lab, name: str, **more: object) -> None:
    """Make the CSIDriver object, and wait until kubelet has the driver."""
    assert lab.api is not None
    spec = {
        "attachRequired": False,
        "podInfoOnMount": True,
        "fsGroupPolicy": "File",
        "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        # What an API server fills in, and kubelet reads without looking.
        "storageCapacity": False,
        "requiresRepublish": False,
        "seLinuxMount": False,
    }
    where = Where("storage.k8s.io/v1", "csidrivers", "", name)
    lab.api.store.put(where, {"metadata": {"name": name}, "spec": {**spec, **more}})
    # A kubelet that starts on a node that it has not registered yet loses one of two drivers: it deletes the CSINode
    # that has no owner, and with it what it wrote for the other (nodeinfomanager.go). A new socket makes it register
    # the driver again.
    (lab.daemon.paths.plugins_registry / f"{name}-reg.sock").unlink()
    lab.kubelet.wait_for(f"{name} in its CSINode", partial(has_driver, lab, name))


def has_driver(lab: Lab, name: str) -> bool:
    return name in drivers(lab)


def drivers(lab: Lab) -> set[str]:
    """The drivers that kubelet tells the scheduler of."""
    assert lab.api is not None
    found = lab.api.store.get(Where("storage.k8s.io/v1", "csinodes", "", lab.private.name)) or {}
    return {one["name"] for one in (found.get("spec") or {}).get("drivers") or ()}


def claim(api: ApiServer, name: str, handle: str, attributes: dict[str, str]) -> dict[str, Any]:
    """Make a volume and a claim that has it; return the source for a pod."""
    source = {"driver": LOOPFILE, "volumeHandle": handle, "volumeAttributes": attributes}
    shared = {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"}
    volume = api.put("persistentvolumeclaims", {"metadata": {"name": name, "namespace": "default"}, "spec": {}})
    reference = {"name": name, "namespace": "default", "uid": volume["metadata"]["uid"]}
    capacity = {"storage": "64Mi"}
    spec = {**shared, "csi": source, "capacity": capacity, "claimRef": reference}
    api.put("persistentvolumes", {"metadata": {"name": f"pv-{name}"}, "spec": spec, "status": {"phase": "Bound"}})
    wanted = {**shared, "volumeName": f"pv-{name}", "resources": {"requests": capacity}}
    status = {"phase": "Bound", "capacity": capacity, "accessModes": ["ReadWriteOnce"]}
    api.put("persistentvolumeclaims", {"metadata": volume["metadata"], "spec": wanted, "status": status})
    return {"persistentVolumeClaim": {"claimName": name}}


def test_an_inline_volume_comes_and_goes_with_its_pod(lab: Lab, difference: Difference) -> None:
    lab.run("inline", "echo kept > /memory/file", volumes={"/memory": INLINE}, fs_group=GROUP)
    assert lab.mount_type("inline", "/memory") == "tmpfs"
    assert lab.kubelet.execute("inline", "/bin/stat", "-c", "%g", "/memory").strip() == str(GROUP)
    assert difference() == []


def test_pods_of_both_kinds_share_one_volume_and_the_last_leaves_nothing(lab: Lab, difference: Difference) -> None:
    assert lab.api is not None
    flexible = {"flexVolume": {"driver": "nodeplug/loopfile", "options": {"name": "both", "size": "16Mi"}}}
    lab.run("flexible", "echo from-flex > /data/file", volumes={"/data": flexible})
    claimed = claim(lab.api, "both", "both", {"name": "both"})
    lab.run("claimed", volumes={"/data": claimed})
    assert lab.kubelet.execute("claimed", "/bin/cat", "/data/file") == "from-flex\n"
    lab.kubelet.drop("flexible")
    assert lab.kubelet.execute("claimed", "/bin/cat", "/data/file") == "from-flex\n"
    lab.kubelet.drop("claimed")
    (image,) = [line for line in difference() if "both" in line]
    assert image.endswith("both.img")  # what a volume holds stays until its owner removes it
    assert not list((lab.private.folder / "var/lib/kubelet/plugins/kubernetes.io/csi").rglob("globalmount"))


def test_a_claim_whose_volume_is_not_here_is_never_given_an_empty_one(lab: Lab, difference: Difference) -> None:
    assert lab.api is not None
    absent = claim(lab.api, "absent", "absent", {"name": "absent", "size": "16Mi"})
    lab.put("homeless", volumes={"/data": absent})
    lab.kubelet.wait_for("kubelet's words", lambda: "it may be on another node" in lab.kubelet.log)
    assert difference() == []


def test_pods_outlive_a_killed_daemon_and_a_kubelet_that_starts_again(lab: Lab, difference: Difference) -> None:
    lab.run("lasting", "echo kept > /memory/file", volumes={"/memory": INLINE})
    container = lab.kubelet.container("lasting")
    lab.daemon.kill()
    lab.daemon.start()
    lab.kubelet.stop()
    lab.kubelet.start()
    lab.kubelet.wait_for("both drivers in its CSINode", lambda: {LOOPFILE, TMPFS} <= drivers(lab))
    assert lab.kubelet.container("lasting") == container
    assert lab.kubelet.execute("lasting", "/bin/cat", "/memory/file") == "kept\n"
    lab.run("next", volumes={"/memory": INLINE})
    assert difference() == []


@pytest.fixture
def renewed(lab: Lab) -> Path:
    """Serve a driver that kubelet is to publish again and again; return the file that fails its refresh."""
    path = lab.daemon.config_path
    fresh = path.with_suffix(".new")
    fresh.write_text(f'{path.read_text()}\n[plugins.renewed]\nuses = "renewed:Renewed"\n')
    fresh.rename(path)
    socket = lab.daemon.paths.plugins_registry / f"{RENEWED}-reg.sock"
    lab.kubelet.wait_for("the driver's socket", socket.exists)
    announce(lab, RENEWED, requiresRepublish=True)
    return lab.daemon.paths.state / "plugins" / "renewed" / "gone"


# kubelet 1.20 does not know requiresRepublish.
@pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session")
def test_a_volume_is_renewed_while_its_pod_runs_and_a_failure_leaves_it(lab: Lab, renewed: Path) -> None:
    lab.run("renewed", volumes={"/facts": {"csi": {"driver": RENEWED}}})

    def times() -> int:
        return int(lab.kubelet.execute("renewed", "/bin/cat", "/facts/times"))

    container = lab.kubelet.container("renewed")
    lab.kubelet.wait_for("two refreshes", lambda: times() >= 2)
    renewed.touch()
    lab.kubelet.wait_for("kubelet's words", lambda: "does not know this account any more" in lab.kubelet.log)
    before = times()
    renewed.unlink()
    lab.kubelet.wait_for("a refresh after the failed ones", lambda: times() > before)
    assert lab.kubelet.container("renewed") == container

    def targets() -> list[str]:
        return [line for line in lab.inventory().entries if line.startswith("mount ") and "kubernetes.io~csi" in line]

    assert len(targets()) == 1
    lab.kubelet.drop("renewed")
    assert targets() == []

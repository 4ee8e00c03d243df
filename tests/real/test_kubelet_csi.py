"""kubelet with an API server, and pods whose volumes come over CSI: inline and claimed, beside FlexVolume.

The API server is a stand-in in memory; kubelet, containerd and the daemon are the real ones.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.fuse_programs import programs
from tests.real.consumers import Lab
from tests.real.consumers.csi_objects import announce, capacity_of, claim, csi_node, drivers_of, enlarge

from nodeplug.testing import CsiCaller
from nodeplug.testing.csi_caller.controller import created

GROUP = 4242
RAW = 16 << 20
"""Bytes of a block volume."""
LOOPFILE, TMPFS, RENEWED = "loopfile.nodeplug", "tmpfs.nodeplug", "renewed.acme"
IMAGE, FUSE = "image.nodeplug", "fuse.nodeplug"
INLINE = {"csi": {"driver": TMPFS, "volumeAttributes": {"size": "8Mi"}}}
NETWORKS = Path(__file__).parent / "networks"
Difference = Callable[[], list[str]]
Volumes = dict[str, Any]


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    with make_kubelet_lab(*sorted(NETWORKS.glob("*.conflist"))[:1], with_api=True) as made:
        assert made.api is not None
        for name in (LOOPFILE, TMPFS):
            announce(made, name)
        yield made


def test_an_inline_volume_comes_and_goes_with_its_pod(lab: Lab, difference: Difference) -> None:
    lab.run("inline", "echo kept > /memory/file", volumes={"/memory": INLINE}, fs_group=GROUP)
    assert lab.mount_type("inline", "/memory") == "tmpfs"
    # The driver sets the group itself, and kubelet 1.20 does not tell it: there every group may write.
    owners = lab.kubelet.execute("inline", "/bin/stat", "-c", "%g %a", "/memory").strip()
    assert owners == ("0 1777" if lab.kubelet.old else f"{GROUP} 2770")
    assert difference() == []


@pytest.mark.soak
def test_pods_of_both_kinds_share_one_volume_and_the_last_leaves_nothing(lab: Lab, difference: Difference) -> None:
    assert lab.api is not None
    flexible = {"flexVolume": {"driver": "nodeplug/loopfile", "options": {"name": "both", "size": "16Mi"}}}
    lab.run("flexible", "echo from-flex > /data/file", volumes={"/data": flexible})
    claimed = claim(lab.api, LOOPFILE, "both", "both", {"name": "both"})
    lab.run("claimed", volumes={"/data": claimed})
    assert lab.kubelet.execute("claimed", "/bin/cat", "/data/file") == "from-flex\n"
    lab.kubelet.drop("flexible")
    assert lab.kubelet.execute("claimed", "/bin/cat", "/data/file") == "from-flex\n"
    lab.kubelet.drop("claimed")
    (image,) = [line for line in difference() if "both" in line]
    assert image.endswith("both.img")  # what a volume holds stays until its owner removes it
    assert not list((lab.private.folder / "var/lib/kubelet/plugins/kubernetes.io/csi").rglob("globalmount"))


@pytest.fixture
def claimed(lab: Lab) -> Iterator[Callable[[str, str, str], Volumes]]:
    """Make volumes with a file each, of a size and a filesystem, and claims for them; return the source for a pod.

    Their images are removed afterwards: what a volume holds stays until its owner removes it.
    """
    assert lab.api is not None
    api, names = lab.api, list[str]()

    def make(name: str, size: str, fs_type: str) -> Volumes:
        options = {"name": name, "size": size}
        flexible = {"flexVolume": {"driver": "nodeplug/loopfile", "fsType": fs_type, "options": options}}
        lab.run(f"maker-of-{name}", "echo kept > /data/file; sync", volumes={"/data": flexible})
        names.append(name)
        lab.kubelet.drop(f"maker-of-{name}")
        return claim(api, LOOPFILE, name, name, {"name": name}, size=size, fsType=fs_type)

    yield make
    lab.kubelet.clear()
    for name in names:
        (image,) = lab.private.folder.rglob(f"{name}.img")
        image.unlink()


def test_kubelet_gives_all_of_a_claimed_volume_to_the_group_of_its_pod(
    lab: Lab, claimed: Callable[[str, str, str], Volumes]
) -> None:
    source = claimed("grouped", "16Mi", "ext4")

    def owners(pod: str) -> list[str]:
        return lab.kubelet.execute(pod, "/bin/stat", "-c", "%g %a", "/data", "/data/file").splitlines()

    lab.run("without", volumes={"/data": source})
    assert owners("without") == ["0 755", "0 644"]
    lab.kubelet.drop("without")
    lab.run("with", volumes={"/data": source}, fs_group=GROUP)
    assert owners("with") == [f"{GROUP} 2775", f"{GROUP} 664"]


def test_kubelet_knows_how_much_of_a_filesystem_is_used(lab: Lab, claimed: Callable[[str, str, str], Volumes]) -> None:
    fill = "for one in memory data; do dd if=/dev/zero of=/$one/zeros bs=1M count=4; done; sync"
    volumes = {"/memory": INLINE, "/data": claimed("filled", "16Mi", "ext4")}
    lab.run("filled", fill, volumes=volumes)
    mib = 1 << 20
    lab.kubelet.wait_for("memory's", lambda: lab.kubelet.measured("filled").get("v0") == (8 * mib, 4 * mib))

    def grown() -> bool:
        whole, used = lab.kubelet.measured("filled").get("v1", (0, 0))
        return 4 * mib < used < 6 * mib < 10 * mib < whole < 16 * mib

    lab.kubelet.wait_for("the disk's", grown)


def test_a_claimed_volume_grows_under_its_pod_when_its_capacity_is_raised(
    lab: Lab, claimed: Callable[[str, str, str], Volumes]
) -> None:
    assert lab.api is not None
    api = lab.api
    lab.run("growing", volumes={"/data": claimed("growing", "320Mi", "xfs")})
    container = lab.kubelet.container("growing")

    def mebibytes() -> int:
        blocks, size = map(int, lab.kubelet.execute("growing", "/bin/stat", "-f", "-c", "%b %S", "/data").split())
        return blocks * size >> 20

    assert mebibytes() < 320
    enlarge(api, "growing", "448Mi")
    lab.kubelet.wait_for("kubelet's word", lambda: capacity_of(api, "growing") == "448Mi")
    assert 320 < mebibytes() < 448
    assert lab.kubelet.execute("growing", "/bin/cat", "/data/file") == "kept\n"
    assert lab.kubelet.container("growing") == container


def test_over_csi_a_plugin_gets_the_secret_for_publishing_and_no_other(lab: Lab, difference: Difference) -> None:
    assert lab.api is not None
    references: dict[str, Any] = {}
    for step in ("publish", "stage", "expand"):
        data = {"password": b64encode(f"for-{step}".encode()).decode()}
        lab.api.put("secrets", {"metadata": {"name": step, "namespace": "default"}, "data": data})
        references[f"node{step.title()}SecretRef"] = {"name": step, "namespace": "default"}
    inline = {"csi": {**INLINE["csi"], "nodePublishSecretRef": {"name": "publish"}}}
    claimed = claim(lab.api, TMPFS, "guarded", "guarded", {"size": "8Mi"}, **references)
    for name, volume in (("own", inline), ("claimed-one", claimed)):
        lab.run(name, volumes={"/memory": volume})
        told = json.loads((lab.folder / f"secrets-of-{name}-nodeplug~tmpfs").read_text())
        assert told == {"password": "for-publish"}
    assert "for-publish" not in lab.daemon.log
    assert difference() == []


def test_a_claim_whose_volume_is_not_here_is_never_given_an_empty_one(lab: Lab, difference: Difference) -> None:
    assert lab.api is not None
    absent = claim(lab.api, LOOPFILE, "absent", "absent", {"name": "absent", "size": "16Mi"})
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
    lab.kubelet.wait_for("both drivers in its CSINode", lambda: {LOOPFILE, TMPFS} <= drivers_of(lab))
    assert lab.kubelet.container("lasting") == container
    assert lab.kubelet.execute("lasting", "/bin/cat", "/memory/file") == "kept\n"
    lab.run("next", volumes={"/memory": INLINE})
    assert difference() == []


@pytest.mark.parametrize("lost", ["its entry", "the whole object"])
def test_a_driver_that_the_cluster_has_lost_comes_back_while_a_pod_has_its_volume(
    lab: Lab, difference: Difference, lost: str
) -> None:
    """Nobody makes kubelet look at its CSINode again, and pods would wait for ever."""
    assert lab.api is not None
    name = f"keeper-{lost.rpartition(' ')[2]}"
    lab.run(name, "echo kept > /memory/file", volumes={"/memory": INLINE})
    container = lab.kubelet.container(name)
    said = f"CSI driver {TMPFS}: the CSINode {lab.private.name} does not list it"
    before = lab.daemon.log.count(said)
    where, found = csi_node(lab)
    if lost == "its entry":
        found["spec"]["drivers"] = [one for one in found["spec"]["drivers"] if one["name"] != TMPFS]
        lab.api.store.put(where, found)
    else:
        lab.api.store.remove(where)
    lab.kubelet.wait_for("the daemon's words", lambda: lab.daemon.log.count(said) > before)
    lab.kubelet.wait_for("both drivers in its CSINode", lambda: {LOOPFILE, TMPFS} <= drivers_of(lab))
    assert (lab.kubelet.container(name), lab.mount_type(name, "/memory")) == (container, "tmpfs")
    assert difference() == []


# kubelet makes its loop device by losetup(8); 1.20 does not measure block volumes.
@pytest.mark.programs("losetup")
@pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session")
def test_a_block_volume_is_a_device_for_its_pods_and_kubelet_knows_its_size(lab: Lab, difference: Difference) -> None:
    assert lab.api is not None
    caller = CsiCaller(lab.daemon.paths.plugins_registry.parent, LOOPFILE)
    with created(caller, "raw", block=True, size=RAW) as made:
        source = claim(lab.api, LOOPFILE, "raw", made.handle, dict(made.attributes), mode="Block")
        lab.run("writer", "echo kept > /dev/raw", devices={"/dev/raw": source})
        lab.kubelet.wait_for("its size", lambda: lab.kubelet.measured("writer").get("d0", (0, 0))[0] == RAW)
        lab.kubelet.drop("writer")
        lab.run("reader", devices={"/dev/raw": source})
        read = "dd if=/dev/raw bs=5 count=1 2>/dev/null"
        assert lab.kubelet.execute("reader", "/bin/sh", "-c", read) == "kept\n"
        lab.kubelet.drop("reader")
    assert difference() == []


@pytest.fixture
def published(lab: Lab) -> Volumes:
    """An inline volume, and one of a claim whose image is there."""
    assert lab.api is not None
    flexible = {"flexVolume": {"driver": "nodeplug/loopfile", "options": {"name": "killed", "size": "16Mi"}}}
    if lab.api.get("persistentvolumeclaims", "killed") is None:
        lab.run("maker", "echo kept > /data/file; sync", volumes={"/data": flexible})
        lab.kubelet.drop("maker")
        claim(lab.api, LOOPFILE, "killed", "killed", {"name": "killed"})
    return {"/memory": INLINE, "/data": {"persistentVolumeClaim": {"claimName": "killed"}}}


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["before-mount", "mount"])
def test_a_pod_gets_its_volumes_although_the_daemon_was_killed_while_they_were_published(
    lab: Lab, published: Volumes, difference: Difference, moment: str
) -> None:
    lab.kill_while_held(moment, lambda: lab.put(moment, volumes=published))
    lab.daemon.start()
    lab.kubelet.running(moment)
    assert lab.kubelet.execute(moment, "/bin/cat", "/data/file") == "kept\n"
    assert (lab.mount_type(moment, "/memory"), lab.mount_type(moment, "/data")) == ("tmpfs", "ext4")
    assert difference() == []


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["before-unmount", "unmount"])
def test_a_pod_goes_although_the_daemon_was_killed_while_its_volumes_were_unpublished(
    lab: Lab, published: Volumes, difference: Difference, moment: str
) -> None:
    assert lab.api is not None
    api = lab.api
    lab.run(moment, volumes=published)
    lab.kill_while_held(moment, lambda: api.delete(moment))
    lab.daemon.start()
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
    announce(lab, RENEWED)
    return lab.daemon.paths.state / "plugins" / "renewed" / "gone"


# kubelet 1.20 does not know requiresRepublish.
@pytest.mark.soak
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


@pytest.mark.soak
@pytest.mark.usefixtures("has_fuse", "has_loop_devices", "drivers")
def test_pods_read_images_and_the_files_of_programs_through_restarts_and_leave_nothing(
    lab: Lab, difference: Difference, source: Path
) -> None:
    assert lab.api is not None
    for name in (IMAGE, FUSE):
        announce(lab, name)
    layered = {"path": "model.squashfs", "overlay": "8Mi"}
    volumes = {
        "/model": claim(lab.api, IMAGE, "model", "main/model.squashfs", layered),
        "/files": claim(lab.api, FUSE, "files", "files-1", {}),
    }
    lab.run("reader", "echo mine > /model/hello", volumes=volumes)

    def read(pod: str) -> list[str]:
        return [lab.kubelet.execute(pod, "/bin/cat", f"{place}/hello").strip() for place in volumes]

    before = (lab.kubelet.container("reader"), programs(source))
    assert (read("reader"), lab.mount_type("reader", "/model")) == (["mine", "world"], "overlay")
    lab.daemon.kill()
    lab.daemon.start()
    lab.kubelet.stop()
    lab.kubelet.start()
    lab.kubelet.wait_for("the drivers in its CSINode", lambda: {IMAGE, FUSE} <= drivers_of(lab))
    lab.run("next", volumes=volumes)
    assert (read("reader"), read("next")) == (["mine", "world"], ["world", "world"])
    assert (lab.kubelet.container("reader"), programs(source)) == before
    assert difference() == []
    assert programs(source) == []

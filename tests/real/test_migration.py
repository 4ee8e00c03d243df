"""`nodeplug migrate flex-to-csi` with a real API server and a real volume binder: done, undone, refused, and killed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import ControlPlane
from tests.suites import divided

from nodeplug import PluginError
from nodeplug.migration.records import save
from nodeplug.migration.volumes import as_csi
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
PODS = "/api/v1/namespaces/default/pods"
CHANGES = 6
"""Retain, delete, remove the finalizers, create, tell the claim, the old policy."""
KILLED = """
import os, signal, sys
from nodeplug.kubeapi.client import Client
from nodeplug.cli import main

left, whole = int(sys.argv.pop(1)), Client._object

async def cut(self, asked, *rest, **more):
    global left
    answer = await whole(self, asked, *rest, **more)
    left -= not asked.reads
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

Client._object = cut
main()
"""
"""The command, which ends by SIGKILL as soon as the API server has done so many changes for it."""


@dataclass
class Place:
    """A cluster and a daemon on its node."""

    cluster: ControlPlane
    daemon: ScratchNode

    def migrate(self, *arguments: str, killed_after: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command on the node."""
        words = ["--kubeconfig", str(self.cluster.folder / "kubeconfig"), *arguments]
        command = self.daemon.command("migrate flex-to-csi", *words)
        if killed_after:
            at = command.index("nodeplug") - 1  # behind Python's -m
            command[at : at + 2] = ["-c", KILLED, str(killed_after)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def planned(self, *arguments: str) -> list[dict[str, Any]]:
        """Return what the command says of each volume."""
        return list(json.loads(self.migrate("--json", *arguments).stdout)["volumes"])

    def volume(self, name: str) -> dict[str, Any]:
        return dict(self.cluster.call("GET", f"{VOLUMES}/{name}"))

    def claim(self, name: str) -> dict[str, Any]:
        return dict(self.cluster.call("GET", f"{CLAIMS}/{name}"))

    def claims(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.cluster.call("GET", CLAIMS)["items"]]

    def bind(self, name: str, **more: Any) -> dict[str, Any]:
        """Make a FlexVolume and a claim that has it, as an administrator does; return the claim."""
        flex = {"driver": "nodeplug/loopfile", "fsType": "ext4", "options": {"name": name, "size": "16Mi"}}
        spec = {
            "capacity": {"storage": "16Mi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Delete",
            "flexVolume": flex,
            **more,
        }
        self.cluster.call("POST", VOLUMES, {"metadata": {"name": name, "labels": {"kept": "yes"}}, "spec": spec})
        wanted = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "volumeName": name,
            "resources": {"requests": {"storage": "16Mi"}},
        }
        self.cluster.call("POST", CLAIMS, {"metadata": {"name": name}, "spec": wanted})
        until(lambda: self.is_bound(name), 60)
        return self.claim(name)

    def offer(self, name: str, size: str = "1Mi", **more: Any) -> None:
        """Make a FlexVolume that no claim has."""
        flex = {"driver": "nodeplug/tmpfs", "options": {"size": size}, **more}
        spec = {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "none"}
        spec |= {"flexVolume": flex, "persistentVolumeReclaimPolicy": "Delete"}
        self.cluster.call("POST", VOLUMES, {"metadata": {"name": name}, "spec": spec})
        until(lambda: self.volume(name)["status"].get("phase") == "Available", 60)

    def claim_it(self, name: str) -> None:
        """Make a claim that gets such a volume."""
        resources = {"requests": {"storage": "1Mi"}}
        wanted = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": resources}
        self.cluster.call("POST", CLAIMS, {"metadata": {"name": name}, "spec": {**wanted, "volumeName": name}})
        until(lambda: self.is_bound(name), 60)

    def volumes(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.cluster.call("GET", VOLUMES)["items"]]

    def delete(self, name: str) -> None:
        """Delete a volume that no claim has, and wait until it is gone."""
        self.cluster.call("DELETE", f"{VOLUMES}/{name}")
        until(lambda: name not in self.volumes(), 60)

    def is_bound(self, name: str) -> bool:
        return [one["status"].get("phase") for one in (self.claim(name), self.volume(name))] == ["Bound", "Bound"]


@pytest.fixture(scope="module")
def place(cluster: ControlPlane) -> Iterator[Place]:
    node = {"metadata": {"name": "node-1", "labels": {"kubernetes.io/hostname": "node-1"}}}
    cluster.call("POST", "/api/v1/nodes", node)
    private = cluster.node
    supervisor = 'listen = ""\ncsi = true'
    plugins = "[plugins.loopfile]\n[plugins.tmpfs]\n"
    with ScratchNode(private.folder, plugins, supervisor=supervisor, beside=private.pid, fork=True) as daemon:
        made = Place(cluster, daemon)
        made.bind("early")
        (row,) = made.planned()
        assert "csi manifests --driver loopfile.nodeplug" in row["problem"]  # pods would wait for ever
        printed = json.loads(daemon.run("csi manifests", "--json").stdout)["items"]
        for one in [one for one in printed if one["kind"] == "CSIDriver"]:
            cluster.call("POST", "/apis/storage.k8s.io/v1/csidrivers", one)
        yield made
    sys.stdout.write(daemon.log)


def test_a_plan_changes_nothing(place: Place) -> None:
    place.bind("planned")
    before = place.volume("planned")
    (row,) = place.planned("--claim", "default/planned")
    told = {key: row[key] for key in ("volume", "csi_driver", "handle", "problem", "on_one_node", "outcome")}
    assert told == {
        "volume": "planned",
        "csi_driver": "loopfile.nodeplug",
        "handle": "planned",
        "problem": "",
        "on_one_node": False,
        "outcome": "planned",
    }
    assert place.volume("planned") == before


def test_the_same_claim_is_bound_to_csi_and_then_to_flexvolume_again(place: Place) -> None:
    claim, before = place.bind("there"), place.volume("there")
    done = place.migrate("--claim", "default/there", "--node", "node-1", "--apply")
    assert done.returncode == 0, done.stderr
    after = place.volume("there")
    assert after["spec"]["csi"] == {
        "driver": "loopfile.nodeplug",
        "volumeHandle": "there",
        "fsType": "ext4",
        "volumeAttributes": {"name": "there", "size": "16Mi"},
    }
    assert after["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    assert after["metadata"]["labels"] == {"kept": "yes"}
    (term,) = after["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["node-1"]
    assert place.is_bound("there")
    assert place.claim("there")["metadata"]["uid"] == claim["metadata"]["uid"]
    assert place.planned("--claim", "default/early")[0]["volume"] == "early"  # nobody else was touched

    undone = place.migrate("--undo", str(place.daemon.paths.state / "migration" / "there"))
    assert undone.returncode == 0, undone.stderr
    again = place.volume("there")
    assert {**again["spec"], "claimRef": 0} == {**before["spec"], "claimRef": 0}
    assert place.is_bound("there")
    assert place.claim("there")["metadata"]["uid"] == claim["metadata"]["uid"]
    assert place.migrate("--claim", "default/there", "--apply").returncode == 0  # and there again


def test_a_claim_that_a_pod_uses_is_refused(place: Place) -> None:
    place.bind("used")
    source = {"persistentVolumeClaim": {"claimName": "used"}}
    spec = {"containers": [{"name": "a", "image": "x"}], "volumes": [{"name": "d", **source}], "nodeName": "nowhere"}
    place.cluster.call("POST", PODS, {"metadata": {"name": "user"}, "spec": spec})
    before = place.volume("used")
    done = place.migrate("--claim", "default/used", "--apply")
    assert done.returncode == 1
    assert "pod default/user" in done.stdout
    assert place.volume("used") == before
    place.cluster.call("DELETE", f"{PODS}/user?gracePeriodSeconds=0")
    assert place.migrate("--claim", "default/used", "--apply").returncode == 0


def test_options_that_the_plugin_refuses_are_told(place: Place) -> None:
    place.bind("wrong", flexVolume={"driver": "nodeplug/loopfile", "options": {"size": "16Mi"}})
    (row,) = place.planned("--claim", "default/wrong")
    assert row["problem"]
    assert row["outcome"] == "refused"


def test_a_driver_that_nobody_serves_is_told(place: Place) -> None:
    place.bind("foreign", flexVolume={"driver": "acme/other"})
    (row,) = place.planned("--driver", "acme/other")
    assert "acme/other" in row["problem"]


def test_a_claim_that_has_no_flexvolume_is_refused(place: Place) -> None:
    done = place.migrate("--claim", "default/absent")
    assert done.returncode == 1
    assert "no FlexVolume has the claim default/absent" in done.stderr


def test_a_volume_that_nobody_claimed_is_exchanged_too(place: Place) -> None:
    flex = {"driver": "nodeplug/loopfile", "options": {"name": "free", "size": "16Mi"}}
    spec = {"capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "none"}
    place.cluster.call("POST", VOLUMES, {"metadata": {"name": "free"}, "spec": {**spec, "flexVolume": flex}})
    until(lambda: place.volume("free")["status"].get("phase") == "Available", 60)
    rows = [row for row in place.planned("--driver", "nodeplug/loopfile") if row["volume"] == "free"]
    assert [(row["problem"], row["claim"]) for row in rows] == [("", "")]


@pytest.mark.parametrize("changes", divided(range(1, CHANGES + 1), {4}, ()))
def test_what_was_killed_after_any_change_goes_on_and_so_does_its_undoing(place: Place, changes: int) -> None:
    name = f"killed-{changes}"
    claim = place.bind(name)
    mine = ("--claim", f"default/{name}", "--apply")
    assert place.migrate(*mine, killed_after=changes).returncode == -9
    finished = place.migrate(*mine)
    assert finished.returncode == 0, finished.stderr
    assert place.volume(name)["spec"]["csi"]["volumeHandle"] == name
    assert place.volume(name)["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    assert place.is_bound(name)
    back = ("--undo", str(place.daemon.paths.state / "migration" / name))
    assert place.migrate(*back, killed_after=changes).returncode == -9
    undone = place.migrate(*back)
    assert undone.returncode == 0, undone.stderr
    assert place.volume(name)["spec"]["flexVolume"]["options"]["name"] == name
    assert place.volume(name)["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    assert place.is_bound(name)
    assert place.claim(name)["metadata"]["uid"] == claim["metadata"]["uid"]


@pytest.mark.parametrize("changes", divided(range(1, CHANGES + 1), {4}, ()))
def test_what_was_killed_after_any_change_can_be_undone_at_once(place: Place, changes: int) -> None:
    name = f"turned-{changes}"
    claim = place.bind(name)
    assert place.migrate("--claim", f"default/{name}", "--apply", killed_after=changes).returncode == -9
    undone = place.migrate("--undo", str(place.daemon.paths.state / "migration" / name))
    assert undone.returncode == 0, undone.stderr
    found = place.volume(name)
    assert found["spec"]["flexVolume"]["options"]["name"] == name
    assert found["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    assert place.is_bound(name)
    assert place.claim(name)["metadata"]["uid"] == claim["metadata"]["uid"]


def test_a_volume_that_somebody_exchanged_meanwhile_is_left_alone(place: Place) -> None:
    place.bind("stolen")
    mine = ("--claim", "default/stolen", "--apply")
    assert place.migrate(*mine, killed_after=3).returncode == -9
    other = {
        "capacity": {"storage": "16Mi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "somebody.else", "volumeHandle": "stolen"},
    }
    place.cluster.call("POST", VOLUMES, {"metadata": {"name": "stolen"}, "spec": other})
    done = place.migrate(*mine)
    assert done.returncode == 1
    assert "is another one than" in done.stdout
    assert place.volume("stolen")["spec"]["csi"]["driver"] == "somebody.else"


def test_no_volume_is_made_for_a_claim_that_is_gone(place: Place) -> None:
    place.bind("orphan")
    mine = ("--claim", "default/orphan", "--apply")
    assert place.migrate(*mine, killed_after=3).returncode == -9
    place.cluster.call("DELETE", f"{CLAIMS}/orphan")
    until(lambda: "orphan" not in place.claims(), 60)
    done = place.migrate(*mine)
    assert done.returncode == 1
    assert "claim default/orphan is gone" in done.stdout
    with pytest.raises(PluginError, match="404"):
        place.volume("orphan")


def test_a_volume_that_was_bound_since_the_plan_is_left_to_its_claim(place: Place, tmp_path: Path) -> None:
    place.offer("late")
    mine = ("--driver", "nodeplug/tmpfs", "--state", str(tmp_path / "state"), "--apply")
    assert place.migrate(*mine, killed_after=1).returncode == -9  # nothing is deleted yet
    place.claim_it("late")
    before = place.volume("late")
    done = place.migrate(*mine)
    assert done.returncode == 1
    assert "has another claim than when it was planned" in done.stdout
    assert place.volume("late") == before
    (tmp_path / "state" / "late").rename(tmp_path / "away")
    assert place.migrate(*mine).returncode == 0
    assert place.is_bound("late")


def test_two_volumes_that_differ_in_their_secrets_do_not_get_one_handle(place: Place, tmp_path: Path) -> None:
    mine = ("--driver", "nodeplug/tmpfs", "--state", str(tmp_path))
    for name in ("hers", "his"):
        place.offer(name, "3Mi", secretRef={"name": name, "namespace": "default"})
    told = {row["volume"]: row["problem"] for row in place.planned(*mine)}
    assert told["hers"] == ""
    assert "PersistentVolume hers has the same volumeHandle" in told["his"]
    assert place.migrate(*mine, "--apply").returncode == 1
    assert "csi" in place.volume("hers")["spec"]
    assert "flexVolume" in place.volume("his")["spec"]
    (row,) = place.planned(*mine)  # with one that is there by now
    assert "PersistentVolume hers has the same volumeHandle" in row["problem"]
    place.delete("his")


def test_a_volume_that_an_admin_has_made_safe_meanwhile_stays_safe(place: Place) -> None:
    place.bind("safe")
    assert place.migrate("--claim", "default/safe", "--apply").returncode == 0
    found = place.volume("safe")
    found["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
    place.cluster.call("PUT", f"{VOLUMES}/safe", found)
    undone = place.migrate("--undo", str(place.daemon.paths.state / "migration" / "safe"))
    assert undone.returncode == 0, undone.stderr
    assert "flexVolume" in place.volume("safe")["spec"]
    assert place.volume("safe")["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_a_volume_that_was_deleted_on_purpose_is_not_made_again(place: Place, tmp_path: Path) -> None:
    place.offer("ended")
    mine = ("--driver", "nodeplug/tmpfs", "--state", str(tmp_path), "--apply")
    assert place.migrate(*mine).returncode == 0
    place.delete("ended")
    undone = place.migrate("--undo", str(tmp_path))
    assert undone.returncode == 1
    assert "none of the steps in" in undone.stdout
    assert "ended" not in place.volumes()


def test_what_never_began_is_not_undone(place: Place, tmp_path: Path) -> None:
    place.offer("planned-only")
    before = place.volume("planned-only")
    save(tmp_path, before, as_csi(before, "tmpfs.nodeplug", "planned-only"), {})
    place.delete("planned-only")
    undone = place.migrate("--undo", str(tmp_path), "--json")
    assert undone.returncode == 0, undone.stderr
    (row,) = json.loads(undone.stdout)["volumes"]
    assert (row["outcome"], row["problem"]) == ("never begun", "")
    assert "planned-only" not in place.volumes()


def test_manifests_are_rewritten_in_place_only_when_asked(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    text = "kind: Pod  # mine\nspec:\n  volumes:\n  - name: a\n"
    text += "    flexVolume: {driver: nodeplug/tmpfs, options: {size: 1Mi}}\n"
    file.write_text(text)
    file.chmod(0o644)
    shown = place.migrate("--manifests", str(file))
    assert "+    csi: {driver: tmpfs.nodeplug, volumeAttributes: {size: 1Mi}}" in shown.stdout.splitlines()
    assert file.read_text() == text
    assert place.migrate("--manifests", str(file), "--apply").returncode == 0
    assert file.read_text().startswith("kind: Pod  # mine\n")
    assert "csi: {driver: tmpfs.nodeplug" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644

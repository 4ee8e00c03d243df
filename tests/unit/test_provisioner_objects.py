"""What a provisioner reads from claims, classes and volumes, and what it writes."""

from typing import Any

import pytest

from nodeplug import InvalidRequest, ProvisionedVolume, VolumeClaim, VolumeId, VolumeRoom
from nodeplug.provisioner import objects
from nodeplug.volumes.provisioning import room_of

VOLUME = VolumeClaim("acme/disk", node_local=True, clones=True, block=True)
MADE = ProvisionedVolume(volume_id=VolumeId("v"), size=64 << 20, options={"name": "v"})
Object = dict[str, Any]


def claim(**spec: Any) -> Object:
    annotations = {objects.SELECTED: "a", objects.WANTED_FROM[0]: "disk.acme", "team": "blue"}
    metadata = {"name": "data", "namespace": "shop", "uid": "1-2", "annotations": annotations}
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}}
    return {"metadata": metadata, "spec": {**wanted, **spec}, "status": {"phase": "Pending"}}


def storage_class(**more: Any) -> Object:
    return {"metadata": {"name": "fast"}, "provisioner": "disk.acme", **more}


def volume(**parameters: str) -> Object:
    return objects.persistent_volume(
        claim(), storage_class(parameters=parameters), MADE, "disk.acme", [{"disk.acme/node": "a"}], "a"
    )


def test_a_claim_is_wanted_where_its_pod_will_run() -> None:
    assert objects.is_wanted(claim(), "a")
    assert not objects.is_wanted(claim(), "b")
    assert not objects.is_wanted(claim(volumeName="pvc-1-2"), "a")


def test_what_a_claim_and_its_class_say_reaches_the_driver() -> None:
    wanted = objects.creation(
        claim(resources={"requests": {"storage": "1Gi"}, "limits": {"storage": "2Gi"}}),
        storage_class(
            parameters={"kind": "x", "csi.storage.k8s.io/fstype": "xfs", "csi.storage.k8s.io/pvc/name": "y"},
            mountOptions=["noatime"],
        ),
        VOLUME,
        "",
        "s",
    )
    assert (wanted.name, wanted.size, wanted.limit, wanted.fs_type) == ("pvc-1-2", 1 << 30, 2 << 30, "xfs")
    assert (dict(wanted.parameters), wanted.mount_flags, wanted.snapshot) == ({"kind": "x"}, ("noatime",), "s")
    assert wanted.access_modes == ("SINGLE_NODE_MULTI_WRITER",)


@pytest.mark.parametrize(
    ("spec", "parameters", "why"),
    [
        ({"accessModes": ["ReadWriteMany"]}, {}, "use ReadWriteOnce"),
        ({"accessModes": ["Whatever"]}, {}, "known: ReadWriteOnce"),
        ({}, {"csi.storage.k8s.io/provisioner-secret-name": "x"}, "passes no secrets"),
        ({"resources": {"requests": {"storage": "lots"}}}, {}, "is not a size"),
    ],
)
def test_what_a_driver_cannot_do_is_refused_with_what_to_do(spec: Object, parameters: Object, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        objects.creation(claim(**spec), storage_class(parameters=parameters), VOLUME, "", "")


def test_a_driver_without_block_volumes_or_copies_is_not_asked_for_them() -> None:
    plain = VolumeClaim("acme/disk")
    with pytest.raises(InvalidRequest, match="no block volumes"):
        objects.creation(claim(volumeMode="Block"), storage_class(), plain, "", "")
    with pytest.raises(InvalidRequest, match="does not copy"):
        objects.creation(claim(), storage_class(), plain, "v", "")


def test_a_volume_is_bound_to_its_claim_and_its_node() -> None:
    made = volume()
    assert made["metadata"]["name"] == "pvc-1-2"
    assert made["metadata"]["finalizers"] == [objects.FINALIZER]
    spec = made["spec"]
    assert spec["claimRef"]["uid"] == "1-2"
    assert (spec["capacity"], spec["persistentVolumeReclaimPolicy"]) == ({"storage": "64Mi"}, "Delete")
    assert spec["csi"] == {"driver": "disk.acme", "volumeHandle": "v", "volumeAttributes": {"name": "v"}}
    assert objects.made_here(made, "a")
    assert not objects.made_here(made, "b")


def test_the_secret_of_a_class_is_found_by_its_templates() -> None:
    prefix = "csi.storage.k8s.io/node-publish-secret-"
    made = volume(
        **{f"{prefix}name": "${pvc.name}-${pvc.annotations['team']}", f"{prefix}namespace": "${pvc.namespace}"}
    )
    assert made["spec"]["csi"]["nodePublishSecretRef"] == {"name": "data-blue", "namespace": "shop"}
    for wrong in ({f"{prefix}name": "x"}, {f"{prefix}name": "${pod.name}", f"{prefix}namespace": "x"}):
        with pytest.raises(InvalidRequest):
            volume(**wrong)


def test_a_volume_of_the_standard_provisioner_is_known_by_its_node() -> None:
    made = volume()
    del made["metadata"]["annotations"][objects.MADE_ON]
    assert objects.made_here(made, "a")
    assert not objects.made_here(made, "b")
    made["spec"]["csi"]["driver"] = "other"
    assert not objects.made_here(made, "a")


def test_a_volume_that_can_be_used_everywhere_is_no_nodes_and_served_by_all_that_have_its_driver() -> None:
    made = objects.persistent_volume(claim(), storage_class(), MADE, "disk.acme", [], "a")
    assert "nodeAffinity" not in made["spec"]
    assert objects.is_on_no_node(made, {"disk.acme"})
    assert not objects.is_on_no_node(made, {"other"})
    assert not objects.made_here(made, "a")  # so that it is not forgotten with the node
    assert not objects.is_on_no_node(volume(), {"disk.acme"})


@pytest.mark.parametrize(
    ("phase", "policy", "deleted"),
    [("Released", "Delete", True), ("Released", "Retain", False), ("Bound", "Delete", False)],
)
def test_only_what_was_released_to_be_deleted_is(phase: str, policy: str, *, deleted: bool) -> None:
    made = volume()
    made["status"] = {"phase": phase}
    made["spec"]["persistentVolumeReclaimPolicy"] = policy
    assert objects.is_to_be_deleted(made) == deleted


def bound(size: str, has: str, state: str = "") -> Object:
    found = claim(resources={"requests": {"storage": size}})
    found["status"] = {"phase": "Bound", "capacity": {"storage": has}}
    if state:
        found["status"]["allocatedResourceStatuses"] = {"storage": state}
    return found


def test_a_claim_grows_when_it_asks_for_more_than_its_volume_has() -> None:
    assert objects.growth(bound("128Mi", "64Mi"), volume()) == 128 << 20
    assert objects.growth(bound("64Mi", "64Mi"), volume()) == 0
    assert objects.growth(claim(resources={"requests": {"storage": "128Mi"}}), volume()) == 0


@pytest.mark.parametrize(
    ("has", "state", "told"),
    [
        ("64Mi", "", True),
        ("32Mi", "", False),
        ("32Mi", "ControllerResizeInProgress", False),
        ("32Mi", "NodeResizePending", True),
        ("32Mi", "NodeResizeInProgress", True),
    ],
)
def test_kubelet_is_told_of_a_growth_once(has: str, state: str, *, told: bool) -> None:
    assert objects.is_told(bound("64Mi", has, state), volume()) == told


def test_a_claim_that_was_just_bound_has_not_grown() -> None:
    assert objects.is_told(claim(), volume())


def test_the_conditions_of_others_stay() -> None:
    found = bound("64Mi", "32Mi")
    found["status"]["conditions"] = [{"type": "Other"}, {"type": "Resizing"}]
    status = objects.resizing(found, 64 << 20, "NodeResizePending")["status"]
    assert [one["type"] for one in status["conditions"]] == ["Other", "FileSystemResizePending"]
    assert status["allocatedResources"] == {"storage": "64Mi"}


def test_room_is_told_in_one_object_per_class_and_node() -> None:
    def made(node: str, name: str, largest: int | None = None) -> Object:
        room = VolumeRoom(available=(5 << 20) + 1, largest=largest)
        return objects.storage_capacity("disk.acme", name, node, "kube-system", {"disk.acme/node": node}, room)

    names = {made(node, name)["metadata"]["name"] for node in ("a", "b") for name in ("x", "y")}
    assert len(names) == 4
    assert made("a", "x")["capacity"] == "5Mi"
    assert "maximumVolumeSize" not in made("a", "x")
    assert made("a", "x", 3 << 20)["maximumVolumeSize"] == "3Mi"
    assert made("a", "x", 0)["maximumVolumeSize"] == "0Mi"
    assert made("a", "x")["metadata"]["name"] in names
    assert len(objects.managed_by("n" * 253)) <= 63


def test_room_is_the_same_in_whatever_unit_the_api_server_writes_it() -> None:
    told = {"capacity": "1024Mi", "maximumVolumeSize": "512Mi"}
    assert objects.is_same_room({"capacity": "1Gi", "maximumVolumeSize": "512Mi"}, told)
    assert not objects.is_same_room({"capacity": "1Gi"}, told)
    assert not objects.is_same_room({"capacity": "1Gi", "maximumVolumeSize": "1Gi"}, told)
    assert not objects.is_same_room({"capacity": "100m", "maximumVolumeSize": "512Mi"}, told)


def test_no_volume_can_be_larger_than_what_is_left() -> None:
    assert room_of(VolumeRoom(available=5, largest=9)) == VolumeRoom(available=5, largest=5)
    assert room_of(VolumeRoom(available=-1, largest=9)) == VolumeRoom(available=0, largest=0)
    assert room_of(VolumeRoom(available=9, largest=5)) == VolumeRoom(available=9, largest=5)
    assert room_of(7) == VolumeRoom(available=7)


def bound_to(*nodes: str) -> dict[str, Any]:
    match = {"key": "acme/node", "operator": "In", "values": list(nodes)}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [match]}]}}}


@pytest.mark.parametrize(
    ("spec", "elsewhere"),
    [
        (bound_to("here"), False),
        (bound_to("there"), True),
        (bound_to("here", "there"), False),
        ({}, False),
        ({"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": []}]}}}, False),
    ],
)
def test_only_an_object_that_excludes_this_node_is_one_of_another_node(spec: dict[str, Any], elsewhere: bool) -> None:
    volume = {"metadata": {"name": "one"}, "spec": spec}
    assert objects.is_elsewhere(volume, {"acme/node": "here"}) is elsewhere
    assert objects.is_elsewhere(volume, {}) is False


@pytest.mark.parametrize(
    ("name", "driver", "handle", "has"),
    [
        ("mine", "acme", "h", True),
        ("else", "acme", "mine", True),
        ("else", "acme", "h", False),
        ("else", "b", "mine", False),
    ],
)
def test_an_object_has_a_volume_by_its_name_or_by_its_handle(name: str, driver: str, handle: str, has: bool) -> None:
    volume = {"metadata": {"name": name}, "spec": {"csi": {"driver": driver, "volumeHandle": handle}}}
    assert objects.has_volume(volume, "mine", "acme", "mine") is has

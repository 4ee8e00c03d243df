"""What is told of a driver in a cluster: what is there, what is wrong, and what to do."""

import asyncio
from typing import Any, cast

import pytest

from nodeplug import VolumeClaim
from nodeplug.contract.errors import NotFound, PluginError
from nodeplug.csi.cluster import Cluster, look, report
from nodeplug.csi.objects import Driver, drivers_of
from nodeplug.kubeapi.resources import Object, Resource

HOOKS = frozenset({"volume_publish", "volume_create", "volume_capacity"})
STORE = Driver("store.acme", VolumeClaim("acme/store", node_local=True), HOOKS)
REGISTERED = {"driver": "store.acme", "registered": True, "problem": ""}


def healthy() -> Cluster:
    """A cluster in which nothing is wrong."""
    affinity = {
        "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "h", "operator": "In", "values": ["n"]}]}]}
    }
    source = {"driver": "store.acme", "volumeHandle": "v"}
    return Cluster(
        node={"metadata": {"name": "n", "labels": {"h": "n"}}},
        csi_node={"spec": {"drivers": [{"name": "store.acme", "nodeID": "n", "topologyKeys": ["store.acme/node"]}]}},
        csi_drivers=[STORE.csi_driver],
        classes=[STORE.storage_class("fast")],
        capacities=[{"storageClassName": "fast", "nodeTopology": {"matchLabels": {"h": "n"}}, "capacity": "1Gi"}],
        volumes=[
            {
                "metadata": {"name": "pv"},
                "spec": {"csi": source, "nodeAffinity": affinity, "capacity": {"storage": "1Gi"}},
                "status": {"phase": "Bound"},
            }
        ],
    )


def problems(seen: Cluster, served: dict[str, Any] | None = REGISTERED, driver: Driver = STORE) -> list[str]:
    found: list[str] = report(driver, seen, served)["problems"]
    return found


def one_problem(seen: Cluster, served: dict[str, Any] | None = REGISTERED) -> str:
    (only,) = problems(seen, served)
    return only


class Told:
    """A client that answers with the name of what it is asked for, or an error."""

    def __init__(self, **errors: PluginError) -> None:
        self._errors = errors

    async def list(self, resource: Resource) -> list[Object]:
        return [await self.get(resource, "all")]

    async def get(self, resource: Resource, name: str) -> Object:
        if resource.plural in self._errors:
            raise self._errors[resource.plural]
        return {"is": f"{name} {resource.plural}"}

    def look(self) -> Cluster:
        return asyncio.run(look(cast("Any", self), "n"))


def test_each_kind_of_object_is_asked_for() -> None:
    plurals = {
        "csi_drivers": "csidrivers",
        "classes": "storageclasses",
        "capacities": "csistoragecapacities",
        "volumes": "persistentvolumes",
    }
    lists: Any = {name: ({"is": f"all {plural}"},) for name, plural in plurals.items()}
    assert Told().look() == Cluster(node={"is": "n nodes"}, csi_node={"is": "n csinodes"}, **lists)


def test_what_is_missing_is_empty_and_what_may_not_be_read_is_unknown() -> None:
    seen = Told(csinodes=NotFound("none"), nodes=PluginError("no"), storageclasses=PluginError("never")).look()
    assert (seen.csi_node, seen.node, seen.classes) == ({}, {}, ())
    assert seen.unknown == {"nodes": "no", "storageclasses": "never"}


def test_who_may_not_read_drivers_is_told_so() -> None:
    with pytest.raises(PluginError, match="you may not"):
        Told(csidrivers=PluginError("you may not")).look()


def test_where_nothing_is_wrong_everything_is_shown() -> None:
    found = report(STORE, healthy(), REGISTERED)
    assert found["problems"] == []
    assert found["csi_node"]["topology_keys"] == ["store.acme/node"]
    assert [one["capacity"] for one in found["capacities"]] == ["1Gi"]
    assert [one["name"] for one in found["volumes"]] == ["pv"]


def test_a_driver_that_kubelet_refuses_is_told_with_its_words() -> None:
    assert one_problem(healthy(), {"registered": False, "problem": "kubelet refused it: no"}).endswith("refused it: no")


def test_without_a_daemon_the_rest_is_told() -> None:
    assert report(STORE, healthy(), None)["registered"] is None
    assert problems(healthy(), None) == []


def test_a_missing_csidriver_is_told_with_the_command_that_makes_it() -> None:
    seen = healthy()
    seen.csi_drivers = []
    assert "`nodeplug csi manifests --driver store.acme | kubectl apply -f -`" in one_problem(seen)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("attachRequired", True, "attachRequired is true and should be false, which can never be changed"),
        ("volumeLifecycleModes", ["Ephemeral"], "can never be changed"),
        ("fsGroupPolicy", "None", "fsGroupPolicy is None and should be File: `nodeplug csi manifests"),
        ("storageCapacity", None, "storageCapacity is not set and should be true: `nodeplug"),
    ],
)
def test_a_field_that_is_wrong_is_told_with_what_can_be_done(field: str, value: Any, said: str) -> None:
    seen = healthy()
    seen.csi_drivers = [{**STORE.csi_driver, "spec": {**STORE.spec, field: value}}]
    assert said in one_problem(seen)


def test_what_a_cluster_says_in_another_way_is_the_same() -> None:
    inline = Driver("s.a", VolumeClaim("a/s", inline=True, tokens=("vault",)), frozenset({"volume_publish"}))
    said = {
        **inline.spec,
        "volumeLifecycleModes": ["Ephemeral", "Persistent"],
        "tokenRequests": [{"audience": "vault", "expirationSeconds": 600}],
        "requiresRepublish": None,
    }
    seen = Cluster(csi_drivers=[{"metadata": {"name": "s.a"}, "spec": said}])
    assert report(inline, seen, None)["csi_driver"] == {"differences": []}


def test_a_node_on_which_kubelet_has_not_told_of_it_is_told() -> None:
    seen = healthy()
    seen.csi_node = {"spec": {"drivers": []}}
    assert "CSINode" in one_problem(seen)


def test_a_node_that_the_cluster_does_not_have_is_told() -> None:
    seen = healthy()
    seen.node = seen.csi_node = {}
    assert any("node_name under [supervisor]" in one for one in problems(seen))


def test_volumes_of_one_node_need_a_topology_key_and_a_class_that_waits() -> None:
    seen = healthy()
    seen.csi_node["spec"]["drivers"][0]["topologyKeys"] = []
    assert "no topology key" in one_problem(seen)
    seen = healthy()
    seen.classes = [{**seen.classes[0], "volumeBindingMode": "Immediate"}]
    assert "WaitForFirstConsumer" in one_problem(seen)


def test_a_driver_that_creates_volumes_needs_a_class_and_room() -> None:
    seen = healthy()
    seen.classes = []
    assert "no StorageClass" in one_problem(seen)
    seen = healthy()
    seen.capacities = [{**seen.capacities[0], "nodeTopology": {"matchLabels": {"h": "other"}}}]
    assert "no CSIStorageCapacity tells of room on this node" in one_problem(seen)


def test_volumes_of_other_nodes_are_not_shown_and_failed_ones_are_told() -> None:
    seen = healthy()
    seen.node = {"metadata": {"name": "m", "labels": {"h": "m"}}}
    assert report(STORE, seen, None)["volumes"] == []
    seen = healthy()
    seen.volumes[0]["status"] = {"phase": "Failed", "message": "cannot delete"}
    assert "PersistentVolume pv has failed: cannot delete" in one_problem(seen)


def test_what_could_not_be_asked_is_no_problem_of_the_driver() -> None:
    seen = healthy()
    seen.csi_node, seen.node, seen.classes, seen.capacities = {}, {}, [], []
    seen.unknown = dict.fromkeys(("csinodes", "nodes", "storageclasses", "csistoragecapacities"), "may not")
    assert problems(seen) == []


def test_two_claims_of_one_driver_name_and_a_claim_without_one_are_refused() -> None:
    claims = [VolumeClaim("a/s"), VolumeClaim("b/t", csi_name="s.a"), VolumeClaim("nameless")]
    found, refused = drivers_of([(claim, frozenset()) for claim in claims])
    assert [one.name for one in found] == ["s.a"]
    assert "as that of 'a/s'" in refused[0]
    assert "'nameless' has no vendor" in refused[1]

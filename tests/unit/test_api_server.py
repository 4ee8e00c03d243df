"""The stand-in of an API server: paths, selectors, strategic merge patches, and watches."""

import pytest

from nodeplug.testing.acted_api.store import Object, Store, Where, merge, selects

POD = Where("v1", "pods", "default", "one")


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/api/v1/nodes", Where("v1", "nodes")),
        ("/api/v1/nodes/here/status", Where("v1", "nodes", "", "here", "status")),
        ("/api/v1/namespaces/default/pods/one/status", Where("v1", "pods", "default", "one", "status")),
        ("/api/v1/namespaces/default", Where("v1", "namespaces", "", "default")),
        (
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
            Where("coordination.k8s.io/v1", "leases", "kube-node-lease"),
        ),
    ],
)
def test_a_path_names_group_resource_namespace_object_and_part(path: str, where: Where) -> None:
    assert Where.parse(path) == where


def test_a_patch_merges_maps_and_removes_what_is_null() -> None:
    node: Object = {"status": {"allocatable": {"cpu": "2", "example.com/widget": "2", "gone": "1"}}}
    merge(node, {"status": {"allocatable": {"example.com/widget": "1", "gone": None}}})
    assert node == {"status": {"allocatable": {"cpu": "2", "example.com/widget": "1"}}}


def test_a_patch_merges_conditions_by_type_and_replaces_other_lists() -> None:
    node: Object = {"conditions": [{"type": "Ready", "status": "False", "reason": "x"}], "images": ["old", "older"]}
    merge(
        node,
        {"$setElementOrder/conditions": [], "conditions": [{"type": "Ready", "status": "True"}], "images": ["new"]},
    )
    assert node == {"conditions": [{"type": "Ready", "status": "True", "reason": "x"}], "images": ["new"]}


def test_a_patch_deletes_an_element_of_a_merged_list() -> None:
    node: Object = {"addresses": [{"type": "Hostname", "address": "a"}, {"type": "InternalIP", "address": "b"}]}
    merge(node, {"addresses": [{"$patch": "delete", "type": "Hostname"}]})
    assert node == {"addresses": [{"type": "InternalIP", "address": "b"}]}


@pytest.mark.parametrize(
    ("where", "selector", "selected"),
    [
        (Where("v1", "pods"), "", True),
        (Where("v1", "pods", "default"), "", True),
        (Where("v1", "pods", "other"), "", False),
        (Where("v1", "nodes"), "", False),
        (Where("v1", "pods"), "spec.nodeName=here", True),
        (Where("v1", "pods"), "spec.nodeName=there", False),
        (Where("v1", "pods"), "metadata.name=one,spec.nodeName=here", True),
        (Where("v1", "pods"), "metadata.name=two,spec.nodeName=here", False),
    ],
)
def test_a_list_has_what_collection_and_field_selector_name(where: Where, selector: str, *, selected: bool) -> None:
    pod: Object = {"metadata": {"name": "one"}, "spec": {"nodeName": "here"}}
    assert selects(where, selector, POD.key, pod) is selected


def test_a_watch_tells_what_came_after_the_list_and_nothing_before() -> None:
    store = Store()
    store.put(POD, {"spec": {"nodeName": "here"}})
    listed = store.listed(Where("v1", "pods"), "")
    changed = store.put(POD, {**listed["items"][0], "status": {"phase": "Running"}})
    store.remove(POD)
    since = int(listed["metadata"]["resourceVersion"])
    watch = store.watched(Where("v1", "pods"), "spec.nodeName=here", since, 60.0)
    assert [next(watch)["type"], next(watch)["type"]] == ["MODIFIED", "DELETED"]
    assert changed["metadata"]["uid"] == listed["items"][0]["metadata"]["uid"]
    store.close()
    assert list(watch) == []


def test_a_stored_object_is_a_copy() -> None:
    store = Store()
    store.put(POD, {"spec": {"nodeName": "here"}})
    found = store.get(POD)
    assert found is not None
    found["spec"]["nodeName"] = "there"
    assert store.get(POD) != found


def test_who_watches_from_a_state_that_is_forgotten_is_told_to_list() -> None:
    store = Store(history=2)
    for number in range(6):
        store.put(POD, {"metadata": {"name": "one", "labels": {"n": str(number)}}})
    (event,) = store.watched(Where("v1", "pods"), "", 1, 5)
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    since = int(store.listed(Where("v1", "pods"), "")["metadata"]["resourceVersion"])
    store.put(POD, {"metadata": {"name": "one"}})
    assert next(store.watched(Where("v1", "pods"), "", since, 5))["object"]["metadata"]["resourceVersion"] == "7"

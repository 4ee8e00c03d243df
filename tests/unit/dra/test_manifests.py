"""What a cluster is told of devices that are served by claims."""

from typing import Any

import pytest

from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.values import ResourceName
from nodeplug.dra.manifests import Class, manifests
from nodeplug.kubeapi.printed import as_yaml

GPU = ResourceName("example.com/gpu")


def objects(*classes: Class, **more: str) -> dict[str, dict[str, Any]]:
    found = [one.object for one in manifests(classes, "somewhere", **more)]
    return {one["kind"]: one for one in found}


def test_the_class_of_a_resource_selects_its_devices_of_the_sections_driver() -> None:
    made = objects(Class(GPU, ("cards",)))["DeviceClass"]
    assert made["metadata"] == {"name": "gpu.example.com"}
    assert made["spec"] == {
        "selectors": [
            {
                "cel": {
                    "expression": 'device.driver == "cards.nodeplug.io" && '
                    '"resource" in device.attributes["cards.nodeplug.io"] && '
                    'device.attributes["cards.nodeplug.io"].resource == "example.com/gpu"'
                }
            }
        ]
    }


def test_a_resource_of_two_sections_for_different_nodes_is_one_class() -> None:
    made = objects(Class(GPU, ("new", "old")))["DeviceClass"]
    (selector,) = made["spec"]["selectors"]
    first, second = selector["cel"]["expression"].split(" || ")
    assert ("new.nodeplug.io" in first, "old.nodeplug.io" in second) == (True, True)


def test_only_devices_that_are_said_to_be_whole_are_an_extended_resource() -> None:
    assert objects(Class(GPU, ("a",), extended=True))["DeviceClass"]["spec"]["extendedResourceName"] == GPU
    shared = [Class(GPU, ("a",))]
    assert "extendedResourceName" not in objects(*shared)["DeviceClass"]["spec"]
    assert "never an amount of one" in as_yaml(manifests(shared, "n")).replace("\n# ", " ")


def test_daemons_in_pods_have_the_account_of_their_namespace() -> None:
    made = objects(Class(GPU, ("a",)))
    (subject,) = made["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "nodeplug-node", "namespace": "somewhere"}
    assert made["ServiceAccount"]["metadata"] == {"name": "nodeplug-node", "namespace": "somewhere"}
    (condition,) = made["ValidatingAdmissionPolicy"]["spec"]["matchConditions"]
    assert condition["expression"].endswith("'system:serviceaccount:somewhere:nodeplug-node'")


def test_an_account_that_the_pods_have_already_gets_the_rights_and_is_not_printed() -> None:
    made = objects(Class(GPU, ("a",)), account="mine")
    assert "ServiceAccount" not in made
    assert [one["name"] for one in made["ClusterRoleBinding"]["subjects"]] == ["mine"]
    (condition,) = made["ValidatingAdmissionPolicy"]["spec"]["matchConditions"]
    assert condition["expression"].endswith("'system:serviceaccount:somewhere:mine'")


def test_daemons_outside_of_pods_are_users_of_a_group_and_the_policy_judges_the_whole_group() -> None:
    made = objects(Class(GPU, ("a",)), group="nodeplug:node")
    assert "ServiceAccount" not in made
    assert [one["kind"] for one in made["ClusterRoleBinding"]["subjects"]] == ["Group"]
    (condition,) = made["ValidatingAdmissionPolicy"]["spec"]["matchConditions"]
    assert "'nodeplug:node' in request.userInfo.groups" in condition["expression"]


@pytest.mark.parametrize("group", ["system:nodes", "a'b", "-x"])
def test_a_group_that_is_kubernetes_own_or_no_name_is_refused(group: str) -> None:
    with pytest.raises(InvalidRequest, match="such as nodeplug:node"):
        manifests([], "n", group=group)


def test_the_policy_is_applied_before_the_rights_that_it_limits() -> None:
    kinds = [one.object["kind"] for one in manifests([], "n")]
    assert kinds.index("ValidatingAdmissionPolicyBinding") < kinds.index("ClusterRole")

"""What `nodeplug dra manifests` prints, in a real cluster: a node may write its own slices, and claims find devices.

The configuration of the cards, the claims and the pods are those of docs/dra.md.
"""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.real.consumers import ControlPlane
from tests.real.consumers.control_plane import KUBELETS
from tests.suites import divided

from nodeplug import Device, DeviceId, Part, PluginError
from nodeplug.config import load
from nodeplug.config.reading import load_drop_in
from nodeplug.contract.values import ResourceName
from nodeplug.dra.names import driver_name, pool_name
from nodeplug.dra.pools import pool_of
from nodeplug.dra.publication import Publication
from nodeplug.dra.slices import UNHEALTHY, slice_name
from nodeplug.kubeapi.access import Access, Material
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.credentials import Credentials
from nodeplug.testing.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dra.md").read_text(encoding="utf-8")
DRIVER, CARDS, FUSE = driver_name("gpu"), "aliyun.com/gpu-mem", "example.com/fuse"
HOSTDEV = """
[plugins.hostdev]
serve = "dra"
[[plugins.hostdev.config.resources]]
resource = "example.com/fuse"
groups = [{ count = 100, nodes = [{ path = "/dev/fuse" }] }]
"""
RBAC, ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
DRA = "/apis/resource.k8s.io/v1"
SLICES, CLASSES = f"{DRA}/resourceslices", f"{DRA}/deviceclasses"
TEMPLATES, CLAIMS = (f"{DRA}/namespaces/default/{one}" for one in ("resourceclaimtemplates", "resourceclaims"))
PLACES = {
    "ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
    "DeviceClass": CLASSES,
}
GROUP = "nodeplug:node"
Ask = Callable[..., Any]


CHART = ROOT / "deploy" / "chart"
VALUES = """
kubeletDir: /srv/kubelet
dra:
  enabled: true
  order: most-free-first
  classes:
    - {resource: aliyun.com/gpu-mem, section: gpu}
    - {resource: example.com/fuse, section: hostdev, extended: true}
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def documented(kind: str, name: str) -> dict[str, Any]:
    """Return an object of the page."""
    found = [yaml.safe_load(text) for text in blocks("yaml")]
    (made,) = [one for one in found if (one.get("kind"), (one.get("metadata") or {}).get("name")) == (kind, name)]
    return dict(made)


def documented_values() -> dict[str, Any]:
    """Return the chart's values of the page."""
    (found,) = [one for text in blocks("yaml") if "dra" in (one := yaml.safe_load(text))]
    return dict(found)


def printed(folder: Path, *options: str) -> list[dict[str, Any]]:
    path = folder / "nodeplug.toml"
    path.write_text(blocks("toml")[0] + HOSTDEV)
    command = [sys.executable, "-m", "nodeplug", "dra", "manifests", "--config", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return list(yaml.safe_load_all(done.stdout))


def piece(node: str, section: str, resource: str, *devices: Mapping[str, Any], pool: str = "") -> dict[str, Any]:
    """Return a slice with all devices of a pool."""
    spec = {
        "driver": driver_name(section),
        "nodeName": node,
        "pool": {"name": pool or pool_name(node, ResourceName(resource)), "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    return {"metadata": {"generateName": f"{node}-"}, "spec": spec}


def card(name: str, resource: str = CARDS) -> dict[str, Any]:
    """Return a card of 8Gi, which several claims may share."""
    whole = {"value": "8Gi", "requestPolicy": {"default": "8Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}}
    attributes = {"resource": {"string": resource}} if resource else {}
    return {
        "name": name,
        "attributes": attributes,
        "allowMultipleAllocations": True,
        "capacity": {"memory": whole},
    }


def pod(name: str, node: str = "", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "none", **spec.pop("container", {})}
    placed = {"nodeName": node} if node else {}
    return {"metadata": {"name": name}, "spec": {**placed, "containers": [container], **spec}}


@pytest.fixture(scope="module")
def applied(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    """All objects that are printed, for daemons in pods and for users; and two nodes that take pods."""
    folder = tmp_path_factory.mktemp("configuration")
    found = {
        (one["kind"], one["metadata"]["name"]): one
        for options in (("--extended-resource", FUSE), ("--extended-resource", FUSE, "--users-of", GROUP))
        for one in printed(folder, *options)
    }
    for (kind, _), one in found.items():
        cluster.call("POST", f"{PLACES[kind]}?fieldValidation=Strict", one)
    for name in ("node-a", "node-b", KUBELETS):
        cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
        room = {"cpu": "4", "pods": "10"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        content = "application/merge-patch+json"
        cluster.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, content=content)
    return cluster


@pytest.fixture(scope="module")
def of_pod(applied: ControlPlane) -> Callable[[str], dict[str, str]]:
    """How the daemon's pod on a node asks; of no pod without a node."""

    def make(node: str) -> dict[str, str]:
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if node:
            pods = "/api/v1/namespaces/kube-system/pods"
            made = applied.call("POST", pods, pod(f"on-{node}", node, serviceAccountName="nodeplug-node"))
            uid = made["metadata"]["uid"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": f"on-{node}", "uid": uid}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = applied.call("POST", f"{PLACES['ServiceAccount']}/nodeplug-node/token", asked)
        return {"Authorization": f"Bearer {answer['status']['token']}"}

    made = {node: make(node) for node in ("node-a", "")}
    return lambda node: made[node]


@pytest.fixture(scope="module")
def asked(applied: ControlPlane, of_pod: Callable[[str], dict[str, str]]) -> dict[str, dict[str, str]]:
    """How each kind of daemon of `node-a` asks. The policies are in force: the server learns of them by a watch."""
    user = {"Impersonate-User": f"{GROUP}:node-a", "Impersonate-Group": GROUP}
    found = {"pod": of_pod("node-a"), "user": user}
    for headers in found.values():
        late = time.monotonic() + 60
        while "ResourceSlices of its own alone" not in refusal(applied, headers, piece("node-b", "gpu", CARDS)):
            assert time.monotonic() < late, "the policy does not come into force"
            time.sleep(0.2)
    return found


def refusal(cluster: ControlPlane, headers: Mapping[str, str], body: Any, method: str = "POST", name: str = "") -> str:
    """Return why a write of a slice is refused, or nothing; nothing is written."""
    path = f"{SLICES}/{name}" if name else SLICES
    try:
        cluster.call(method, f"{path}?dryRun=All", body, headers=headers)
    except PluginError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", divided(["pod", "user"], {"pod"}, ()))
def test_a_daemon_writes_replaces_and_removes_slices_of_its_node(
    applied: ControlPlane, asked: dict[str, dict[str, str]], kind: str
) -> None:
    made = applied.call("POST", SLICES, piece("node-a", "gpu", CARDS, card("card-0")), headers=asked[kind])
    made["spec"]["pool"]["generation"] = 2
    name = made["metadata"]["name"]
    applied.call("PUT", f"{SLICES}/{name}", made, headers=asked[kind])
    found = applied.call("GET", f"{SLICES}?fieldSelector=spec.nodeName=node-a", headers=asked[kind])
    assert [one["metadata"]["name"] for one in found["items"]] == [name]
    applied.call("GET", "/api/v1/nodes/node-a", headers=asked[kind])
    applied.call("DELETE", f"{SLICES}/{name}", headers=asked[kind])
    assert applied.call("GET", SLICES)["items"] == []


def test_a_daemon_publishes_with_these_rights_and_takes_it_back(
    applied: ControlPlane, asked: dict[str, dict[str, str]]
) -> None:
    parts = tuple(Device(DeviceId(f"c-{at}"), part=Part(DeviceId("c"), {"memory": 1 << 30})) for at in range(8))
    pool = pool_of("node-a", ResourceName(CARDS), parts)
    ill = pool_of("node-a", ResourceName(CARDS), [replace(one, healthy=False, reason="lost") for one in parts])
    wanted = {DRIVER: {pool.name: pool}}
    publication = Publication("node-a", "NoSchedule", lambda: wanted)
    token = asked["pod"]["Authorization"].removeprefix("Bearer ")
    access = Access(applied.server, authority=Material(file=applied.authority), token=token, source="a pod")

    def stored() -> list[dict[str, Any]]:
        found = applied.call("GET", f"{SLICES}?fieldSelector=spec.nodeName=node-a")["items"]
        return [device for one in found for device in one["spec"]["devices"]]

    async def go() -> None:
        async with Client(Credentials(access)) as client:
            running = asyncio.create_task(publication.run(client))
            for pools, holds in (
                (wanted[DRIVER], lambda: [one.get("taints", []) for one in stored()] == [[]]),
                (
                    {ill.name: ill},
                    lambda: [it["key"] for one in stored() for it in one.get("taints", ())] == [UNHEALTHY],
                ),
                ({}, lambda: stored() == []),
            ):
                wanted[DRIVER] = pools
                publication.news.set()
                await asyncio.to_thread(until, holds, found=lambda: publication.trouble or str(stored()))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    with applied.node.netns.entered():
        asyncio.run(go())


@pytest.mark.parametrize("kind", ["pod", "user"])
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (piece("node-b", "gpu", CARDS), "a node writes ResourceSlices of its own alone"),
        (
            {**piece("node-a", "gpu", CARDS), "spec": piece("node-a", "gpu", CARDS)["spec"] | {"driver": "gpu.x.com"}},
            "whose names end with .nodeplug.io",
        ),
        (piece("node-a", "gpu", CARDS, pool=f"node-b/{CARDS}"), "whose pool is called by the node"),
    ],
)
def test_what_is_not_its_own_is_refused_to_a_node(
    applied: ControlPlane, asked: dict[str, dict[str, str]], kind: str, made: dict[str, Any], told: str
) -> None:
    assert told in refusal(applied, asked[kind], made)


@pytest.mark.parametrize("kind", ["pod", "user"])
def test_slices_of_another_node_can_be_neither_changed_nor_removed(
    applied: ControlPlane, asked: dict[str, dict[str, str]], kind: str
) -> None:
    made = applied.call("POST", SLICES, piece("node-b", "gpu", CARDS, card("card-0")))
    name = made["metadata"]["name"]
    told = "a node writes ResourceSlices of its own alone"
    made["spec"]["pool"]["generation"] = 2
    assert told in refusal(applied, asked[kind], made, "PUT", name)
    assert told in refusal(applied, asked[kind], None, "DELETE", name)
    applied.call("DELETE", f"{SLICES}/{name}")


@pytest.mark.usefixtures("asked")
def test_a_token_that_is_bound_to_no_pod_may_write_nothing(
    applied: ControlPlane, of_pod: Callable[[str], dict[str, str]]
) -> None:
    assert "the token is bound to no pod on a node" in refusal(applied, of_pod(""), piece("node-a", "gpu", CARDS))


@pytest.mark.usefixtures("asked")
def test_a_user_of_the_group_without_a_node_in_its_name_may_write_nothing(applied: ControlPlane) -> None:
    somebody = {"Impersonate-User": "somebody", "Impersonate-Group": GROUP}
    told = refusal(applied, somebody, piece("node-a", "gpu", CARDS))
    assert f"a user of the group {GROUP} is called {GROUP}:NODE" in told


@pytest.mark.usefixtures("asked")
def test_kubelets_own_credentials_need_none_of_these_rights(applied: ControlPlane) -> None:
    kubelet = {"Authorization": f"Bearer {applied.kubelet_token}"}
    assert refusal(applied, kubelet, piece(KUBELETS, "gpu", CARDS)) == ""
    applied.call("GET", f"{SLICES}?fieldSelector=spec.nodeName={KUBELETS}", headers=kubelet)
    with pytest.raises(PluginError, match="403"):
        applied.call("GET", SLICES, headers=kubelet)


def placed(cluster: ControlPlane, name: str) -> str:
    late = time.monotonic() + 60
    while not (node := cluster.place(name)):
        assert time.monotonic() < late, cluster.unplaced(name)
        time.sleep(0.1)
    return node


def run(cluster: ControlPlane, made: dict[str, Any]) -> None:
    """Create a pod; the nodes here have no kubelet, and so a taint after a while."""
    cluster.schedule({**made, "spec": {**made["spec"], "tolerations": [{"operator": "Exists"}]}})


def test_the_class_of_the_page_is_the_one_that_is_printed(tmp_path: Path) -> None:
    assert documented("DeviceClass", "gpu-mem.aliyun.com") in printed(tmp_path)


def test_slices_are_listed_with_the_columns_of_the_page(
    applied: ControlPlane, asked: dict[str, dict[str, str]]
) -> None:
    (shown,) = [text for text in blocks("text") if text.startswith("NAME ")]
    table = {**asked["pod"], "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    columns = applied.call("GET", SLICES, headers=table)["columnDefinitions"]
    assert slice_name(DRIVER, pool_name("node-1", ResourceName(CARDS)), 0) in shown.split()
    assert shown.splitlines()[0].split() == [one["name"].upper() for one in columns if one["priority"] == 0]


def test_a_claim_of_a_class_gets_a_device_of_its_resource(applied: ControlPlane) -> None:
    # One that does not say of which resource it is comes first, and another driver's: neither is chosen, nor an error.
    devices = [card("a-nameless", ""), card("b-other", "example.com/other"), card("c-right")]
    made = applied.call("POST", SLICES, piece("node-b", "gpu", CARDS, *devices))
    assert made["spec"]["devices"][2]["allowMultipleAllocations"], "this API server cannot share"
    applied.call("POST", SLICES, piece("node-b", "hostdev", FUSE, {"name": "fuse-0", "attributes": {}}))
    applied.call("POST", f"{TEMPLATES}?fieldValidation=Strict", documented("ResourceClaimTemplate", "some-of-a-card"))
    run(applied, documented("Pod", "trainer"))
    assert placed(applied, "trainer") == "node-b"
    (claim,) = applied.call("GET", CLAIMS)["items"]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["device"], result["consumedCapacity"]) == ("c-right", {"memory": "5Gi"})


def test_a_pod_asks_for_whole_devices_by_their_resource(applied: ControlPlane) -> None:
    fuse = {"name": "fuse-0", "attributes": {"resource": {"string": FUSE}}}
    made = applied.call("POST", SLICES, piece("node-a", "hostdev", FUSE, fuse))
    run(applied, documented("Pod", "mounter"))
    assert placed(applied, "mounter") == "node-a"
    applied.call("DELETE", f"{SLICES}/{made['metadata']['name']}")


def rendered(helm: Path, folder: Path, values: str = VALUES) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what the chart makes of values, by kind and name."""
    file = folder / "values.yaml"
    file.write_text(values)
    command = [str(helm), "template", "chart", str(CHART), "--namespace", "kube-system", "--values", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}


def test_the_chart_has_the_same_rights_and_classes(
    applied: ControlPlane, consumer: Callable[[str], Path], tmp_path: Path
) -> None:
    chart = rendered(consumer("helm") / "helm", tmp_path)
    for one in printed(tmp_path, "--extended-resource", FUSE):
        kind, name = one["kind"], one["metadata"]["name"]
        if kind == "DeviceClass":
            assert chart[kind, name]["spec"] == one["spec"]
        elif name == "nodeplug-dra":
            made = chart[kind, "chart-dra"]
            applied.call("POST", f"{PLACES[kind]}?fieldValidation=Strict&dryRun=All", made)
            assert made.get("rules") == one.get("rules")
    policy = chart["ValidatingAdmissionPolicy", "chart-dra"]["spec"]
    assert policy["matchConditions"][0]["expression"].endswith("'system:serviceaccount:kube-system:chart'")
    assert [one["name"] for one in chart["ClusterRoleBinding", "chart-dra"]["subjects"]] == ["chart"]


def test_the_values_of_the_page_give_the_section_and_the_class_of_the_page(
    consumer: Callable[[str], Path], tmp_path: Path
) -> None:
    chart = rendered(consumer("helm") / "helm", tmp_path, yaml.safe_dump(documented_values()))
    name = "gpu-mem.aliyun.com"
    assert chart["DeviceClass", name] == documented("DeviceClass", name)
    drop_in = tmp_path / "gpu.toml"
    drop_in.write_text(chart["ConfigMap", "chart-plugins"]["data"]["gpu.toml"])
    assert load_drop_in(drop_in)["gpu"].serve == "dra"


def test_the_pod_of_the_chart_has_the_folders_of_kubelets_plugins_and_of_the_runtime(
    consumer: Callable[[str], Path], tmp_path: Path
) -> None:
    helm = consumer("helm") / "helm"
    for folders in ("[]", "[/var/run/cdi]"):  # which may be among those of the values
        chart = rendered(helm, tmp_path, f"{VALUES}folders: {folders}\n")
        pods = chart["DaemonSet", "chart"]["spec"]["template"]["spec"]
        inside = [one["mountPath"] for one in pods["containers"][0]["volumeMounts"]]
        assert (inside.count("/var/run/cdi"), inside.count("/srv/kubelet")) == (1, 1)
        on_node = [one["hostPath"]["path"] for one in pods["volumes"] if "hostPath" in one]
        assert (on_node.count("/var/run/cdi"), on_node.count("/srv/kubelet")) == (1, 1)
    main = tmp_path / "nodeplug.toml"
    main.write_text(chart["ConfigMap", "chart"]["data"]["nodeplug.toml"])
    section = load(main).dra
    assert section is not None
    assert (section.taint, section.order) == ("NoSchedule", "most-free-first")

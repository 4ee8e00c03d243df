"""The standard external-snapshotter on a real control plane: snapshot-controller, and csi-snapshotter beside a driver.

Owns: what kubectl and kubelet would do with their manifests: resources of a kustomization, patches, and a process with
a container's arguments and the rights of its ServiceAccount alone.
Refuses: to build them (see `make consumers`), and to fetch anything: what a kustomization names by its address is what
was published with the programs.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml
from tests.real.consumers.claims import direct
from tests.real.consumers.control_plane import ControlPlane
from tests.real.consumers.ending import end
from tests.real.consumers.private_node import ENV

Object = dict[str, Any]
_RESTARTED: Final = """
trap 'kill $!; wait; exit' TERM
while :; do
    "$@" &
    wait $!
    sleep 1
done
"""
"""A container that ends is started again, as a sidecar's that loses the driver's socket."""
_APPLY: Final = "fieldManager=kubectl&force=true&fieldValidation=Strict"


def place(one: Object) -> str:
    """Return the path of an object; one without a namespace is in none."""
    version, metadata, kind = one["apiVersion"], one["metadata"], one["kind"].lower()
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    where = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{where}/{kind}{'es' if kind.endswith('s') else 's'}/{metadata['name']}"


def apply(control: ControlPlane, objects: Iterable[Object]) -> None:
    """Create objects, or change those that are there (server-side apply).

    Raises:
        PluginError: one was refused.
    """
    for one in objects:
        control.call("PATCH", f"{place(one)}?{_APPLY}", one, content="application/apply-patch+yaml")


def apply_kustomization(control: ControlPlane, kustomization: Object, published: Path) -> None:
    """Apply what a kustomization has, and let the API server make its patches.

    Args:
        control: where to.
        kustomization: with resources in folders of the external-snapshotter's repository, and JSON patches.
        published: the copy of these folders.
    """
    objects = [one for address in kustomization["resources"] for one in _resources(published / _folder(address))]
    accounts = {one["metadata"]["name"]: one["metadata"] for one in objects if one["kind"] == "ServiceAccount"}
    for one in objects:
        for subject in one.get("subjects", ()):  # kustomize completes a reference to what it has
            subject["namespace"] = accounts[subject["name"]]["namespace"]
    apply(control, objects)
    for patch in kustomization["patches"]:
        target = patch["target"]
        (one,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])]
        change = yaml.safe_load(patch["patch"])
        control.call("PATCH", place(one), change, content="application/json-patch+json")


def _folder(address: str) -> str:
    """Return the folder that a remote resource names: kustomize has it behind two slashes."""
    return urlsplit(address).path.partition("//")[2]


def _resources(folder: Path) -> Iterator[Object]:
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        yield from filter(None, yaml.safe_load_all((folder / name).read_text()))


@contextmanager
def running(
    control: ControlPlane,
    program: Path,
    workload: Object,
    variables: Mapping[str, str],
    changes: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run the only container of a Deployment or DaemonSet, as a pod on the node would.

    Args:
        control: whose cluster.
        program: what is in its image.
        workload: the object.
        variables: what the container gets from its pod: exactly those that it asks for, and POD_NAMESPACE for a pod's
            own file of it.
        changes: arguments that are others here, by what they are in a pod.
    """
    spec, namespace = workload["spec"]["template"]["spec"], workload["metadata"]["namespace"]
    (container,) = spec["containers"]
    assert {one["name"] for one in container.get("env", ())} == {*variables}
    assert {*(changes or {})} <= {*container["args"]}
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": spec["serviceAccountName"], "namespace": namespace},
    }
    asked = control.call("POST", f"{place(account)}/token", {"spec": {"expirationSeconds": 3600}})
    config, said = (control.folder / f"{workload['metadata']['name']}.{suffix}" for suffix in ("kubeconfig", "log"))
    config.write_text(direct(control, asked["status"]["token"]))
    arguments = [(changes or {}).get(one, one) for one in container["args"]]
    command = ["sh", "-c", _RESTARTED, "sh", str(program), f"--kubeconfig={config}", *arguments]
    environment = {**ENV, "POD_NAMESPACE": namespace, **variables}
    with said.open("wb") as log:
        process = subprocess.Popen(
            control.node.command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
    try:
        yield
    finally:
        end(process, 10)
        sys.stdout.write(said.read_text())  # shown when a test fails


def items(printed: str) -> list[Object]:
    """Return what `nodeplug csi manifests --json` printed."""
    return list(json.loads(printed)["items"])

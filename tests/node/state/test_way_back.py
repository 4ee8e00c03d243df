"""What an older version finds when one goes back: records of the kinds and the form that it knows.

A version that changes a form on purpose fails here, and has to say in docs/operating.md what the way back is.
"""

import json
from pathlib import Path
from typing import Any

from tests.node.state import tree
from tests.node.state.conftest import a_kubelet, pod_of
from tests.node.state.shapes import shapes

from nodeplug.testing import FlexVolume, Sandbox
from nodeplug.testing.waiting import until

MOMENTARY = {"journal of flexvolume: volume, staging", "journal of flexvolume: target, publishing"}
"""Kinds that exist while a call is under way alone."""


def on_disk(root: Path) -> dict[str, bytes]:
    found = [path for folder in ("run/nodeplug", "var/lib") for path in (root / folder).rglob("*")]
    return {str(path.relative_to(root)): path.read_bytes() for path in found if path.is_file()}


def assert_known(left: Any) -> None:
    """Hold each record on the disk to those that were recorded: no other kind, no other form, no kind gone."""
    before = shapes(tree.contents(left.recorded, dict.fromkeys(tree.placeholders(left.recorded), "1")))
    after = shapes(on_disk(left.root))
    assert after.keys() - before.keys() == set(), "an older version does not know these kinds"
    assert before.keys() - after.keys() - MOMENTARY == set(), "an older version misses these kinds"
    for kind, found in after.items():
        assert found <= before[kind], (kind, [sorted(one ^ known) for one in found for known in before[kind]])


def test_a_networks_records_have_the_form_that_the_older_version_wrote(network: Any) -> None:
    network.node.start()
    until(lambda: network.told()["spool"] == 0)
    for name in ("c1", "c2"):  # whatever is there afterwards is written by this version
        network.runtime().delete(name, network.pods[name].path)
    network.runtime("foreign").delete("f1", network.pods["f1"].path)
    for file in (network.journal / "bridge").glob("*.json"):
        file.unlink()
    network.node.stop()
    network.node.start()
    args = "K8S_POD_NAMESPACE=default"
    with Sandbox(network.root / "run/netns/new") as pod, Sandbox(network.root / "run/netns/new-f") as other:
        network.runtime().add("new", pod.path, args=args)
        network.runtime().add("ended", pod.path, "eth1", args=args)
        network.runtime("foreign").add("new-f", other.path, args=args)
        network.node.kill()
        network.runtime().delete("ended", pod.path, "eth1")
        assert_known(network)


def test_volumes_records_have_the_form_that_the_older_version_wrote(volumes: Any) -> None:
    for path in volumes.journal.rglob("*"):
        if path.is_file():
            path.unlink()
    volumes.node.start()
    share = FlexVolume("new", {"host": "others"}, {"password": b"another"})
    volumes.caller("example.com/share").mount(pod_of("pod-new"), share)
    volumes.caller("nodeplug/tmpfs").mount(pod_of("pod-new"), FlexVolume("new", {"size": "1Mi"}))
    volumes.node.kill()
    assert len(volumes.records()) == 3
    assert_known(volumes)


def test_devices_records_have_the_form_that_the_older_version_wrote(devices: Any) -> None:
    for path in devices.journal.rglob("*.json"):
        path.unlink()
    holders = devices.node.paths.state / "holders.json"
    holders.unlink()
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        kubelet.until_allocatable("aliyun.com/gpu-mem", 8)
        kubelet.admit("new", {"aliyun.com/gpu-mem": 1})
        until(lambda: holders.exists() and b'"new"' in holders.read_bytes())
        until(lambda: len(devices.records("gpu")) == 3)
        devices.node.kill()
    assert_known(devices)
    versions = [json.loads(path.read_text())["version"] for path in [holders, *devices.journal.rglob("*.json")]]
    assert set(versions) == {1}

"""What an older version finds when one goes back: records of the kinds and the form that it knows.

A version that changes a form on purpose fails here, and has to say in docs/operating.md what the way back is.
"""

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.node.state import tree
from tests.node.state.conftest import a_kubelet, pod_of
from tests.node.state.shapes import shapes
from tests.node.state.test_left_devices import rename_section
from tests.node.state.test_left_volumes import end_every_pod

from nodeplug.testing import FlexFailure, FlexVolume, Sandbox
from nodeplug.testing.waiting import until

SAID: Mapping[str, frozenset[str]] = {
    "journal of bridge: network, network": frozenset(
        {"data.addresses list", "data.addresses[] str", "data.mac str", "data.config dict"}
    ),
    "journal of gpu: card, card": frozenset({"data.names list", "data.names[] str"}),
}
"""What this version writes beyond the form that was recorded and older ones pass over, by kind of record.

Each name stands in the section "The way back" of docs/operating.md.
"""
PASSED_OVER = {"journal of gpu: index, index"}
"""Kinds of records that older versions pass over, as that section says."""


def on_disk(root: Path) -> dict[str, bytes]:
    found = [path for folder in ("run/nodeplug", "var/lib") for path in (root / folder).rglob("*")]
    return {str(path.relative_to(root)): path.read_bytes() for path in found if path.is_file()}


def assert_known(left: Any) -> None:
    """Hold each record on the disk to those that were recorded: no other kind, no other form, no kind gone."""
    before = shapes(tree.contents(left.recorded, dict.fromkeys(tree.placeholders(left.recorded), "1")))
    after = shapes(on_disk(left.root))
    assert after.keys() - before.keys() <= PASSED_OVER, "an older version does not know these kinds"
    assert before.keys() - after.keys() == set(), "an older version misses these kinds"
    for kind in after.keys() & before.keys():
        found = after[kind]
        known = [one | SAID.get(kind, frozenset()) for one in before[kind]]
        strange = [
            one for one in found if not any(old <= one <= new for old, new in zip(before[kind], known, strict=True))
        ]
        assert strange == [], (kind, [sorted(one ^ old) for one in strange for old in before[kind]])


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
    args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default"
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
    share, disk = volumes.caller("example.com/share"), volumes.caller("example.com/disk")
    share.mount(pod_of("pod-new"), FlexVolume("new", {"host": "others"}, {"password": b"another"}))
    share.mount(pod_of("pod-new"), FlexVolume("ending", {"host": "others"}))
    disk.mount(pod_of("pod-new"), FlexVolume("disk-2", {"name": "disk-2"}))
    for step in ("stage", "unpublish"):
        (volumes.root / f"srv/hold-{step}").touch()
    with ThreadPoolExecutor(2) as callers:
        half = FlexVolume("half", {"host": "slow"})
        begun = [
            callers.submit(share.mount, pod_of("pod-new"), half),
            callers.submit(share.unmount, pod_of("pod-new"), "ending"),
        ]
        until(lambda: len(volumes.records()) == 8)
        (ending,) = (volumes.journal / "flexvolume").glob("target*ending.json")
        until(lambda: '"published"' not in ending.read_text())
        volumes.node.kill()
    assert [type(one.exception()) for one in begun] == [FlexFailure, FlexFailure]
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
        until(lambda: len(devices.records("gpu")) == 5)
        devices.node.kill()
    assert_known(devices)
    versions = [json.loads(path.read_text())["version"] for path in [holders, *devices.journal.rglob("*.json")]]
    assert set(versions) == {1}


@pytest.mark.whole
def test_a_section_of_cards_that_gets_its_former_name_again_has_the_records_that_the_older_version_wrote(
    devices: Any,
) -> None:
    before, records = rename_section(devices), ["index 0", "index 1", *devices.records("gpu")]
    records.sort()
    devices.node.start()
    until(lambda: devices.records("cards") == records and not devices.records("gpu"))
    devices.node.config_path.write_text(before)
    until(lambda: devices.records("gpu") == records and not devices.records("cards"))
    devices.node.kill()
    assert_known(devices)


def test_what_this_version_adds_is_told() -> None:
    page = (Path(__file__).parents[3] / "docs/operating.md").read_text()
    section = page.partition("### The way back")[2].partition("\n## ")[0]
    assert section
    names = [name.partition(" ")[0].rpartition(".")[2].removesuffix("[]") for added in SAID.values() for name in added]
    assert [name for name in names if f"`{name}`" not in section] == []


# --- records that a later version wrote in another form: this version is the older one here


def write_otherwise(left: Any, *folders: Path) -> None:
    """Give records the version of a later form."""
    left.unreadable = True
    for folder in folders:
        for path in folder.rglob("*.json") if folder.is_dir() else [folder]:
            path.write_text(path.read_text().replace('"version": 1', '"version": 2'))


def set_aside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.damaged"))


def test_volumes_of_unreadable_records_stay_and_end(volumes: Any) -> None:
    write_otherwise(volumes, volumes.journal / "flexvolume")
    before = volumes.mounted()
    volumes.node.start()
    assert volumes.mounted() == before
    assert len(set_aside(volumes.journal / "flexvolume")) == 13
    end_every_pod(volumes)
    assert (volumes.mounted(), volumes.records()) == ([], [])


def test_pods_of_unreadable_records_end(network: Any) -> None:
    write_otherwise(network, network.journal / "bridge")
    for path in network.node.paths.attachments.iterdir():
        path.write_text(path.read_text().replace('"claim"', '"plugin"'))
    network.node.start()
    assert network.told()["attachments"] == []
    network.runtime().delete("c1", network.pods["c1"].path)
    network.runtime("foreign").delete("f1", network.pods["f1"].path)
    until(lambda: network.holders_of_addresses() == {"c2"})
    assert network.kernel["pods"]["c1"]["host"]["name"] not in network.link_names()
    assert network.kernel["pods"]["f1"]["host"]["name"] not in network.link_names()


@pytest.mark.whole
def test_an_unreadable_del_is_told_and_gc_frees_its_addresses(network: Any) -> None:
    network.unreadable = True
    (path,) = network.node.paths.spool.iterdir()
    path.write_bytes(path.read_bytes().replace(b"NPX1", b"NPX2"))
    shutil.rmtree(network.node.paths.attachments)  # else the daemon sees by itself that the namespace is gone
    network.node.start()
    until(lambda: "deferred DELs" in network.told()["reasons"])
    assert set_aside(network.node.paths.spool) == [path.with_suffix(".damaged").name]
    assert "c3" in network.holders_of_addresses()
    network.runtime().gc([("c1", "eth0"), ("c2", "eth0")])
    assert network.holders_of_addresses() == {"c1", "c2"}


def test_kubelet_tells_the_holders_of_unreadable_records_again(devices: Any) -> None:
    holders = devices.node.paths.state / "holders.json"
    write_otherwise(devices, holders, devices.journal / "gpu")
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        kubelet.until_allocatable("aliyun.com/gpu-mem", 8)
        until(lambda: sum(one["allocated"] for one in devices.told()["resources"]) == 8)
        until(lambda: len(devices.records("gpu")) == 5)
    assert len(set_aside(holders.parent)) == 4
    assert devices.mps.poll() is None


@pytest.mark.whole
def test_entrypoints_of_an_unreadable_record_count_as_right(network: Any) -> None:
    (network.node.paths.state / "installed.json").write_text('{"later": {}}')
    network.node.start()
    assert network.told()["ready"]
    network.runtime().check("c1")

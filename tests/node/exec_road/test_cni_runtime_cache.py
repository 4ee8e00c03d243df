"""What the acted CNI runtime remembers, on disk as libcni does, and what it does when that is lost or damaged."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import CniError, CniRuntime

pytestmark = pytest.mark.unprivileged

PLUGIN = """#!/bin/sh
cat > /dev/null
if [ "$CNI_COMMAND" = ADD ]; then
    echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.2/24","interface":0}]}'
fi
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "one").write_text(PLUGIN)
    (tmp_path / "bin" / "one").chmod(0o755)
    return tmp_path


def runtime(folder: Path, version: str = "1.0.0", **more: Any) -> CniRuntime:
    plugins = [{"type": "one", "capabilities": {"mac": True}}]
    conflist = {"name": "net", "cniVersion": version, "plugins": plugins, **more}
    return CniRuntime(conflist, [folder / "bin"], cache_dir=folder / "cni")


def verbs(net: CniRuntime) -> list[str]:
    return [one.verb for one in net.executions]


def test_an_entry_has_the_name_the_mode_and_the_keys_of_libcni(folder: Path) -> None:
    net = runtime(folder)
    net.add("c1", "/ns", args="IgnoreUnknown=1;A=b", capability_args={"mac": "02:00:00:00:00:01"})
    path = folder / "cni" / "results" / "net-c1-eth0"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    entry = json.loads(path.read_text())
    assert json.loads(base64.b64decode(entry.pop("config"))) == net.conflist
    assert entry.pop("result")["ips"][0]["address"] == "10.0.0.2/24"
    assert entry == {
        "kind": "cniCacheV1",
        "containerId": "c1",
        "ifName": "eth0",
        "networkName": "net",
        "netns": "/ns",
        "cniArgs": [["IgnoreUnknown", "1"], ["A", "b"]],
        "capabilityArgs": {"mac": "02:00:00:00:00:01"},
    }


def test_another_process_finds_the_attachment(folder: Path) -> None:
    runtime(folder).add("c1", "/ns", args="A=b", capability_args={"mac": "02:00:00:00:00:01"})
    again = runtime(folder)
    again.check("c1")
    again.delete("c1", "/ns")
    check, delete = again.executions
    assert check.config["prevResult"]["interfaces"] == [{"name": "eth0"}]
    assert delete.env["CNI_ARGS"] == "A=b"
    assert delete.config["runtimeConfig"] == {"mac": "02:00:00:00:00:01"}
    assert again.attachments == ()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "other"}', '{"kind": "cniCacheV1"}'])
def test_del_with_a_damaged_entry_goes_out_without_result(folder: Path, content: str) -> None:
    net = runtime(folder)
    net.add("c1", "/ns")
    net.cache.path("c1", "eth0").write_text(content)
    net.delete("c1", "/ns")
    assert "prevResult" not in net.executions[-1].config
    assert not net.cache.path("c1", "eth0").exists()


def test_del_with_a_lost_cache_goes_out_without_result(folder: Path) -> None:
    net = runtime(folder)
    net.add("c1", "/ns")
    net.cache.lose()
    net.delete("c1", "/ns")
    assert "prevResult" not in net.executions[-1].config


def test_check_with_a_lost_cache_asks_without_result(folder: Path) -> None:
    net = runtime(folder)
    net.add("c1", "/ns")
    net.cache.lose()
    net.check("c1", netns="/ns")
    assert "prevResult" not in net.executions[-1].config
    with pytest.raises(KeyError):
        net.check("c1")


def test_a_list_of_another_version_gets_the_result_converted(folder: Path) -> None:
    runtime(folder).add("c1", "/ns")
    later = runtime(folder, "0.4.0")
    later.check("c1")
    previous = later.executions[-1].config["prevResult"]
    assert (previous["cniVersion"], previous["ips"][0]["version"]) == ("0.4.0", "4")


def test_gc_does_nothing_when_the_cache_cannot_be_read(folder: Path) -> None:
    net = runtime(folder, "1.1.0")
    (folder / "cni").mkdir()
    (folder / "cni" / "results").write_text("no folder")
    net.gc([])
    assert net.executions == []


def test_gc_leaves_the_entries_of_other_networks_alone(folder: Path) -> None:
    other = runtime(folder, "1.1.0", name="other")
    other.add("c1", "/ns")
    net = runtime(folder, "1.1.0")
    net.gc([])
    assert verbs(net) == ["GC"]
    assert other.attachments == (("c1", "eth0"),)


def test_gc_uses_the_namespace_and_the_arguments_of_the_entry(folder: Path) -> None:
    runtime(folder, "1.1.0").add("c1", "/ns", args="A=b")
    net = runtime(folder, "1.1.0")
    net.gc([])
    delete = net.executions[0]
    assert (delete.verb, delete.env["CNI_NETNS"], delete.env["CNI_ARGS"]) == ("DEL", "/ns", "A=b")


def test_gc_of_an_older_list_deletes_and_sends_no_gc(folder: Path) -> None:
    net = runtime(folder, "0.4.0")
    net.add("c1", "/ns")
    net.gc([])
    assert verbs(net) == ["ADD", "DEL"]


def test_gc_that_says_nothing_deletes_every_cached_attachment(folder: Path) -> None:
    net = runtime(folder, "1.1.0")
    net.add("c1", "/ns")
    net.gc(silent=True)
    assert verbs(net) == ["ADD", "DEL", "GC"]


def test_gc_goes_on_when_a_del_fails_and_tells_the_failure(folder: Path) -> None:
    net = runtime(folder, "1.1.0")
    for name in ("c1", "c2"):
        net.add(name, "/ns")
    failing = PLUGIN.replace("if [", "[ $CNI_COMMAND$CNI_CONTAINERID = DELc1 ] && exit 3\nif [", 1)
    (folder / "bin" / "one").write_text(failing)
    with pytest.raises(CniError, match="exit status 3"):
        net.gc([])
    assert verbs(net)[2:] == ["DEL", "DEL", "GC"]
    assert net.attachments == (("c1", "eth0"),)

"""The acted CNI runtime: order, configuration, cache and errors as libcni has them, with shell scripts as plugins."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import CniError, CniRuntime

pytestmark = pytest.mark.unprivileged

ECHO = """#!/bin/sh
stdin=$(cat)
printf '%s %s\\n' "$CNI_COMMAND" "${0##*/}" >> "${0%/*}/../log"
if [ "$CNI_COMMAND" = ADD ]; then printf '{"interfaces":[{"name":"%s"}]}' "${0##*/}"; fi
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name in ("one", "two"):
        plugin(tmp_path, name, ECHO)
    return tmp_path


def plugin(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def runtime(folder: Path, version: str = "1.1.0", **more: Any) -> CniRuntime:
    plugins = [{"type": "one", "capabilities": {"mac": True}}, {"type": "two"}]
    return CniRuntime({"name": "net", "cniVersion": version, "plugins": plugins, **more}, [folder / "bin"])


def log(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


def test_add_goes_forth_and_del_back(folder: Path) -> None:
    net = runtime(folder)
    net.add("c1", "/ns")
    net.delete("c1", "/ns")
    assert log(folder) == ["ADD one", "ADD two", "DEL two", "DEL one"]


def test_each_plugin_gets_the_result_of_the_one_before(folder: Path) -> None:
    net = runtime(folder)
    result = net.add("c1", "/ns")
    assert "prevResult" not in net.executions[0].config
    assert net.executions[1].config["prevResult"] == {"cniVersion": "1.1.0", "interfaces": [{"name": "one"}]}
    assert result["interfaces"] == [{"name": "two"}]


@pytest.mark.parametrize(("version", "given"), [("0.3.1", False), ("0.4.0", True), ("1.0.0", True)])
def test_del_gets_the_final_result_from_0_4_0_on(folder: Path, version: str, given: bool) -> None:
    net = runtime(folder, version)
    net.add("c1", "/ns")
    net.delete("c1", "/ns")
    assert ("prevResult" in net.executions[-1].config) is given


def test_a_second_del_has_no_result(folder: Path) -> None:
    net = runtime(folder)
    net.add("c1", "/ns")
    net.delete("c1", "/ns")
    net.delete("c1")
    assert "prevResult" not in net.executions[-1].config


def test_a_capability_reaches_only_who_declares_it(folder: Path) -> None:
    net = runtime(folder)
    net.add("c1", "/ns", capability_args={"mac": "02:00:00:00:00:01", "ips": ["10.0.0.1"]})
    assert net.executions[0].config["runtimeConfig"] == {"mac": "02:00:00:00:00:01"}
    assert "runtimeConfig" not in net.executions[1].config


def test_check_needs_0_4_0(folder: Path) -> None:
    net = runtime(folder, "0.3.1")
    net.add("c1", "/ns")
    with pytest.raises(CniError, match="does not support CHECK"):
        net.check("c1")


def test_status_and_gc_are_silent_before_1_1_0(folder: Path) -> None:
    net = runtime(folder, "1.0.0")
    net.status()
    net.gc([])
    assert net.executions == []


def test_gc_deletes_what_is_not_valid_and_then_asks_each_plugin(folder: Path) -> None:
    net = runtime(folder)
    net.add("c1", "/ns")
    net.add("c2", "/ns")
    (folder / "log").unlink()
    net.gc([("c2", "eth0")])
    assert log(folder) == ["DEL two", "DEL one", "GC one", "GC two"]
    said = [{"containerID": "c2", "ifname": "eth0"}]
    config = net.executions[-1].config
    assert (config["cni.dev/valid-attachments"], config["cni.dev/attachments"]) == (said, said)
    assert net.attachments == (("c2", "eth0"),)


def test_gc_can_say_null_and_nothing(folder: Path) -> None:
    net = runtime(folder)
    net.gc(None)
    assert net.executions[-1].config["cni.dev/valid-attachments"] is None
    net.gc(silent=True)
    assert "cni.dev/valid-attachments" not in net.executions[-1].config


def test_disabled_check_and_gc_ask_nobody(folder: Path) -> None:
    net = runtime(folder, disableCheck=True, disableGC=True)
    net.add("c1", "/ns")
    (folder / "log").unlink()
    net.check("c1")
    net.gc([])
    assert not (folder / "log").exists()


def test_an_add_that_fails_stops_the_list_and_keeps_its_code(folder: Path) -> None:
    plugin(folder, "one", """#!/bin/sh\necho '{"code": 11, "msg": "later", "details": "full"}'; exit 1\n""")
    with pytest.raises(CniError) as caught:
        runtime(folder).add("c1", "/ns")
    error = caught.value
    assert (error.plugin, error.verb, error.code, error.msg, error.details) == ("one", "ADD", 11, "later", "full")
    assert not (folder / "log").exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 2", "netplugin failed with no error message: exit status 2"),
        ("echo boom >&2; exit 1", 'netplugin failed: "boom'),
        ("echo boom; exit 1", "error parsing its diagnostic message"),
        ("exit 0", "failed to unmarshal raw result"),
    ],
)
def test_an_answer_that_is_no_cni_is_told_in_the_words_of_libcni(folder: Path, body: str, words: str) -> None:
    plugin(folder, "one", f"#!/bin/sh\n{body}\n")
    with pytest.raises(CniError, match=words):
        runtime(folder).add("c1", "/ns")


def test_a_missing_plugin_is_named(folder: Path) -> None:
    (folder / "bin" / "one").unlink()
    with pytest.raises(CniError, match='failed to find plugin "one"'):
        runtime(folder).add("c1", "/ns")


def test_version_is_asked_of_each_plugin(folder: Path) -> None:
    for name in ("one", "two"):
        plugin(folder, name, """#!/bin/sh\necho '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'\n""")
    assert runtime(folder).versions() == {"one": ("1.0.0",), "two": ("1.0.0",)}


def test_the_highest_known_of_several_versions_counts(folder: Path) -> None:
    assert runtime(folder, cniVersions=["0.4.0", "1.0.0", "9.0.0"]).version == "1.0.0"


def test_a_single_configuration_becomes_a_list(folder: Path) -> None:
    (folder / "10.conf").write_text(json.dumps({"name": "net", "type": "one", "cniVersion": "0.4.0"}))
    net = CniRuntime.load(folder / "10.conf", [folder / "bin"])
    assert (net.network, net.version) == ("net", "0.4.0")
    net.add("c1", "/ns")
    assert log(folder) == ["ADD one"]

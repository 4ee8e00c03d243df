"""Pods with several networks: attached as their annotations say, told, checked, and ended whatever has become of it."""

import json
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from tests.node.networks.conftest import Pods, bridge, pods_on

from nodeplug.testing import CniError, Sandbox
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
KEY = "k8s.v1.cni.cncf.io/networks"
DEFAULT = "v1.multus-cni.io/default-network"


def define(pods: Pods) -> None:
    pods.api.definition("blue", bridge("blue", "10.81.0.0/24"))
    conflist = {"cniVersion": "1.0.0", "name": "green", "plugins": [bridge("green", "10.82.0.0/24")]}
    conflist["plugins"][0]["capabilities"] = {"ips": True, "mac": True}  # type: ignore[index]
    conflist["plugins"].append({"type": "nodeplug-tuning", "mtu": 1400})  # type: ignore[attr-defined]
    pods.api.definition("green", conflist, "other")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_pod_gets_its_networks_and_its_status_and_leaves_nothing(short_path: Path, isolation: str) -> None:
    with pods_on(short_path, isolation) as pods, Sandbox(short_path / "pod") as pod:
        define(pods)
        wanted = [
            {"name": "blue"},
            {"name": "green", "namespace": "other", "interface": "gr0", "ips": ["10.82.0.77/24"]},
        ]
        pods.api.pod("web", {KEY: json.dumps(wanted)})
        result = pods.attach("web", pod)
        assert [one["name"] for one in result["interfaces"] if one.get("sandbox")] == ["eth0"]
        assert pods.links(pod) == {"eth0", "net1", "gr0"}
        pods.check("web")
        until(lambda: pods.api.status_of("web"))
        status = pods.api.status_of("web") or []
        assert [(one["name"], one["interface"], one.get("default", False)) for one in status] == [
            ("pods", "eth0", True),
            ("default/blue", "net1", False),
            ("other/green", "gr0", False),
        ]
        assert status[2]["ips"] == ["10.82.0.77"]
        assert {one["mac"] for one in status} == {link.mac for link in _links(pod)}
        pods.detach("web", pod)
        pods.nothing_left(pod)


def _links(pod: Sandbox) -> list[Any]:
    from nodeplug_net.netlink.links import links_in  # noqa: PLC0415

    with links_in(pod.netns) as links:
        return [link for link in links.all() if link.name != "lo"]


def test_a_repeated_add_is_answered_as_the_first(pods: Pods, pod: Sandbox) -> None:
    define(pods)
    pods.api.pod("web", {KEY: "blue"})
    first = pods.attach("web", pod)
    held = pods.held()
    assert (pods.attach("web", pod), pods.held()) == (first, held)
    pods.detach("web", pod)
    pods.nothing_left(pod)


def test_an_add_in_another_namespace_at_the_same_path_ends_the_former(pods: Pods, short_path: Path) -> None:
    define(pods)
    pods.api.pod("web", {KEY: "blue"})
    with Sandbox(short_path / "pod") as pod:
        pods.attach("web", pod)
    with Sandbox(short_path / "pod") as pod:
        pods.attach("web", pod)
        assert (pods.links(pod), len(pods.held())) == ({"eth0", "net1"}, 2)
        pods.detach("web", pod)
        pods.nothing_left(pod)


def test_a_running_pod_keeps_its_networks_when_the_daemon_is_killed(pods: Pods, pod: Sandbox) -> None:
    define(pods)
    pods.api.pod("web", {KEY: "blue,other/green"})
    pods.attach("web", pod)
    before = _links(pod), pods.held()
    pods.node.kill()
    pods.node.start()
    pods.check("web")
    assert (_links(pod), pods.held()) == before
    pods.detach("web", pod)
    pods.nothing_left(pod)


def test_the_names_of_a_list_are_read_as_well(pods: Pods, pod: Sandbox) -> None:
    define(pods)
    pods.api.pod("web", {KEY: "other/green@gr0, blue"})
    pods.attach("web", pod)
    assert pods.links(pod) == {"eth0", "gr0", "net2"}
    pods.detach("web", pod)
    pods.nothing_left(pod)


def test_a_pod_ends_when_its_objects_are_gone_and_the_api_server_is_away(pods: Pods, pod: Sandbox) -> None:
    define(pods)
    pods.api.pod("web", {KEY: "blue"})
    pods.attach("web", pod)
    pods.api.remove("pods", "web", "default")
    pods.api.remove("network-attachment-definitions", "blue", "default")
    (pods.node.root / "etc" / "cni" / "net.d" / "20-pods.conflist").unlink()
    with pods.api.failing("away"):
        pods.node.kill()
        pods.node.start()
        pods.detach("web", None)
    assert (pods.held(), pods.records()) == (set(), [])


def test_an_add_that_fails_half_way_undoes_what_it_made(pods: Pods, pod: Sandbox) -> None:
    define(pods)
    pods.api.definition("broken", {**bridge("red", "10.83.0.0/24"), "mtu": "big"})
    pods.api.pod("web", {KEY: "blue,broken"})
    with pytest.raises(CniError, match=r"network default/broken \(net2\): .*mtu"):
        pods.attach("web", pod)
    pods.nothing_left(pod)
    pods.detach("web", pod)


def test_the_code_of_a_delegate_is_kept(pods: Pods, pod: Sandbox) -> None:
    pods.api.definition("tiny", bridge("tiny", "10.84.0.0/30"))
    pods.api.pod("web", {KEY: "tiny,tiny"})
    with pytest.raises(CniError) as refused:
        pods.attach("web", pod)
    assert (refused.value.code, "network default/tiny (net2)" in refused.value.msg) == (11, True)
    pods.nothing_left(pod)


@pytest.mark.parametrize(
    ("annotation", "code", "said"),
    [
        ("ghost", 999, "there is no NetworkAttachmentDefinition default/ghost"),
        ("blue@eth0", 7, "another one has interface 'eth0'"),
        ('[{"name": "blue", "ips": ["10.81.0.9"]}]', 7, 'none of its plugins has "capabilities": {"ips": true}'),
        ('[{"name": "blue", "infiniband-guid": "x"}]', 4, "asks for 'infiniband-guid'"),
        ("nothere", 999, "has no spec.config, and the node has no configuration 'nothere'"),
        pytest.param("device", 4, "devices for networks are not supported", marks=pytest.mark.whole),
        pytest.param("ownself", 7, "would look for it again", marks=pytest.mark.whole),
        pytest.param("nojson", 7, "is no JSON", marks=pytest.mark.whole),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_and_nothing_is_made(
    pods: Pods, pod: Sandbox, annotation: str, code: int, said: str
) -> None:
    define(pods)
    pods.api.definition("device", bridge("d", "10.85.0.0/24"), annotations={"k8s.v1.cni.cncf.io/resourceName": "a/b"})
    pods.api.definition("ownself", {"cniVersion": "1.0.0", "type": "nodeplug-networks", "clusterNetwork": "pods"})
    pods.api.definition("nothere", "")
    pods.api.definition("nojson", "{")
    pods.api.pod("web", {KEY: annotation})
    with pytest.raises(CniError) as refused:
        pods.attach("web", pod)
    assert (refused.value.code, said in f"{refused.value.msg} {refused.value.details}") == (code, True), refused.value
    pods.nothing_left(pod)


def test_a_definition_without_a_configuration_means_one_of_the_node(pods: Pods, pod: Sandbox) -> None:
    folder = pods.node.root / "etc" / "cni" / "net.d"
    (folder / "90-local.conf").write_text(json.dumps(bridge("local", "10.86.0.0/24")))
    pods.api.definition("local", "")
    pods.api.pod("web", {KEY: "local"})
    pods.attach("web", pod)
    assert pods.links(pod) == {"eth0", "net1"}
    pods.detach("web", pod)
    pods.nothing_left(pod)


def test_a_pod_chooses_another_default_network(pods: Pods, pod: Sandbox) -> None:
    pods.api.definition("fast", bridge("fast", "10.87.0.0/24"), "kube-system")
    pods.api.pod("web", {DEFAULT: "fast"})
    result = pods.attach("web", pod)
    assert result["ips"][0]["address"].startswith("10.87.0.")
    pods.detach("web", pod)
    pods.nothing_left(pod)


@pytest.mark.programs("ip", "nsenter")
def test_the_default_route_leads_through_the_network_that_a_pod_chooses(
    pods: Pods, pod: Sandbox, inside: Callable[..., Any]
) -> None:
    folder = pods.node.root / "etc" / "cni" / "net.d"
    (folder / "20-pods.conflist").write_text(json.dumps(bridge("pods", "10.80.0.0/24", isDefaultGateway=True)))
    define(pods)
    pods.api.pod("web", {KEY: '[{"name": "blue", "default-route": ["10.81.0.1"]}]'})
    result = pods.attach("web", pod)
    assert [one for one in result.get("routes", ()) if one["dst"] == "0.0.0.0/0"] == []
    link = inside(pod, lambda links: links.towards(ip_address("198.51.100.1")))
    assert link.name == "net1"
    pods.check("web")
    pods.status()
    until(lambda: pods.api.status_of("web"))
    assert (pods.api.status_of("web") or [])[1]["gateway"] == ["10.81.0.1"]
    subprocess.run(["nsenter", f"--net={pod.path}", "ip", "route", "delete", "default"], check=True)
    with pytest.raises(CniError, match=r"network default/blue \(net1\): .*route 0.0.0.0/0 via 10.81.0.1 is missing"):
        pods.check("web")
    pods.detach("web", pod)
    pods.nothing_left(pod)


def test_a_foreign_plugin_is_given_what_libcni_gives(pods: Pods, pod: Sandbox, short_path: Path) -> None:
    foreign = short_path / "foreign"
    foreign.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nfound = json.load(sys.stdin)\n"
        f"about = {{key: os.environ.get(key) for key in ('CNI_COMMAND', 'CNI_IFNAME', 'CNI_ARGS')}}\n"
        f"open('{short_path}/seen', 'a').write(json.dumps([about, found]) + '\\n')\n"
        "print(json.dumps(found['prevResult']) if os.environ['CNI_COMMAND'] == 'ADD' else '')\n"
    )
    foreign.chmod(0o755)
    own = bridge("blue", "10.81.0.0/24")
    conflist = {
        "cniVersion": "1.0.0",
        "name": "mixed",
        "plugins": [own, {"type": "foreign", "capabilities": {"mac": True}}],
    }
    pods.api.definition("mixed", conflist)
    wanted = [{"name": "mixed", "mac": "02:00:00:00:00:01", "cni-args": {"color": "red"}}]
    pods.api.pod("web", {KEY: json.dumps(wanted)})
    pods.attach("web", pod)
    pods.detach("web", pod)
    seen = [json.loads(line) for line in (short_path / "seen").read_text().splitlines()]
    assert [about["CNI_COMMAND"] for about, _ in seen] == ["ADD", "DEL"]
    for about, found in seen:
        assert (about["CNI_IFNAME"], found["name"], found["cniVersion"]) == ("net1", "mixed", "1.0.0")
        assert about["CNI_ARGS"] == pods.args("web")
        assert found["runtimeConfig"] == {"mac": "02:00:00:00:00:01"}
        assert found["args"] == {"cni": {"color": "red"}}
        assert found["prevResult"]["ips"][0]["address"].startswith("10.81.0.")
    pods.nothing_left(pod)


def test_gc_ends_every_network_of_what_is_not_valid(pods: Pods, pod: Sandbox, short_path: Path) -> None:
    define(pods)
    pods.api.pod("web", {KEY: "blue"})
    pods.api.pod("other", {KEY: "blue"})
    with Sandbox(short_path / "second") as second:
        pods.attach("web", pod)
        pods.attach("other", second)
        assert len(pods.held()) == 4
        pods.gc(("other", "eth0"))
        assert (len(pods.held()), len(pods.records())) == (2, 1)
        assert pods.links(second) == {"eth0", "net1"}
        pods.detach("other", second)
    assert (pods.held(), pods.records()) == (set(), [])


def test_status_fails_where_the_default_network_is_unknown(pods: Pods) -> None:
    pods.status()
    (pods.node.root / "etc" / "cni" / "net.d" / "20-pods.conflist").unlink()
    with pytest.raises(CniError) as refused:
        pods.status()
    assert refused.value.code == 50
    assert "has no configuration 'pods', and there is no NetworkAttachmentDefinition" in refused.value.msg

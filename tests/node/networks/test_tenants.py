"""What a network of one tenant may not do to the node and to others."""

import fcntl
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.node.networks.conftest import Pods, bridge, pods_on

from nodeplug.hosting.overdue import LIMIT
from nodeplug.testing import CniError, Sandbox
from nodeplug.testing.waiting import until
from nodeplug_net.netlink.links import links_in
from nodeplug_net.networks.plan import MOST_NETWORKS

pytestmark = pytest.mark.node
NETWORKS = "k8s.v1.cni.cncf.io/networks"


def with_path(key: str, path: str) -> dict[str, Any]:
    found = bridge("tenant", "10.81.0.0/24")
    return {**found, "ipam": {**found["ipam"], key: path}}


@pytest.mark.parametrize(
    ("key", "path"), [("resolvConf", "/dev/zero"), ("resolvConf", "/etc/shadow"), ("dataDir", "/etc/cron.d")]
)
def test_a_path_that_the_node_does_not_allow_is_refused_and_others_are_attached(
    pods: Pods, pod: Sandbox, key: str, path: str
) -> None:
    pods.api.definition("tenant", with_path(key, path))
    pods.api.pod("web", {NETWORKS: "tenant"})
    pods.api.pod("other", {})
    with pytest.raises(CniError, match=f"NetworkAttachmentDefinition default/tenant: ipam.{key} is '{path}'") as caught:
        pods.attach("web", pod)
    assert caught.value.code == 7
    pods.attach("other", pod)
    pods.detach("other", pod)
    pods.nothing_left(pod)


def test_a_path_that_the_administrator_allows_is_used(pods: Pods, pod: Sandbox) -> None:
    resolv = pods.folder / "resolv.conf"
    resolv.write_text("nameserver 192.0.2.1\n")
    pods.node.config_path.write_text(
        pods.node.config_path.read_text().replace("[networks]\n", f'[networks]\npaths = ["{pods.folder}"]\n')
    )
    pods.node.stop()
    pods.node.start()
    pods.api.definition("tenant", with_path("resolvConf", str(resolv)))
    pods.api.pod("web", {NETWORKS: "tenant"})
    pods.attach("web", pod)
    until(lambda: pods.api.status_of("web"))
    (_, tenant) = pods.api.status_of("web") or []
    assert tenant["dns"] == {"nameservers": ["192.0.2.1"]}
    pods.detach("web", pod)


def test_an_attachment_of_before_is_detached_when_its_path_is_not_allowed_any_more(pods: Pods, pod: Sandbox) -> None:
    text = pods.node.config_path.read_text()
    pods.node.config_path.write_text(text.replace("[networks]\n", '[networks]\npaths = ["/"]\n'))
    pods.node.stop()
    pods.node.start()
    pods.api.definition("tenant", with_path("dataDir", str(pods.folder / "pools")))
    pods.api.pod("web", {NETWORKS: "tenant"})
    pods.attach("web", pod)
    pods.node.config_path.write_text(text)
    pods.node.stop()
    pods.node.start()
    pods.detach("web", pod)
    pods.nothing_left(pod)
    assert [path.name for path in (pods.folder / "pools" / "tenant").glob("10.*")] == []


def impatient_of(pods: Pods) -> Pods:
    """Give ADD and DEL two seconds."""
    deadline = '[plugins.networks]\ndeadline = { cni_add = "2s", cni_del = "2s" }\n'
    pods.node.config_path.write_text(pods.node.config_path.read_text().replace("[plugins.networks]\n", deadline))
    pods.node.stop()
    pods.node.start()
    return pods


@pytest.fixture
def impatient(pods: Pods) -> Pods:
    return impatient_of(pods)


def attached_at_once(pods: Pods, names: list[str]) -> list[CniError | None]:
    """Attach pods at the same time; return the error of each."""

    def attach(name: str) -> CniError | None:
        with Sandbox(pods.folder / name) as container:
            try:
                pods.attach(name, container)
            except CniError as error:
                return error
            return None

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(attach, names))


def test_a_pool_that_somebody_has_locked_fails_in_time_and_the_others_are_attached(
    impatient: Pods, pod: Sandbox
) -> None:
    pods = impatient
    pods.api.definition("tenant", bridge("tenant", "10.81.0.0/24"))
    names = [f"web{number}" for number in range(2 * LIMIT)]
    for name in names:
        pods.api.pod(name, {NETWORKS: "tenant"})
    pods.api.pod("other", {})
    pool = pods.folder / "n" / "addresses" / "tenant"
    pool.mkdir(parents=True)
    with (pool / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        errors = attached_at_once(pods, names)
        assert {error.code for error in errors if error is not None} == {11}
        assert any("the lock of the pool" in str(error) for error in errors), errors  # a busy machine may be late
        until(lambda: not pods.node.status()["calls"])
        pods.attach("other", pod)
        pods.detach("other", pod)
    pods.attach("web0", pod)
    pods.detach("web0", pod)


@pytest.fixture
def with_hanging(short_path: Path) -> Iterator[Pods]:
    more = '[plugins.hanging]\nuses = "hanging_network:Hanging"\nisolation = "thread"\n[plugins.hanging.config]\n'
    with pods_on(short_path, more=f'{more}until = "{short_path}/go"\n', path=str(Path(__file__).parent)) as made:
        yield impatient_of(made)


def test_a_network_whose_calls_hang_is_refused_and_the_others_are_attached(with_hanging: Pods, pod: Sandbox) -> None:
    pods = with_hanging
    hanging = {"cniVersion": "1.0.0", "name": "pods", "type": "hanging"}  # it takes the name of the default network
    pods.api.definition("tenant", hanging)
    names = [f"web{number}" for number in range(LIMIT)]
    for name in [*names, "late"]:
        pods.api.pod(name, {NETWORKS: "tenant"})
    pods.api.pod("other", {})
    first = attached_at_once(pods, names)
    assert all(error is not None and error.code == 11 for error in first), first
    assert len([call for call in pods.node.status()["calls"] if call["overdue"]]) == LIMIT
    (late,) = attached_at_once(pods, ["late"])
    assert "plugin 'networks' is quarantined for network pods" in str(late)
    pods.attach("other", pod)
    pods.detach("other", pod)
    (pods.folder / "go").touch()
    until(lambda: not pods.node.status()["calls"])
    assert attached_at_once(pods, ["late"]) == [None]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_command_lists_what_would_be_refused(pods: Pods, as_json: bool) -> None:
    pods.api.definition("good", with_path("resolvConf", "/etc/resolv.conf"))
    pods.api.definition("bad", with_path("resolvConf", "/etc/shadow"))
    pods.api.definition("text", "{")
    pods.api.network("blue", plugins=[{"type": "nodeplug-bridge", "ipam": {"type": "host-local", "dataDir": "/root"}}])
    done = pods.node.run("cluster check-networks", *["--json"][: int(as_json)])
    assert done.returncode == 1
    if as_json:
        found = json.loads(done.stdout)["refused"]
        assert [(one["kind"], one["name"]) for one in found] == [
            ("Network", "blue"),
            ("NetworkAttachmentDefinition", "default/bad"),
        ]
        return
    first, second = done.stdout.splitlines()
    assert first.startswith("Network blue: plugins.ipam.dataDir is '/root', and networks of the cluster may name only")
    assert second.startswith("NetworkAttachmentDefinition default/bad: ipam.resolvConf is '/etc/shadow'")


def test_a_network_object_with_such_a_path_says_so_in_its_status(pods: Pods) -> None:
    pods.api.network("blue", plugins=[{"type": "nodeplug-bridge", "ipam": {"type": "host-local", "dataDir": "/root"}}])
    until(lambda: pods.api.of_network("blue").get("reason") == "PathNotAllowed")
    assert not (pods.node.paths.state / "networks" / "conflists" / "blue.conflist").exists()


def test_a_pipe_among_the_configurations_of_the_node_hangs_nobody(pods: Pods, pod: Sandbox) -> None:
    os.mkfifo(pods.node.root / "etc" / "cni" / "net.d" / "10-pipe.conflist")
    pods.api.definition("own", "")
    pods.api.pod("web", {NETWORKS: "own"})
    with pytest.raises(CniError, match="the node has no configuration 'own'"):
        pods.attach("web", pod)


def test_a_network_that_leads_back_to_itself_is_refused_and_the_others_are_served(pods: Pods, pod: Sandbox) -> None:
    tenant = {**bridge("tenant", "10.81.0.0/24"), "ipam": {"type": "nodeplug-networks"}}
    pods.api.definition("tenant", {**tenant, "clusterNetwork": "default/tenant"})
    pods.api.pod("web", {NETWORKS: "tenant"})
    pods.api.pod("other", {})
    with pytest.raises(CniError, match="names 'nodeplug-networks', which would look for it again") as caught:
        pods.attach("web", pod)
    assert caught.value.code == 7
    pods.detach("web", pod)
    pods.attach("other", pod)
    pods.status()
    pods.gc(("other", "eth0"))
    pods.detach("other", pod)
    pods.nothing_left(pod)


def test_a_network_that_is_nested_900_levels_deep_is_attached_or_refused_with_a_sentence(
    pods: Pods, pod: Sandbox
) -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    pods.api.definition("tenant", {**bridge("tenant", "10.81.0.0/24"), "x": deep})
    pods.api.pod("web", {NETWORKS: "tenant"})
    with suppress(CniError):
        pods.attach("web", pod)
    pods.detach("web", pod)
    pods.nothing_left(pod)
    assert "Traceback" not in pods.node.log


def test_a_pod_that_wants_too_many_networks_gets_none(pods: Pods, pod: Sandbox) -> None:
    pods.api.definition("tenant", bridge("tenant", "10.81.0.0/24"))
    pods.api.pod("web", {NETWORKS: ",".join(["tenant"] * (MOST_NETWORKS + 1))})
    with pytest.raises(CniError, match=f"wants {MOST_NETWORKS + 1} networks; a pod gets at most {MOST_NETWORKS}"):
        pods.attach("web", pod)
    pods.detach("web", pod)
    pods.nothing_left(pod)


def test_no_network_is_attached_after_one_that_took_all_the_time(with_hanging: Pods, pod: Sandbox) -> None:
    pods = with_hanging
    pods.api.definition("slow", {"cniVersion": "1.0.0", "name": "slow", "type": "hanging"})
    pods.api.definition("last", bridge("last", "10.82.0.0/24"))
    pods.api.pod("web", {NETWORKS: "slow,last"})
    with pytest.raises(CniError):
        pods.attach("web", pod)
    (pods.folder / "go").touch()
    until(lambda: not pods.node.status()["calls"])
    with links_in(pods.host.netns) as links:
        assert links.get("pods") is not None
        assert links.get("last") is None

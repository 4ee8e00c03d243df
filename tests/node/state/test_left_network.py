"""Pods of an earlier version's network: they run on, they end, and what was left over goes."""

import shutil
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest
from tests.node.state.tree import entries

from nodeplug.testing import Sandbox
from nodeplug.testing.waiting import until
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.nftables.masquerade import Masquerade

RUNNING = {"c1", "c2", "f1"}


def masqueraded() -> set[str]:
    """Name the containers whose addresses are masqueraded."""
    with Netlink(12) as netlink:
        return {entry.label.split()[2] for entry in Masquerade(netlink).entries("nodeplug ")}


def attached(left: Any) -> set[str]:
    return {one["container_id"] for one in left.told()["attachments"]}


def test_the_pods_are_known_and_the_node_is_ready(network: Any) -> None:
    network.node.start()
    status = network.told()
    assert status["ready"], status["reasons"]
    assert attached(network) == RUNNING


@pytest.mark.parametrize(
    ("container", "of"),
    [("c1", "pods"), *(pytest.param(*one, marks=pytest.mark.whole) for one in (("c2", "pods"), ("f1", "foreign")))],
)
def test_check_of_a_running_pod_succeeds(network: Any, container: str, of: str) -> None:
    network.node.start()
    network.runtime(of).check(container)


@pytest.mark.whole
def test_status_of_the_networks_succeeds(network: Any) -> None:
    network.node.start()
    network.runtime().status()
    network.runtime("foreign").status()


def test_del_of_a_running_pod_takes_its_link_and_frees_its_addresses(network: Any) -> None:
    network.node.start()
    outside = network.kernel["pods"]["c1"]["host"]["name"]
    network.runtime().delete("c1", network.pods["c1"].path)
    assert outside not in network.link_names()
    assert network.pods["c1"].links() == ("lo",)
    assert network.holders_of_addresses() == {"c2"}
    assert masqueraded() == {"c2", "f1"}
    assert attached(network) == {"c2", "f1"}


@pytest.mark.whole
def test_del_without_namespace_and_result_does_as_much(network: Any) -> None:
    network.node.start()
    runtime = network.runtime()
    runtime.cache.lose()
    runtime.delete("c1")
    assert network.kernel["pods"]["c1"]["host"]["name"] not in network.link_names()
    assert "c1" not in network.holders_of_addresses() | masqueraded() | attached(network)


def test_del_of_a_pod_with_a_foreign_address_forgets_that_address(network: Any) -> None:
    network.node.start()
    network.runtime("foreign").delete("f1", network.pods["f1"].path)
    assert [key for key in network.records("bridge") if key.startswith("ipam")] == []
    assert attached(network) == {"c1", "c2"}


def test_a_spooled_del_is_replayed(network: Any) -> None:
    spool = network.node.paths.spool
    assert len(entries(spool)) == 1
    assert "c3" in network.holders_of_addresses() & masqueraded()
    network.node.start()
    until(lambda: not entries(spool))
    assert network.told()["spool"] == 0
    assert network.holders_of_addresses() == {"c1", "c2"}
    assert masqueraded() == RUNNING


@pytest.mark.whole
def test_gc_keeps_what_is_valid(network: Any) -> None:
    network.node.start()
    runtime = network.runtime()
    runtime.gc([("c1", "eth0"), ("c2", "eth0")])
    assert network.holders_of_addresses() == {"c1", "c2"}
    assert attached(network) == RUNNING
    runtime.check("c1")
    runtime.check("c2")


def test_gc_removes_what_is_not(network: Any) -> None:
    network.node.start()
    runtime = network.runtime()
    runtime.cache.drop("c2", "eth0")  # libcni would send its DEL first
    runtime.gc([("c1", "eth0")])
    assert network.kernel["pods"]["c2"]["host"]["name"] not in network.link_names()
    assert network.holders_of_addresses() == {"c1"}
    runtime.check("c1")


def test_an_add_that_is_repeated_answers_as_before(network: Any) -> None:
    network.node.start()
    runtime = network.runtime()
    before = runtime.cache.get("c1", "eth0").result
    assert runtime.add("c1", network.pods["c1"].path) == before


@pytest.mark.whole
def test_a_new_pod_gets_addresses_that_nobody_has(network: Any) -> None:
    network.node.start()
    until(lambda: network.told()["spool"] == 0)
    with Sandbox(network.root / "run/netns/new") as pod:
        runtime = network.runtime()
        result = runtime.add("new", pod.path)
        assert len(network.holders_of_addresses()) == 3
        pod.ping(ip_address("10.87.0.2"), timeout=10.0)
        runtime.check("new")
        assert {ip["address"] for ip in result["ips"]}.isdisjoint(
            {one for known in network.kernel["pods"].values() for one in known["inside"]["addresses"]}
        )


def test_a_pod_whose_namespace_ended_during_the_pause_is_ended(network: Any) -> None:
    network.pods.pop("c2").close()
    network.node.start()
    until(lambda: "c2" not in attached(network))
    assert network.holders_of_addresses() <= {"c1", "c3"}
    assert "c2" not in masqueraded()


@pytest.mark.whole
def test_without_its_records_of_attachments_the_daemon_still_ends_pods(network: Any) -> None:
    shutil.rmtree(network.node.paths.attachments)
    network.node.start()
    network.runtime().delete("c1", network.pods["c1"].path)
    assert "c1" not in network.holders_of_addresses() | masqueraded()


@pytest.mark.whole
def test_after_a_reboot_every_address_is_free(after_a_reboot: Callable[[str], Any]) -> None:
    with after_a_reboot("network") as left:
        left.node.start()
        until(lambda: not left.holders_of_addresses())
        until(lambda: left.told()["spool"] == 0)
        status = left.told()
        assert (status["ready"], status["attachments"]) == (True, []), status["reasons"]
        assert [key for key in left.records("bridge") if key.startswith("ipam")] == []

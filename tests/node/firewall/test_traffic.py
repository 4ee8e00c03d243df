"""Which packets the host forwards."""

import pytest
from tests.node.firewall.lab import Lab, needs_bridge_netfilter


@pytest.mark.parametrize("version", [4, 6])
def test_where_the_host_drops_what_it_forwards_a_container_is_answered_from_outside(lab: Lab, version: int) -> None:
    lab.drop_forwarded()
    lab.attach("c1")
    assert not lab.arrives("c1", "outside", version)
    lab.add("c1")
    assert lab.answers("c1", "outside", version)


@pytest.mark.parametrize("version", [4, 6])
def test_what_a_container_did_not_ask_for_is_the_policys_affair(lab: Lab, version: int) -> None:
    lab.drop_forwarded()
    lab.add("c1")
    assert not lab.arrives("outside", "c1", version)
    lab.run("iptables" if version == 4 else "ip6tables", "-P", "FORWARD", "ACCEPT")
    assert lab.arrives("outside", "c1", version)


def test_after_del_the_policy_counts_again(lab: Lab) -> None:
    lab.drop_forwarded()
    lab.add("c1")
    assert lab.arrives("c1", "outside")
    lab.delete("c1")
    assert not lab.arrives("c1", "outside")


def test_the_administrators_chain_comes_before_what_is_accepted(lab: Lab) -> None:
    lab.add("c1")
    lab.add("c2")
    lab.run("iptables", "-A", "CNI-ADMIN", "-s", lab.address("c1"), "-j", "DROP")
    assert not lab.arrives("c1", "outside")
    assert lab.arrives("c2", "outside")


def test_the_administrators_chain_may_have_another_name(lab: Lab) -> None:
    lab.add("c1", iptablesAdminChainName="MINE")
    lab.run("iptables", "-A", "MINE", "-s", lab.address("c1"), "-j", "DROP")
    assert not lab.arrives("c1", "outside")


def test_a_rule_that_stood_in_the_chain_before_does_not_keep_a_container_from_outside(lab: Lab) -> None:
    lab.run("iptables", "-A", "FORWARD", "-o", "up0", "-j", "DROP")
    lab.add("c1")
    assert lab.arrives("c1", "outside")


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("policy", ["same-bridge", "isolated"])
def test_a_policy_keeps_two_bridges_from_each_other(lab: Lab, policy: str, version: int) -> None:
    lab.add("c1", ingressPolicy=policy)
    lab.add("d1", "other", ingressPolicy=policy)
    assert not lab.arrives("c1", "d1", version)
    assert not lab.arrives("d1", "c1", version)
    assert lab.answers("c1", "outside", version)


def test_the_policy_open_leaves_bridges_to_each_other(lab: Lab) -> None:
    lab.add("c1", ingressPolicy="open")
    lab.add("d1", "other")
    assert lab.arrives("c1", "d1")


def test_a_policy_keeps_no_bridge_from_one_without_a_policy(lab: Lab) -> None:
    lab.add("c1", ingressPolicy="same-bridge")
    lab.add("d1", "other")
    assert lab.arrives("d1", "c1")


@pytest.mark.parametrize("version", [4, 6])
def test_within_a_bridge_same_bridge_lets_pass(lab: Lab, version: int) -> None:
    lab.add("c1", ingressPolicy="same-bridge")
    lab.add("c2", ingressPolicy="same-bridge")
    assert lab.arrives("c1", "c2", version)


@pytest.mark.parametrize("version", [4, 6])
def test_isolated_keeps_containers_of_one_bridge_from_each_other(lab: Lab, version: int) -> None:
    needs_bridge_netfilter()
    lab.add("c1", ingressPolicy="isolated")
    lab.add("c2", ingressPolicy="isolated")
    assert not lab.arrives("c1", "c2", version)
    assert lab.answers("c1", "outside", version)


def test_isolation_comes_before_what_is_accepted_though_the_first_network_had_none(lab: Lab) -> None:
    lab.add("c0")
    lab.add("c1", ingressPolicy="same-bridge")
    lab.add("d1", "other", ingressPolicy="same-bridge")
    assert not lab.arrives("c1", "d1")


def test_isolation_stays_first_when_the_accepting_rule_was_lost(lab: Lab) -> None:
    lab.add("c1", ingressPolicy="same-bridge")
    lab.add("d1", "other", ingressPolicy="same-bridge")
    lab.run("iptables", "-D", "FORWARD", "2")
    lab.add("c2", ingressPolicy="same-bridge")
    assert not lab.arrives("c1", "d1")

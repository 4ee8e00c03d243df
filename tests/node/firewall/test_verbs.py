"""What the verbs leave behind, and what they say."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.node.firewall.lab import Lab, records
from tests.programs import need

from nodeplug import InvalidRequest, LimitedConnectivity, NotReady, PluginError
from nodeplug_net.firewall.plugin import Firewall, FirewallConfig

SHARED = [
    '-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD',
    '-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN',
]


def of(lab: Lab, container: str, name: str = "net", version: int = 4) -> list[str]:
    """The rules that carry a container's label."""
    return [rule for rule in lab.rules("CNI-FORWARD", version) if f'"nodeplug {name} {container} eth0"' in rule]


@contextmanager
def restarted(lab: Lab) -> Iterator[Firewall]:
    """The plugin of the next daemon on the same host."""
    again = Firewall(FirewallConfig(), lab.scratch.host)
    lab.scratch.on_host(again.start)
    yield again
    again.stop()


def test_the_result_is_passed_on_unchanged(lab: Lab) -> None:
    assert lab.add("c1") == lab.attach("c1")


@pytest.mark.parametrize("version", [4, 6])
def test_iptables_shows_whose_each_rule_is(lab: Lab, version: int) -> None:
    lab.add("c1")
    address = f"{lab.address('c1', version)}/{32 if version == 4 else 128}"
    whose = '-m comment --comment "nodeplug net c1 eth0" -j ACCEPT'
    assert of(lab, "c1", version=version) == [
        f"-A CNI-FORWARD -d {address} -m conntrack --ctstate RELATED,ESTABLISHED {whose}",
        f"-A CNI-FORWARD -s {address} {whose}",
    ]
    assert lab.rules("FORWARD", version) == ["-P FORWARD ACCEPT", SHARED[0]]
    assert lab.rules("CNI-FORWARD", version)[:2] == ["-N CNI-FORWARD", SHARED[1]]


def test_rules_of_others_in_the_table_stay_and_iptables_goes_on_to_write_it(lab: Lab) -> None:
    lab.run("iptables", "-P", "FORWARD", "DROP")
    lab.run("iptables", "-A", "FORWARD", "-s", "198.51.100.0/24", "-j", "ACCEPT")
    lab.run("iptables", "-N", "KUBE-FORWARD")
    lab.add("c1", ingressPolicy="isolated")
    lab.run("iptables", "-A", "KUBE-FORWARD", "-d", "198.51.100.7", "-j", "DROP")
    rules = lab.rules()
    assert {"-P FORWARD DROP", "-A FORWARD -s 198.51.100.0/24 -j ACCEPT"} <= set(rules)
    assert "-A KUBE-FORWARD -d 198.51.100.7/32 -j DROP" in rules


def test_what_iptables_saves_it_restores_with_whose_it_is(lab: Lab) -> None:
    lab.add("c1", ingressPolicy="isolated")
    before = lab.rules()
    saved = lab.run("iptables-save")
    lab.run("iptables", "-F")
    lab.scratch.on_host(lambda: subprocess.run(["iptables-restore"], input=saved, text=True, check=True))
    assert lab.rules() == before
    lab.check("c1", ingressPolicy="isolated")
    lab.delete("c1")
    assert of(lab, "c1") == []


def test_an_address_of_one_version_alone_touches_no_other_table(lab: Lab) -> None:
    before = lab.attach("c1")
    one = type(before)(ips=before.ips[:1], interfaces=before.interfaces)
    lab.scratch.add(lab.firewall, lab.config(), "c1", lab.pods["c1"], prev_result=one)
    assert "table ip6 filter" not in lab.ruleset()


@pytest.mark.parametrize("policy", ["open", "same-bridge", "isolated"])
def test_a_repeated_add_changes_nothing(lab: Lab, policy: str) -> None:
    lab.add("c1", ingressPolicy=policy)
    before = lab.rules() + lab.rules(version=6)
    lab.add("c1", ingressPolicy=policy)
    assert lab.rules() + lab.rules(version=6) == before


def test_a_repeated_add_with_another_address_replaces_the_former_one(lab: Lab) -> None:
    lab.add("c1")
    other = lab.attach("c2")
    lab.scratch.add(lab.firewall, lab.config(), "c1", lab.pods["c1"], prev_result=other)
    assert {lab.address("c2") in rule for rule in of(lab, "c1")} == {True}
    assert len(of(lab, "c1")) == 2


def test_an_add_that_fails_leaves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.attach("c1")
    lab.run("nft", "add table ip6 filter")
    lab.run("nft", "add chain ip6 filter FORWARD { type filter hook forward priority 7; }")
    before = lab.ruleset()
    with pytest.raises(PluginError, match="accept packets of 'nodeplug net c1 eth0' in table filter"):
        lab.add("c1")
    assert (lab.ruleset(), records(lab.scratch)) == (before, [])


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"ingressPolicy": "closed"}, r'\Aunknown ingress policy: "closed"\Z'),
        ({"INGRESSPOLICY": "closed"}, r'\Aunknown ingress policy: "closed"\Z'),
        ({"backend": "firewalld"}, r'\Abackend "firewalld" is not served: '),
    ],
)
def test_a_wrong_configuration_is_refused_and_del_ends_all_the_same(lab: Lab, keys: dict[str, str], text: str) -> None:
    lab.add("c1")
    with pytest.raises(InvalidRequest, match=text):
        lab.add("c1", **keys)
    lab.delete("c1", **keys)
    assert of(lab, "c1") == []


def test_without_a_previous_result_add_is_refused_in_the_references_words(lab: Lab) -> None:
    netns = lab.scratch.container()
    with pytest.raises(InvalidRequest, match=r"\Amissing prevResult from earlier plugin\Z"):
        lab.scratch.add(lab.firewall, lab.config(), "c1", netns)


def test_del_ends_what_carries_its_own_label_alone(lab: Lab) -> None:
    lab.add("c1")
    second = lab.scratch.container()
    lab.scratch.add(lab.firewall, lab.config(), "c2", second, prev_result=lab.results["c1"])
    lab.delete("c1")
    lab.delete("c1")
    assert (of(lab, "c1"), len(of(lab, "c2"))) == ([], 2)
    assert [record["data"]["label"] for record in records(lab.scratch)] == ["nodeplug net c2 eth0"]


def test_del_with_the_result_ends_what_the_reference_wrote(lab: Lab) -> None:
    result = lab.attach("c1")
    lab.run("iptables", "-N", "CNI-FORWARD")
    lab.run("iptables", "-A", "CNI-FORWARD", "-s", lab.address("c1"), "-j", "ACCEPT")
    answers = ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"]
    lab.run("iptables", "-A", "CNI-FORWARD", "-d", lab.address("c1"), *answers)
    lab.run("iptables", "-A", "CNI-FORWARD", "-s", "10.88.0.77", "-j", "ACCEPT")
    lab.scratch.delete(lab.firewall, lab.config(), "c1", prev_result=result)
    assert lab.rules("CNI-FORWARD") == ["-N CNI-FORWARD", "-A CNI-FORWARD -s 10.88.0.77/32 -j ACCEPT"]


def test_check_names_what_is_missing(lab: Lab) -> None:
    lab.add("c1", ingressPolicy="isolated")
    lab.check("c1", ingressPolicy="isolated")
    lab.run("iptables", "-F")
    address = lab.address("c1")
    with pytest.raises(PluginError) as caught:
        lab.check("c1", ingressPolicy="isolated")
    for text in (
        "chain FORWARD of table ip filter has lost its rule that jumps to CNI-FORWARD",
        "chain CNI-FORWARD of table ip filter has lost its rule that jumps to CNI-ADMIN",
        f"answers to {address} are not accepted: chain CNI-FORWARD of table ip filter has no such rule",
        f"packets from {address} are not accepted: chain CNI-FORWARD of table ip filter has no such rule",
        "chain CNI-ISOLATION-STAGE-1 of table ip filter has lost its rule about br0",
    ):
        assert text in str(caught.value)
    assert "ip6" not in str(caught.value)
    assert of(lab, "c1") == []


def test_status_restores_what_was_flushed(lab: Lab) -> None:
    lab.add("c1", ingressPolicy="same-bridge")
    lab.add("d1", "other", ingressPolicy="same-bridge")
    before = lab.rules() + lab.rules(version=6)
    lab.run("nft", "flush ruleset")
    lab.scratch.status(lab.firewall, lab.config())
    lab.scratch.on_host(lab.firewall.health)
    assert sorted(lab.rules() + lab.rules(version=6)) == sorted(before)
    assert not lab.arrives("c1", "d1")


@pytest.mark.parametrize("repair", [False, True])
def test_health_names_what_was_flushed_or_restores_it(lab: Lab, repair: bool) -> None:
    lab.add("c1", ingressPolicy="same-bridge")
    before = lab.rules() + lab.rules(version=6)
    plugin = Firewall(FirewallConfig(repair=repair), lab.scratch.host)
    lab.scratch.on_host(plugin.start)
    lab.run("nft", "flush ruleset")
    if repair:
        lab.scratch.on_host(plugin.health)
        assert sorted(lab.rules() + lab.rules(version=6)) == sorted(before)
    else:
        with pytest.raises(NotReady, match="rules of the firewall, those of nodeplug net c1 eth0"):
            lab.scratch.on_host(plugin.health)
    plugin.stop()


def test_status_restores_nothing_of_what_has_ended(lab: Lab) -> None:
    lab.add("c1")
    lab.delete("c1")
    lab.run("nft", "flush ruleset")
    lab.scratch.status(lab.firewall, lab.config())
    assert lab.ruleset() == ""


def test_gc_ends_what_is_not_valid_in_its_own_network(lab: Lab) -> None:
    for container, name in (("c1", "net"), ("c2", "net"), ("d1", "other")):
        lab.add(container, name)
    lab.run("iptables", "-D", "CNI-FORWARD", "-s", "10.88.0.3", "-j", "ACCEPT", *comment("nodeplug net c2 eth0"))
    lab.scratch.gc(lab.firewall, lab.config(), [("c2", "eth0")])
    assert [len(of(lab, *who)) for who in (("c1",), ("c2",), ("d1", "other"))] == [0, 2, 2]


def comment(text: str) -> list[str]:
    return ["-m", "comment", "--comment", text]


def test_gc_without_a_list_ends_nothing(lab: Lab) -> None:
    lab.add("c1")
    lab.scratch.gc(lab.firewall, lab.config(), None)
    assert len(of(lab, "c1")) == 2


def test_gc_ends_the_isolation_of_bridges_that_are_gone_and_unused(lab: Lab) -> None:
    lab.add("c1", ingressPolicy="isolated")
    lab.add("d1", "other", ingressPolicy="isolated")
    lab.delete("d1", "other")
    lab.scratch.gc(lab.firewall, lab.config("other"), [])
    assert any("br1" in rule for rule in lab.rules())
    need("ip")
    lab.run("ip", "link", "delete", "br1")
    lab.run("ip", "link", "delete", "br0")
    lab.scratch.gc(lab.firewall, lab.config("other"), [])
    assert not any("br1" in rule for rule in lab.rules() + lab.rules(version=6))
    lab.check("c1", ingressPolicy="isolated")


def test_a_restarted_daemon_restores_what_was_flushed_meanwhile(lab: Lab) -> None:
    lab.add("c1")
    before = lab.rules()
    lab.run("nft", "flush ruleset")
    with restarted(lab):
        assert sorted(lab.rules()) == sorted(before)


def test_what_a_killed_add_left_is_ended_at_the_next_start(lab: Lab) -> None:
    lab.add("c1")
    lab.add("c2")
    path = next((lab.scratch.host.run_dir / "firewall").glob("*c1*.json"))
    path.write_text(path.read_text().replace('"attached"', '"adding"'))
    with restarted(lab):
        assert (of(lab, "c1"), len(of(lab, "c2"))) == ([], 2)
    assert len(records(lab.scratch)) == 1


def test_firewalld_is_refused_unless_iptables_is_named(lab: Lab) -> None:
    lab.run("nft", "add table inet firewalld")
    lab.run("nft", "add chain inet firewalld filter_FORWARD")
    lab.run("nft", "add rule inet firewalld filter_FORWARD counter")
    with pytest.raises(PluginError, match="firewalld has rules here"):
        lab.add("c1")
    with pytest.raises(LimitedConnectivity, match="firewalld has rules here"):
        lab.scratch.status(lab.firewall, lab.config())
    lab.add("c1", backend="iptables")
    assert len(of(lab, "c1")) == 2


def test_rules_of_ip_tables_are_refused(lab: Lab) -> None:
    need("iptables-legacy")
    try:
        lab.run("iptables-legacy", "-S", "FORWARD")
    except subprocess.CalledProcessError:
        pytest.skip("the kernel has no ip_tables")
    lab.add("c1")
    lab.run("iptables-legacy", "-P", "FORWARD", "DROP")
    with pytest.raises(PluginError, match=r"ip_tables has .* in chain FORWARD of table filter \(IPv4\)"):
        lab.add("c2")

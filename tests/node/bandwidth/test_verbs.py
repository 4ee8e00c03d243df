"""What the verbs of bandwidth do to both ends of a pair, and what they say."""

from typing import Any

import pytest
from tests.node.bandwidth.lab import BOTH, EGRESS, INGRESS, Pod, before, conf

from nodeplug import CniInterface, CniResult, InvalidRequest, NotReady, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.attachment import Attachment
from nodeplug_net.bandwidth.plugin import Bandwidth
from nodeplug_net.bandwidth.verbs import own_ifb, reference_ifb
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links

IFB = reference_ifb(Attachment("net", "c1", "eth0"))


def alias(pod: Pod, name: str) -> str:
    def read() -> str:
        with Netlink() as netlink:
            link = Links(netlink).get(name)
            assert link is not None
            return link.alias

    return run_in(pod.scratch.host_netns, read)


def test_add_without_rates_passes_the_result_on_and_changes_nothing(pod: Pod) -> None:
    assert pod.add() == before(pod.netns)
    assert pod.limits()[0][0] == "noqueue"
    assert pod.ifbs() == []


def test_check_without_rates_needs_no_pair(pod: Pod) -> None:
    pod.run("ip", "link", "del", "host0")
    pod.check()


def test_add_limits_what_the_container_receives_at_its_host_end(pod: Pod) -> None:
    assert pod.add(**INGRESS) == before(pod.netns)
    assert pod.limits()[0] == ("tbf", 1_000_000, 100_000)
    assert pod.ifbs() == []
    pod.check(**INGRESS)


def test_add_limits_what_the_container_sends_on_an_ifb_link(pod: Pod) -> None:
    result = pod.add(**EGRESS)
    assert pod.ifbs() == [IFB]
    assert pod.limits(IFB)[0] == ("tbf", 2_000_000, 50_000)
    (added,) = result.interfaces[3:]
    assert (added.name, added.sandbox, bool(added.mac)) == (IFB, "", True)
    assert "ingress" in [kind for kind, _, _ in pod.limits()]
    pod.check(**EGRESS)


def test_rates_of_the_runtime_count_where_the_network_has_none(pod: Pod) -> None:
    pod.add(runtimeConfig={"bandwidth": INGRESS})
    assert pod.limits()[0] == ("tbf", 1_000_000, 100_000)


def test_rates_of_the_network_come_before_those_of_the_runtime(pod: Pod) -> None:
    pod.add(**INGRESS, runtimeConfig={"bandwidth": EGRESS})
    assert pod.limits()[0][0] == "tbf"
    assert pod.ifbs() == []


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_a_result_that_can_name_no_interface_needs_none(pod: Pod, version: str) -> None:
    config = {**conf(**BOTH), "cniVersion": version}
    pod.scratch.add(pod.bandwidth, config, "c1", pod.netns, prev_result=CniResult())
    assert pod.limits()[0][0] == "tbf"
    pod.delete(**BOTH)


@pytest.mark.parametrize("keys", [BOTH, {**BOTH, "unshapedSubnets": ["10.0.0.0/8", "fd00::/8"]}])
def test_a_repeated_add_is_the_first_one(pod: Pod, keys: dict[str, Any]) -> None:
    first, links = pod.add(**keys), (pod.limits(), pod.limits(IFB))
    assert pod.add(**keys) == first
    assert (pod.limits(), pod.limits(IFB)) == links
    pod.check(**keys)


def test_an_add_with_other_rates_replaces_the_limits(pod: Pod) -> None:
    pod.add(**BOTH)
    pod.add(**INGRESS, egressRate=8_000, egressBurst=400_000)
    assert pod.limits(IFB)[0] == ("tbf", 1_000, 50_000)


def test_del_deletes_the_ifb_link_without_a_namespace_and_once_more(pod: Pod) -> None:
    pod.add(**BOTH)
    pod.scratch.delete(pod.bandwidth, conf(**BOTH), "c1")
    assert pod.ifbs() == []
    pod.scratch.delete(pod.bandwidth, conf(**BOTH), "c1")


def test_del_succeeds_with_a_configuration_that_is_wrong(pod: Pod) -> None:
    pod.add(**BOTH)
    pod.delete(ingressRate=1, egressBurst="x")
    assert pod.ifbs() == []


def test_two_interfaces_of_one_container_have_limits_of_their_own(pod: Pod) -> None:
    pod.pair("host1", "eth1")
    pod.add(**BOTH)
    pod.add(ifname="eth1", host="host1", **EGRESS)
    second = own_ifb(Attachment("net", "c1", "eth1"))
    assert pod.ifbs() == sorted([IFB, second])
    pod.delete(ifname="eth1", **EGRESS)
    assert pod.ifbs() == [IFB]
    pod.check(**BOTH)


def test_an_ifb_link_of_the_reference_is_taken_over_and_deleted(pod: Pod) -> None:
    pod.run("ip", "link", "add", IFB, "type", "ifb")
    pod.add(**EGRESS)
    assert pod.ifbs() == [IFB]
    assert alias(pod, IFB) == "shaping nodeplug net c1 eth0"
    pod.delete(**EGRESS)
    assert pod.ifbs() == []


def test_an_ifb_link_of_somebody_else_is_left_alone(pod: Pod) -> None:
    pod.run("ip", "link", "add", IFB, "type", "ifb")
    pod.run("ip", "link", "set", IFB, "alias", "mine")
    pod.add(**EGRESS)
    assert pod.ifbs() == sorted([IFB, own_ifb(Attachment("net", "c1", "eth0"))])
    pod.delete(**EGRESS)
    assert pod.ifbs() == [IFB]


def test_gc_deletes_the_ifb_links_of_this_network_that_nobody_has(pod: Pod) -> None:
    pod.add(**EGRESS)
    pod.scratch.gc(pod.bandwidth, conf(), None)
    pod.scratch.gc(pod.bandwidth, {**conf(), "name": "other"}, [])
    pod.scratch.gc(pod.bandwidth, conf(), [("c1", "eth0")])
    assert pod.ifbs() == [IFB]
    pod.scratch.gc(pod.bandwidth, conf(), [("c2", "eth0")])
    assert pod.ifbs() == []


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"ingressRate": 8}, "if rate is set, burst must also be set"),
        ({"egressBurst": 8}, "if burst is set, rate must also be set"),
        ({"ingressRate": 8, "ingressBurst": 8 << 32}, "burst cannot be more than 4GB"),
        ({**INGRESS, "unshapedSubnets": ["10.0.0.0/33"]}, "bad subnet '10.0.0.0/33' provided"),
    ],
)
def test_wrong_keys_are_refused_before_anything_is_made(pod: Pod, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        pod.add(**keys)
    assert refused.value.message == sentence
    assert pod.limits()[0][0] == "noqueue"


def add_after(pod: Pod, result: CniResult | None, **keys: Any) -> str:
    with pytest.raises(PluginError) as refused:
        pod.scratch.add(pod.bandwidth, conf(**BOTH, **keys), "c1", pod.netns, prev_result=result)
    return refused.value.message


def test_add_needs_a_pair_that_the_previous_result_names(pod: Pod) -> None:
    named = CniResult(interfaces=(CniInterface("other"),))
    assert add_after(pod, None) == "must be called as chained plugin"
    assert add_after(pod, CniResult()) == "no interfaces provided"
    assert add_after(pod, named) == "no veth peer of container interface found in host ns"
    pod.run("ip", "link", "del", "host0")
    told = 'container interface eth0 has no veth peer: could not look up "eth0": Link not found'
    assert add_after(pod, named) == told


def test_an_add_that_fails_leaves_no_limit(pod: Pod) -> None:
    pod.run("tc", "qdisc", "add", "dev", "host0", "clsact")
    with pytest.raises(PluginError) as refused:
        pod.add(**BOTH)
    assert refused.value.message == "create ingress qdisc: file exists"
    assert [kind for kind, _, _ in pod.limits()] == ["noqueue", "clsact"]
    assert pod.ifbs() == []
    with pytest.raises(NotReady, match="create ingress qdisc"):
        pod.scratch.status(pod.bandwidth, conf())
    pod.add(**INGRESS)
    pod.scratch.status(pod.bandwidth, conf())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("tc qdisc del dev host0 root", "Failed to find qdisc"),
        ("tc qdisc change dev host0 root handle 1: tbf rate 1mbit burst 100000 limit 125000", "Rate doesn't match"),
        ("tc qdisc del dev host0 ingress", "Failed to find filter"),
        (f"ip link del {IFB}", "get ifb device: Link not found"),
        (f"ip link set {IFB} down", f"interface {IFB} is down"),
        (f"tc qdisc del dev {IFB} root", "Failed to find qdisc"),
    ],
)
def test_check_names_what_somebody_changed_and_add_restores_it(pod: Pod, words: str, sentence: str) -> None:
    pod.add(**BOTH)
    pod.run(*words.split())
    with pytest.raises(PluginError) as found:
        pod.check(**BOTH)
    assert found.value.message.startswith(sentence)
    pod.add(**BOTH)
    pod.check(**BOTH)


def test_check_names_every_difference(pod: Pod) -> None:
    pod.add(**BOTH)
    with pytest.raises(PluginError) as found:
        pod.check(ingressRate=16_000_000, ingressBurst=80_000, egressRate=16_000_000, egressBurst=400_000)
    assert found.value.message == "Rate doesn't match; Limit doesn't match; Buffer doesn't match"
    assert "interface host0 has 1000000 bytes a second, not 2000000" in found.value.details


def test_status_refuses_rates_without_bursts(bandwidth: Bandwidth, scratch: ScratchCni) -> None:
    scratch.status(bandwidth, conf(**BOTH))
    with pytest.raises(InvalidRequest):
        scratch.status(bandwidth, conf(egressRate=8))

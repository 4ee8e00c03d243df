"""What of a ptp network is masqueraded, by the keys that bridge has: told apart, checked, restored and ended."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.node.level.lab import Looked
from tests.node.outside import HOST, NEIGHBOUR
from tests.node.test_bridge_drop_invalid import nft, senders
from tests.node.test_bridge_masquerade import entries, sender_seen
from tests.node.test_ptp import network

from nodeplug import InvalidRequest, Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug.testing.waiting import until
from nodeplug_net.ptp.plugin import Ptp, PtpConfig

OWN = {4: "10.88.0.2", 6: "fd00:88::2"}
STRICT = {"cniVersion": "1.1.0", "ipMasq": True, "ipMasqDropInvalid": True}
OTHER = {"cniVersion": "1.1.0", "name": "other", "ipMasq": True}
GIVEN_BACK: dict[str, Callable[[ScratchCni, Ptp, dict[str, Any]], object]] = {
    "health": lambda scratch, ptp, _: scratch.on_host(ptp.health),
    "STATUS": lambda scratch, ptp, config: scratch.status(ptp, config),
    "GC": lambda scratch, ptp, config: scratch.gc(ptp, config, [("c1", "eth0")]),
    "ADD": lambda scratch, ptp, config: scratch.add(ptp, config, "c3", scratch.container()),
}


@pytest.fixture
def ptp(scratch: ScratchCni) -> Iterator[Ptp]:
    plugin = Ptp(PtpConfig(data_dir=scratch.folder / "networks"), scratch.host)
    scratch.on_host(plugin.start)
    yield plugin
    plugin.stop()


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(
    ("keys", "masqueraded"),
    [
        ({"ipMasq": True, "ip6Masq": False}, {4}),
        ({"ipMasq": False, "ip6Masq": True}, {6}),
        ({"ipMasq": True, "ip6Masq": None}, {4, 6}),
        ({"ip6Masq": False}, set()),
    ],
)
def test_each_version_of_ip_is_masqueraded_where_it_is_asked_for(
    scratch: ScratchCni, ptp: Ptp, outside: Netns, keys: dict[str, Any], masqueraded: set[int], version: int
) -> None:
    netns, config = scratch.container(), network(cniVersion="1.1.0", **keys)
    result = scratch.add(ptp, config, "c1", netns)
    assert {address for address, _ in entries(scratch)} == {OWN[one] for one in masqueraded}
    there = NEIGHBOUR[version]
    assert sender_seen(netns, outside, there) == (HOST if version in masqueraded else OWN)[version]
    nft(scratch, "flush", "ruleset")
    if masqueraded:
        with pytest.raises(PluginError, match="is not masqueraded"):
            scratch.check(ptp, config, "c1", netns, result)
    scratch.status(ptp, config)
    scratch.check(ptp, config, "c1", netns, result)
    assert {address for address, _ in entries(scratch)} == {OWN[one] for one in masqueraded}


@pytest.mark.parametrize("same_subnet", [False, True])
def test_containers_of_a_node_see_each_others_address_unless_that_is_masqueraded_too(
    scratch: ScratchCni, ptp: Ptp, same_subnet: bool
) -> None:
    one, other, config = scratch.container(), scratch.container(), network(ipMasq=True, ipMasqSameSubnet=same_subnet)
    scratch.add(ptp, config, "c1", one)
    scratch.add(ptp, config, "c2", other)
    assert sender_seen(one, other, "10.88.0.3") == ("10.88.0.1" if same_subnet else OWN[4])
    scratch.delete(ptp, config, "c1")
    assert {label for _, label in entries(scratch)} == {"nodeplug net c2 eth0"}


@pytest.mark.parametrize("version", [4, 6])
def test_a_stray_segment_of_this_network_alone_is_dropped_where_that_is_asked_for(
    scratch: ScratchCni, ptp: Ptp, outside: Netns, version: int
) -> None:
    first, second = scratch.container(), scratch.container()
    scratch.add(ptp, network(**STRICT), "c1", first)
    scratch.add(ptp, network("10.99.0.0/24", "fd00:99::/64", **OTHER) | {"ipam": others()}, "c2", second)
    assert senders(first, outside, version) == ("", HOST[version])
    assert senders(second, outside, version) == ({4: "10.99.0.2", 6: "fd00:99::2"}[version], HOST[version])


def others() -> dict[str, Any]:
    ranges = [[{"subnet": "10.99.0.0/24"}], [{"subnet": "fd00:99::/64"}]]
    return {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}


@pytest.mark.parametrize("verb", GIVEN_BACK)
@pytest.mark.parametrize("lost", ["flush chain inet nodeplug_masquerade invalid", "flush ruleset"])
def test_a_lost_rule_is_found_and_restored(scratch: ScratchCni, ptp: Ptp, outside: Netns, lost: str, verb: str) -> None:
    netns, config = scratch.container(), network(**STRICT)
    result = scratch.add(ptp, config, "c1", netns)
    scratch.on_host(ptp.health)
    nft(scratch, *lost.split())
    with pytest.raises(PluginError, match=r"subnet 10\.88\.0\.0/24 has no rule that"):
        scratch.check(ptp, config, "c1", netns, result)
    GIVEN_BACK[verb](scratch, ptp, config)
    scratch.check(ptp, config, "c1", netns, result)
    assert senders(netns, outside, 4) == ("", HOST[4])


def test_what_somebody_flushes_comes_back_when_the_kernel_tells_of_it(scratch: ScratchCni) -> None:
    keys = {**STRICT, "ip6Masq": False, "ipMasqSameSubnet": True}
    looked = Looked(scratch, "ptp", network(**keys))
    looked.start()
    try:
        netns, result = looked.add()
        assert looked.health() == ""
        before = nft(scratch, "list", "ruleset")
        for damage in ("flush ruleset", "flush table inet nodeplug_masquerade"):
            done = looked.restored()
            nft(scratch, *damage.split())
            until(lambda: looked.restored() != done and looked.told[-1] == "", found=lambda: str(looked.told))  # noqa: B023
            assert nft(scratch, "list", "ruleset") == before
            assert looked.checks(netns, result)
    finally:  # also where nft is missing
        looked.stop()


def test_the_last_of_the_network_takes_the_rules_along(scratch: ScratchCni, ptp: Ptp) -> None:
    config, other = network(**STRICT), network("10.99.0.0/24", **OTHER)
    scratch.add(ptp, config, "c1", scratch.container())
    scratch.add(ptp, other, "c2", scratch.container())
    assert "ct state invalid" in nft(scratch, "list", "ruleset")
    scratch.delete(ptp, config, "c1")
    scratch.gc(ptp, config, [])
    assert "invalid" not in nft(scratch, "list", "ruleset")
    assert {label for _, label in entries(scratch)} == {"nodeplug other c2 eth0"}


def test_an_unknown_backend_is_refused_where_any_version_is_masqueraded(scratch: ScratchCni, ptp: Ptp) -> None:
    with pytest.raises(InvalidRequest, match='unknown ipmasq backend "pf"'):
        scratch.add(ptp, network(ip6Masq=True, ipMasqBackend="pf"), "c1", scratch.container())
    scratch.add(ptp, network(ipMasqBackend="pf"), "c1", scratch.container())

"""Servers that refuse, talk nonsense, say nothing, or go away and come back."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import pytest
from tests.node.dhcp.lab import FIRST, Place, Server, granting, reply, serving

from nodeplug import LimitedConnectivity, Netns, NotFound, NotReady, PluginError, TryAgain
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug.testing.waiting import until
from nodeplug_net.dhcp import message as dhcp
from nodeplug_net.dhcp.message import Message
from nodeplug_net.dhcp.plugin import Dhcp, DhcpPluginConfig
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links

Pod = Callable[[], Netns]
NETWORK: dict[str, Any] = {
    "cniVersion": "1.1.0",
    "name": "net",
    "type": "x",
    "bridge": "br0",
    "ipam": {"type": "nodeplug-dhcp"},
}
SECOND, MINUTES = (1).to_bytes(4, "big"), (300).to_bytes(4, "big")
SOON = granting(options={dhcp.RENEWAL_TIME: SECOND, dhcp.REBINDING_TIME: MINUTES})
"""The lease is to be prolonged after a second."""
TIMES = {dhcp.RENEWAL_TIME: SECOND, dhcp.REBINDING_TIME: (2).to_bytes(4, "big")}
BY_ALL = granting(options=TIMES)
"""And by any server after two."""
BRIEF = granting(seconds=4)
ANOTHER = IPv4Address("10.99.0.66")


def records(scratch: ScratchCni) -> list[str]:
    return [path.read_text() for path in (scratch.host.run_dir / "leases").glob("*.json")]


def is_up(netns: Netns) -> bool:
    def look() -> bool:
        with Netlink() as netlink:
            link = Links(netlink).get("eth0")
        return link is not None and link.is_up

    return run_in(netns, look)


def renewals(server: Server) -> list[Message]:
    return [one for one in server.heard if one.type == dhcp.REQUEST and one.ciaddr == FIRST]


@pytest.fixture
def restless(scratch: ScratchCni) -> Any:
    """The plugin, with short waits."""
    made = Dhcp(DhcpPluginConfig(resend_max=1), scratch.host)
    scratch.on_host(made.start)
    yield made
    made.stop()


@pytest.fixture
def hasty(scratch: ScratchCni) -> Any:
    """The plugin, with little patience."""
    made = Dhcp(DhcpPluginConfig(timeout=2), scratch.host)
    scratch.on_host(made.start)
    yield made
    made.stop()


def test_a_refused_request_is_asked_anew(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    def answer(server: Server, request: Message) -> Message | bytes | None:
        if request.type == dhcp.REQUEST and server.kinds().count(dhcp.REQUEST) == 1:
            return reply(request, dhcp.NAK)
        return granting()(server, request)

    with serving(place, answer) as server:
        assert str(scratch.add(plugin, NETWORK, "c1", pod()).ips[0].address) == f"{FIRST}/24"
    assert server.kinds() == [dhcp.DISCOVER, dhcp.REQUEST, dhcp.DISCOVER, dhcp.REQUEST]


def test_a_server_that_only_refuses_is_named(scratch: ScratchCni, hasty: Dhcp, place: Place, pod: Pod) -> None:
    def answer(server: Server, request: Message) -> Message | bytes | None:
        if request.type == dhcp.REQUEST:
            return reply(request, dhcp.NAK, options={dhcp.TEXT: b"go away"})
        return granting()(server, request)

    with serving(place, answer), pytest.raises(TryAgain, match=r"no more tries.*refused, last by 10.99.0.1: go away"):
        scratch.add(hasty, NETWORK, "c1", pod())
    assert records(scratch) == []


def test_a_silent_server_is_an_error_that_says_what_was_asked(
    scratch: ScratchCni, hasty: Dhcp, place: Place, pod: Pod
) -> None:
    netns = pod()
    with serving(place, lambda *_: None) as server, pytest.raises(TryAgain) as caught:
        scratch.add(hasty, NETWORK, "c1", netns)
    assert caught.value.message == "error calling DHCP.Allocate: no more tries"
    assert "no DHCP server answered" in caught.value.details
    assert "DISCOVER and 0 REQUEST were sent on eth0" in caught.value.details
    assert f"of {netns.path} within 2 s" in caught.value.details
    assert int(caught.value.details.split("DISCOVER")[0].split()[-1]) > 1
    assert set(server.kinds()) == {dhcp.DISCOVER}
    assert records(scratch) == []


def test_a_silent_server_takes_no_more_time_than_the_call_has(
    scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod
) -> None:
    """A second: the call has that, and the plugin would wait for 45."""
    deadline = time.monotonic() + 1
    with serving(place, lambda *_: None), pytest.raises(TryAgain, match="no more tries"):
        scratch.add(plugin, NETWORK, "c1", pod(), deadline=deadline)
    assert time.monotonic() < deadline + 10


def test_what_was_asked_for_but_never_granted_is_given_back(
    scratch: ScratchCni, hasty: Dhcp, place: Place, pod: Pod
) -> None:
    def answer(server: Server, request: Message) -> Message | bytes | None:
        return granting()(server, request) if request.type == dhcp.DISCOVER else None

    with serving(place, answer) as server:
        with pytest.raises(TryAgain, match=r"offered 10.99.0.10, and then was silent"):
            scratch.add(hasty, NETWORK, "c1", pod())
        until(lambda: dhcp.RELEASE in server.kinds())
    assert records(scratch) == []


def test_a_lease_without_a_mask_is_refused_and_given_back(
    scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod
) -> None:
    with serving(place, granting(options={dhcp.SUBNET_MASK: None})) as server:
        with pytest.raises(PluginError) as caught:
            scratch.add(plugin, NETWORK, "c1", pod())
        assert caught.value.message == "error calling DHCP.Allocate: DHCP option Subnet Mask not found in DHCPACK"
        until(lambda: dhcp.RELEASE in server.kinds())
    assert records(scratch) == []


def spoilt(message: Message) -> list[Message | bytes]:
    """Return what must not be taken for an answer."""
    other = IPv4Address("10.99.0.2").packed
    return [
        b"junk",
        b"\xff" * 400,
        message.encode()[:250],
        message.encode().replace(b"\x63\x82\x53\x63", b"abcd"),
        replace(message, op=dhcp.BOOTREQUEST, yiaddr=ANOTHER),
        replace(message, xid=message.xid ^ 1, yiaddr=ANOTHER),
        replace(message, chaddr=b"\2\0\0\0\0\1", yiaddr=ANOTHER),
        replace(message, yiaddr=dhcp.ANY),
        replace(message, yiaddr=ANOTHER, options={**message.options, dhcp.SERVER_ID: b"x"}),
        *([replace(message, yiaddr=ANOTHER, options={**message.options, dhcp.SERVER_ID: other})] * (message.type == 5)),
    ]


def test_nonsense_before_an_answer_is_ignored(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    netns = pod()
    said = 0

    class Noisy(Server):
        def send(self, sock: Any, answer: Message | bytes) -> None:
            nonlocal said
            assert isinstance(answer, Message)
            for one in spoilt(answer):
                super().send(sock, one)
                said += 1
            super().send(sock, answer)

    with serving(place, granting(), Noisy):
        result = scratch.add(plugin, NETWORK, "c1", netns)
    assert str(result.ips[0].address) == f"{FIRST}/24"
    assert said == 19


def test_without_the_interface_the_reference_is_quoted(scratch: ScratchCni, plugin: Dhcp) -> None:
    with pytest.raises(NotFound) as caught:
        scratch.add(plugin, NETWORK, "c1", scratch.container())
    assert caught.value.message == 'error calling DHCP.Allocate: error looking up "eth0": Link not found'


def test_a_lease_is_prolonged_by_its_server_alone(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    with serving(place, SOON) as server:
        scratch.add(plugin, NETWORK, "c1", pod())
        until(lambda: len(renewals(server)) >= 2)
    first = renewals(server)[0]
    assert dhcp.SERVER_ID not in first.options
    assert dhcp.REQUESTED_ADDRESS not in first.options
    assert set(server.sources[2:]) == {str(FIRST)}
    assert first.options[dhcp.CLIENT_ID] == b"\0c1/net/eth0"


@pytest.mark.whole
def test_a_server_that_comes_back_prolongs(scratch: ScratchCni, restless: Dhcp, place: Place, pod: Pod) -> None:
    netns = pod()
    with serving(place, BY_ALL) as server:
        result = scratch.add(restless, NETWORK, "c1", netns)
        server.answer = lambda *_: None
        until(lambda: dhcp.DISCOVER in server.kinds()[2:])  # the second time, every server is asked as if anew
        server.answer = granting(seconds=3600)
        until(lambda: '"phase": "bound"' in records(scratch)[0] and moments(scratch)[2] - moments(scratch)[0] > 1000)
    assert is_up(netns)
    scratch.check(restless, NETWORK, "c1", netns, result)


def moments(scratch: ScratchCni) -> list[float]:
    return list(json.loads(records(scratch)[0])["data"]["lease"]["moments"])


def test_a_refused_prolongation_asks_for_the_same_address_again(
    scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod
) -> None:
    netns = pod()
    with serving(place, SOON) as server:
        scratch.add(plugin, NETWORK, "c1", netns)

        def forgetful(server: Server, request: Message) -> Message | bytes | None:
            if request.type == dhcp.REQUEST and request.ciaddr != dhcp.ANY:
                return reply(request, dhcp.NAK)
            return granting(seconds=3600)(server, request)

        server.answer = forgetful
        until(lambda: moments(scratch)[2] - moments(scratch)[0] > 1000)
    asked = [one for one in server.heard if one.type == dhcp.DISCOVER][-1]
    assert asked.options[dhcp.REQUESTED_ADDRESS] == FIRST.packed
    assert is_up(netns)


def test_another_address_is_never_taken_for_a_running_container(
    scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod
) -> None:
    netns = pod()
    with serving(place, BRIEF) as server:
        scratch.add(plugin, NETWORK, "c1", netns)

        def other(server: Server, request: Message) -> Message | bytes | None:
            if request.type == dhcp.REQUEST:
                return reply(request, dhcp.NAK)
            return granting(yiaddr=ANOTHER)(server, request)

        server.answer = other
        until(lambda: not is_up(netns))
    assert [one.options.get(dhcp.REQUESTED_ADDRESS) for one in server.heard].count(ANOTHER.packed) == 0


def test_an_ended_lease_takes_its_interface_down(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    netns = pod()
    with serving(place, BRIEF) as server:
        result = scratch.add(plugin, NETWORK, "c1", netns)
        server.answer = lambda *_: None
        until(lambda: not is_up(netns))
        until(lambda: '"phase": "expired"' in records(scratch)[0])
        with pytest.raises(PluginError, match=r"dhcp: the lease of 10.99.0.10 for c1/net/eth0 has ended; recreate"):
            scratch.check(plugin, NETWORK, "c1", netns, result)
        with pytest.raises(NotReady, match=r"no DHCP server prolongs 1 leases, such as 10.99.0.10 \(c1\)"):
            plugin.health()
        scratch.delete(plugin, NETWORK, "c1", netns)
        assert dhcp.RELEASE not in server.kinds()
    assert records(scratch) == []
    plugin.health()


def is_limited(scratch: ScratchCni, plugin: Dhcp) -> bool:
    try:
        scratch.status(plugin, NETWORK)
    except LimitedConnectivity:
        return True
    return False


def test_status_still_says_so_when_the_lease_has_ended(
    scratch: ScratchCni, restless: Dhcp, place: Place, pod: Pod
) -> None:
    netns = pod()
    with serving(place, BRIEF) as server:
        scratch.add(restless, NETWORK, "c1", netns)
        server.answer = lambda *_: None
        until(lambda: not is_up(netns))
        assert is_limited(scratch, restless)


def test_a_lease_that_one_container_does_not_prolong_limits_no_network(
    scratch: ScratchCni, restless: Dhcp, place: Place, pod: Pod
) -> None:
    def but_the_first(server: Server, request: Message) -> Message | bytes | None:
        return None if request.chaddr == server.heard[0].chaddr else by_all(server, request)

    def by_all(server: Server, request: Message) -> Message | bytes | None:
        address = FIRST if request.chaddr == server.heard[0].chaddr else FIRST + 1
        return granting(yiaddr=address, options=dict(TIMES))(server, request)

    with serving(place, by_all) as server:
        scratch.add(restless, NETWORK, "c1", pod())
        scratch.add(restless, NETWORK, "c2", pod())
        server.answer = but_the_first
        until(lambda: is_unhealthy(restless))
        until(lambda: not is_limited(scratch, restless))
        server.answer = lambda *_: None
        until(lambda: is_limited(scratch, restless))


def is_unhealthy(plugin: Dhcp) -> bool:
    try:
        plugin.health()
    except NotReady:
        return True
    return False


@pytest.mark.whole
def test_status_says_that_leases_are_not_prolonged(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    netns = pod()
    with serving(place, BY_ALL) as server:
        scratch.add(plugin, NETWORK, "c1", netns)
        scratch.status(plugin, NETWORK)
        server.answer = lambda *_: None

        until(lambda: is_limited(scratch, plugin))
        server.answer = granting()
        until(lambda: not is_limited(scratch, plugin))


def test_the_next_daemon_prolongs_what_the_last_one_had(scratch: ScratchCni, place: Place, pod: Pod) -> None:
    def daemon() -> Dhcp:
        made = Dhcp(DhcpPluginConfig(), scratch.host)
        scratch.on_host(made.start)
        return made

    netns = pod()
    with serving(place, SOON) as server:
        first = daemon()
        result = scratch.add(first, NETWORK, "c1", netns)
        first.stop()
        second = daemon()
        until(lambda: len(renewals(server)) >= 2)
        scratch.check(second, NETWORK, "c1", netns, result)
        assert scratch.add(second, NETWORK, "c1", netns) == result
        scratch.delete(second, NETWORK, "c1", netns)
        until(lambda: dhcp.RELEASE in server.kinds())
        second.stop()


def test_a_changed_hardware_address_is_prolonged(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    netns = pod()
    with serving(place, SOON) as server:
        scratch.add(plugin, NETWORK, "c1", netns)

        def change() -> None:
            with Netlink() as netlink:
                links = Links(netlink)
                link = links.get("eth0")
                assert link is not None
                links.set_mac(link, "02:00:00:00:00:09")

        run_in(netns, change)
        until(lambda: len(renewals(server)) >= 2)
        assert renewals(server)[-1].chaddr == b"\2\0\0\0\0\t"
        assert is_up(netns)


def test_a_lease_of_a_namespace_that_is_gone_ends_by_itself(
    scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod
) -> None:
    netns = pod()
    moved = replace(netns, path=f"{scratch.folder}/netns")
    (scratch.folder / "netns").symlink_to(netns.path)
    with serving(place, BRIEF):
        scratch.add(plugin, NETWORK, "c1", moved)
        (scratch.folder / "netns").unlink()
        until(lambda: '"phase": "expired"' in records(scratch)[0])
    scratch.delete(plugin, NETWORK, "c1")
    assert records(scratch) == []


def test_a_namespace_that_cannot_be_opened_again_is_refused(scratch: ScratchCni, plugin: Dhcp, pod: Pod) -> None:
    netns = replace(pod(), path=scratch.host_netns.path)
    with pytest.raises(PluginError, match="is another network namespace for the daemon than for the runtime"):
        scratch.add(plugin, NETWORK, "c1", netns)


def test_check_names_what_differs(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    netns = pod()
    with serving(place, granting()):
        result = scratch.add(plugin, NETWORK, "c1", netns)
    with pytest.raises(PluginError, match=r"has a lease of 10.99.0.10/24, which the result does not contain"):
        scratch.check(plugin, NETWORK, "c1", netns, replace(result, ips=()))
    with pytest.raises(PluginError, match=r"the lease of 10.99.0.10 is for another namespace than"):
        scratch.check(plugin, NETWORK, "c1", pod(), result)
    with pytest.raises(PluginError, match=r"no lease is known for c2/net/eth0"):
        scratch.check(plugin, NETWORK, "c2", netns, result)

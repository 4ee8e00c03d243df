"""What really passes a limit: packets are sent at once, and counted where they arrive."""

import socket
from contextlib import suppress
from typing import Any

import pytest
from tests.node.bandwidth.lab import BOTH, EGRESS, INGRESS, Pod
from tests.programs import need

from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until

HOST, POD, FAR_HOST, FAR_POD = "10.9.0.1", "10.9.0.2", "10.7.0.1", "10.7.0.2"
SIX_HOST, SIX_POD = "fd09::1", "fd09::2"
PACKETS, SIZE = 1_200, 1_000
SO_RCVBUFFORCE = 33
QUIET = 0.3


@pytest.fixture
def pod(pod: Pod) -> Pod:
    """A container with addresses of two subnets and of IPv6, as its host end has."""

    def give(name: str, *addresses: str) -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only what stands beside the plugin needs it

        with IPRoute() as ip:
            (index,) = ip.link_lookup(ifname=name)
            ip.link("set", index=index, state="up")
            for address in addresses:
                more = {"prefixlen": 64, "flags": 2} if ":" in address else {"prefixlen": 24}
                ip.addr("add", index=index, address=address, **more)

    run_in(pod.scratch.host_netns, lambda: give("host0", HOST, FAR_HOST, SIX_HOST))
    run_in(pod.netns, lambda: give("eth0", POD, FAR_POD, SIX_POD))
    return pod


def arrived(pod: Pod, source: str, target: str, *, sends: bool) -> int:
    """Send packets as fast as they go, and return how many arrive until nothing more comes."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    inside, outside = pod.netns, pod.scratch.host_netns

    def receiver() -> socket.socket:
        made = socket.socket(family, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        made.bind((target, 0))
        made.settimeout(QUIET)
        return made

    def send(port: int, packets: int, size: int) -> None:
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
            sender.bind((source, 0))
            for _ in range(packets):
                sender.sendto(bytes(size), (target, port))

    with run_in(outside if sends else inside, receiver) as opened:
        port, sending = opened.getsockname()[1], inside if sends else outside
        # Most packets are dropped until the neighbour is known, a second perhaps on a link that has just come up.
        until(lambda: run_in(sending, lambda: send(port, 1, 1)) or has_come(opened))
        run_in(sending, lambda: send(port, PACKETS, SIZE))
        return sizes(opened).count(SIZE)


def has_come(opened: socket.socket) -> bool:
    """Tell whether a packet arrives before nothing more comes."""
    try:
        return bool(opened.recv(SIZE))
    except TimeoutError:
        return False


def sizes(opened: socket.socket) -> list[int]:
    """Return how large packets are that arrive until nothing more comes."""
    found: list[int] = []
    with suppress(TimeoutError):
        while True:
            found.append(len(opened.recv(SIZE)))
    return found


SLOW: dict[str, Any] = {"ingressRate": 800_000, "ingressBurst": 800_000, "egressRate": 800_000, "egressBurst": 800_000}
"""100 kB a second after 100 kB at once; 65 kB wait, and reach the other end one by one."""


def is_limited(count: int) -> bool:
    """Whether a burst passed and the rest did not."""
    return 60 <= count < PACKETS // 2


@pytest.mark.parametrize("keys", [BOTH, {}])
def test_a_small_exchange_is_not_disturbed(pod: Pod, keys: dict[str, Any]) -> None:
    pod.add(**keys)
    need("ping")
    pod.run("ping", "-c", "1", "-W", "5", POD)
    pod.run("ping", "-c", "1", "-W", "5", SIX_POD)


def test_without_a_limit_everything_arrives(pod: Pod) -> None:
    assert arrived(pod, HOST, POD, sends=False) == PACKETS
    assert arrived(pod, POD, HOST, sends=True) == PACKETS


@pytest.mark.parametrize(("host", "container"), [(HOST, POD), (SIX_HOST, SIX_POD)])
def test_both_directions_have_their_limit(pod: Pod, host: str, container: str) -> None:
    pod.add(**SLOW)
    assert is_limited(arrived(pod, host, container, sends=False))
    assert is_limited(arrived(pod, container, host, sends=True))


@pytest.mark.parametrize(("keys", "sends"), [(INGRESS, False), (EGRESS, True)])
def test_a_limit_of_one_direction_leaves_the_other_alone(pod: Pod, keys: dict[str, Any], *, sends: bool) -> None:
    name = next(iter(keys)).removesuffix("Rate")
    pod.add(**{key: value for key, value in SLOW.items() if key.startswith(name)})
    assert is_limited(arrived(pod, *((POD, HOST) if sends else (HOST, POD)), sends=sends))
    assert arrived(pod, *((HOST, POD) if sends else (POD, HOST)), sends=not sends) == PACKETS


@pytest.mark.parametrize(
    "subnets", [{"unshapedSubnets": ["10.7.0.0/24", "fd09::/64"]}, {"shapedSubnets": ["10.9.0.0/16"]}]
)
def test_subnets_are_told_apart_in_both_directions(pod: Pod, subnets: dict[str, Any]) -> None:
    pod.add(**SLOW, **subnets)
    assert is_limited(arrived(pod, HOST, POD, sends=False))
    assert is_limited(arrived(pod, POD, HOST, sends=True))
    for host, container in ((FAR_HOST, FAR_POD), (SIX_HOST, SIX_POD)):
        assert arrived(pod, host, container, sends=False) == PACKETS
        assert arrived(pod, container, host, sends=True) == PACKETS


def test_a_burst_that_is_smaller_than_a_packet_lets_packets_pass(pod: Pod) -> None:
    keys: dict[str, Any] = {key: 8_000_000 if key.endswith("Rate") else 8_000 for key in SLOW}
    pod.add(**keys)
    need("ping")
    pod.run("ping", "-c", "1", "-W", "5", "-s", "1400", POD)
    pod.check(**keys)


def test_the_largest_burst_does_not_let_megabytes_wait(pod: Pod) -> None:
    """What containerd and CRI-O ask for a pod with `kubernetes.io/ingress-bandwidth`."""
    largest = (1 << 32) - 1
    keys: dict[str, Any] = {
        "ingressRate": 10_000_000,
        "ingressBurst": largest,
        "egressRate": 10_000_000,
        "egressBurst": largest,
    }
    pod.add(**keys)
    (ifb,) = pod.ifbs()
    for name in ("host0", ifb):
        assert pod.queue(name) < 128 << 10
    pod.check(**keys)
    pod.add(**keys, unshapedSubnets=["10.0.0.0/8"])
    assert pod.queue() < 128 << 10
    pod.check(**keys, unshapedSubnets=["10.0.0.0/8"])

"""What somebody removes of a limit is logged and counted, and restored if that was chosen."""

import threading

import pytest
from tests.node.bandwidth.lab import BOTH, Pod

from nodeplug import NotReady
from nodeplug.testing.plugin_host import host
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.bandwidth.plugin import Bandwidth, BandwidthConfig


def missing(bandwidth: Bandwidth) -> list[float]:
    return [one.value for one in bandwidth.metrics()[0].samples]


def test_what_somebody_removed_is_told_and_counted(pod: Pod) -> None:
    pod.add(**BOTH)
    pod.look()
    assert missing(pod.bandwidth) == []
    pod.run("tc", "qdisc", "del", "dev", "host0", "root")
    with pytest.raises(NotReady, match="container c1: interface host0 has no limit"):
        pod.look()
    assert missing(pod.bandwidth) == [1.0]
    pod.delete(**BOTH)
    pod.look()
    assert missing(pod.bandwidth) == []


@pytest.mark.parametrize(
    "words", ["tc qdisc del dev host0 root", "tc qdisc del dev host0 ingress", "ip link del {ifb}"]
)
def test_by_choice_it_is_restored_and_counted(scratch: ScratchCni, pod: Pod, words: str) -> None:
    pod.bandwidth = Bandwidth(BandwidthConfig(repair_containers=True), scratch.host)
    pod.add(**BOTH)
    pod.run(*words.format(ifb=pod.ifbs()[0]).split())
    pod.look()
    pod.check(**BOTH)
    assert [(one.value, one.labels) for one in pod.bandwidth.metrics()[1].samples] == [(1.0, {"of": "net"})]


def test_the_kernel_tells_of_what_somebody_removes(scratch: ScratchCni, pod: Pod) -> None:
    told = threading.Event()
    given = host(scratch.folder, plugin="scratch", refresh_health=told.set)
    pod.bandwidth = Bandwidth(BandwidthConfig(), given)
    scratch.on_host(pod.bandwidth.start)
    try:
        for words in ("tc qdisc del dev host0 root", "tc qdisc del dev host0 ingress", "ip link del {ifb}"):
            pod.add(**BOTH)
            told.clear()
            pod.run(*words.format(ifb=pod.ifbs()[0]).split())
            assert told.wait(10), words
    finally:
        pod.bandwidth.stop()

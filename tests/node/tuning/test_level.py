"""What somebody changes of a tuned container is logged and counted, and restored if that was chosen."""

from pathlib import Path
from typing import Any

import pytest
from tests.node.tuning.lab import FILE, SYSCTL, Pod, run_ip, settings, sysctl

from nodeplug import Netns, NotReady
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.tuning.plugin import Tuning, TuningConfig

KEYS: dict[str, Any] = {"mtu": 1300, "sysctl": {SYSCTL: "1"}}


def damage(pod: Netns) -> None:
    run_in(pod, lambda: Path("/proc/sys/net", FILE).write_text("0"))
    run_ip(pod, lambda ip: ip.link("set", index=ip.link_lookup(ifname="eth0")[0], mtu=1200))


def missing(tuning: Tuning) -> list[float]:
    return [one.value for one in tuning.metrics()[0].samples]


def chosen(scratch: ScratchCni) -> Tuning:
    config = TuningConfig(allowlist=scratch.folder / "none", data_dir=scratch.folder / "tuning", repair_containers=True)
    return Tuning(config, scratch.host)


def test_what_somebody_changed_is_told_and_counted(call: Pod, tuning: Tuning, pod: Netns) -> None:
    call.add(**KEYS)
    tuning.health()
    assert missing(tuning) == []
    damage(pod)
    with pytest.raises(NotReady, match=r"container c1: .*arp_filter .*1200"):
        tuning.health()
    assert missing(tuning) == [1.0]
    assert settings(pod).mtu == 1200
    call.delete(**KEYS)
    tuning.health()
    assert missing(tuning) == []


def test_by_choice_it_is_restored_and_counted(scratch: ScratchCni, pod: Netns) -> None:
    tuning = chosen(scratch)
    call = Pod(scratch, tuning, pod)
    call.add(**KEYS)
    damage(pod)
    tuning.health()
    assert (settings(pod).mtu, sysctl(pod)) == (1300, "1")
    assert [(one.value, one.labels) for one in tuning.metrics()[1].samples] == [(1.0, {"of": "net"})]
    call.delete(**KEYS)
    assert settings(pod).mtu == 1500


def test_what_cannot_be_restored_is_told_with_the_reason(scratch: ScratchCni, pod: Netns) -> None:
    tuning = chosen(scratch)
    Pod(scratch, tuning, pod).add(**KEYS)
    run_ip(pod, lambda ip: ip.link("del", index=ip.link_lookup(ifname="eth0")[0]))
    with pytest.raises(NotReady, match=r"container c1: .*it cannot be restored: "):
        tuning.health()


def test_a_container_that_has_ended_has_lost_nothing(scratch: ScratchCni, tuning: Tuning) -> None:
    netns = scratch.container()
    run_ip(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="peer0", address="02:00:00:00:00:01"))
    Pod(scratch, tuning, netns).add(**KEYS)
    damage(netns)
    netns.close()
    scratch._containers.remove(netns)  # what closes it again
    tuning.health()
    assert missing(tuning) == []


def test_what_gc_ends_is_looked_at_no_more(call: Pod, tuning: Tuning, pod: Netns, scratch: ScratchCni) -> None:
    call.add(**KEYS)
    damage(pod)
    scratch.gc(tuning, {"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-tuning"}, [])
    tuning.health()
    assert missing(tuning) == []

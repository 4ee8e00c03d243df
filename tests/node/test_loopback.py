from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug import CniInterface, CniResult, Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.loopback import Loopback, LoopbackConfig

CONFIG: dict[str, Any] = {"cniVersion": "1.0.0", "name": "lo", "type": "nodeplug-loopback"}


@pytest.fixture
def loopback(scratch: ScratchCni) -> Loopback:
    return Loopback(LoopbackConfig(), scratch.host)


def test_lo_comes_up_and_is_the_result(
    scratch: ScratchCni, loopback: Loopback, ping: Callable[[Netns, str], bool]
) -> None:
    netns = scratch.container()
    result = scratch.add(loopback, CONFIG, "c1", netns, ifname="lo")
    assert result.interfaces == (CniInterface("lo", mac="00:00:00:00:00:00", sandbox=netns.path),)
    assert [(str(ip.address), ip.interface) for ip in result.ips] == [("127.0.0.1/8", 0), ("::1/128", 0)]
    assert ping(netns, "127.0.0.1")
    assert ping(netns, "::1")


def test_a_repeated_add_answers_the_same(scratch: ScratchCni, loopback: Loopback) -> None:
    netns = scratch.container()
    first = scratch.add(loopback, CONFIG, "c1", netns, ifname="lo")
    assert scratch.add(loopback, CONFIG, "c1", netns, ifname="lo") == first


def test_without_ipv6_the_result_has_the_v4_address_alone(scratch: ScratchCni, loopback: Loopback) -> None:
    netns = scratch.container()
    with netns.entered():
        Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6").write_text("1")
    result = scratch.add(loopback, CONFIG, "c1", netns, ifname="lo")
    assert [str(ip.address) for ip in result.ips] == ["127.0.0.1/8"]


def test_a_result_of_the_plugin_before_is_passed_on(scratch: ScratchCni, loopback: Loopback) -> None:
    before = CniResult(interfaces=(CniInterface("eth0", mac="02:00:00:00:00:01", sandbox="/netns"),))
    assert scratch.add(loopback, CONFIG, "c1", scratch.container(), prev_result=before) == before


def test_del_brings_lo_down_and_succeeds_without_a_namespace(scratch: ScratchCni, loopback: Loopback) -> None:
    netns = scratch.container()
    result = scratch.add(loopback, CONFIG, "c1", netns, ifname="lo")
    scratch.check(loopback, CONFIG, "c1", netns, result)
    scratch.delete(loopback, CONFIG, "c1", netns, ifname="lo")
    scratch.delete(loopback, CONFIG, "c1", netns, ifname="lo")
    scratch.delete(loopback, CONFIG, "c1", None, ifname="lo")
    with pytest.raises(PluginError, match=r"interface lo in .* is down"):
        scratch.check(loopback, CONFIG, "c1", netns, result)

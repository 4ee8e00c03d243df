"""Flushed rules of chained plugins come back when the kernel tells of it."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.node.level.health_threads import HealthThreads
from tests.node.portmap.lab import mapping
from tests.programs import need

from nodeplug import NotReady
from nodeplug.testing import host
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug.testing.waiting import until
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.firewall.plugin import Firewall, FirewallConfig
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig

KEYS: dict[str, dict[str, Any]] = {
    "portmap": {"runtimeConfig": {"portMappings": [mapping(8080)]}},
    "firewall": {"ingressPolicy": "same-bridge"},
}
DAMAGE = [
    ("portmap", "nft flush ruleset"),
    ("portmap", "nft delete table inet nodeplug_portmap"),
    ("portmap", "nft flush table inet nodeplug_portmap"),
    ("firewall", "nft flush ruleset"),
    ("firewall", "iptables -F"),
    ("firewall", "iptables -F CNI-FORWARD"),
    ("firewall", "ip6tables -F FORWARD"),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGE)
def test_flushed_rules_come_back_when_the_kernel_tells_of_it(
    scratch: ScratchCni, bridge: Bridge, config: Callable[..., dict[str, Any]], name: str, damage: str
) -> None:
    told: list[str] = []

    def health() -> None:
        try:
            run_in(scratch.host_netns, plugin.health)
            told.append("")
        except NotReady as error:
            told.append(str(error))

    asking = HealthThreads(health)
    given = host(scratch.folder, plugin=name, refresh_health=asking)
    plugin: Portmap | Firewall = (
        Portmap(PortmapConfig(), given) if name == "portmap" else Firewall(FirewallConfig(), given)
    )
    scratch.on_host(plugin.start)
    try:
        netns = scratch.container()
        result = scratch.add(bridge, config(), "c1", netns)
        asked = {"cniVersion": "1.1.0", "name": "net", "type": f"nodeplug-{name}", **KEYS[name]}
        scratch.add(plugin, asked, "c1", netns, prev_result=result)
        words = damage.split()
        need(words[0])
        scratch.on_host(lambda: subprocess.run(words, check=True))
        until(lambda: [one.value for one in plugin.metrics()[1].samples] == [1.0], found=lambda: str(told))
        scratch.check(plugin, asked, "c1", netns, result)
        until(lambda: told[-1:] == [""], found=lambda: str(told))
    finally:
        plugin.stop()
        asking.end()

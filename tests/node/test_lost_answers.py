"""Calls of which the kernel's answer to one message is lost, each in turn: nothing is left, and nothing is gone."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from tests.node.overflowing import every_overflow
from tests.programs import need
from tests.suites import divided

from nodeplug import CniResult, Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.bandwidth.plugin import Bandwidth, BandwidthConfig
from nodeplug_net.bridge.plugin import Bridge, BridgeConfig
from nodeplug_net.firewall.plugin import Firewall, FirewallConfig
from nodeplug_net.host_device.plugin import HostDevice, HostDeviceConfig
from nodeplug_net.macvlan.plugin import Macvlan, MacvlanConfig
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig
from nodeplug_net.ptp.plugin import Ptp, PtpConfig
from nodeplug_net.sbr.plugin import Sbr, SbrConfig
from nodeplug_net.tap.plugin import Tap, TapConfig
from nodeplug_net.tuning.plugin import Tuning, TuningConfig

FOUR = [{"subnet": "10.88.0.0/24"}]
BOTH = {"ipam": {"type": "host-local", "ranges": [FOUR, [{"subnet": "fd88::/64"}]]}}
IPV4 = {"ipam": {"type": "host-local", "ranges": [FOUR]}}  # an IPv6 address is asked about until nobody else has it
MADE: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bridge": (Bridge, BridgeConfig, {"bridge": "br0", "isDefaultGateway": True, "ipMasq": True, **BOTH}),
    "bridge-spoof": (Bridge, BridgeConfig, {"bridge": "br0", "isGateway": True, "macspoofchk": True, **BOTH}),
    "ptp": (Ptp, PtpConfig, {"ipMasq": True, **BOTH}),
    "macvlan": (Macvlan, MacvlanConfig, {"master": "up0", **IPV4}),
    "tap": (Tap, TapConfig, IPV4),
    "host-device": (HostDevice, HostDeviceConfig, {"device": "up0", **IPV4}),
}
RATES = {"ingressRate": 10**6, "ingressBurst": 10**6, "egressRate": 10**6, "egressBurst": 10**6}
MAPPINGS = [{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}]
CHAINED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "portmap": (Portmap, PortmapConfig, {"runtimeConfig": {"portMappings": MAPPINGS}}),
    "bandwidth": (Bandwidth, BandwidthConfig, RATES),
    "tuning": (Tuning, TuningConfig, {"mtu": 1300, "promisc": True, "mac": "02:00:00:00:00:07"}),
    "firewall": (Firewall, FirewallConfig, {"ingressPolicy": "same-bridge"}),
    "sbr": (Sbr, SbrConfig, {}),
}
KEPT = frozenset({"bandwidth"})
"""Whose DEL leaves limits to the end of the interface, and whose repeated ADD, when it fails, leaves no limit."""
REPEATABLE = [name for name in (*MADE, *CHAINED) if name not in KEPT]
QUICK = ("bridge", "ptp", "portmap", "bandwidth", "firewall")
LOOKS = {
    "host": ("ip -o addr show", "ip -o link show", "tc qdisc show", "nft list ruleset"),
    "pod": ("ip -o addr show", "ip -o link show", "ip route show table all", "ip rule show"),
}
"""What a plugin may change where."""
BY_CHANCE = re.compile(
    r"^\d+: |if\d+|@\w+|qdisc \S+ (?=state)|state \w+|NO-CARRIER,|,LOWER_UP|,M-DOWN|(?<=qdisc )(\w+ [0-9a-f]+:)"
    r"|valid_lft.*|tentative|.*fe80.*"
)


@dataclass
class Stage:
    """A plugin, what its calls have in common, and what there is in its host and container."""

    scratch: ScratchCni
    plugin: Any
    config: dict[str, Any]
    pod: Netns
    before: CniResult | None

    def add(self) -> CniResult:
        return self.scratch.add(self.plugin, self.config, "c1", self.pod, prev_result=self.before)

    def delete(self) -> None:
        self.scratch.delete(self.plugin, self.config, "c1", self.pod, prev_result=self.before)

    def state(self) -> list[str]:
        """Return what is there, a line for each thing."""
        ends = ("host", self.scratch.host_netns), ("pod", self.pod)
        found = [f"{end}: {line}" for end, where in ends for line in seen(where, "; ".join(LOOKS[end]))]
        folders = (self.scratch.folder, self.scratch.host.run_dir)
        files = {str(path) for folder in folders for path in folder.rglob("*") if path.is_file()}
        return sorted([*found, *(name for name in files if not name.endswith(("lock", "last_reserved_ip.0")))])


def seen(where: Netns, script: str) -> list[str]:
    """Return lines of several programs, without what differs by chance."""
    need("ip", "nft", "tc")
    done = run_in(where, lambda: subprocess.run(["sh", "-c", script], capture_output=True, check=True, text=True))
    lines = (BY_CHANCE.sub("", line).strip() for line in done.stdout.splitlines())
    return [line for line in lines if line and not line.endswith("inet6")]


@pytest.fixture
def stage(scratch: ScratchCni, name: str) -> Iterator[Stage]:
    """The plugin, after one container that came and went: what a host keeps for the next one is there.

    A plugin of a chain has a container that the bridge attached.
    """
    with ExitStack() as stack:

        def load(kind: str) -> tuple[Any, dict[str, Any]]:
            make, config, keys = {**MADE, **CHAINED}[kind]
            folder = {"data_dir": scratch.folder / "networks"} if "data_dir" in config.model_fields else {}
            plugin = make(config(**folder), scratch.host)
            scratch.on_host(plugin.start)
            stack.callback(getattr(plugin, "stop", lambda: None))
            return plugin, {"cniVersion": "1.1.0", "name": "net", "type": f"nodeplug-{kind}", **keys}

        need("ip")
        wire = "ip link add up0 type veth peer name up1 && ip link set up0 up && ip link set up1 up"
        scratch.on_host(lambda: subprocess.run(["sh", "-c", wire], check=True))
        pod = scratch.container()
        before = scratch.add(*load("bridge"), "c1", pod) if name in CHAINED else None
        made = Stage(scratch, *load(name), pod, before)
        if name not in KEPT:
            made.add()
            made.delete()
        yield made


@pytest.mark.parametrize("name", divided([*MADE, *CHAINED], QUICK))
def test_an_add_whose_answers_get_lost_leaves_nothing(stage: Stage) -> None:
    before = stage.state()
    for said in every_overflow(stage.add, least=3):
        if said:
            assert "no room for its answer" in said.lower()
            assert differences(before, stage.state()) == []
        else:
            stage.delete()
    stage.delete()


@pytest.mark.parametrize("name", divided(REPEATABLE, QUICK))
def test_a_repeated_add_whose_answers_get_lost_leaves_the_attachment_as_it_was(stage: Stage) -> None:
    stage.add()
    attached = stage.state()
    for _ in every_overflow(stage.add, least=2):
        assert differences(attached, stage.state()) == []


@pytest.mark.parametrize("name", divided(REPEATABLE, QUICK))
def test_a_del_whose_answers_get_lost_is_completed_by_the_next(stage: Stage) -> None:
    before = stage.state()

    def delete() -> None:
        stage.delete()

    stage.add()
    for _ in every_overflow(delete, least=2):
        stage.delete()
        assert differences(before, stage.state()) == []
        stage.add()


def differences(before: list[str], now: list[str]) -> list[str]:
    gone = [f"gone: {line}" for line in before if line not in now]
    return gone + [f"new: {line}" for line in now if line not in before]

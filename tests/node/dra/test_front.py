"""The daemon's own driver: what it writes for an API server, and what is there again when somebody takes it away."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.node.dra.objects import NODE

from nodeplug.testing import ScratchNode
from nodeplug.testing.dra import DraKubelet, DraTimeouts, ResourceApi, Scheduler
from nodeplug.testing.waiting import until

SERVED = "gpu.nodeplug.io"
CARDS = '[{ memory = "8GiB", uuid = "GPU-aaaaaaaa" }, { memory = "8GiB", uuid = "GPU-bbbbbbbb" }]'
TIMEOUTS = DraTimeouts(retry=0.1, poll=0.02, health=0.1, call=20)
Start = Callable[..., "Served"]


class Served:
    """A node with the GPU plugin behind the front, a cluster, and kubelet, all but the daemon acted out."""

    def __init__(self, folder: Path, stack: ExitStack, lacks: set[str], settings: str) -> None:
        self.root = folder / "n"
        self.api = stack.enter_context(ResourceApi(NODE, lacks=lacks))
        (folder / "kubeconfig").write_text(self.api.kubeconfig)
        self.specs = self.root / "var/run/cdi"
        self.kubelet = stack.enter_context(
            DraKubelet(self.root / "var/lib/kubelet", self.api, [self.specs], timeouts=TIMEOUTS)
        )
        plugins = (
            f'{settings}[plugins.gpu]\nserve = "dra"\n[plugins.gpu.config]\ndriver = "simulated"\npoll = "100ms"\n'
            f'simulated = {CARDS}\n[[plugins.gpu.config.resources]]\nsharing = "memory"\n'
            'access = { visible_devices = "uuid" }\n'
        )
        supervisor = f'node_name = "{NODE}"\nlisten = ""\nkubeconfig = "{folder}/kubeconfig"\npodresources_poll = "1s"'
        self.node = ScratchNode(self.root, plugins, fork=True, supervisor=supervisor)
        stack.enter_context(self.node)
        stack.callback(lambda: sys.stdout.write(self.node.log))  # shown when a test fails
        self.scheduler = Scheduler(self.api)
        self.scheduler.add_class("gpu", f'device.driver == "{SERVED}"')

    @property
    def devices(self) -> dict[str, Any]:
        return {one["name"]: one for found in self.api.slices() for one in found["spec"].get("devices") or ()}

    @property
    def driver(self) -> dict[str, Any]:
        (driver,) = self.node.status()["dra"]
        return dict(driver)

    def ready(self) -> "Served":
        until(lambda: len(self.devices) == 2)
        self.kubelet.until_registered(SERVED)
        return self

    def claim(self, name: str, amount: str) -> None:
        wanted = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": amount}}}
        self.scheduler.claim(name, {"name": "gpu", "exactly": wanted})
        self.scheduler.place(f"pod-{name}", [name])

    def admit(self, name: str, amount: str) -> dict[str, str]:
        """Run a pod with an amount of a card, and return its environment."""
        self.claim(name, amount)
        return dict(self.kubelet.until_admitted(f"pod-{name}", [name])["main"].env)


@pytest.fixture
def start(short_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(*lacks: str, settings: str = "") -> Served:
            return Served(short_path, stack, {*lacks}, settings)

        yield begin


def test_slices_that_kubelet_has_wiped_are_there_again(start: Start) -> None:
    served = start().ready()
    for _ in range(3):
        assert served.api.wipe() == 1
        until(lambda: len(served.devices) == 2)


def test_a_cluster_that_cannot_share_gets_no_card_and_the_status_says_what_it_lacks(start: Start) -> None:
    served = start("DRAConsumableCapacity")
    until(lambda: "DRAConsumableCapacity" in served.driver["problem"])
    assert served.api.slices() == []


def test_a_cluster_without_taints_is_not_offered_a_card_that_is_ill(start: Start) -> None:
    served = start("DRADeviceTaints").ready()
    (served.node.paths.run / "plugins/gpu/simulated-faults.json").write_text('{"cards": {"0": {"xid": 79}}}')
    until(lambda: len(served.devices) == 1)


def test_an_api_server_that_is_away_at_the_start_is_told_later(start: Start) -> None:
    served = start().ready()
    with served.api.failing("away"):
        served.node.kill()
        served.api.wipe()
        served.node.start()
        until(lambda: bool(served.driver["problem"]))
    until(lambda: len(served.devices) == 2)
    until(lambda: not served.driver["problem"])


def test_every_change_of_a_pool_has_a_higher_generation(start: Start) -> None:
    served = start().ready()
    faults = served.node.paths.run / "plugins/gpu/simulated-faults.json"
    (before,) = served.api.slices()
    faults.write_text('{"cards": {"0": {"gone": true}}}')
    until(lambda: "taints" in str(served.devices) or len(served.devices) == 1)
    (after,) = served.api.slices()
    assert after["spec"]["pool"]["generation"] > before["spec"]["pool"]["generation"]


def test_a_daemon_that_starts_again_writes_nothing_that_is_there(start: Start) -> None:
    served = start().ready()
    (before,) = served.api.slices()
    served.node.kill()
    served.node.start()
    served.kubelet.until_registered(SERVED)
    until(lambda: served.driver["pools"] != [])
    time.sleep(0.5)
    assert served.api.slices() == [before]


@pytest.mark.whole
def test_a_section_that_is_gone_keeps_its_driver_until_the_last_claim_has_ended(start: Start) -> None:
    served = start().ready()
    served.admit("one", "4Gi")
    served.node.configure("")
    until(lambda: served.api.slices() == [])
    assert [one["claim"] for one in served.driver["claims"]] == ["default/one"]
    served.kubelet.until_ended("pod-one")
    until(lambda: served.node.status()["dra"] == [])
    assert not [*served.specs.glob("*.json")]


def test_a_card_is_filled_before_the_next_one(start: Start) -> None:
    served = start().ready()
    cards = [served.admit(name, "3Gi")["NVIDIA_VISIBLE_DEVICES"] for name in ("one", "two", "three")]
    assert cards == ["GPU-aaaaaaaa", "GPU-aaaaaaaa", "GPU-bbbbbbbb"]


def test_claims_are_spread_where_that_is_asked_for(start: Start) -> None:
    served = start(settings='[dra]\norder = "most-free-first"\n').ready()
    first = served.admit("one", "3Gi")["NVIDIA_VISIBLE_DEVICES"]
    until(lambda: served.api.slices()[0]["spec"]["pool"]["generation"] > 1)
    assert served.admit("two", "3Gi")["NVIDIA_VISIBLE_DEVICES"] != first


def test_a_daemon_without_sections_for_claims_removes_the_sockets_of_one_that_was_killed(start: Start) -> None:
    served = start().ready()
    kubelets = served.root / "var/lib/kubelet"
    served.node.kill()
    served.node.configure("")
    served.node.start()
    assert not [*kubelets.glob(f"plugins_registry/{SERVED}-*"), *kubelets.glob(f"plugins/{SERVED}/dra-*")]


def test_a_daemon_that_ends_takes_its_sockets_away(start: Start) -> None:
    served = start().ready()
    kubelets = served.root / "var/lib/kubelet"
    sockets = f"plugins_registry/{SERVED}-*", f"plugins/{SERVED}/dra-*"
    assert all([*kubelets.glob(one)] for one in sockets)
    served.node.stop()
    assert not any([*kubelets.glob(one)] for one in sockets)

"""Pod lives on a node whose daemon is killed again and again.

Owns: the story of one pod (network, volume, device, and their ends, each repeated until it succeeds, as runtimes and
kubelet do), the threads that play such stories, the one that kills, the node, and what must be true of all of it.
Every choice comes from the seed: the same seed plays the same stories and draws the same pauses.
"""

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from nodeplug import Pod
from nodeplug.testing import (
    AdmissionError,
    BlockingKubelet,
    CniError,
    CniRuntime,
    FlexCaller,
    FlexFailure,
    FlexVolume,
    Sandbox,
    ScratchNode,
)
from nodeplug.testing.pods import CniRuntimeFactory, FlexCallers
from nodeplug.testing.rig import scratch_node

RESOURCE: Final = "example.com/zero"
_PATIENCE: Final = 120.0
_PAUSE: Final = 0.05
_ENDS: Final = ((True,), (True, False), (False,), (False, False))
"""The DELs of a pod: with or without its namespace, once or twice, as runtimes send them."""


class Lost(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Network:
    """What one pod asks its runtime for.

    Attributes:
        port: of the host, that leads to the pod; 0 for none.
    """

    runtime: CniRuntime
    port: int = 0

    @property
    def _asked(self) -> dict[str, Any] | None:
        mapping = {"hostPort": self.port, "containerPort": 80, "protocol": "tcp"}
        return {"portMappings": [mapping]} if self.port else None

    def add(self, name: str, netns: Path) -> dict[str, Any]:
        """Attach it."""
        return self.runtime.add(name, netns, capability_args=self._asked)

    def delete(self, name: str, netns: Path | None) -> None:
        """Detach it."""
        self.runtime.delete(name, netns, capability_args=self._asked)


@dataclass
class Torture:
    """One node and everybody who calls it.

    Attributes:
        node: its daemon is killed.
        runtime: calls CNI, for a bridge.
        chain: calls CNI, for a bridge and all plugins that may follow it.
        caller: calls FlexVolume.
        kubelet: calls the device plugin.
        seed: of every choice.
        failures: what broke.
        lives: how many pods lived to their end.
        kills: how often the daemon was killed.
        refusals: calls that failed, whether they were repeated or not.
        rate: lives per second that are begun at most; None: one after the other.
        ports: how many pods had the whole chain.
        chained: whether half of the pods have the whole chain.
    """

    node: ScratchNode
    runtime: CniRuntime
    chain: CniRuntime
    caller: FlexCaller
    kubelet: BlockingKubelet
    seed: int
    failures: list[BaseException] = field(default_factory=list)
    lives: int = 0
    kills: int = 0
    refusals: list[str] = field(default_factory=list)
    rate: float | None = None
    chained: bool = False
    ports: int = 0
    _held: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)

    def play(self, workers: int, seconds: float, *, killing: bool = True) -> None:
        """Let pods live for some seconds while the daemon is killed; return when the last of them has ended.

        Raises:
            BaseException: the first thing that broke.
        """
        self._over.clear()
        threads = [
            threading.Thread(target=self._work, args=(number, workers), name=f"w{number}") for number in range(workers)
        ]
        killer = threading.Thread(target=self._kill, name="killer")
        for thread in threads:
            thread.start()
        if killing:
            killer.start()
        self._over.wait(seconds)  # a failure ends it early
        self._over.set()
        if killing:
            killer.join()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _work(self, worker: int, workers: int) -> None:
        number, begun = 0, time.monotonic()
        while not self._over.is_set():
            if self.rate is not None and self._over.wait(begun + number * workers / self.rate - time.monotonic()):
                return
            try:
                self.live(f"p{worker}-{number}")
            except BaseException as error:
                self.failures.append(error)
                self._over.set()
            number += 1

    def replace(self, times: int, workers: int, pause: float) -> None:
        """Let pods live while the daemon is replaced again and again, with some seconds between, and to their end.

        Raises:
            BaseException: the first thing that broke.
        """
        beside = threading.Thread(target=self.play, args=(workers, 3600.0), kwargs={"killing": False}, name="lives")
        beside.start()
        try:
            for _ in range(times):
                done = self.node.run("replace")
                sys.stdout.write(done.stdout)
                if done.returncode:
                    raise Lost(f"the daemon is not replaced: {done.stderr}")
                self._over.wait(pause)  # a failure ends it early
        finally:
            self._over.set()
            beside.join()

    def _kill(self) -> None:
        random = Random(f"{self.seed} killer")
        while not self._over.wait(random.uniform(0.05, 2.5)):
            try:
                self.node.kill()
                time.sleep(random.uniform(0.0, 0.3))
                self.node.start()
                self.kills += 1
            except BaseException as error:
                self.failures.append(error)
                self._over.set()

    # --- one pod

    def live(self, name: str) -> None:
        """Play one pod from its sandbox to its end."""
        random = Random(f"{self.seed} {name}")
        pod = Pod(name=name, namespace="default", uid=name)
        with Sandbox(self.node.root / f"ns-{name}") as sandbox:
            network = Network(self.runtime)
            if self.chained and random.random() < 0.5:
                with self._lock:
                    self.ports += 1
                    network = Network(self.chain, 20000 + self.ports % 20000)
            self._attach(network, name, sandbox, random)
            has_volume, has_device = random.random() < 0.5, random.random() < 0.3
            if has_volume:
                volume = FlexVolume("data", {"size": "1Mi"})
                self._until(f"mount of {name}", lambda: self.caller.mount(pod, volume))
            if has_device:
                self._until(f"device of {name}", lambda: self.kubelet.admit(name, {RESOURCE: 1}))
            time.sleep(random.uniform(0.0, 0.05))
            if has_device:
                self.kubelet.remove_pod(name)
            if has_volume:
                self._until(f"unmount of {name}", lambda: self.caller.unmount(pod, "data"))
            self._detach(network, name, sandbox.path, random)
        self.lives += 1

    def _attach(self, network: "Network", name: str, sandbox: Sandbox, random: Random) -> None:
        def add() -> dict[str, Any]:
            try:
                return network.add(name, sandbox.path)
            except CniError:
                self._until(f"DEL after a failed ADD of {name}", lambda: network.delete(name, sandbox.path))
                raise

        result = self._until(f"ADD of {name}", add)
        if random.random() < 0.2:
            again = self._until(f"second ADD of {name}", lambda: network.add(name, sandbox.path))
            if again["ips"] != result["ips"]:
                raise Lost(f"a repeated ADD of {name} answered {again['ips']} after {result['ips']}")
        with self._lock:
            for ip in result["ips"]:
                other = self._held.setdefault(ip["address"], name)
                if other != name:
                    raise Lost(f"{ip['address']} belongs to {other} and was given to {name}")
        if "eth0" not in sandbox.links():
            raise Lost(f"ADD of {name} succeeded and its interface is not there")

    def _detach(self, network: "Network", name: str, netns: Path, random: Random) -> None:
        with self._lock:  # given back from here on
            self._held = {address: holder for address, holder in self._held.items() if holder != name}
        for place in random.choice(_ENDS):
            self._until(f"DEL of {name}", partial(network.delete, name, netns if place else None))

    def _until(self, what: str, step: Callable[[], Any]) -> Any:
        """Repeat a call until it succeeds, as runtimes and kubelet do."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                return step()
            except (CniError, FlexFailure, AdmissionError) as error:
                self.refusals.append(f"{what}: {error}")
                if time.monotonic() > end:
                    raise Lost(f"{what} does not succeed: {error}") from error
                time.sleep(_PAUSE)

    # --- afterwards

    def settle(self) -> None:
        """Wait until the daemon has nothing left to do.

        Raises:
            Lost: it does not come to that.
        """
        end = time.monotonic() + _PATIENCE
        while True:
            status = self.node.status()
            left = {key: status[key] for key in ("attachments", "volumes", "spool", "calls") if status[key]}
            if not left:
                return
            if time.monotonic() > end:
                raise Lost(f"left after {self.lives} lives and {self.kills} kills: {left}")
            time.sleep(_PAUSE)


# --- the node

PLUGINS = """
[plugins.bridge.config]
data_dir = "{scratch}/addresses"
[plugins.portmap]
[plugins.bandwidth]
[plugins.tuning.config]
data_dir = "{scratch}/tuning"
[plugins.firewall]
[plugins.tmpfs]
[plugins.hostdev]
isolation = "{isolation}"
[[plugins.hostdev.config.resources]]
resource = "example.com/zero"
[[plugins.hostdev.config.resources.groups]]
count = 100
nodes = [{ path = "/dev/zero" }]
"""


def bridged(name: str, number: int) -> dict[str, Any]:
    """A list with a bridge of its own."""
    ranges = [[{"subnet": f"10.{number}.0.0/24"}], [{"subnet": f"fd00:{number}::/64"}]]
    bridge: dict[str, Any] = {
        "type": "nodeplug-bridge",
        "bridge": f"torture{number}",
        "isDefaultGateway": True,
        "ipMasq": True,
        "ipam": {"type": "host-local", "ranges": ranges},
    }
    return {"cniVersion": "1.0.0", "name": name, "plugins": [bridge]}


def chained() -> dict[str, Any]:
    """A list with everything that may follow a bridge."""
    conflist = bridged("chain", 90)
    rates = {f"{way}{what}": 80_000_000 for way in ("ingress", "egress") for what in ("Rate", "Burst")}
    conflist["plugins"] += [
        {"type": "nodeplug-portmap", "capabilities": {"portMappings": True}},
        {"type": "nodeplug-bandwidth", **rates},
        {"type": "nodeplug-tuning", "mtu": 1300, "sysctl": {"net.core.somaxconn": "512"}},
        {"type": "nodeplug-firewall", "ingressPolicy": "same-bridge"},
    ]
    return conflist


MAY_STAY = [
    r"link torture\d+",
    r"address \S+ on torture\d+",
    r"nft (table|chain|rule|set|map) nodeplug_.*",
    r"nft (table|chain|rule) filter.*",  # the firewall's are shared with others, and stay as the reference leaves them
]


@pytest.fixture
def seed() -> int:
    """NODEPLUG_SEED, or a fresh one; printed, so that a run can be repeated."""
    chosen = int(os.environ.get("NODEPLUG_SEED") or secrets.randbelow(1 << 32))
    sys.stdout.write(f"NODEPLUG_SEED={chosen}\n")
    return chosen


@pytest.fixture
def torture(seed: int, request: pytest.FixtureRequest) -> Iterator[Torture]:
    """The node, its devices in a thread or as the parameter says; at the end nothing of it is left but the bridge."""
    plugins = PLUGINS.replace("{isolation}", getattr(request, "param", "thread"))
    with scratch_node(plugins, may_stay=MAY_STAY) as node:
        network, volumes = CniRuntimeFactory(node), FlexCallers(node)
        with BlockingKubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
            kubelet.until_allocatable("example.com/zero", 100)
            yield Torture(
                node, network(bridged("net", 89)), network(chained()), volumes("nodeplug/tmpfs"), kubelet, seed
            )
            sys.stdout.write(node.log)  # shown with a failure: why did it not come to an end

"""A host whose daemon asks a plugin for its health whenever the plugin wants it to, and an administrator with ip(8)."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.node.level.health_threads import HealthThreads
from tests.programs import need

from nodeplug import CniResult, LimitedConnectivity, Netns, NotReady
from nodeplug.testing import host
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.bridge.plugin import Bridge, BridgeConfig
from nodeplug_net.macvlan.plugin import Macvlan, MacvlanConfig
from nodeplug_net.ptp.plugin import Ptp, PtpConfig
from nodeplug_net.sbr.plugin import Sbr, SbrConfig
from nodeplug_net.tap.plugin import Tap, TapConfig
from nodeplug_net.tuning.plugin import Tuning, TuningConfig

MODELS: dict[str, Callable[..., Any]] = {
    "bridge": lambda given, **keys: Bridge(BridgeConfig(**keys), given),
    "ptp": lambda given, **keys: Ptp(PtpConfig(**keys), given),
    "macvlan": lambda given, **keys: Macvlan(MacvlanConfig(**keys), given),
    "tap": lambda given, **keys: Tap(TapConfig(**keys), given),
    "sbr": lambda given, data_dir, **keys: Sbr(SbrConfig(**keys), given),
    "tuning": lambda given, **keys: Tuning(TuningConfig(allowlist="/none", **keys), given),
}


@dataclass
class Looked:
    """One plugin on a host, and what its health said each time."""

    scratch: ScratchCni
    name: str
    network: dict[str, Any]
    made: list[Any] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    asking: HealthThreads = field(init=False)

    def __post_init__(self) -> None:
        self.asking = HealthThreads(self.health)

    @property
    def plugin(self) -> Any:
        """The instance that serves."""
        return self.made[-1]

    def start(self, **keys: Any) -> Any:
        """Begin, or begin anew as after the daemon was killed: the instance before is not stopped."""
        given = host(
            self.scratch.folder,
            plugin=self.name,
            attachments=self.recorded,
            refresh_health=self.asking,
        )
        plugin = MODELS[self.name](given, data_dir=self.scratch.folder / "networks", **keys)
        self.made.append(plugin)
        self.scratch.on_host(plugin.start)
        return plugin

    def recorded(self) -> list[Any]:
        """What the daemon recorded of the plugin's claims."""
        return [one for one in self.scratch.attachments() if one.claim == self.network["type"]]

    def health(self) -> str:
        try:
            run_in(self.scratch.host_netns, self.plugin.health)
            told = ""
        except NotReady as error:
            told = str(error)
        self.told.append(told)
        return told

    def add(self, container: str = "c1", before: CniResult | None = None, netns: Netns | None = None) -> Any:
        """Attach a container; return its namespace and the result."""
        netns = netns or self.scratch.container()
        return netns, self.scratch.add(self.plugin, self.network, container, netns, prev_result=before)

    def status(self) -> str:
        """Ask for STATUS as a runtime does; return what it says with code 51, or nothing."""
        try:
            self.scratch.status(self.plugin, self.network)
        except LimitedConnectivity as error:
            return str(error)
        return ""

    def checks(self, netns: Netns, result: CniResult) -> bool:
        """Whether CHECK finds the attachment as ADD made it."""
        try:
            self.scratch.check(self.plugin, self.network, "c1", netns, result)
        except Exception:
            return False
        return True

    def missing(self) -> list[tuple[float, str]]:
        """What is missing, as the metrics have it, by network."""
        return [(one.value, one.labels["of"]) for one in self.plugin.metrics()[0].samples]

    def restored(self) -> list[tuple[float, str]]:
        """What was restored, as the metrics have it, by network."""
        return [(one.value, one.labels["of"]) for one in self.plugin.metrics()[1].samples]

    def stop(self) -> None:
        """End it, and wait for whoever still asks: the namespaces are closed then."""
        for one in self.made:
            one.stop()
        self.asking.end()


def run(netns: Netns, command: str) -> str:
    """Do something in a namespace as an administrator does."""
    words = command.split()
    need(words[0])
    return run_in(netns, lambda: subprocess.run(words, check=True, capture_output=True, text=True).stdout)

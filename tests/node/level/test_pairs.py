"""A running container whose host end somebody deleted is named, and gets its interface back if that was chosen."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.node.level.health_threads import HealthThreads
from tests.programs import need

from nodeplug import CniResult, Netns, NotReady
from nodeplug.testing import host
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug.testing.waiting import until
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.plugin import Bridge, BridgeConfig
from nodeplug_net.ptp.plugin import Ptp, PtpConfig

VETH = Attachment("net", "c1", "eth0").host_veth
MODELS: dict[str, Callable[..., Any]] = {
    "bridge": lambda given, **keys: Bridge(BridgeConfig(**keys), given),
    "ptp": lambda given, **keys: Ptp(PtpConfig(**keys), given),
}


@dataclass
class Node:
    """A host whose daemon asks for health whenever the plugin wants it to."""

    scratch: ScratchCni
    name: str
    network: dict[str, Any]
    made: list[Any] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    asking: HealthThreads = field(init=False)

    def __post_init__(self) -> None:
        self.asking = HealthThreads(self.health)

    def start(self, **keys: Any) -> Any:
        given = host(
            self.scratch.folder,
            attachments=self.scratch.attachments,
            refresh_health=self.asking,
        )
        plugin = MODELS[self.name](given, data_dir=self.scratch.folder / "networks", **keys)
        self.made.append(plugin)
        self.scratch.on_host(plugin.start)
        return plugin

    def health(self) -> str:
        try:
            run_in(self.scratch.host_netns, self.made[-1].health)
            told = ""
        except NotReady as error:
            told = str(error)
        self.told.append(told)
        return told

    def add(self, container: str = "c1") -> tuple[Netns, CniResult]:
        netns = self.scratch.container()
        return netns, self.scratch.add(self.made[-1], self.network, container, netns)

    def delete_link(self) -> None:
        need("ip")
        self.scratch.on_host(lambda: subprocess.run(["ip", "link", "delete", VETH], check=True))


@pytest.fixture(params=["bridge", "ptp"])
def node(scratch: ScratchCni, config: Callable[..., dict[str, Any]], request: pytest.FixtureRequest) -> Iterator[Node]:
    network = config(ipMasq=True, cniVersion="1.1.0", type=f"nodeplug-{request.param}")
    made = Node(scratch, request.param, network)
    yield made
    for one in made.made:
        one.stop()
    made.asking.end()


def test_a_deleted_host_end_is_told_when_the_kernel_tells_of_it(node: Node) -> None:
    plugin = node.start()
    node.add()
    node.add("c2")
    until(lambda: node.told[-1:] == [""])
    node.delete_link()
    said = f"interface eth0 of container c1 in network net is gone, as its host end {VETH} was deleted"
    until(lambda: said in node.told[-1], found=lambda: str(node.told))
    assert [(one.value, one.labels) for one in plugin.metrics()[0].samples] == [(1.0, {"of": "net"})]
    node.scratch.delete(plugin, node.network, "c1")
    assert node.health() == ""


def test_by_choice_a_deleted_host_end_comes_back_with_its_addresses(
    node: Node, ping: Callable[[Netns, str], bool]
) -> None:
    plugin = node.start(repair_containers=True)
    netns, result = node.add()
    until(lambda: node.told[-1:] == [""])
    node.delete_link()
    until(lambda: [one.value for one in plugin.metrics()[1].samples] == [1.0], found=lambda: str(node.told))
    assert node.health() == ""
    assert ping(netns, "10.88.0.1")
    again = node.scratch.add(plugin, node.network, "c1", netns)
    assert again.ips == result.ips
    assert [one.mac for one in again.interfaces] == [one.mac for one in result.interfaces]


def test_a_container_whose_namespace_has_ended_is_none_that_lost_its_interface(node: Node) -> None:
    node.start()
    netns, _ = node.add()
    node.add("c2")
    netns.close()
    node.scratch._containers.remove(netns)  # what closes it again
    until(lambda: VETH not in node.scratch.on_host(_links))
    assert node.health() == ""


def test_what_a_runtime_deletes_is_no_loss(node: Node) -> None:
    plugin = node.start()
    netns, _ = node.add()
    node.add("c2")
    node.scratch.delete(plugin, node.network, "c1", netns)
    assert node.health() == ""
    node.scratch.gc(plugin, node.network, [])
    assert node.health() == ""


def _links() -> str:
    need("ip")
    return subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout

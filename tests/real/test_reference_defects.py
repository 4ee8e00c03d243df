"""Defects of the reference's current release: each is a scenario that it fails and ours passes.

A scenario returns what is wrong at its end, as sentences. A release of the reference that mends a defect fails here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.real.twins import Side, node_with, twins

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode

PLUGINS = ("bridge", "host-local", "portmap")
POOL = {"type": "host-local", "subnet": "10.77.0.0/24"}
LAST = {**POOL, "rangeStart": "10.77.0.9", "rangeEnd": "10.77.0.9"}
MAPPED = {"portMappings": [{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}]}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


@dataclass(frozen=True)
class Scene:
    """A side with a bridge network and a second container."""

    side: Side
    spare: Sandbox

    def network(
        self, *chained: Mapping[str, Any], ipam: Mapping[str, Any] = POOL, name: str = "defect", **keys: Any
    ) -> CniRuntime:
        bridge = {"type": "bridge", "bridge": "br0", "isGateway": True, "ipam": dict(ipam), **keys}
        return self.side.runtime({"cniVersion": "1.1.0", "name": name, "plugins": [bridge, *chained]})

    def add(self, runtime: CniRuntime, asked: Mapping[str, Any] | None = None, ifname: str = "eth0") -> None:
        """Attach the first container, c0."""
        with self.side.host.netns.entered():
            runtime.add("c0", self.side.pod.path, ifname, capability_args=asked)

    def refusal(self, work: Callable[[], object]) -> str:
        """Do something on the host; return the refusal, or nothing."""
        try:
            with self.side.host.netns.entered():
                work()
        except CniError as error:
            return str(error)
        return ""

    def leaked(self, word: str) -> list[str]:
        """Rules of the host that mention a word, of each tool and family."""
        commands = (["nft", "list", "ruleset"], ["iptables-save"], ["ip6tables-save"])
        lines = [line.strip() for one in commands for line in self.side.run(self.side.host, *one).splitlines()]
        return [f"left: {line}" for line in lines if word in line]

    def reserved(self) -> list[str]:
        """The addresses that IPAM holds."""
        files = (self.side.folder / "addresses").rglob("10.*")
        return [f"reserved: {path.name}" for path in files]

    def interfaces(self) -> list[str]:
        return [f"link: {name}" for name in self.side.host.links() if name.startswith("veth")]


def status_of_a_full_pool(scene: Scene) -> list[str]:
    runtime = scene.network(ipam=LAST)
    scene.add(runtime)
    refusal = scene.refusal(runtime.status)
    return [] if "code 50:" in refusal and "has 0 of 1 addresses free" in refusal else [f"STATUS: {refusal or 'ready'}"]


def retry_after_a_full_pool(scene: Scene) -> list[str]:
    full = scene.network(ipam=LAST)
    scene.add(full)
    before = scene.interfaces()
    assert "no IP addresses available" in scene.refusal(lambda: full.add("c1", scene.spare.path))
    left = [f"left: {name}" for name in scene.spare.links() if name != "lo"]
    left += ["left: the host's end"] * (len(scene.interfaces()) - len(before))
    retry = scene.refusal(lambda: scene.network().add("c1", scene.spare.path))
    return left + [f"retry: {retry}"] * bool(retry)


def collection(scene: Scene) -> list[str]:
    """The runtime knows its containers no more, as after its state was lost: otherwise it sends DEL itself."""
    runtime = scene.network()
    scene.add(runtime)
    runtime.cache.lose()
    assert scene.refusal(runtime.gc) == ""
    return scene.reserved() + scene.interfaces()


def masquerade(backend: str, netns: str | None) -> Callable[[Scene], list[str]]:
    def scenario(scene: Scene) -> list[str]:
        runtime = scene.network(ipMasq=True, ipMasqBackend=backend)
        scene.add(runtime)
        assert scene.leaked("10.77.0.2") != []
        assert scene.refusal(lambda: runtime.delete("c0", netns)) == ""
        return scene.reserved() + scene.leaked("10.77.0.2")

    return scenario


def one_port_for_two(scene: Scene) -> list[str]:
    runtime = scene.network(PORTMAP)
    scene.add(runtime, MAPPED)
    refusal = scene.refusal(lambda: runtime.add("c1", scene.spare.path, capability_args=MAPPED))
    return [] if "18080" in refusal and "c0" in refusal else [f"second taker: {refusal or 'accepted'}"]


def mappings_that_the_runtime_forgot(scene: Scene) -> list[str]:
    runtime = scene.network(PORTMAP)
    scene.add(runtime, MAPPED)
    assert scene.leaked("18080") != []
    assert scene.refusal(lambda: runtime.delete("c0", scene.side.pod.path, capability_args={})) == ""
    return scene.leaked("18080")


def masquerading_of_an_interface_that_is_gone(scene: Scene) -> list[str]:
    runtime = scene.network(ipMasq=True)
    scene.add(runtime)
    scene.side.run(scene.side.pod, "ip", "link", "delete", "eth0")
    assert scene.refusal(lambda: runtime.delete("c0", scene.side.pod.path)) == ""
    return scene.reserved() + scene.leaked("10.77.0.2")


def mappings_of_another_network(scene: Scene) -> list[str]:
    """One container on two networks, each with a host port: the end of one ends both."""
    first = scene.network({**PORTMAP, "backend": "nftables"})
    other_pool = {"type": "host-local", "subnet": "10.78.0.0/24"}
    second = scene.network({**PORTMAP, "backend": "nftables"}, name="other", bridge="br1", ipam=other_pool)
    scene.add(first, MAPPED)
    scene.add(second, {"portMappings": [{"hostPort": 18081, "containerPort": 80, "protocol": "tcp"}]}, "eth1")
    assert scene.refusal(lambda: second.delete("c0", scene.side.pod.path, "eth1")) == ""
    return scene.leaked("18081") + ["gone: the mapping of the other network"] * (not scene.leaked("18080"))


def another_backend_than_at_add(scene: Scene) -> list[str]:
    before, after = (scene.network({**PORTMAP, "backend": backend}) for backend in ("iptables", "nftables"))
    scene.add(before, MAPPED)
    assert scene.refusal(lambda: after.delete("c0", scene.side.pod.path, capability_args=MAPPED)) == ""
    return scene.leaked("18080")


def two_interfaces_on_one_network(scene: Scene) -> list[str]:
    """The chain of masquerading has no interface in its name: the end of one attachment ends that of both."""
    runtime = scene.network(ipMasq=True, ipMasqBackend="iptables")
    scene.add(runtime)
    scene.add(runtime, ifname="eth1")
    refusal = scene.refusal(lambda: runtime.delete("c0", scene.side.pod.path, "eth1"))
    kept = scene.leaked("10.77.0.2")
    return [f"DEL: {refusal}"] * bool(refusal) + ["gone: the masquerading of eth0"] * (not kept)


def own_namespace(scene: Scene) -> list[str]:
    """A caller that names its own namespace gets a refusal, and nothing else."""
    runtime = scene.network()
    refusal = scene.refusal(lambda: runtime.add("c0", scene.side.host.path))
    left = [f"left: {name}" for name in scene.side.host.links() if name == "eth0" or name.startswith("veth")]
    return left + [f"refusal: {refusal}"] * ("code 8:" not in refusal)


def path_without_its_namespace(scene: Scene) -> list[str]:
    """Whoever unmounts a namespace may leave the file at its path."""
    runtime, path = scene.network(), scene.side.folder / "fleeting"
    with Sandbox(path) as pod, scene.side.host.netns.entered():
        runtime.add("c0", pod.path)
    path.touch()
    refusal = scene.refusal(lambda: runtime.delete("c0", path))
    return [f"DEL: {refusal}"] * bool(refusal) + scene.reserved()


@dataclass(frozen=True)
class Defect:
    """A scenario, and what the reference comes to in it.

    Attributes:
        seen: patterns; each matches one of the reference's sentences, and each sentence one of them.
    """

    scenario: Callable[[Scene], list[str]]
    seen: tuple[str, ...]


JUMP = r"left: .*10\.77\.0\.2.* CNI-[0-9a-f]{24}"
PORT_RULES = r"left: .*18080"
DEFECTS: Mapping[str, Defect] = {
    "status-of-a-full-pool": Defect(status_of_a_full_pool, ("STATUS: ready",)),
    "a-full-pool-leaves-interfaces": Defect(
        retry_after_a_full_pool, ("left: eth0", "left: the host's end", r'retry: .*"eth0".* already exists')
    ),
    "gc-frees-nothing": Defect(collection, (r"reserved: 10\.77\.0\.2", "link: veth")),
    "del-without-a-namespace-leaves-masquerading": Defect(masquerade("iptables", None), (JUMP,)),
    "del-of-a-gone-namespace-leaves-masquerading": Defect(masquerade("iptables", "/no/such"), (JUMP,)),
    "the-same-with-nftables": Defect(masquerade("nftables", None), (r"left: ip saddr 10\.77\.0\.2 .* masquerade",)),
    "one-host-port-for-two": Defect(one_port_for_two, ("second taker: accepted",)),
    "del-without-mappings-leaves-rules": Defect(mappings_that_the_runtime_forgot, (PORT_RULES,)),
    # Beyond the six: their causes are read in its source.
    "del-of-a-gone-interface-leaves-masquerading": Defect(masquerading_of_an_interface_that_is_gone, (JUMP,)),
    "del-ends-mappings-of-another-network": Defect(mappings_of_another_network, ("gone: the mapping",)),
    "del-with-another-backend-leaves-rules": Defect(another_backend_than_at_add, (PORT_RULES,)),
    "two-interfaces-on-one-network": Defect(two_interfaces_on_one_network, (r"DEL: .* CNI-[0-9a-f]{24}",)),
    "del-fails-while-a-file-is-where-the-namespace-was": Defect(
        path_without_its_namespace, ("DEL: .* unknown FS magic", r"reserved: 10\.77\.0\.2")
    ),
    "own-namespace-is-refused-too-late": Defect(
        own_namespace, ("left: eth0", "left: veth", "refusal: .* error parsing its diagnostic message")
    ),
}


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts and containers of its own."""
    with node_with(*PLUGINS) as made:
        yield made


@pytest.mark.parametrize("name", DEFECTS)
def test_the_reference_has_a_defect_and_ours_has_not(
    short_path: Path, node: ScratchNode, consumer: Callable[[str], Path], name: str
) -> None:
    defect = DEFECTS[name]
    found = []
    with twins(short_path, consumer("cni"), node.paths.cni_bin, kinds=((), PLUGINS)) as sides:
        for side in sides:
            with Sandbox(side.folder / "spare") as spare:
                found.append(defect.scenario(Scene(side, spare)))
    theirs, ours = found
    assert ours == []
    assert [one for one in defect.seen if not any(re.match(one, said) for said in theirs)] == []
    assert [said for said in theirs if not any(re.match(one, said) for one in defect.seen)] == []

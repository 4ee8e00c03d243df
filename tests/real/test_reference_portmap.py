"""The reference's portmap and ours: the same ports lead to the same containers, whoever made bridge and ports.

`old` are Debian's plugins, which know no nftables; `current` are today's.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.node.outside import connect
from tests.node.portmap.lab import DATAGRAM, STREAM, ask, end_servers, mapping, serve
from tests.real.moving import DEBIAN, DUAL, KEEPERS, PATH, PROGRAMS, refuse_missing_programs, use

from nodeplug.testing import CONTAINERD, CniError, CniRuntime, Sandbox, ScratchNode
from nodeplug.testing.scratch_cni import run_in

TOML = "[plugins.bridge]\n[plugins.portmap]\n"
VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
OURS, THEIRS = "nodeplug-portmap", "portmap"


@dataclass
class Twin:
    """A "host" with containers and somebody outside; each ADD says whose bridge and whose portmap it is.

    Attributes:
        keeper: who keeps the reference's rules.
    """

    folder: Path
    reference: Path
    node: ScratchNode
    host: Sandbox
    outside: Sandbox
    stack: ExitStack
    keeper: str = "iptables-nft"
    pods: dict[str, Sandbox] = field(default_factory=dict)

    def runtime(self, portmap: str, bridge: str = "nodeplug-bridge", version: str = "1.0.0", **keys: Any) -> CniRuntime:
        ipam = {"type": "host-local", "dataDir": str(self.folder / "addresses"), "ranges": DUAL}
        first = {"type": bridge, "bridge": "br0", "isDefaultGateway": True, "hairpinMode": True, "ipam": ipam}
        second = {"type": portmap, "capabilities": {"portMappings": True}, **keys}
        if portmap == THEIRS and self.keeper == "nftables":
            second["backend"] = "nftables"
        folders = [self.reference, self.node.paths.cni_bin]
        env = {"PATH": f"{self.folder / 'bin'}:{PATH}"}
        conflist = {"cniVersion": version, "name": "twin", "plugins": [first, second]}
        return CniRuntime(conflist, folders, env=env, cache_dir=self.folder / "cache", style=CONTAINERD)

    def add(self, runtime: CniRuntime, container: str, *mappings: Mapping[str, Any]) -> dict[str, Any]:
        self.pods[container] = pod = self.stack.enter_context(Sandbox(self.folder / f"pod-{container}"))
        with self.host.netns.entered():
            return dict(runtime.add(container, pod.path, capability_args={"portMappings": list(mappings)}))

    def delete(self, runtime: CniRuntime, container: str, netns: Path | None, *mappings: Mapping[str, Any]) -> None:
        with self.host.netns.entered():
            runtime.delete(container, netns, capability_args={"portMappings": list(mappings)})

    def check(self, runtime: CniRuntime, container: str) -> None:
        with self.host.netns.entered():
            runtime.check(container)

    def run(self, *command: str) -> str:
        words = ["nsenter", f"--net={self.host.path}", *command]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rules(self) -> list[str]:
        """Every line about containers, wherever rules are kept."""
        lines = self.run("nft", "list", "ruleset").splitlines()
        for program in PROGRAMS:
            lines += self.run(f"{program}-legacy-save").splitlines()
        return [one.strip() for one in lines if any(word in one for word in ("CNI-DN", "CNI-SN", "10.77.0.", "fd77::"))]

    def answers(self) -> dict[str, str]:
        """Ask for each port in each way; who answers, and whom it saw."""
        wheres = {"outside": self.outside, "itself": self.pods["c1"], "neighbour": self.pods["c2"], "host": self.host}
        ways = [
            (where, address, port, kind)
            for where in wheres
            for address, port, kind in (
                ("192.0.2.1", 8080, STREAM),
                ("192.0.2.1", 8081, DATAGRAM),
                ("192.0.2.1", 8082, STREAM),
                ("2001:db8::1", 8080, STREAM),
                ("127.0.0.1", 8080, STREAM),
            )
            if where == "host" or address != "127.0.0.1"
        ]
        return {
            f"{where} {address} {port}": run_in(wheres[where].netns, lambda: ask(address, port, kind))  # noqa: B023
            for where, address, port, kind in ways
        }


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has a "host" and addresses of its own."""
    with TemporaryDirectory(prefix="np-", dir="/tmp") as root, ScratchNode(Path(root), TOML) as made:
        assert made.run("install").returncode == 0
        yield made
        sys.stdout.write(made.log)  # shown when the last test fails


@pytest.fixture
def twin(short_path: Path, generation: str, consumer: Callable[[str], Path], node: ScratchNode) -> Iterator[Twin]:
    refuse_missing_programs(generation)
    (short_path / "bin").mkdir()
    with ExitStack() as stack:
        host, outside = (stack.enter_context(Sandbox(short_path / name)) for name in ("host", "outside"))
        reference = consumer("cni") if generation == "current" else DEBIAN
        connect(host.netns, outside.netns)
        yield Twin(short_path, reference, node, host, outside, stack)
        end_servers()


@pytest.fixture(params=KEEPERS)
def kept(twin: Twin, request: pytest.FixtureRequest) -> Twin:
    use(twin, request.param)
    return twin


EVERY = pytest.mark.parametrize(
    ("generation", "kept"),
    [("old", KEEPERS[0]), ("old", KEEPERS[1]), *(("current", keeper) for keeper in KEEPERS)],
    indirect=True,
)
PORTS = (mapping(8080), mapping(8081, 80, "udp"), mapping(8082, 80, hostIP="192.0.2.1"))
ROADS = [("bridge", OURS), ("nodeplug-bridge", OURS), ("nodeplug-bridge", THEIRS)]


@pytest.mark.parametrize("generation", ["current"], indirect=True)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("bridge", ["bridge", "nodeplug-bridge"])
def test_the_result_is_the_bridges_in_every_version(twin: Twin, version: str, bridge: str) -> None:
    use(twin, "iptables-nft")
    theirs = twin.add(twin.runtime(THEIRS, bridge, version), "c1", *PORTS)
    ours = twin.add(twin.runtime(OURS, bridge, version), "c2", mapping(9090))
    assert set(ours) == set(theirs)
    assert [one["name"] for one in ours["interfaces"]][2] == "eth0"
    assert [set(one) for one in ours["ips"]] == [set(one) for one in theirs["ips"]]


def probed(twin: Twin, bridge: str, portmap: str, **keys: Any) -> dict[str, str]:
    twin.add(twin.runtime(portmap, bridge, **keys), "c1", *PORTS)
    twin.add(twin.runtime(portmap, bridge, **keys), "c2")
    for kind in (STREAM, DATAGRAM):
        serve(twin.pods["c1"].netns, 80, kind, b"c1")
    return twin.answers()


@pytest.mark.parametrize("generation", ["current"], indirect=True)
@pytest.mark.parametrize(("bridge", "portmap"), [("bridge", THEIRS), *ROADS])
def test_every_port_answers_everybody_as_with_the_reference(twin: Twin, bridge: str, portmap: str) -> None:
    use(twin, "iptables-nft")
    found = probed(twin, bridge, portmap)
    assert found == {
        "outside 192.0.2.1 8080": "c1 192.0.2.2",
        "outside 192.0.2.1 8081": "c1 192.0.2.2",
        "outside 192.0.2.1 8082": "c1 192.0.2.2",
        "outside 2001:db8::1 8080": "c1 2001:db8::2",
        "itself 192.0.2.1 8080": "c1 10.77.0.1",
        "itself 192.0.2.1 8081": "c1 10.77.0.1",
        "itself 192.0.2.1 8082": "c1 10.77.0.1",
        "itself 2001:db8::1 8080": "c1 fd77::1",
        "neighbour 192.0.2.1 8080": "c1 10.77.0.1",
        "neighbour 192.0.2.1 8081": "c1 10.77.0.1",
        "neighbour 192.0.2.1 8082": "c1 10.77.0.1",
        "neighbour 2001:db8::1 8080": "c1 fd77::1",
        "host 192.0.2.1 8080": "c1 192.0.2.1",
        "host 192.0.2.1 8081": "c1 192.0.2.1",
        "host 192.0.2.1 8082": "c1 192.0.2.1",
        "host 2001:db8::1 8080": "c1 2001:db8::1",
        "host 127.0.0.1 8080": "c1 10.77.0.1",
    }


@pytest.mark.parametrize("generation", ["current"], indirect=True)
@pytest.mark.parametrize(
    "mistake",
    [
        {"markMasqBit": 32},
        {"markMasqBit": 1, "externalSetMarkChain": "X"},
        {"backend": "pf"},
        {"backend": "nftables", "conditionsV4": ["-s", "10.0.0.0/8"]},
    ],
)
def test_a_mistake_has_the_references_sentence(twin: Twin, mistake: dict[str, Any]) -> None:
    use(twin, "iptables-nft")
    said = []
    for portmap in (THEIRS, OURS):
        with pytest.raises(CniError) as refused:
            twin.add(twin.runtime(portmap, **mistake), f"c-{portmap}", mapping(8080))
        said.append(refused.value.msg)
    assert said[1] == said[0]


@pytest.mark.parametrize("generation", ["current"], indirect=True)
@pytest.mark.parametrize("wrong", [mapping(0), mapping(8080, 0), mapping(-1)])
def test_a_wrong_port_has_the_references_sentence(twin: Twin, wrong: dict[str, Any]) -> None:
    use(twin, "iptables-nft")
    said = []
    for portmap in (THEIRS, OURS):
        with pytest.raises(CniError) as refused:
            twin.add(twin.runtime(portmap), f"c-{portmap}", wrong)
        said.append(refused.value.msg)
    assert said[1] == said[0]


@EVERY
def test_a_container_of_the_reference_is_checked(kept: Twin) -> None:
    kept.add(kept.runtime(THEIRS), "c1", *PORTS)
    kept.check(kept.runtime(OURS), "c1")


@EVERY
def test_a_check_of_it_notices_lost_rules(kept: Twin) -> None:
    kept.add(kept.runtime(THEIRS), "c1", *PORTS)
    kept.run("nft", "flush", "ruleset")
    for program in PROGRAMS:
        kept.run(f"{program}-legacy", "-t", "nat", "-F")
    with pytest.raises(CniError, match="host port 8080/tcp does not lead to the container"):
        kept.check(kept.runtime(OURS), "c1")


@EVERY
def test_its_end_leaves_nothing_and_keeps_the_others(kept: Twin) -> None:
    kept.add(kept.runtime(THEIRS), "c1", *PORTS)
    kept.add(kept.runtime(THEIRS), "c2", mapping(9090))
    kept.delete(kept.runtime(OURS), "c1", kept.pods["c1"].path, *PORTS)
    serve(kept.pods["c2"].netns, 80, STREAM, b"c2")
    assert run_in(kept.outside.netns, lambda: ask("192.0.2.1", 9090, STREAM)) == "c2 192.0.2.2"
    kept.delete(kept.runtime(OURS), "c2", None, mapping(9090))
    assert kept.rules() == []


@pytest.mark.parametrize(
    ("generation", "kept"), [("current", "iptables-nft"), ("current", "iptables-legacy")], indirect=True
)
def test_gc_ends_ports_of_the_reference_that_are_not_valid(kept: Twin) -> None:
    kept.add(kept.runtime(THEIRS), "c1", *PORTS)
    kept.add(kept.runtime(THEIRS), "c2", mapping(9090))
    with kept.host.netns.entered():
        kept.runtime(OURS, version="1.1.0").gc([("c2", "eth0")])
    serve(kept.pods["c2"].netns, 80, STREAM, b"c2")
    assert run_in(kept.outside.netns, lambda: ask("192.0.2.1", 9090, STREAM)) == "c2 192.0.2.2"
    assert not [one for one in kept.rules() if "8080" in one or "8081" in one]

"""Keys of the reference's bridge beyond its first ones: what its current release does with each, and what ours does.

Both work in namespaces of their own with the same configuration, or on one host, where either ends what the other
began.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode, folders

TYPES = {"reference": "bridge", "ours": "nodeplug-bridge"}
WHOSE = pytest.mark.parametrize("whose", TYPES)
IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}


@dataclass(frozen=True)
class Host:
    """A host namespace with a folder of its own, where either program is called."""

    folder: Path
    bins: Mapping[str, Path]
    sandbox: Sandbox
    stack: ExitStack

    def runtime(self, whose: str, keys: Mapping[str, Any]) -> CniRuntime:
        plugin = {"type": TYPES[whose], "bridge": "br0", "ipMasqBackend": "nftables", **keys}
        if "ipam" in plugin:
            plugin["ipam"] = {**plugin["ipam"], "dataDir": str(self.folder / "addresses")}
        conflist = {"cniVersion": "1.0.0", "name": "keys", "plugins": [plugin]}
        return CniRuntime(conflist, [self.bins[whose]], cache_dir=self.folder / "cache")

    def add(self, whose: str, keys: Mapping[str, Any], container: str = "c0") -> tuple[Sandbox, dict[str, Any]]:
        pod = self.stack.enter_context(Sandbox(self.folder / f"pod-{container}"))
        with self.sandbox.netns.entered():
            return pod, dict(self.runtime(whose, keys).add(container, pod.path))

    def check(self, whose: str, keys: Mapping[str, Any], container: str = "c0") -> None:
        with self.sandbox.netns.entered():
            self.runtime(whose, keys).check(container)

    def delete(self, whose: str, keys: Mapping[str, Any], pod: Sandbox, container: str = "c0") -> None:
        with self.sandbox.netns.entered():
            self.runtime(whose, keys).delete(container, pod.path)

    def run(self, *command: str, where: Sandbox | None = None) -> str:
        command = ("nsenter", f"--net={(where or self.sandbox).path}", *command)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rules(self) -> list[Any]:
        """What nft(8) has of tables of bridges, as JSON, without numbers that differ by chance."""
        found = json.loads(self.run("nft", "-j", "list", "ruleset", "bridge"))["nftables"][1:]
        return [{kind: {**one, "handle": 0} for kind, one in entry.items()} for entry in found]


@pytest.fixture(scope="module")
def bins(consumer: Callable[[str], Path]) -> Iterator[Mapping[str, Path]]:
    """Both programs; ours with one daemon for all tests."""
    reference, root = consumer("cni"), Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with ScratchNode(root, "[plugins.bridge]\n[plugins.host-local]\n") as node:
            assert node.run("install").returncode == 0
            yield {"reference": reference, "ours": node.paths.cni_bin}
    finally:
        folders.remove(root)


@pytest.fixture
def make_host(short_path: Path, bins: Mapping[str, Path]) -> Iterator[Callable[[str], Host]]:
    for program, package in (("ip", "iproute2"), ("nft", "nftables"), ("strace", "strace")):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} of the package {package}")
    with ExitStack() as stack:

        def make(name: str) -> Host:
            folder = short_path / name
            folder.mkdir()
            return Host(folder, bins, stack.enter_context(Sandbox(folder / "host")), stack)

        yield make


@pytest.fixture
def host(make_host: Callable[[str], Host]) -> Host:
    return make_host("h")


@pytest.fixture
def twins(make_host: Callable[[str], Host]) -> dict[str, Host]:
    return {whose: make_host(whose) for whose in TYPES}


def nameless(document: Any) -> Any:
    """Replace names and addresses of interfaces, which are drawn."""
    text = re.sub(r"veth[0-9a-f]{8}", "VETH", json.dumps(document))
    return json.loads(re.sub(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", "MAC", text))


# --- macspoofchk -----------------------------------------------------------------------------------------------------

SPOOF = {"macspoofchk": True, "isGateway": True, "ipMasq": True, "ipam": IPAM}


def test_the_rules_of_macspoofchk_are_those_of_the_reference(twins: dict[str, Host]) -> None:
    for whose, host in twins.items():
        for container in ("c0", "c1"):
            host.add(whose, SPOOF, container)
    theirs, ours = (nameless(host.rules()) for host in twins.values())
    assert ours == theirs
    assert len([entry for entry in ours if "rule" in entry]) == 8


@pytest.mark.parametrize(("begins", "ends"), [("reference", "ours"), ("ours", "reference"), ("ours", "ours")])
def test_either_ends_the_macspoofchk_of_the_other(host: Host, begins: str, ends: str) -> None:
    host.add(begins, SPOOF, "c1")
    others = host.rules()
    pod, _ = host.add(begins, SPOOF)
    host.check("ours", SPOOF)
    host.delete(ends, SPOOF, pod)
    assert host.rules() == others


def test_a_check_of_a_container_of_the_reference_notices_lost_rules(host: Host) -> None:
    host.add("reference", SPOOF)
    host.run("nft", "flush", "chain", "bridge", "nat", "PREROUTING")
    with pytest.raises(CniError, match=r"frames from veth[0-9a-f]{8} are not checked"):
        host.check("ours", SPOOF)


@WHOSE
def test_a_collection_leaves_the_macspoofchk_of_who_is_there(host: Host, whose: str) -> None:
    host.add(whose, SPOOF)
    before = host.rules()
    runtime = host.runtime("ours", SPOOF)
    runtime.conflist = {**runtime.conflist, "cniVersion": "1.1.0"}
    with host.sandbox.netns.entered():
        runtime.gc([("c0", "eth0")])
    assert host.rules() == before

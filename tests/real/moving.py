"""A network that changes between the reference's plugins and ours, on a "host" of its own."""

import json
import os
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.programs import need

from nodeplug.testing import CniRuntime, Sandbox, ScratchNode, forked

DEBIAN = Path("/usr/lib/cni")
DUAL = [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]
PROGRAMS = ("iptables", "ip6tables")
KEEPERS = ["iptables-nft", "iptables-legacy", "nftables"]
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Mover:
    """A network whose type changes between the reference's bridge and ours, on a "host" of its own.

    Attributes:
        keeper: who keeps the reference's rules.
        asked: capability arguments of every call.
    """

    folder: Path
    reference: Path
    node: ScratchNode
    host: Sandbox
    stack: ExitStack
    keeper: str = "iptables-nft"
    asked: dict[str, Any] = field(default_factory=dict)

    def runtime(self, kind: str, **keys: Any) -> CniRuntime:
        """A runtime with the network's configuration of today; all share one cache of results."""
        ipam = {"type": "host-local", "dataDir": str(self.folder / "addresses"), "ranges": DUAL}
        plugin = {"type": kind, "bridge": "br0", "isDefaultGateway": True, "ipMasq": True, "ipam": ipam, **keys}
        if self.keeper == "nftables" and kind == "bridge":
            plugin["ipMasqBackend"] = "nftables"
        conflist = {"cniVersion": "1.0.0", "name": "moving", "plugins": [plugin]}
        folder = self.reference if kind == "bridge" else self.node.paths.cni_bin
        env = {"PATH": f"{self.folder / 'bin'}:{PATH}"}
        return CniRuntime(conflist, [folder], env=env, cache_dir=self.folder / "cache")

    def add(self, kind: str, container: str, ifname: str = "eth0", pod: Sandbox | None = None) -> Sandbox:
        pod = pod or self.stack.enter_context(Sandbox(self.folder / f"pod-{container}"))
        with self.host.netns.entered():
            self.runtime(kind).add(container, pod.path, ifname, capability_args=self.asked)
        return pod

    def delete(self, kind: str, container: str, netns: Path | None, ifname: str = "eth0") -> None:
        with self.host.netns.entered():
            self.runtime(kind).delete(container, netns, ifname, capability_args=self.asked)

    def run(self, *command: str) -> str:
        done = subprocess.run(
            ["nsenter", f"--net={self.host.path}", *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rules(self) -> list[str]:
        """Every line about containers, wherever rules are kept."""
        lines = self.run("nft", "list", "ruleset").splitlines()
        for program in PROGRAMS:
            lines += self.run(f"{program}-legacy-save").splitlines()
        return [line.strip() for line in lines if any(word in line for word in ("CNI-", "10.77.0.", "fd77::"))]

    def addresses(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "addresses/moving").iterdir() if path.name[0] in "1f")

    def ports(self) -> list[str]:
        shown = self.run("ip", "-j", "link", "show", "master", "br0")
        return [link["ifname"] for link in json.loads(shown or "[]") if link]


def refuse_missing_programs(generation: str) -> None:
    """Skip a test without the programs that keep rules, or without Debian's plugins where it needs them."""
    need("ip", "nft", "iptables-legacy")
    if generation == "old" and not (DEBIAN / "bridge").exists():
        pytest.skip("containernetworking-plugins is missing: apt-get install containernetworking-plugins")


class Keeping(Protocol):
    """Where somebody keeps the reference's rules."""

    folder: Path
    keeper: str


def use(mover: Keeping, keeper: str) -> None:
    """Choose who keeps the rules, as update-alternatives(1) would, or skip what Debian's plugins do not know."""
    mover.keeper = keeper
    for program in PROGRAMS if keeper != "nftables" else ():
        found = shutil.which(program.replace("tables", f"tables-{keeper.removeprefix('iptables-')}"), path=PATH)
        assert found is not None
        (mover.folder / "bin" / program).symlink_to(found)


def hand_over(mover: Mover, *more: str) -> list[dict[str, Any]]:
    """Run the command on the "host", and return what it tells."""
    paths = ["--data-dir", str(mover.folder / "addresses"), "--run-dir", str(mover.node.paths.run)]
    with mover.host.netns.entered():
        done = forked.run("nodeplug", ["net", "to-reference", *paths, "--json", *more], os.environ)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))

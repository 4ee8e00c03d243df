"""The whole chain: a runtime executes each entrypoint, and the daemon nothing."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.node.executions import executions

from nodeplug.testing import CniRuntime, Sandbox, ScratchNode

PLUGINS = ("bridge", "portmap", "bandwidth", "tuning", "firewall")
RATES = {"ingressRate": 10**8, "ingressBurst": 10**6, "egressRate": 10**8, "egressBurst": 10**6}
RANGES = [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]
KEYS: Mapping[str, Mapping[str, Any]] = {
    "bridge": {"bridge": "br0", "isDefaultGateway": True, "ipMasq": True},
    "portmap": {"capabilities": {"portMappings": True}},
    "bandwidth": RATES,
    "tuning": {"sysctl": {"net.core.somaxconn": "500"}, "mtu": 1400},
    "firewall": {"ingressPolicy": "same-bridge"},
}
ASKED = {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    toml = "".join(f"[plugins.{name}]\n" for name in PLUGINS)
    with TemporaryDirectory(prefix="np-", dir="/tmp") as root, ScratchNode(Path(root), toml, fork=True) as made:
        assert made.run("install").returncode == 0
        yield made


@pytest.mark.whole
def test_a_container_of_the_whole_chain_is_attached_checked_and_ended_without_a_program(
    node: ScratchNode, short_path: Path
) -> None:
    plugins: list[dict[str, Any]] = [{"type": f"nodeplug-{name}", **KEYS[name]} for name in PLUGINS]
    plugins[0]["ipam"] = {"type": "host-local", "dataDir": str(short_path / "addresses"), "ranges": RANGES}
    conflist = {"cniVersion": "1.0.0", "name": "chain", "plugins": plugins}
    runtime = CniRuntime(conflist, [node.paths.cni_bin], cache_dir=short_path / "cache")
    with (
        Sandbox(short_path / "host") as host,
        Sandbox(short_path / "pod") as pod,
        executions(node.pid, short_path) as executed,
        host.netns.entered(),
    ):
        runtime.add("c0", pod.path, capability_args=ASKED)
        runtime.check("c0")
        runtime.delete("c0", pod.path, capability_args=ASKED)
    assert (executed, len(runtime.executions)) == ([], 3 * len(PLUGINS))


@pytest.mark.programs("strace")
def test_what_is_executed_is_seen(tmp_path: Path) -> None:
    shell = subprocess.Popen(["/bin/sh", "-c", "read go; /bin/true; exec /bin/true"], stdin=subprocess.PIPE)
    with executions(shell.pid, tmp_path) as executed:
        shell.communicate(b"go\n")
    assert len(executed) == 2

"""The whole road: a bridge that asks for IPAM `nodeplug-dhcp`, a daemon that is killed, and the next one."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.programs import need

from nodeplug.testing import CONTAINERD, CniRuntime, Sandbox, ScratchNode
from nodeplug.testing.waiting import until

CONF = """
interface srv0
start 10.99.0.10
end 10.99.0.13
lease_file {folder}/leases
pidfile {folder}/pid
option subnet 255.255.255.0
option lease 20
"""
"""A lease is prolonged after 10 s: dnsmasq grants none shorter than two minutes."""
NETWORK = {"type": "nodeplug-bridge", "bridge": "br0", "ipam": {"type": "nodeplug-dhcp"}}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.whole
def test_a_lease_outlives_a_daemon_that_is_killed(short_path: Path, stack: ExitStack) -> None:
    need("busybox", "ip", "nsenter")
    host, pod, beside = (stack.enter_context(Sandbox(short_path / name)) for name in ("host", "pod", "beside"))

    def ip(where: Sandbox, *words: str) -> None:
        subprocess.run(["nsenter", f"--net={where.path}", "ip", *words], check=True)

    ip(host, "link", "add", "br0", "type", "bridge")
    ip(host, "link", "set", "br0", "up")
    ip(host, "link", "add", "vsrv", "type", "veth", "peer", "name", "srv0", "netns", str(beside.path))
    ip(host, "link", "set", "vsrv", "master", "br0", "up")
    ip(beside, "addr", "add", "10.99.0.1/24", "dev", "srv0")
    ip(beside, "link", "set", "srv0", "up")
    log = short_path / "log"
    (short_path / "leases").touch()
    (short_path / "conf").write_text(CONF.format(folder=short_path))
    with log.open("wb") as stream:
        words = ["nsenter", f"--net={beside.path}", "busybox", "udhcpd", "-f", "-v", str(short_path / "conf")]
        server = subprocess.Popen(words, stdout=stream, stderr=stream)
    stack.callback(server.wait)
    stack.callback(server.terminate)
    until(lambda: "started" in log.read_text(), found=log.read_text)

    def acks() -> int:
        return log.read_text().count("sending ACK")

    (short_path / "n").mkdir()
    with ScratchNode(short_path / "n", "[plugins.bridge]\n[plugins.dhcp]\n", fork=True) as node:
        assert node.run("install").returncode == 0
        document = {"cniVersion": "1.1.0", "name": "net", "plugins": [NETWORK]}
        runtime = CniRuntime(document, [node.paths.cni_bin], style=CONTAINERD)
        with host.netns.entered():
            result = runtime.add("c1", pod.path)
            runtime.check("c1")
        assert result["ips"][0]["address"].startswith("10.99.0.1")
        until(lambda: acks() >= 2, found=log.read_text)
        node.kill()
        before = acks()
        assert len(list((short_path / "n").rglob("dhcp/leases/*.json"))) == 1
        node.start()
        until(lambda: acks() > before, found=log.read_text)
        with host.netns.entered():
            runtime.check("c1")
            runtime.delete("c1", pod.path)
        assert not list((short_path / "n").rglob("dhcp/leases/*.json"))
        assert pod.links() == ("lo",)

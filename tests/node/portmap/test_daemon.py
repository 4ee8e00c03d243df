"""The whole road: an entrypoint, a daemon in the host's namespace, and the next daemon."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.node.portmap.lab import mapping

from nodeplug.testing import CONTAINERD, CniError, CniRuntime, Sandbox, ScratchNode
from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until

TOML = "[plugins.bridge]\n[plugins.portmap]\n"
IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}
PORT = {"portMappings": [mapping(8080)]}


Make = Callable[[str], Sandbox]


@pytest.fixture
def sandbox(short_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Sandbox(short_path / name))


@pytest.fixture
def host(sandbox: Make) -> Sandbox:
    return sandbox("host")


@pytest.fixture
def node(short_path: Path, host: Sandbox) -> Iterator[ScratchNode]:
    (short_path / "n").mkdir()
    one = ScratchNode(short_path / "n", TOML, fork=True)
    run_in(host.netns, one.start)
    assert one.run("install").returncode == 0
    yield one
    with suppress(Exception):
        os.kill(int(one.status()["pid"]), signal.SIGKILL)
    one.kill()


@pytest.fixture
def runtime(node: ScratchNode, short_path: Path) -> CniRuntime:
    ipam = {**IPAM, "dataDir": str(short_path / "addresses")}
    plugins = [
        {"type": "nodeplug-bridge", "bridge": "br0", "isGateway": True, "ipam": ipam},
        {"type": "nodeplug-portmap", "capabilities": {"portMappings": True}},
    ]
    return CniRuntime(
        {"cniVersion": "1.0.0", "name": "net", "plugins": plugins}, [node.paths.cni_bin], style=CONTAINERD
    )


def add(host: Sandbox, runtime: CniRuntime, pod: Sandbox, container: str = "c1") -> None:
    with host.netns.entered():
        runtime.attach(container, pod.path, capability_args=PORT)


def taken(host: Sandbox) -> bool:
    def bind() -> bool:
        with socket.socket() as made:
            try:
                made.bind(("0.0.0.0", 8080))
            except OSError:
                return True
        return False

    return run_in(host.netns, bind)


def test_a_second_pod_is_told_in_its_cni_error_who_has_the_port(
    host: Sandbox, runtime: CniRuntime, sandbox: Make
) -> None:
    one, other = sandbox("p1"), sandbox("p2")
    add(host, runtime, one)
    with pytest.raises(CniError) as refused:
        add(host, runtime, other, "c2")
    assert (refused.value.code, "host port 8080/tcp belongs to 'nodeplug net c1 eth0'" in refused.value.msg) == (
        11,
        True,
    )
    assert other.links() == ("lo",)
    with host.netns.entered():
        runtime.detach("c1", one.path, capability_args=PORT)
    add(host, runtime, other, "c2")


def test_ports_are_reserved_again_after_the_daemon_was_killed(
    host: Sandbox, node: ScratchNode, runtime: CniRuntime, sandbox: Make
) -> None:
    add(host, runtime, sandbox("p1"))
    node.kill()
    assert not taken(host)
    run_in(host.netns, node.start)
    assert taken(host)


@pytest.mark.whole
def test_ports_are_reserved_by_the_daemon_that_takes_over(
    host: Sandbox, node: ScratchNode, runtime: CniRuntime, sandbox: Make
) -> None:
    pod = sandbox("p1")
    add(host, runtime, pod)
    before = int(node.status()["pid"])
    done = node.run("replace", "--json")
    assert done.returncode == 0, done.stderr + node.log
    assert json.loads(done.stdout)["successor"] == int(node.status()["pid"]) != before
    until(lambda: taken(host))
    with host.netns.entered():
        runtime.detach("c1", pod.path, capability_args=PORT)
    assert not taken(host)

"""No program of the host gets a container's port while the daemon, or the plugin in it, is exchanged."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.node.portmap.lab import mapping
from tests.programs import need

from nodeplug.testing import CONTAINERD, CniRuntime, Sandbox, ScratchNode
from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until

PROBE = """
import errno, signal, socket, time
KINDS = {socket.SOCK_STREAM: 0, socket.SOCK_DGRAM: 0}
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
print("probing", flush=True)
tries = 0
while not told:
    for kind in KINDS:
        for reuse in (False, True):
            with socket.socket(socket.AF_INET, kind) as made:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse)
                try:
                    made.bind(("0.0.0.0", 8080))
                    KINDS[kind] += 1
                except OSError as error:
                    assert error.errno == errno.EADDRINUSE, error
    tries += 1
    time.sleep(0.0005)
print(tries, *KINDS.values(), flush=True)
"""
"""A program with root's rights that wants the port, with and without SO_REUSEPORT."""
Make = Callable[[str], Sandbox]


@pytest.fixture
def sandbox(short_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Sandbox(short_path / name))


@pytest.fixture
def host(sandbox: Make) -> Sandbox:
    return sandbox("host")


@pytest.fixture(params=[pytest.param("thread", marks=pytest.mark.whole), "process"])
def node(short_path: Path, host: Sandbox, request: pytest.FixtureRequest) -> Iterator[ScratchNode]:
    (short_path / "n").mkdir()
    toml = f'[plugins.bridge]\n[plugins.portmap]\nisolation = "{request.param}"\n'
    one = ScratchNode(short_path / "n", toml, fork=True)
    run_in(host.netns, one.start)
    assert one.run("install").returncode == 0
    yield one
    with suppress(Exception):
        os.kill(int(one.status()["pid"]), signal.SIGKILL)
    one.kill()


@pytest.fixture
def pod(node: ScratchNode, host: Sandbox, sandbox: Make, short_path: Path) -> Callable[[], None]:
    """Attach a container with a port; what is returned detaches it."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "dataDir": str(short_path / "addresses")}
    plugins = [
        {"type": "nodeplug-bridge", "bridge": "br0", "isGateway": True, "ipam": ipam},
        {"type": "nodeplug-portmap", "capabilities": {"portMappings": True}},
    ]
    conflist = {"cniVersion": "1.0.0", "name": "net", "plugins": plugins}
    runtime, container = CniRuntime(conflist, [node.paths.cni_bin], style=CONTAINERD), sandbox("p1")
    ports = {"portMappings": [mapping(8080), mapping(8080, protocol="udp")]}
    with host.netns.entered():
        runtime.attach("c1", container.path, capability_args=ports)

    def detach() -> None:
        with host.netns.entered():
            runtime.detach("c1", container.path, capability_args=ports)

    return detach


@contextmanager
def probing(host: Sandbox) -> Iterator[list[int]]:
    """Try to get the port all the time, in another process; in the end, say how often and with what success."""
    need("nsenter")
    command = ["nsenter", f"--net={host.path}", sys.executable, "-c", PROBE]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    found: list[int] = []
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "probing\n"
        yield found
        program.terminate()
        found += map(int, program.stdout.read().split())
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


def replace(node: ScratchNode) -> None:
    before = int(node.status()["pid"])
    done = node.run("replace", "--json")
    assert done.returncode == 0, done.stderr + node.log
    assert json.loads(done.stdout)["successor"] == int(node.status()["pid"]) != before
    until(lambda: state(node) == "running")


def state(node: ScratchNode) -> str:
    (row,) = [row for row in node.status()["plugins"] if row["name"] == "portmap"]
    return str(row["state"])


def renew(node: ScratchNode) -> None:
    done = node.run("reload", "portmap")
    assert done.returncode == 0, done.stderr + node.log
    until(lambda: state(node) == "running")


def free(host: Sandbox) -> bool:
    def bind() -> bool:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as made:
                try:
                    made.bind(("0.0.0.0", 8080))
                except OSError:
                    return False
        return True

    return run_in(host.netns, bind)


@pytest.mark.parametrize("exchange", [pytest.param(replace, marks=pytest.mark.whole), renew])
def test_nobody_gets_a_reserved_port_meanwhile(
    node: ScratchNode, host: Sandbox, pod: Callable[[], None], exchange: Callable[[ScratchNode], None]
) -> None:
    with probing(host) as found:
        for _ in range(2):
            exchange(node)
    tries, *successes = found
    assert (tries > 0, successes) == (True, [0, 0])
    pod()
    assert free(host)  # the end of the container is known to whoever serves now


@pytest.mark.whole
def test_ports_are_free_once_the_section_is_gone(node: ScratchNode, host: Sandbox, pod: Callable[[], None]) -> None:
    assert not free(host)
    node.configure("[plugins.bridge]\n")
    until(lambda: [row["name"] for row in node.status()["plugins"]] == ["bridge"])
    until(lambda: free(host))

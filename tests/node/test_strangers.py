"""What other users of the node can do to the daemon through its HTTP address: nothing."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from nodeplug.testing import Sandbox, ScratchNode

PLUGIN = """
from nodeplug import CniClaim, CniResult, hookimpl

class Net:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [CniClaim("nodeplug-net")]

    @hookimpl
    def cni_add(self, request):
        return CniResult()

    @hookimpl
    def cni_del(self, request):
        pass
"""
STRANGER = """
import encodings.idna, os, resource, socket, sys, time  # all of them while they can be read
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
os.setgid(65534); os.setuid(65534)
peers = []
for number in range(700):
    peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    peers.append(peer)
    if number % 2:
        peer.setblocking(False)
print("all are there", flush=True)
while True:
    for peer in peers[1::2]:
        try:
            peer.send(b"G")
        except OSError:
            pass
    time.sleep(0.05)
"""


@pytest.fixture
def node(short_path: Path, tmp_path: Path, free_port: int) -> Iterator[ScratchNode]:
    (tmp_path / "net.py").write_text(PLUGIN)
    supervisor = f'listen = "127.0.0.1:{free_port}"\ninstall = true\n'
    made = ScratchNode(
        short_path, '[plugins.net]\nuses = "net:Net"\n', supervisor=supervisor, env={"PYTHONPATH": str(tmp_path)}
    )
    made.start()
    yield made
    made.stop()


def threads(node: ScratchNode) -> int:
    return len(list(Path(f"/proc/{node.pid}/task").iterdir()))


@pytest.mark.whole
def test_hundreds_of_silent_and_trickling_connections_of_a_stranger_stop_neither_adds_nor_probes(
    node: ScratchNode, short_path: Path, free_port: int
) -> None:
    before = threads(node)
    stranger = subprocess.Popen([sys.executable, "-c", STRANGER, str(free_port)], stdout=subprocess.PIPE)
    assert stranger.stdout is not None
    watchdog = threading.Timer(60, stranger.kill)
    watchdog.start()
    try:
        assert stranger.stdout.readline() == b"all are there\n"
        with Sandbox(short_path / "netns") as sandbox:
            for verb in ("ADD", "DEL"):
                done = subprocess.run(
                    [node.paths.cni_bin / "nodeplug-net"],
                    env={
                        "CNI_COMMAND": verb,
                        "CNI_CONTAINERID": "c1",
                        "CNI_IFNAME": "eth0",
                        "CNI_NETNS": str(sandbox.path),
                        "CNI_PATH": str(node.paths.cni_bin),
                    },
                    input=json.dumps({"cniVersion": "1.0.0", "name": "net", "type": "nodeplug-net"}).encode(),
                    capture_output=True,
                    check=False,
                )
                assert done.returncode == 0, done.stdout
        for path in ("/healthz", "/readyz", "/metrics"):
            connection = HTTPConnection("127.0.0.1", free_port, timeout=60)
            connection.request("GET", path)
            assert connection.getresponse().status == 200
            connection.close()
        assert threads(node) < before + 20  # those that work beside the loop come and go; there is none per stranger
        assert stranger.poll() is None
    finally:
        watchdog.cancel()
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()

"""A network plugin in a process of its own: namespaces cross, and what the daemon knows of them is the same."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.exec.frame import Frame, Reply
from nodeplug.testing import ScratchNode
from nodeplug.testing.scratch_cni import ScratchCni

SECTION = '[plugins.guest]\nuses = "worker_guest:Guest"\nisolation = "{}"\n'


@pytest.fixture(params=["thread", "process"])
def node(short_path: Path, request: pytest.FixtureRequest) -> Iterator[ScratchNode]:
    environment = {"PYTHONPATH": str(Path(__file__).parent)}
    section = SECTION.format(request.param)
    with ScratchNode(short_path, section, supervisor='listen = ""\n', env=environment, fork=True) as one:
        yield one


def call(node: ScratchNode, verb: str, path: str) -> dict[str, object]:
    env = {"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": path, "CNI_PATH": "/opt"}
    config = json.dumps({"cniVersion": "1.0.0", "name": "n", "type": "thing"}).encode()
    descriptors = [os.open(one, os.O_RDONLY) for one in ("/proc/self/ns/net", path)]
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(node.paths.exec_socket))
            socket.send_fds(peer, [Frame("cni", "/opt/thing", (), env, config).encode()], descriptors)
            reply = Reply.decode(b"".join(iter(lambda: peer.recv(1 << 16), b"")))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    document = json.loads(reply.stdout or b"{}")
    assert isinstance(document, dict)
    return document


def test_a_plugin_works_in_the_callers_namespace_and_is_given_the_containers(
    node: ScratchNode, scratch: ScratchCni
) -> None:
    result = call(node, "ADD", scratch.container().path)
    links = {name for _, name in socket.if_nameindex()}
    assert {link["name"] for link in result["interfaces"]} == links  # type: ignore[attr-defined]


def test_an_attachment_is_recorded_with_what_the_kernel_calls_its_namespace(
    node: ScratchNode, scratch: ScratchCni
) -> None:
    container = scratch.container()
    call(node, "ADD", container.path)
    (record,) = (json.loads(path.read_text()) for path in node.paths.attachments.glob("*.json"))
    host, cookie, nsid, *_ = record["sighting"]
    assert host != cookie
    assert nsid >= 0
    assert call(node, "DEL", container.path) == {}
    assert list(node.paths.attachments.glob("*.json")) == []

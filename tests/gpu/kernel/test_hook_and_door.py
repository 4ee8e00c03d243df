"""The hook of a limit and the door that it knocks at: daemons that are away or hang, and who may ask for what."""

import ast
import errno
import json
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.gpu.kernel.limited_node import Node

from nodeplug_gpu.kernel import hook, spec
from nodeplug_gpu.kernel.door import Door


@pytest.mark.parametrize(("wanted", "status"), [pytest.param("kernel", 1, marks=pytest.mark.whole), ("auto", 0)])
def test_without_the_daemon_a_container_starts_only_if_its_limit_is_not_required(
    node: Node, wanted: str, status: int
) -> None:
    plugin = node.plugin(wanted)
    granted = node.allocate(3)
    plugin.stop()
    done = node.start(granted, node.container())
    assert done.returncode == status
    assert "nodeplug does not run on this node" in done.stderr


@pytest.mark.parametrize(("wanted", "status"), [("kernel", 1), pytest.param("auto", 0, marks=pytest.mark.whole)])
def test_a_daemon_that_takes_no_more_connections_does_not_keep_a_container_waiting(
    node: Node, wanted: str, status: int
) -> None:
    plugin = node.plugin(wanted)
    granted = node.allocate(3)
    plugin.stop()
    path = node.folder / "host/run/limits.sock"
    path.unlink()
    with ExitStack() as full:
        frozen = full.enter_context(socket.socket(socket.AF_UNIX))
        frozen.bind(str(path))
        frozen.listen(0)
        waiting = [full.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(9)]
        for one in waiting:
            one.setblocking(False)
        assert errno.EAGAIN in [one.connect_ex(str(path)) for one in waiting]
        done = node.start(granted, node.container())
    assert done.returncode == status
    assert "nodeplug hangs: the queue of its socket is full" in done.stderr


def test_the_runtime_waits_for_longer_than_the_hook_and_kubelet_for_longer_than_the_runtime(node: Node) -> None:
    node.plugin()
    node.allocate(3)
    (one,) = node.spec["devices"][0]["containerEdits"]["hooks"]
    assert hook._REFUSE_AFTER + hook._PATIENCE < one["timeout"] < 120


def test_the_hook_needs_no_later_python_than_3_7() -> None:
    ast.parse(spec.SOURCE, feature_version=(3, 7))


def test_a_socket_that_somebody_has_removed_is_there_again(node: Node) -> None:
    node.plugin()
    granted = node.allocate(3)
    (node.folder / "host/run/limits.sock").unlink()
    assert node.start(granted, node.container()).returncode == 0


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"[" * 60000 + b"\n",
        b'{"container": "a"}\n',
        b'{"container": "a", "cgroup": "/a", "card": "GPU-1", "bytes": "1"}\n',
        b'{"container": "a", "cgroup": "/a", "card": "", "bytes": 1}\n',
        b"x" * 70000,
    ],
)
def test_what_is_no_request_is_answered_with_a_sentence(node: Node, said: bytes) -> None:
    node.plugin()
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(node.folder / "host/run/limits.sock"))
        asking.sendall(said)
        error = json.loads(asking.recv(65536))["error"]
    assert error.startswith(("the request cannot be read: ", "the request has no end"))


@pytest.mark.node
def test_nobody_but_root_may_ask() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        door = Door(Path(folder) / "s", lambda _request: "")
        door.open()
        try:
            assert door.path.stat().st_mode & 0o777 == 0o600
            door.path.chmod(0o666)
            code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({folder + '/s'!r}); print(s.recv(999))"
            command = ["/usr/bin/python3", "-IS", "-c", code]
            done = subprocess.run(command, user=65534, cwd="/", capture_output=True, text=True, check=True)
        finally:
            door.close()
    assert "user 65534 may not ask, root may" in done.stdout

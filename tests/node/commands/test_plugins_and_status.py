"""`nodeplug plugins` and `nodeplug status`, with and without a daemon."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nodeplug.exec.frame import HEADER, Frame, Reply, body_size

pytestmark = pytest.mark.unprivileged


def test_status_without_a_daemon_is_a_clear_error(node: Any) -> None:
    done = node.run("status")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the daemon does not listen at")
    assert "nodeplug serve" in done.stderr


def test_plugins_without_a_daemon_come_from_the_configuration(node: Any) -> None:
    done = node.run("plugins")
    assert done.returncode == 0
    assert "This is what the configuration would load" in done.stderr
    assert "device:example.com/null" in done.stdout


def test_plugins_as_json_tell_their_source(node: Any) -> None:
    answer = node.json("plugins")
    assert answer["source"] == "configuration"
    assert answer["plugins"][0]["claims"] == ["device:example.com/null"]
    assert "hostdev" not in answer["available"]


def test_refused_plugin_is_listed_with_its_reason(node: Any) -> None:
    node.configure("[plugins.nothing]\n")
    row = node.json("plugins")["plugins"][0]
    assert row["state"] == "refused"
    assert "no plugin 'nothing' is installed" in row["reason"]


@contextmanager
def answering(path: Path, reply: Reply) -> Iterator[list[Frame]]:
    """Answer one control request as a daemon would."""
    path.parent.mkdir(parents=True)
    frames: list[Frame] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                header = peer.recv(HEADER.size, socket.MSG_WAITALL)
                frames.append(Frame.decode(header + peer.recv(body_size(header), socket.MSG_WAITALL)))
                peer.sendall(reply.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield frames
        finally:
            thread.join()


STATUS = {
    "version": "0.1.0",
    "node": "worker-1",
    "pid": 1,
    "uptime_seconds": 1.0,
    "ready": True,
    "plugins": [
        {
            "name": "x",
            "uses": "x",
            "distribution": "d",
            "state": "running",
            "reason": "",
            "claims": ["cni:from-daemon"],
            "hooks": [],
            "quarantined": False,
        }
    ],
    "resources": [],
    "attachments": [],
    "volumes": [],
    "calls": [],
    "recent": [],
    "spool": 0,
}


def test_status_asks_the_daemon_and_shows_its_answer(node: Any) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())) as frames:
        done = node.run("status")
    assert (done.returncode, done.stderr) == (0, "")
    assert frames == [Frame("control", "nodeplug", ("status",))]
    assert "worker-1" in done.stdout
    assert "cni:from-daemon" in done.stdout


def test_status_of_a_node_that_is_ready_ends_with_0(node: Any) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())):
        assert node.run("status").returncode == 0


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_status_of_a_node_that_is_not_ready_ends_with_3_and_says_why(node: Any, form: tuple[str, ...]) -> None:
    unready = {**STATUS, "ready": False, "reasons": {"x": "it has no driver"}}
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(unready).encode())):
        done = node.run("status", *form)
    assert (done.returncode, done.stderr) == (3, "")
    assert "it has no driver" in done.stdout


def watching(node: Any, *form: str) -> subprocess.Popen[str]:
    place = ["--config", str(node.config), "--root", str(node.root)]
    argv = [sys.executable, "-m", "nodeplug", "status", "--watch", "--interval", "0.1", *place, *form]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")


def test_watch_asks_again_until_it_is_interrupted_and_ends_as_the_last_answer(node: Any) -> None:
    socket_path = node.root / "run/nodeplug/exec.sock"
    unready = {**STATUS, "ready": False, "reasons": {}}
    with watching(node, "--json") as process:
        assert process.stdout is not None
        assert "does not listen" in json.loads(process.stdout.readline())["error"]
        for answer in (STATUS, unready):
            with answering(socket_path, Reply(0, json.dumps(answer).encode())):
                while "error" in (told := json.loads(process.stdout.readline())):
                    pass
            assert told == answer
            socket_path.unlink()
            socket_path.parent.rmdir()
        with answering(socket_path, Reply(0, json.dumps(unready).encode())):
            while "error" in json.loads(process.stdout.readline()):
                pass
            process.send_signal(signal.SIGINT)
            assert (process.wait(30), process.stderr.read() if process.stderr else "") == (3, "")


def test_watch_draws_a_terminal_anew(node: Any) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())):
        ours, theirs = os.openpty()
        place = ["--config", str(node.config), "--root", str(node.root)]
        argv = [sys.executable, "-m", "nodeplug", "status", "--watch", *place]
        environment = {**os.environ, "TERM": "xterm"}
        with subprocess.Popen(argv, stdout=theirs, stdin=theirs, stderr=theirs, env=environment) as process:
            os.close(theirs)
            shown = b""
            while b"cni:from-daemon" not in shown:
                shown += os.read(ours, 1 << 16)
            process.send_signal(signal.SIGINT)
            with suppress(OSError):  # the other end is closed
                while chunk := os.read(ours, 1 << 16):
                    shown += chunk
            assert process.wait(30) == 0
        os.close(ours)
    assert shown.startswith(b"\x1b[?1049h")  # a screen of its own, given back at the end
    assert b"\x1b[?1049l" in shown


def test_status_as_json_is_the_daemons_answer(node: Any) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())):
        assert node.json("status") == STATUS


def test_plugins_of_a_running_daemon_come_from_it(node: Any) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())):
        answer = node.json("plugins")
    assert (answer["source"], answer["plugins"]) == ("daemon", STATUS["plugins"])


def test_refusal_of_the_daemon_is_an_error(node: Any) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(1, b'{"error":"no"}')):
        done = node.run("status")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: no\n"

"""The daemon's calls to itself, answered by a socket of the test."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeplug.exec.frame import Reply
from nodeplug.observe.own_calls import SILENCE, OwnCalls

VERSIONS = Reply(0, b'{"cniVersion": "1.1.0", "supportedVersions": ["1.1.0"]}\n').encode()


@dataclass
class Daemon:
    """A socket whose every caller gets the same bytes, and the daemon's view of it at a time of the test."""

    path: Path
    answer: bytes = VERSIONS
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.calls = OwnCalls(self.path, lambda: self.now)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer = self.listener.accept()[0]
            except OSError:
                return
            with peer:
                peer.recv(4096)
                peer.sendall(self.answer)

    def ask(self, seconds: float = 0.0) -> str:
        """Let so many seconds pass, call once, and return the trouble."""
        self.now += seconds
        asyncio.run(self.calls.ask())
        return self.calls.trouble()


@pytest.fixture
def daemon(short_path: Path) -> Iterator[Daemon]:
    made = Daemon(short_path / "exec.sock")
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


def test_nothing_is_wrong_before_the_first_call_and_while_calls_are_answered(daemon: Daemon) -> None:
    assert daemon.calls.trouble() == ""
    assert daemon.ask() == ""
    assert daemon.ask(10 * SILENCE) == ""


def test_trouble_is_told_once_nothing_was_answered_for_some_seconds(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.answer = b""
    assert daemon.ask() == ""
    assert daemon.ask(SILENCE) == ""
    wrong = daemon.ask(1)
    assert f"no call through {daemon.path} was answered for {SILENCE + 1:.0f} s: a reply has a header" in wrong
    daemon.ask(1)
    assert len(caplog.records) == 1


def test_trouble_ends_with_the_next_answer(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.answer = b""
    daemon.ask()
    assert daemon.ask(SILENCE + 1)
    daemon.answer = VERSIONS
    assert daemon.ask(1) == ""
    assert "are answered again" in caplog.text
    daemon.answer = b""
    assert daemon.ask(SILENCE + 1) == ""


@pytest.mark.parametrize(
    "answer",
    [
        Reply(1, b'{"code": 999, "msg": "the daemon failed"}').encode(),
        Reply(0, b"[]").encode(),
        Reply(0, b"null").encode(),
        Reply(0, b"\xff").encode(),
        Reply(0, b"").encode(),
        b"x",
    ],
)
def test_what_is_no_version_is_no_answer(answer: bytes, daemon: Daemon) -> None:
    daemon.answer = answer
    daemon.ask()
    assert daemon.ask(SILENCE + 1)


def test_a_daemon_with_too_many_calls_answers(daemon: Daemon) -> None:
    daemon.answer = Reply(1, json.dumps({"code": 11, "msg": "1024 requests are in progress"}).encode()).encode()
    daemon.ask()
    assert daemon.ask(SILENCE + 1) == ""


def test_a_socket_that_does_not_exist_is_trouble(daemon: Daemon) -> None:
    daemon.path.unlink()
    daemon.ask()
    assert "No such file" in daemon.ask(SILENCE + 1)


def test_nothing_is_concluded_while_the_disk_hides_the_socket(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket.socket, "connect", lambda *_: released.wait(), raising=False)
    now = 0.0
    calls = OwnCalls(short_path / "exec.sock", lambda: now, patience=0.01)
    asyncio.run(calls.ask())
    now += SILENCE + 1
    asyncio.run(calls.ask())
    assert calls.trouble() == ""
    released.set()

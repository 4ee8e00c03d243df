"""What the daemon answers to a plugin's process that asks for anything with anything."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug.contract.errors import PluginError
from nodeplug.hosting import rights
from nodeplug.testing import host
from nodeplug.worker.answering import ANSWERS, UNANSWERED, answer
from nodeplug.worker.wire import Broken, Message

KEYS = (
    *("of", "key", "phase", "data", "request", "reason", "name", "memory", "tasks", "own", "resource", "class"),
    *("type", "config", "namespace", "uid", "pod", "networks", "names", "node"),
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8)
NAMES = st.sampled_from(["", "..", "a/b", "CniAdd", "CniDel", "x" * 5000, "\0", "plugin"])
VALUES = st.recursive(
    SCALARS | NAMES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
HEADS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)
BODIES = st.sampled_from([b"", b"null", b"{}", b"[]", b"{", b"\xff", b'{"claim": 1}', b"[" * 5000])


@pytest.fixture(scope="module")
def own_host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return host(tmp_path_factory.mktemp("host"))


@pytest.mark.parametrize("operation", sorted(ANSWERS))
@given(head=HEADS, body=BODIES, descriptors=st.integers(0, 2))
def test_wrong_arguments_are_refused_or_answered(
    own_host: Any, operation: str, head: dict[str, Any], body: bytes, descriptors: int
) -> None:
    op, dot, do = operation.partition(".")
    message = Message({**head, "op": op, **({"do": do} if dot else {})}, body, [])
    message.descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(descriptors)]
    try:
        answer(own_host, message).close()
    except (Broken, PluginError, OSError):
        pass
    finally:
        message.close()


@pytest.mark.parametrize("head", [{"op": "surprise"}, {"op": "journal"}, {"op": "journal", "do": "burn"}])
def test_an_operation_that_does_not_exist_is_refused(own_host: Any, head: dict[str, Any]) -> None:
    with pytest.raises(Broken, match="nobody knows its request"):
        answer(own_host, Message(head))


def test_each_operation_of_a_host_has_one_right() -> None:
    rights.verify(ANSWERS.keys() | UNANSWERED)


@pytest.mark.parametrize("gone", ["delegate", "journal.write", "networks.report"])
def test_an_operation_without_a_right_keeps_the_daemon_from_starting(
    monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    monkeypatch.setattr(rights, "RIGHTS", {name: one for name, one in rights.RIGHTS.items() if name != gone})
    with pytest.raises(RuntimeError, match=f"needs one row in RIGHTS: {gone}"):
        rights.verify(ANSWERS.keys() | UNANSWERED)


def test_an_answer_to_an_operation_without_a_right_keeps_the_daemon_from_starting() -> None:
    with pytest.raises(RuntimeError, match=r"needs one row in RIGHTS: disk\.format"):
        rights.verify([*ANSWERS, "disk.format"])


def test_a_socket_that_is_kept_is_returned(own_host: Any) -> None:
    one, other = socket.socketpair()
    with one:
        answer(own_host, Message({"op": "sockets", "do": "keep", "name": "a"}, b"", [other.detach()]))
        found = answer(own_host, Message({"op": "sockets", "do": "get", "name": "a"}))
        with socket.socket(fileno=found.descriptors.pop()) as kept:
            kept.sendall(b"x")
            assert one.recv(1) == b"x"


def test_nothing_is_written_outside_of_the_journal(own_host: Any, tmp_path: Path) -> None:
    head = {"op": "journal", "do": "write", "of": "", "phase": "p", "data": {}, "request": {}}
    answer(own_host, Message({**head, "key": "../../escaped"}))
    written = [path.parent.name for path in own_host.state_dir.parent.rglob("*escaped*")]
    assert written == ["journal"], tmp_path

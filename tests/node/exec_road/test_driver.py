"""What an entrypoint of FlexVolume does by itself; kubelet reads its stdout and stderr as one, and logs a failure."""

import json
import resource
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from nodeplug.contract.netns import Netns
from nodeplug.exec.frame import Frame, Reply
from nodeplug.testing import ExecRoad

pytestmark = [
    pytest.mark.unprivileged,
    pytest.mark.parametrize("road", ["script", "compiled"], indirect=True),
]


def flex(road: ExecRoad, folder: Path, *argv: "str | bytes", shell: str = "") -> tuple[int, bytes, bytes]:
    script = road.flex_script(folder, "driver")
    command = ["sh", "-c", f'exec "$0" "$@" {shell}', str(script)] if shell else [str(script)]
    done = subprocess.run([*command, *argv], capture_output=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_flex_verb_reaches_the_daemon_with_its_arguments(road: ExecRoad, tmp_path: Path) -> None:
    async def echo(frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        assert namespaces == ()
        return Reply(0, json.dumps([frame.name, *frame.argv]).encode())

    road.handlers = {"flex": echo}
    road.start()
    status, out, err = flex(road, tmp_path, "mount", "/dir", '{"a":"b"}')
    assert (status, err) == (0, b"")
    assert json.loads(out) == ["driver", "mount", "/dir", '{"a":"b"}']


def test_flex_init_is_answered_from_the_file_beside_the_script(road: ExecRoad, tmp_path: Path) -> None:
    (tmp_path / "capabilities.json").write_text('{"status":"Success"}')
    assert flex(road, tmp_path, "init") == (0, b'{"status":"Success"}', b"")


def test_flex_init_without_its_file_is_a_failure(road: ExecRoad, tmp_path: Path) -> None:
    status, out, err = flex(road, tmp_path, "init")
    assert (status, json.loads(out)["status"], err) == (0, "Failure", b"")


@pytest.mark.parametrize("argv", [(), ("mount",), (b"\xff\xfe", b"\n\x01"), ("x" * 100_000,)])
@pytest.mark.parametrize("shell", ["", ">&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_flex_without_daemon_exits_0_and_is_silent_on_stderr(
    road: ExecRoad, tmp_path: Path, argv: tuple[str, ...], shell: str
) -> None:
    status, out, err = flex(road, tmp_path, *argv, shell=shell)
    assert (status, err) == (0, b"")
    if ">&-" not in shell.replace("2>&-", ""):
        assert json.loads(out) == {"status": "Failure", "message": "nodeplug daemon is not running"}


@pytest.mark.parametrize("part", [b"", b"\0", b"\0\x10\0\0\0\0\0\0\0{"])
def test_flex_survives_a_daemon_that_dies_in_its_answer(road: ExecRoad, tmp_path: Path, part: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(road.socket))
        server.listen()

        def die() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(part)

        thread = threading.Thread(target=die)
        thread.start()
        status, out, err = flex(road, tmp_path, "mount", "/dir", "{}")
        thread.join()
    assert (status, json.loads(out)["status"], err) == (0, "Failure", b"")


def test_flex_refuses_arguments_that_are_too_large(road: ExecRoad, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (64 << 20, limits[1]))  # arguments may have a quarter of it
    try:
        status, out, err = flex(road, tmp_path, "mount", *["x" * 100_000] * 42)
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, limits)
    assert (status, err) == (0, b"")
    assert json.loads(out) == {"status": "Failure", "message": "the arguments are too large for nodeplug"}


def test_flex_is_silent_on_stderr_whatever_the_daemon_says(road: ExecRoad, tmp_path: Path) -> None:
    async def answer(frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        return Reply(9, b"{}", b"a remark")

    road.handlers = {"flex": answer}
    road.start()
    assert flex(road, tmp_path, "mount") == (0, b"{}", b"")

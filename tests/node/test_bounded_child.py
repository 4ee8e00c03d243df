"""Foreign programs that write without end, do not read, or do not end."""

import resource
import subprocess
import time
from pathlib import Path

import pytest

from nodeplug.cni.bounded_child import WroteTooMuch, communicate
from nodeplug.cni.delegate import run
from nodeplug.contract.errors import DelegateFailed
from nodeplug.contract.inputs import DELEGATE_ERRORS, DELEGATE_OUTPUT

pytestmark = pytest.mark.unprivileged


def play(script: str, stdin: bytes = b"", timeout: float = 30.0, most: int = 1000) -> tuple[int, bytes, bytes]:
    with subprocess.Popen(
        ["/bin/sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        output, errors = communicate(child, stdin, timeout, most_output=most, most_errors=10)
    return child.returncode, output, errors


def test_what_a_child_writes_is_returned() -> None:
    assert play("cat; echo wrong >&2; exit 3", b"in" * 100) == (3, b"in" * 100, b"wrong\n")


def test_a_child_that_does_not_read_is_no_failure() -> None:
    assert play("exec <&-; echo done", b"x" * (1 << 20)) == (0, b"done\n", b"")


def test_as_much_as_it_may_write_is_no_failure() -> None:
    assert len(play("printf %01000d 0")[1]) == 1000


@pytest.mark.parametrize("where", ["1", "2"])
def test_a_child_that_writes_without_end_is_killed(where: str) -> None:
    with pytest.raises(WroteTooMuch, match="it wrote more than 1000 bytes"):
        play(f"while :; do echo xxxxxxxxxxxxxxxx >&{where} || exit; done")


def test_of_errors_the_first_are_kept() -> None:
    assert play("printf 0123456789abcdef >&2") == (0, b"", b"0123456789")


def test_a_child_that_does_not_end_is_killed_with_what_it_started() -> None:
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        play("sleep 600 & sleep 600", timeout=0.2)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("where", ["1", "2"])
def test_a_delegate_that_writes_without_end_takes_no_memory_and_fails(tmp_path: Path, where: str) -> None:
    program = tmp_path / "endless"
    program.write_text(f"#!/bin/sh\nexec yes >&{where}\n")
    program.chmod(0o755)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DelegateFailed, match=f"was killed: it wrote more than {DELEGATE_OUTPUT.size} bytes"):
        run(program, {"PATH": "/usr/bin:/bin"}, b"{}")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 16 * (DELEGATE_OUTPUT.size + DELEGATE_ERRORS.size)

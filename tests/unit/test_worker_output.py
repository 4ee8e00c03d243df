"""Lines that a plugin's process writes to its standard output and error."""

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.testing.waiting import until
from nodeplug.worker.log_allowance import BURST, LogAllowance
from nodeplug.worker.output import Output


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output("acme", LogAllowance("acme"))
    yield made
    made.wait()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_each_line_is_a_record_of_the_plugin(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    os.write(output.end, b"one\ntwo\n\nth")
    until(lambda: len(said(caplog)) == 2)
    os.write(output.end, b"ree\xff")
    output.release()
    output.wait()
    assert said(caplog) == ["it wrote: one", "it wrote: two", "it wrote: three\\xff"]
    assert {record.name for record in caplog.records} == {"nodeplug.plugin.acme"}


def test_what_a_process_wrote_before_its_end_is_logged(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        os.write(output.end, b"x" * 4095 + b"\n")
    os.write(output.end, b"last")
    output.release()
    output.wait()
    assert len(said(caplog)) == 101
    assert said(caplog)[-1] == "it wrote: last"


def test_a_line_without_end_is_cut_and_the_next_one_is_whole(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        os.write(output.end, b"x" * 4096)
    os.write(output.end, b"\nnext\n")
    output.release()
    output.wait()
    assert len(said(caplog)) == 2
    assert len(said(caplog)[0]) < 20 << 10
    assert said(caplog)[1] == "it wrote: next"


@pytest.mark.parametrize("line", ["flood", "", "x"])
def test_one_who_writes_without_end_gets_some_lines_and_takes_little_time_of_the_reader(
    output: Output, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    """A second of lines that nobody counts."""
    flood = f"import os\nwhile True: os.write(1, {line!r}.encode() * 1000 + b'\\n' * 1000)"
    before = resource.getrusage(resource.RUSAGE_SELF)
    with subprocess.Popen([sys.executable, "-ISc", flood], stdout=output.end) as process:
        output.release()
        assert not output.wait(1)
        process.kill()
    spent = resource.getrusage(resource.RUSAGE_SELF)
    output.wait()
    assert len(said(caplog)) < 2 * BURST
    assert spent.ru_utime - before.ru_utime < 0.5


def test_what_outlives_its_plugin_is_read_until_it_ends(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    script = "import signal, sys\nsignal.signal(13, signal.SIG_DFL)\nsys.stdin.read()\nprint('still here')"
    with subprocess.Popen([sys.executable, "-ISc", script], stdin=subprocess.PIPE, stdout=output.end) as child:
        output.release()
        child.communicate(b"")
    output.wait()
    assert child.returncode == 0
    assert said(caplog) == ["it wrote: still here"]


def test_descriptors_that_come_with_it_are_closed(output: Output) -> None:
    reading, writing = os.pipe()
    with socket.socket(fileno=os.dup(output.end)) as end:
        socket.send_fds(end, [b"x"], [writing])
    os.close(writing)
    output.release()
    output.wait()
    assert os.read(reading, 1) == b""  # nobody has the other end
    os.close(reading)


def test_it_leaves_no_descriptor() -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    output = Output("acme", LogAllowance("acme"))
    output.release()
    output.wait()
    assert len([*Path("/proc/self/fd").iterdir()]) == before

"""Lines that a plugin's process writes to its standard output and error."""

import math
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.worker.log_allowance import BURST, LogAllowance
from nodeplug.worker.output import PAUSE, Output


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output("acme", LogAllowance("acme"), None)
    try:
        yield made
    finally:
        os.close(made.end)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_each_line_is_a_record_of_the_plugin(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    os.write(output.end, b"one\ntwo\n\nth")
    output.read()
    assert len(said(caplog)) == 2
    os.write(output.end, b"ree\xff")
    output.close()
    assert said(caplog) == ["it wrote: one", "it wrote: two", "it wrote: three\\xff"]
    assert {record.name for record in caplog.records} == {"nodeplug.plugin.acme"}


def test_what_a_process_wrote_before_its_end_is_logged_however_much_it_is(
    output: Output, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        os.write(output.end, b"x" * 4095 + b"\n")
    os.write(output.end, b"last")
    output.close()
    assert len(said(caplog)) == 101
    assert said(caplog)[-1] == "it wrote: last"


def test_a_line_without_end_is_cut_and_the_next_one_is_whole(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        os.write(output.end, b"x" * 4096)
        output.read()
    os.write(output.end, b"\nnext\n")
    output.close()
    assert len(said(caplog)) == 2
    assert len(said(caplog)[0]) < 20 << 10


def test_one_who_writes_without_end_is_read_now_and_then(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    look = select.poll()
    output.register(look)
    flood = "import os\nwhile True: os.write(1, b'flood\\n' * 1000)"
    reads, now = 0, 0.0
    with subprocess.Popen([sys.executable, "-ISc", flood], stdout=output.end) as process:
        while reads < 5:
            ready = {descriptor for descriptor, _ in look.poll(min(output.pause, 60) * 1000)}
            output.attend(look, ready, now)
            assert output.pause == PAUSE  # it is not looked at meanwhile
            assert look.poll(0) == []
            now += PAUSE
            output.attend(look, (), now)
            assert output.pause == math.inf
            reads += 1
        process.kill()
    output.close()
    assert "lines of plugin acme were left out" in said(caplog)[-1]
    assert BURST < len(said(caplog)) < 2 * BURST


def test_a_process_that_closes_its_output_is_not_looked_at_any_more(output: Output) -> None:
    look = select.poll()
    output.register(look)
    os.close(output.end)
    ready = {descriptor for descriptor, _ in look.poll(60_000)}
    output.attend(look, ready, 0.0)
    assert (output.pause, look.poll(0)) == (math.inf, [])
    output.close()
    output.end = os.dup(0)


def test_a_child_that_outlives_everybody_is_not_ended_by_what_it_writes(output: Output) -> None:
    script = "import os, signal, sys\nsignal.signal(13, signal.SIG_DFL)\nsys.stdin.read()\nos.write(1, b'still here')"
    with subprocess.Popen([sys.executable, "-ISc", script], stdin=subprocess.PIPE, stdout=output.end) as child:
        output.close()
        os.close(output.end)
        child.communicate(b"")
        output.end = os.dup(0)
    assert child.returncode == 0


def test_it_leaves_no_descriptor() -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    output = Output("acme", LogAllowance("acme"), None)
    output.given()
    output.close()
    assert len([*Path("/proc/self/fd").iterdir()]) == before

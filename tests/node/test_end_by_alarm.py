"""A process that was asked to end, and whose event loop has no turn to do so."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, signal, threading
from nodeplug.process.end_by_alarm import end_by_alarm

async def main():
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    end_by_alarm(1)
    print("runs", flush=True)
    if {stuck}:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    await stop.wait()

asyncio.run(main())
"""


def ended(stuck: bool, number: signal.Signals) -> int:
    """Start the program, ask it to end, and return how it ended."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(stuck=stuck)], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"runs\n"
        program.send_signal(number)
        return program.wait(60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_event_loop_that_is_stuck_is_ended_by_the_alarm(number: signal.Signals) -> None:
    assert ended(stuck=True, number=number) == -signal.SIGALRM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_event_loop_that_has_its_turn_ends_in_order(number: signal.Signals) -> None:
    assert ended(stuck=False, number=number) == 0

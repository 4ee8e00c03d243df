"""Nothing on the event loop blocks: no file, no directory, no /proc, no sleep, no child process.

One call that does not come back (a frozen disk, a hung mount) would stop every other caller of the daemon. Such work
goes to a thread: `nodeplug.process.lane` or `aside`, or the call's own. Ruff's ASYNC rules see this in the body of an
`async def` alone; here it is followed into what runs on the loop as well.
"""

from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest
from tests.meta.event_loop import Source

SUPERVISOR: Final = Path(__file__).parents[2] / "supervisor"
OFF_THE_LOOP: Final = ("nodeplug.cli", "nodeplug.commands", "nodeplug.testing")
"""Commands and tests: processes of their own, beside the daemon."""
ALLOWED: Final[dict[tuple[str, str], str]] = {}
"""By function and call: why it does not stop the loop."""


def owned(source: Source) -> set[str]:
    """Return the modules that the loop owns: those in which something runs on it."""
    modules = {place.module for place, body in source.bodies.items() if body.runs_on_loop}
    return {module for module in modules if not module.startswith(OFF_THE_LOOP)}


@pytest.fixture(scope="module")
def supervisor() -> Source:
    return Source.read(SUPERVISOR, "nodeplug")


def test_nothing_that_runs_on_the_event_loop_blocks(supervisor: Source) -> None:
    found = {
        f"{way[-1]}:{line} calls {call}, on the loop by {' > '.join(step.name for step in way)}"
        for way, line, call in supervisor.blocking(owned(supervisor))
        if (str(way[-1]), call) not in ALLOWED
    }
    assert not found, "\n".join(["hand it to a lane or a thread (nodeplug.process):", *sorted(found)])


def test_every_exception_is_still_needed(supervisor: Source) -> None:
    assert set(ALLOWED) <= {(str(way[-1]), call) for way, _, call in supervisor.blocking(owned(supervisor))}


def test_the_loop_owns_the_daemon_its_fronts_and_the_caller_of_plugins(supervisor: Source) -> None:
    parts = ("nodeplug.daemon", "nodeplug.exec.server", "nodeplug.http.server", "nodeplug.hosting.runner")
    assert set(parts) <= owned(supervisor)
    for front in ("cni", "flex", "device"):
        assert any(module.startswith(f"nodeplug.{front}.") for module in owned(supervisor)), front


def calls(text: str) -> list[str]:
    """Return what blocks in a module, by function."""
    source = Source()
    source.add("nodeplug.one", dedent(text))
    return [f"{way[-1].name}: {call}" for way, _, call in source.blocking(["nodeplug.one"])]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("async def f(path): return path.read_text()", ["f: Path.read_text"]),
        ("async def f(): return open('x')", ["f: open"]),
        ("import time\nasync def f(): time.sleep(1)", ["f: time.sleep"]),
        ("from time import sleep as nap\nasync def f(): nap(1)", ["f: time.sleep"]),
        ("import os as system\nasync def f(): system.stat('/')", ["f: os.stat"]),
        ("import subprocess\nasync def f(): subprocess.run(['true'])", ["f: subprocess.run"]),
        ("import shutil\nasync def f(): shutil.rmtree('x')", ["f: shutil.rmtree"]),
        ("import fcntl\nasync def f(fd): fcntl.flock(fd, 2)", ["f: fcntl.flock"]),
        ("async def f(path): g(path)\ndef g(path): h(path)\ndef h(path): path.unlink()", ["h: Path.unlink"]),
        ("def f(loop, fd): loop.add_reader(fd, g)\ndef g(): open('x')", ["g: open"]),
    ],
)
def test_a_call_that_blocks_is_found(text: str, found: list[str]) -> None:
    assert calls(text) == found


def test_a_call_that_blocks_is_found_in_methods_and_properties() -> None:
    text = """
        class Service:
            async def serve(self):
                if self.present:
                    self._clear()
                return self._target.identity()

            @property
            def present(self):
                return self.path.exists()

            def _clear(self):
                self.path.unlink()

        class Target:
            def identity(self):
                return self.path.stat()
    """
    wanted = {"Service.present: Path.exists", "Service._clear: Path.unlink", "Target.identity: Path.stat"}
    assert set(calls(text)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "async def f(lane, path): await lane.run(path.read_text)",
        "async def f(lane, path): await lane.run(lambda: path.read_text())",
        "async def f(lane): await lane.run(g)\ndef g(): open('x')",
        "async def f(lane):\n    def g(): open('x')\n    await lane.run(g)",
        "def f(path): path.unlink()",
        "import asyncio\nasync def f(): await asyncio.sleep(1)",
    ],
)
def test_what_is_handed_to_a_thread_or_never_runs_on_the_loop_is_allowed(text: str) -> None:
    assert calls(text) == []

"""The table of hostile plugins: what each does to the daemon and to a neighbour as a thread, and in a process.

`ROWS` is the table of docs/plugin-processes.md; `tests/meta` compares the two.
"""

import os
import re
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.node.workers.hostile_node import NEIGHBOUR, Node, hostile
from tests.own_descriptors import may_open_no_more

from nodeplug.hosting.overdue import TOTAL
from nodeplug.observe.own_calls import SILENCE
from nodeplug.testing.waiting import until
from nodeplug.worker.log_allowance import BURST, PER_SECOND

TICKS = os.sysconf("SC_CLK_TCK")
DESCRIPTORS = 256
pytestmark = pytest.mark.unprivileged


def burned(pid: int) -> float:
    """Return the seconds of processor time that a process has used in its own code."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11]) / TICKS


def until_burned(pid: int, seconds: float) -> None:
    end = burned(pid) + seconds
    until(lambda: burned(pid) >= end)


def is_silent(peer: socket.socket) -> bool:
    try:
        peer.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    return False


Check = Callable[[Node], None]


# --- as a thread ------------------------------------------------------------------------------------------------


def is_quarantined(node: Node) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: node.call(volume=f"v{number}"), range(TOTAL)))
    assert all("volume_is_attached" in one for one in answers)
    assert node.plugin()["quarantined"]
    assert f"is quarantined: {TOTAL} of its calls have not come back" in node.call(volume="another")
    assert sum(call["overdue"] for call in node.scratch.status()["calls"]) == TOTAL
    assert node.call("other") == ""


def silences_the_daemon(node: Node) -> None:
    with closing(node.ask()):
        until_burned(node.scratch.pid, 1)
        with closing(node.ask("other")) as late:
            os.kill(node.scratch.pid, signal.SIGTERM)
            until_burned(node.scratch.pid, 1)
            assert is_silent(late)
            assert node.scratch.running


def fills_the_daemon(node: Node) -> None:
    before = node.memory("VmRSS")
    assert node.call() == ""
    assert node.memory("VmRSS") > before + (200 << 20)
    assert node.plugin()["restarts"] == 0


def ends_the_daemon(node: Node) -> None:
    assert node.call() == "no answer"
    until(lambda: not node.scratch.running)


def shuts_callers_out(node: Node) -> None:
    with closing(node.ask()):
        until(lambda: may_open_no_more(node.scratch.pid))
        with closing(node.ask("other")) as late:
            until(lambda: "cannot accept on" in node.scratch.log)
            assert is_silent(late)
    assert node.scratch.running


def leaves_callers_unanswered(node: Node) -> None:
    assert node.call() == "no answer"
    assert node.call("other") == "no answer"
    assert node.scratch.running


def moves_the_daemon(node: Node) -> None:
    assert node.folder() == "/"
    assert node.call() == ""
    assert node.folder() == "/proc"


def fills_the_log(node: Node) -> None:
    assert node.call() == ""
    assert node.scratch.log.count("\nflood") > 4000


# --- in a process -----------------------------------------------------------------------------------------------


def is_ended_at_its_deadlines(node: Node) -> None:
    assert "volume_is_attached" in node.call()
    assert node.call("other") == ""
    assert "did not come back" in node.until_started_again()


def leaves_the_lock_alone(node: Node) -> None:
    with closing(node.ask()):
        until_burned(node.plugin()["process"]["pid"], 0.1)
        assert node.call("other") == ""
        assert "did not come back" in node.until_started_again()


def fills_itself(node: Node) -> None:
    before = node.memory("VmRSS")
    node.call()
    assert re.fullmatch("it used [0-9]+ MiB and may use 96 MiB", node.until_started_again())
    assert node.memory("VmHWM") < before + (64 << 20)


def ends_itself(why: str) -> Check:
    def check(node: Node) -> None:
        assert f"the process of plugin 'hostile' ended during volume_is_attached: {why}" in node.call()
        assert node.until_started_again() == why

    return check


def keeps_to_its_descriptors(why: str) -> Check:
    def check(node: Node) -> None:
        before = node.descriptors()
        node.call()
        assert node.call("other") == ""
        assert len(node.descriptors()) < len(before) + 8
        assert re.search(why, node.until_started_again()), node.scratch.log[-5000:]
        passing = ("socket:", "anon_inode:[pidfd]", str(node.scratch.paths.state))  # what is just being written, too
        stay = {number: link for number, link in before.items() if not link.startswith(passing)}
        assert stay.items() <= node.descriptors().items()

    return check


# Each hangs, unless the daemon asks for its health or metrics meanwhile. `test_no_descriptors` makes such a call.
CLOSES = keeps_to_its_descriptors(
    "did not come back|it closed the channel of a call and lived on|it exited with status 0"
)
OPENS = keeps_to_its_descriptors("did not come back|no file descriptor was free")


def leaves_lines_out(node: Node) -> None:
    assert node.call() == ""
    until(lambda: node.scratch.log.count("it wrote: flood") >= BURST)
    os.kill(node.plugin()["process"]["pid"], signal.SIGKILL)
    until(lambda: f"lines of plugin hostile were left out: it may log {PER_SECOND}" in node.scratch.log)
    assert node.scratch.log.count("it wrote: flood") < 2 * BURST


def moves_itself(node: Node) -> None:
    assert node.call() == ""
    assert node.folder() == "/"


def harms_nobody(node: Node) -> None:
    assert node.call() == ""
    assert node.call() == ""
    assert node.plugin()["restarts"] == 0


@dataclass(frozen=True)
class Row:
    """A hostile plugin.

    Attributes:
        what: what it does, in the words of the page.
        how: the name of that in `guest_faults`.
        thread: what becomes of it as a thread, in the words of the page, and who checks it.
        process: the same in a process.
        section: more keys of its section; those of limits are for a process.
    """

    what: str
    how: str
    thread: tuple[str, Check]
    process: tuple[str, Check]
    section: str = ""


OVERDUE = 'restart_after_overdue = 2\ndeadline = { volume_is_attached = "300ms" }\n'
ENDS = "the daemon ends, systemd starts it again"
AGAIN = "its calls fail with an error that asks for a retry; it is started again"
NO_ANSWERS = f"`/healthz` says so after {SILENCE:g} s, and kubelet's probe or the watchdog of the unit ends the daemon"

ROWS = [
    Row(
        "hangs in a call",
        "hangs",
        (
            (
                "its callers are answered at the deadline; four such calls of one network quarantine that, and 64 the "
                "plugin, until the daemon is restarted"
            ),
            is_quarantined,
        ),
        (
            "the same; after `restart_after_overdue` deadlines it is killed and started again",
            is_ended_at_its_deadlines,
        ),
        OVERDUE,
    ),
    Row(
        "never gives up the interpreter's lock",
        "burns",
        ("the daemon answers nobody and ignores SIGTERM; the watchdog of its unit ends it", silences_the_daemon),
        (
            "the others are answered meanwhile; it is killed and started again like one that hangs",
            leaves_the_lock_alone,
        ),
        OVERDUE,
    ),
    Row(
        "leaks memory",
        "leaks",
        ("the daemon ends at `memory` of `[supervisor]`, and systemd starts it again", fills_the_daemon),
        (
            "it is ended at its `memory`, 1 GiB if the section does not say, and started again",
            fills_itself,
        ),
        'memory = "96Mi"\n',
    ),
    Row("exits", "exits", (ENDS, ends_the_daemon), (AGAIN, ends_itself("it exited with status 7"))),
    Row("crashes", "segfault", (ENDS, ends_the_daemon), (AGAIN, ends_itself("it was killed by SIGSEGV"))),
    Row(
        "sets a timer and not its signal",
        "rings",
        (ENDS, ends_the_daemon),
        (AGAIN, ends_itself("it was killed by SIGALRM")),
    ),
    Row(
        "closes descriptors of others",
        "closes descriptors",
        (ENDS, ends_the_daemon),
        ("it has closed its own; it ends or hangs, and is started again", CLOSES),
        OVERDUE,
    ),
    Row(
        "opens descriptors without end",
        "keeps descriptors",
        (f"no caller reaches the daemon any more; {NO_ANSWERS}", shuts_callers_out),
        (
            "it is ended and started again; the daemon has as many as before",
            OPENS,
        ),
        OVERDUE,
    ),
    Row(
        "replaces what all of Python uses, such as `json.dumps`",
        "replaces json",
        (f"nobody is answered; {NO_ANSWERS}", leaves_callers_unanswered),
        ("its own is another", harms_nobody),
    ),
    Row(
        "writes or logs without end",
        "floods",
        ("the log is full of it, and journald leaves out lines of the daemon, too", fills_the_log),
        (
            (
                f"{PER_SECOND} lines in a second are in the log, with a count of the others; "
                "one who writes still faster waits"
            ),
            leaves_lines_out,
        ),
    ),
    Row(
        "changes the working directory",
        "changes folder",
        ("that of the daemon and of every plugin is another", moves_the_daemon),
        ("its own is another", moves_itself),
    ),
]


@pytest.fixture
def start(short_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def start(isolation: str, how: str, more: str) -> Node:
        once = short_path / "once" if isolation == "process" else None
        node = Node(short_path, NEIGHBOUR)
        made.append(node)
        node.scratch.start()
        resource.prlimit(node.scratch.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        node.scratch.configure(hostile(isolation, how, more, once) + NEIGHBOUR)
        until(lambda: len(node.scratch.status()["plugins"]) == 2 and node.plugin()["state"] == "running")
        return node

    yield start
    for node in made:
        node.scratch.kill()


def rows(*quick: str) -> pytest.MarkDecorator:
    """Every row; all but these in the whole suite: most of what a process does is in `test_faults`, without a node."""
    marked = [pytest.param(row, marks=[pytest.mark.whole] * (row.how not in quick), id=row.how) for row in ROWS]
    return pytest.mark.parametrize("row", marked)


@rows("hangs", "changes folder")
def test_as_a_thread_it_does_that_to_the_daemon_and_its_neighbours(row: Row, start: Callable[..., Node]) -> None:
    row.thread[1](start("thread", row.how, "" if "memory" in row.section else row.section))


@rows("hangs", "keeps descriptors", "changes folder")
def test_in_a_process_it_does_that_to_itself_alone(row: Row, start: Callable[..., Node]) -> None:
    node = start("process", row.how, row.section)
    pid = node.scratch.pid
    row.process[1](node)
    assert node.call("other") == ""
    assert node.scratch.running
    assert node.scratch.pid == pid
    assert node.plugin("neighbour")["restarts"] == 0

"""A running driver process: its pipes, its heartbeat, its end.

Owns: one child process from start to SIGKILL.
Refuses: to decide when to start another.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nodeplug_gpu.driver.publish import Log
from nodeplug_gpu.driver.wire import EVENT_SET_CALLS, LIMIT, ExitNotice, Frame, GarbledFrame, Heartbeat, LogLine, decode

_START: Final = 10.0
"""Seconds that Python may need to start on a busy node, before the first heartbeat."""
_MAX_LOG_LINE: Final = 500
"""Characters that are logged of a line that the library prints."""


class RunningProcess:
    """A started driver process; to be used from the thread that started it, which must live as long as the process.

    Attributes:
        exit_reason: why it is to be replaced, as a sentence; empty while it is not.
        planned: nothing is wrong with the cards.
        hangs: a call does not return.
        hung: index of the card that it is about; None where no card is to blame.
        events_hang: only waiting for events hangs.
    """

    def __init__(self, settings: dict[str, Any], hang_after: float, log: Log) -> None:
        """Start the process.

        Raises:
            OSError: it cannot be started.
        """
        # The same modules as here, wherever they lie.
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nodeplug_gpu.driver.child", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(path),
            cwd="/",
            bufsize=0,
        )
        self.exit_reason = ""
        self.planned = self.hangs = False
        self.hung: int | None = None
        self.events_hang = False
        self._hang_after = hang_after
        self._log = log
        self._last = time.monotonic()
        self._heartbeats = 0
        self._buffers = {"frames": bytearray(), "stderr": bytearray()}

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the kernel has ended it; a process that hangs in the driver may never end."""
        return self._process.poll() is not None

    def attach(self, selector: selectors.BaseSelector) -> None:
        """Have a selector watch its pipes."""
        for stream, name in ((self._process.stdout, "frames"), (self._process.stderr, "stderr")):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, (name, selector))

    def detach(self, selector: selectors.BaseSelector) -> None:
        """Undo `attach`."""
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None and stream in selector.get_map():
                selector.unregister(stream)

    def read(self, key: selectors.SelectorKey) -> Iterator[Frame]:
        """Read what a pipe has, and return the frames that concern the cards."""
        name, selector = key.data
        data = os.read(key.fd, 1 << 20)
        buffer = self._buffers[name]
        buffer += data
        *lines, rest = bytes(buffer).split(b"\n")
        self._buffers[name] = bytearray(rest)
        if name == "stderr":
            for line in lines:
                self._log.info("driver process: %s", line.decode(errors="replace")[:_MAX_LOG_LINE])
            del self._buffers[name][_MAX_LOG_LINE:]
            if not data:
                # A closed pipe is always readable; that of the frames says that the process ended.
                selector.unregister(key.fileobj)
            return
        for line in lines:
            yield from self._frame(line)
        if not data and not self.exit_reason:
            self.exit_reason = self._exit_status()
        if len(rest) > LIMIT:
            self.exit_reason = "the driver process sends a line without end"

    def _frame(self, line: bytes) -> Iterator[Frame]:
        try:
            frame = decode(line)
        except GarbledFrame as error:
            self.exit_reason = f"the driver process sends garbage: {error}"
            return
        self._last = time.monotonic()
        if isinstance(frame, Heartbeat):
            self._heartbeats += 1
            self._check_pending(frame)
        elif isinstance(frame, ExitNotice):
            self.exit_reason, self.planned = frame.reason, frame.planned
        elif isinstance(frame, LogLine):
            getattr(self._log, frame.level)("%s", frame.message)
        else:
            yield frame

    def _check_pending(self, heartbeat: Heartbeat) -> None:
        for pending in heartbeat.pending:
            if pending.seconds > self._hang_after * pending.slow_factor and not self.exit_reason:
                self.exit_reason = f"the driver hangs: {pending.call} has not returned for {pending.seconds:.1f} s"
                self.hangs, self.hung = True, pending.card
                self.events_hang = pending.call in EVENT_SET_CALLS

    def retire(self, reason: str) -> None:
        """Request its replacement, although nothing is wrong with it."""
        self.exit_reason, self.planned = reason, True

    def check_heartbeat(self) -> float:
        """Notice a missing heartbeat.

        Returns:
            Seconds until it is to be checked again.
        """
        timeout = self._hang_after if self._heartbeats else self._hang_after + _START
        left = self._last + timeout - time.monotonic()
        if left <= 0 and not self.exit_reason:
            self.exit_reason = f"the driver process has sent no heartbeat for {timeout:.1f} s"
        return max(left, 0.0)

    def poll(self) -> None:
        """Ask it for a poll; a full pipe holds enough of such requests."""
        self.send(b"poll\n")

    def send(self, line: bytes) -> bool:
        """Send it a line, of at most PIPE_BUF bytes so that it is written as a whole; return whether it was."""
        if self._process.stdin is None:
            return False
        try:
            os.set_blocking(self._process.stdin.fileno(), False)
            return os.write(self._process.stdin.fileno(), line) == len(line)
        except OSError:
            return False  # it ended, which its other pipe shows

    def kill(self, timeout: float) -> bool:
        """End it with SIGKILL and close its pipes.

        Args:
            timeout: seconds to wait for its end.

        Returns:
            Whether it ended; one that hangs in the driver is abandoned.
        """
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _exit_status(self) -> str:
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the driver process closed its output"
        if status < 0:
            return f"the driver process was ended by {signal.Signals(-status).name}"
        return f"the driver process ended with exit status {status}"


def _environment(path: str) -> dict[str, str]:
    """Return a copy of `os.environ` with a PYTHONPATH.

    `dict(os.environ)` raises KeyError if another thread deletes a variable during the copy.
    """
    own = {name: value for name in tuple(os.environ) if (value := os.environ.get(name)) is not None}
    return own | {"PYTHONPATH": path}

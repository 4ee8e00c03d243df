"""A driver process that runs: its pipes, its signs of life, its end.

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
from nodeplug_gpu.driver.wire import EVENT_SET_CALLS, LIMIT, Beat, Farewell, Frame, GarbledFrame, LogLine, decode

_START: Final = 10.0
"""Seconds that Python may need to start on a busy node, before the first sign of life."""
_NOISE: Final = 500
"""Letters that are logged of a line that the library prints."""


class RunningProcess:
    """A started driver process; to be used from the thread that started it, which must live as long as the process.

    Attributes:
        died: why it is of no use any more, as a sentence; empty while it is.
        planned: it ended although nothing is wrong with the cards.
        hung: index of the card about which a call hangs; None where no card is to blame.
        deaf: it is the waiting for events that hangs, and nothing else.
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
            env={**os.environ, "PYTHONPATH": path},
            cwd="/",
            bufsize=0,
        )
        self.died = ""
        self.planned = False
        self.hung: int | None = None
        self.deaf = False
        self._hang_after = hang_after
        self._log = log
        self._last = time.monotonic()
        self._beats = 0
        self._buffers = {"frames": bytearray(), "noise": bytearray()}

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the kernel has let go of it; a process that hangs in the driver may never end."""
        return self._process.poll() is not None

    def attach(self, selector: selectors.BaseSelector) -> None:
        """Have a selector watch its pipes."""
        for stream, name in ((self._process.stdout, "frames"), (self._process.stderr, "noise")):
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
        if name == "noise":
            for line in lines:
                self._log.info("driver process: %s", line.decode(errors="replace")[:_NOISE])
            del self._buffers[name][_NOISE:]
            if not data:
                # A closed pipe is always readable; that of the frames says that the process ended.
                selector.unregister(key.fileobj)
            return
        for line in lines:
            yield from self._frame(line)
        if not data and not self.died:
            self.died = self._epitaph()
        if len(rest) > LIMIT:
            self.died = "the driver process sends a line without an end"

    def _frame(self, line: bytes) -> Iterator[Frame]:
        try:
            frame = decode(line)
        except GarbledFrame as error:
            self.died = f"the driver process sends garbage: {error}"
            return
        self._last = time.monotonic()
        if isinstance(frame, Beat):
            self._beats += 1
            self._judge(frame)
        elif isinstance(frame, Farewell):
            self.died, self.planned = frame.reason, frame.planned
        elif isinstance(frame, LogLine):
            getattr(self._log, frame.level)("%s", frame.message)
        else:
            yield frame

    def _judge(self, beat: Beat) -> None:
        for pending in beat.pending:
            if pending.seconds > self._hang_after * pending.patience and not self.died:
                self.died = f"the driver hangs: {pending.call} has not returned for {pending.seconds:.1f} s"
                self.hung = pending.card
                self.deaf = pending.call in EVENT_SET_CALLS

    def retire(self, reason: str) -> None:
        """Say that another process is to take its place, although nothing is wrong with it."""
        self.died, self.planned = reason, True

    def look_after(self) -> float:
        """Notice silence.

        Returns:
            Seconds until it is to be looked after again.
        """
        patience = self._hang_after if self._beats else self._hang_after + _START
        left = self._last + patience - time.monotonic()
        if left <= 0 and not self.died:
            self.died = f"the driver process has given no sign of life for {patience:.1f} s"
        return max(left, 0.0)

    def poll(self) -> None:
        """Ask it for a look; a pipe that is full has enough of such requests in it."""
        if self._process.stdin is not None:
            try:
                os.set_blocking(self._process.stdin.fileno(), False)
                os.write(self._process.stdin.fileno(), b"poll\n")
            except OSError:
                pass  # it ended, which its other pipe says

    def kill(self, patience: float) -> bool:
        """End it with SIGKILL and close its pipes.

        Args:
            patience: seconds to wait for its end.

        Returns:
            Whether it ended; one that hangs in the driver is left behind.
        """
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _epitaph(self) -> str:
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the driver process closed its output"
        if status < 0:
            return f"the driver process was ended by {signal.Signals(-status).name}"
        return f"the driver process ended with exit status {status}"

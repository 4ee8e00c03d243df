"""What a plugin's process writes to its standard output and error: the daemon logs it.

Owns: the pipe that both are, when it is read, and the lines.
Refuses: a thread of its own, and the daemon's output: a process that has that can shut it, and write lines there that
look like the daemon's.

A child of the process may outlive process and daemon, as a FUSE server does. Without a reader its next line would end
it by SIGPIPE; so it has the pipe open for reading, too, as the shim of containerd has its own.
"""

import fcntl
import logging
import math
import os
import select
from collections.abc import Container
from contextlib import suppress
from typing import Final

from nodeplug.worker.log_allowance import LogAllowance

READ: Final = 64 << 10
"""Bytes that are read of a pipe at a time."""
PAUSE: Final = 0.05
"""Seconds between two times. A process that writes faster waits, so it takes little of the daemon's processor."""
_ROOM: Final = 1 << 20
"""Bytes that wait in a pipe; what nobody reads any more stops its writer there."""
_LINE: Final = 16 << 10
"""Bytes of a line; more are left out. The log shows fewer, so a secret is never cut before it is masked."""


class Output:
    """That of one process, from before its start until after its end. One thread at a time may use it.

    Args:
        plugin: the name of its section.
        allowance: how many lines it may write.
        user: who is to reach it by its name, /dev/stderr; None: that of the daemon.

    Attributes:
        end: the descriptor that the process gets.

    Raises:
        OSError: there is no descriptor left.
    """

    def __init__(self, plugin: str, allowance: LogAllowance, user: int | None) -> None:
        self._logger, self._plugin, self._allowance = logging.getLogger(f"nodeplug.plugin.{plugin}"), plugin, allowance
        self._begun, self._skips, self._resumes = b"", False, 0.0
        self._pipe, self.end = _pipe()
        with suppress(OSError):  # an ordinary user has room for a few pipes of this size
            fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, _ROOM)
        try:
            if user is not None:
                os.fchown(self.end, user, -1)
        except BaseException:
            os.close(self._pipe)
            os.close(self.end)
            raise

    def given(self) -> None:
        """Close what the process has got by now, or will not get."""
        os.close(self.end)

    def close(self) -> None:
        """Log what is left, and read no more."""
        for _ in range(_ROOM // READ):
            self.read()
        os.close(self._pipe)
        self._log(self._begun)
        self._allowance.end()

    @property
    def pause(self) -> float:
        """Seconds until `attend` wants to be called, also when nothing is ready."""
        return PAUSE if self._resumes else math.inf

    def attend(self, look: select.poll, ready: Container[int], now: float) -> None:
        """Log what is ready, and look for more after a while.

        Args:
            look: where the pipe is registered when more is wanted.
            ready: what it found.
            now: seconds, as those of `time.monotonic`.
        """
        if self._pipe in ready:
            look.unregister(self._pipe)
            self._resumes = now + PAUSE if self.read() else 0.0
        elif self._resumes and now >= self._resumes:
            self.register(look)
            self._resumes = 0.0

    def register(self, look: select.poll) -> None:
        """Have the pipe looked at."""
        look.register(self._pipe, select.POLLIN)

    def read(self) -> bool:
        """Log what the process has written, up to a bound, and return whether more may come. Never waits."""
        try:
            data = os.read(self._pipe, READ)
        except BlockingIOError:
            return True
        self._take(data)
        return bool(data)

    def _take(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            if not self._skips:
                self._log(line)
            self._skips = False
        if len(self._begun) > _LINE:
            self._log(self._begun)
            self._skips = True
        if self._skips:
            self._begun = b""

    def _log(self, line: bytes) -> None:
        text = line[:_LINE].decode(errors="backslashreplace").rstrip()
        if text and self._allowance.take():
            self._logger.warning("it wrote: %s", text, extra={"plugin": self._plugin})


def _pipe() -> tuple[int, int]:
    """Return an end to read without waiting, and one to write that can be read as well."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return reading, os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_CLOEXEC)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)

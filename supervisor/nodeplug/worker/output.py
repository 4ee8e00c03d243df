"""What a plugin's process writes to its standard output and error: the daemon logs it.

Owns: the socket that both are, the thread that reads it, and the lines.
Refuses: the daemon's own output for a process, which could shut it, and write lines there that look like the daemon's.
And a pipe: a process can write to it from a mapping of a file of its own FUSE server. While that does not answer, the
kernel holds the lock of the pipe, and whoever reads or closes the other end cannot even be killed.

The thread ends when nobody can write any more, so it may outlive the process: children may have its output.
"""

import logging
import os
import socket
import threading
import time
from typing import Final

from nodeplug.contract.discarding import discard
from nodeplug.descriptors import ALL, receive
from nodeplug.worker.log_allowance import LogAllowance

READ: Final = 64 << 10
"""Bytes of one read, at most."""
PAUSE: Final = 0.05
"""Seconds between two reads, at least."""
_SHARE: Final = 10
"""Reading takes at most this part (1/10) of the time; a process that writes faster waits."""
_LINE: Final = 16 << 10
"""Bytes of a line; more are left out. A secret is not found where a line is cut."""


class Output:
    """The output of one plugin's process, from before its start until nobody can write any more.

    Args:
        plugin: the name of its section.
        allowance: how many lines may be logged.

    Attributes:
        end: the descriptor that becomes the output of the process; `release` closes it here.

    Raises:
        OSError: there is no descriptor left.
        RuntimeError: there is no thread left.
    """

    def __init__(self, plugin: str, allowance: LogAllowance) -> None:
        self._logger, self._plugin, self._allowance = logging.getLogger(f"nodeplug.plugin.{plugin}"), plugin, allowance
        self._begun, self._skips = b"", False
        ours, theirs = socket.socketpair()
        try:
            ours.shutdown(socket.SHUT_WR)
            self._thread = threading.Thread(
                target=self._serve, args=(ours,), name=f"output of {plugin}"[:100], daemon=True
            )
            self._thread.start()
        except BaseException:
            ours.close()
            theirs.close()
            raise
        self.end = theirs.detach()

    def release(self) -> None:
        """Close the descriptor of the process here: the process has its own by now, or will not start."""
        os.close(self.end)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all is logged, and return whether it is."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _serve(self, ours: socket.socket) -> None:
        with ours:
            while (received := receive(ours, READ, ALL)).data:
                discard(received.descriptors)
                began = time.monotonic()
                self._take(received.data)
                time.sleep(max(PAUSE, (_SHARE - 1) * (time.monotonic() - began)))
        self._log(self._begun)
        self._allowance.end()

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
        if text and self._logger.isEnabledFor(logging.WARNING) and self._allowance.take():
            self._logger.warning("it wrote: %s", text, extra={"plugin": self._plugin})

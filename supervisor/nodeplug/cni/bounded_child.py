"""Runs a foreign program, and reads no more of its output than it may write.

`subprocess.communicate` keeps whatever a child writes: one that never stops would take the memory of the daemon.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final, cast

_CHUNK: Final = 64 << 10
_KILLED: Final = 2.0
"""Seconds that a child has to end after SIGKILL."""


class WroteTooMuch(Exception):
    """The child exceeded its limit of output and was killed."""


def communicate(
    child: "subprocess.Popen[bytes]", stdin: bytes, timeout: float, *, most_output: int, most_errors: int
) -> tuple[bytes, bytes]:
    """Write stdin, read stdout and stderr, and wait for the end of a child that is the leader of its session.

    Args:
        child: with pipes for all three.
        stdin: what it reads; it need not read all.
        timeout: seconds until it has to have ended.
        most_output: bytes of stdout that it may write.
        most_errors: bytes of stderr that are kept; it may write as many more as of stdout.

    Returns:
        stdout, and the first bytes of stderr.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed with its process group.
        WroteTooMuch: it exceeded a limit, and was killed with its process group.
    """
    deadline, left = time.monotonic() + timeout, memoryview(stdin)
    heard = _Heard(child, most_output, most_errors)
    with selectors.DefaultSelector() as selector, _ended(child):
        for stream, event in _streams(child):
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, event)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise subprocess.TimeoutExpired(child.args, timeout)
            for key, _ in selector.select(remaining):
                stream = cast("IO[bytes]", key.fileobj)
                if stream is child.stdin:
                    left = _fed(stream, left)
                    ended = not left
                else:
                    ended = not heard.read(stream)
                if ended:
                    selector.unregister(stream)
                    with suppress(BrokenPipeError):
                        stream.close()
        child.wait(max(0.0, deadline - time.monotonic()))
    return bytes(heard.output), bytes(heard.errors)


def _streams(child: "subprocess.Popen[bytes]") -> Iterator[tuple[IO[bytes], int]]:
    for stream, event in (
        (child.stdin, selectors.EVENT_WRITE),
        (child.stdout, selectors.EVENT_READ),
        (child.stderr, selectors.EVENT_READ),
    ):
        if stream is not None:
            yield stream, event


class _Heard:
    """What a child has written."""

    def __init__(self, child: "subprocess.Popen[bytes]", most_output: int, most_errors: int) -> None:
        self.output, self.errors = bytearray(), bytearray()
        self._child, self._most_output, self._most_errors = child, most_output, most_errors
        self._errors = 0

    def read(self, stream: IO[bytes]) -> bool:
        """Read what is there; return whether there may be more.

        Raises:
            WroteTooMuch: it is more than the child may write.
        """
        chunk = os.read(stream.fileno(), _CHUNK)
        if stream is self._child.stdout:
            self.output += chunk
        else:
            self.errors += chunk[: self._most_errors - len(self.errors)]
            self._errors += len(chunk)
        if max(len(self.output), self._errors - self._most_errors) > self._most_output:
            raise WroteTooMuch(f"it wrote more than {self._most_output} bytes")
        return bool(chunk)


def _fed(feed: IO[bytes], left: memoryview) -> memoryview:
    """Write what the pipe takes; return what is left, which is nothing for a child that does not read."""
    try:
        return left[os.write(feed.fileno(), left[:_CHUNK]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[len(left) :]


@contextmanager
def _ended(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Kill the process group of a child if the block raises, and close its pipes.

    One that hangs in the kernel, as on a disk that does not answer, is left: `subprocess` collects it later.
    """
    try:
        yield
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_KILLED)
        raise
    finally:
        for stream, _ in _streams(child):
            with suppress(BrokenPipeError):
                stream.close()

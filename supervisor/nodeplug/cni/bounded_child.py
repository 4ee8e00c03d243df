"""Runs a foreign program, and reads no more of its output than it may write.

`subprocess.communicate` keeps whatever a child writes: one that never stops would take the memory of the daemon.
"""

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO, Final, cast

_CHUNK: Final = 64 << 10


class WroteTooMuch(Exception):
    """The child wrote more than it may, and was killed."""


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
        WroteTooMuch: the same, for another reason.
    """
    deadline = time.monotonic() + timeout
    output, errors = bytearray(), bytearray()
    dropped = 0
    with selectors.DefaultSelector() as selector, _ended(child):
        for stream in (child.stdout, child.stderr):
            os.set_blocking(cast("IO[bytes]", stream).fileno(), False)
            selector.register(cast("IO[bytes]", stream), selectors.EVENT_READ)
        feed = cast("IO[bytes]", child.stdin)
        os.set_blocking(feed.fileno(), False)
        selector.register(feed, selectors.EVENT_WRITE)
        left = memoryview(stdin)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise subprocess.TimeoutExpired(child.args, timeout)
            for key, _ in selector.select(remaining):
                stream = cast("IO[bytes]", key.fileobj)
                if stream is feed:
                    left = _fed(feed, left)
                    done = not left
                elif chunk := os.read(stream.fileno(), _CHUNK):
                    done = False
                    if stream is child.stdout:
                        output += chunk
                    else:
                        errors += chunk[: most_errors - len(errors)]
                        dropped += len(chunk)
                    if max(len(output), dropped - most_errors) > most_output:
                        raise WroteTooMuch(f"it wrote more than {most_output} bytes")
                else:
                    done = True
                if done:
                    selector.unregister(stream)
                    with suppress(BrokenPipeError):
                        stream.close()
        child.wait(max(0.0, deadline - time.monotonic()))
    return bytes(output), bytes(errors)


def _fed(feed: IO[bytes], left: memoryview) -> memoryview:
    """Write what the pipe takes; return what is left, which is nothing for a child that does not read."""
    try:
        return left[os.write(feed.fileno(), left[:_CHUNK]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[len(left) :]


class _ended:  # noqa: N801 - a block, as contextlib has them
    """Kills the process group of a child that has not ended when the block is left by an error."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

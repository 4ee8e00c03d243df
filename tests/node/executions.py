"""What a process executes while a test looks on, by strace(1)."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import need


@contextmanager
def executions(process: int, folder: Path) -> Iterator[list[str]]:
    """Collect each execve(2) of a process, its threads and its children; the list is filled when the block ends."""
    need("strace")
    out = folder / "executed"
    command = ["strace", "-f", "-e", "trace=execve,execveat", "-e", "signal=none", "-o", str(out), "-p", str(process)]
    found: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracing:
        assert tracing.stderr is not None
        said = tracing.stderr.readline()
        assert "attached" in said, said
        try:
            yield found
        finally:
            tracing.send_signal(signal.SIGINT)
            tracing.communicate()
    found += [line for line in out.read_text().splitlines() if "exec" in line]

"""The stand-ins for NVIDIA's libraries, compiled once for all processes that run tests.

Owns: the folder that these processes share, and that two of them do not compile the same at the same time.
"""

import fcntl
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC")


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this session; with pytest-xdist each process has its own one in it."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def once(made: Path, make: Callable[[Path], None]) -> Path:
    """Make a file unless another process has: it is there under its name when it is whole."""
    with made.with_name(f"{made.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            new = made.with_name(f"{made.name}.new")
            make(new)
            new.rename(made)
    return made


def cc(*arguments: str | Path) -> None:
    """Run the compiler, which runs the assembler and the linker."""
    subprocess.run(["cc", *FLAGS, *arguments], check=True)

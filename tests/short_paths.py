"""Folders whose name is short enough for sockets."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nodeplug.testing import folders
from nodeplug.testing.waiting import until


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short name: sockets below it have at most 107 bytes in their path."""
    path = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    yield path
    until(lambda: not _working_in(path), found=lambda: f"left running: {', '.join(_working_in(path))}")
    folders.remove(path)


def _working_in(path: Path) -> list[str]:
    """Return the processes that name a folder in their arguments; one that has ended names nothing."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(path).encode() in (line := place.read_bytes()):
                found.append(f"{place.parent.name} {line.replace(bytes(1), b' ').decode(errors='replace')}")
    return found

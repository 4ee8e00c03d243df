"""A loopfile plugin on a node, and disks whose files can share blocks."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disks import attached_disk
from tests.node.volumes.images import Make, Node, images

from nodeplug_volumes import copying, extents


@pytest.fixture
def make(area: Path, make_host: Any) -> Iterator[Make]:
    with images(area, make_host) as one:
        yield one


@pytest.fixture
def reflinks(tmp_path: Path) -> Iterator[Path]:
    """A disk whose files can share blocks."""
    with attached_disk(tmp_path / "disk", "xfs", "1G") as disk:
        yield disk / "images"


@pytest.fixture
def node(make: Make) -> Node:
    return make()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Copies that have written most when they wait for this."""
    going, real = threading.Event(), extents.copy

    def copy(source: int, target: int, told: Callable[[int], bool]) -> bool:
        return real(source, target, told) and going.wait(60)

    monkeypatch.setattr(extents, "copy", copy)
    monkeypatch.setattr(copying, "PATIENCE", 0.5)
    yield going
    going.set()

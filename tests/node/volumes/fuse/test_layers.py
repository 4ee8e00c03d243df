"""A filesystem that is mounted on top of a dead one for a pod that has it already."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug import mount, mounts, unmount
from nodeplug_volumes.fuse import layers


@pytest.fixture
def target(area: Path) -> Iterator[Path]:
    path = area / "target"
    path.mkdir()
    yield path
    while sources(path):
        unmount(str(path), lazy=True)


@pytest.fixture
def source(area: Path) -> Path:
    path = area / "source"
    path.mkdir()
    (path / "new").touch()
    return path


def sources(target: Path) -> list[str]:
    """Return what is mounted at a place, the lowest first."""
    return [one.source for one in mounts() if one.target == str(target)]


@pytest.mark.parametrize("dead", [1, 3])
def test_of_dead_mounts_the_lowest_stays_and_the_new_one_is_on_it(target: Path, source: Path, dead: int) -> None:
    for number in range(dead):
        mount(f"dead{number}", str(target), "tmpfs")
    layers.mount_over(str(source), str(target), read_only=False)
    assert sources(target)[0] == "dead0"
    assert (len(sources(target)), [one.name for one in target.iterdir()]) == (2, ["new"])


def test_nothing_is_mounted_for_a_pod_that_has_ended(target: Path, source: Path) -> None:
    layers.mount_over(str(source), str(target), read_only=False)
    assert sources(target) == []

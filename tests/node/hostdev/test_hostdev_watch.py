"""hostdev sees nodes come and go."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeplug import (
    ResourceName,
)
from nodeplug_hostdev import HostDev

Make = Callable[..., HostDev]
NAME = ResourceName("example.com/a")


def test_new_node_asks_for_a_listing(mknod: Any, group: Any, plugins: Make, dev: Path, refreshed: Any) -> None:
    plugins(group(dev / "a*"), watch=True)
    mknod(dev / "a0")
    assert refreshed.wait_for(NAME)


def test_removed_node_asks_for_a_listing(mknod: Any, group: Any, plugins: Make, dev: Path, refreshed: Any) -> None:
    mknod(dev / "a0")
    plugins(group(dev / "a*"), watch=True)
    (dev / "a0").unlink()
    assert refreshed.wait_for(NAME)


def test_node_in_a_folder_that_comes_later_asks_for_a_listing(
    mknod: Any, group: Any, plugins: Make, dev: Path, refreshed: Any
) -> None:
    plugins(group(dev / "bus/*/a*"), watch=True)
    (dev / "bus").mkdir()
    assert refreshed.wait_for(NAME)
    (dev / "bus/001").mkdir()
    refreshed.resources.clear()
    mknod(dev / "bus/001/a0")
    assert refreshed.wait_for(NAME)


def test_names_that_cannot_match_ask_for_nothing(
    mknod: Any, group: Any, plugins: Make, dev: Path, refreshed: Any
) -> None:
    plugins(group(dev / "a*"), watch=True)
    (dev / "other").touch()
    mknod(dev / "a0")
    assert refreshed.wait_for(NAME)
    assert refreshed.resources == [NAME]


def test_stop_ends_the_watching_thread(group: Any, plugins: Make, dev: Path) -> None:
    plugin = plugins(group(dev / "a*"), watch=True)
    plugin.stop()
    assert [thread for thread in threading.enumerate() if thread.name == "hostdev:inotify"] == []


def test_stop_twice_and_without_a_watch_succeeds(group: Any, plugins: Make, dev: Path) -> None:
    plugin = plugins(group(dev / "a"))
    plugin.stop()
    plugin.stop()

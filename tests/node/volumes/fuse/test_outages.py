"""A program whose server is away for a while."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.fuse.lab import DRIVER, PATIENCE, condition_of, pid_of, volumes

from nodeplug import mounted_at
from nodeplug.testing.waiting import until
from nodeplug_volumes.fuse.plugin import Fuse

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]


@pytest.fixture
def fragile(source: Path) -> dict[str, Any]:
    """A program that starts only while its server, a file, is there."""
    (source / "up").write_text("")
    script = f'test -e {source}/up || exit 9; exec bindfs -f {source}/data "$1"'
    return {"command": ["sh", "-c", script, "sh", "{mountpoint}"]}


@pytest.fixture
def away(make_node: Any, make_plugin: Any, fragile: dict[str, Any], source: Path) -> tuple[Any, Fuse]:
    """A node whose pod "a" has a volume that cannot be served just now."""
    plugin = make_plugin(files=fragile)
    node = make_node(fuse=plugin)
    node.mount(DRIVER, node.target("a"), {})
    (source / "up").unlink()
    os.kill(pid_of(plugin), signal.SIGKILL)
    until(lambda: "it is not served" in condition_of(plugin), PATIENCE)
    return node, plugin


@pytest.mark.whole
def test_a_pod_that_comes_during_an_outage_waits_and_the_one_that_was_there_has_its_files_again(
    away: tuple[Any, Fuse], source: Path, area: Path
) -> None:
    node, plugin = away
    one, two = area / "pods" / "a", node.target("b")
    assert "ended with status 9" in node.mount(DRIVER, two, {})["message"]
    assert mounted_at(str(two)) is None
    (source / "up").write_text("")
    until(lambda: condition_of(plugin) == "", PATIENCE)
    assert (one / "hello").read_text() == "world"
    assert node.mount(DRIVER, two, {}) == {"status": "Success"}
    for path in (one, two):
        assert node.unmount(DRIVER, path) == {"status": "Success"}
    assert (node.mounted, node.records, volumes(plugin)) == ([], [], [])
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []


def test_a_pod_that_comes_first_after_an_outage_brings_all_others_their_files_back(
    away: tuple[Any, Fuse], source: Path
) -> None:
    node, plugin = away
    plugin.stop()  # no watch, so that it is this pod that comes first
    (source / "up").write_text("")
    assert node.mount(DRIVER, node.target("b"), {}) == {"status": "Success"}
    assert [(node.target(name) / "hello").read_text() for name in "ab"] == ["world", "world"]


def test_the_end_of_the_last_pod_during_an_outage_leaves_nothing(away: tuple[Any, Fuse], area: Path) -> None:
    node, plugin = away
    node.mount(DRIVER, node.target("b"), {})
    assert node.unmount(DRIVER, area / "pods" / "a") == {"status": "Success"}
    assert (node.mounted, node.records, volumes(plugin)) == ([], [], [])
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []

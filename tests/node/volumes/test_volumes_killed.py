"""A daemon killed between any two changes: the repeated call, or a start and the next call, mends everything."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.node.killing import every_step

from nodeplug import mounted_at
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig

pytestmark = pytest.mark.node
DRIVER = "nodeplug/loopfile"
OPTIONS = {"name": "data", "size": "4Mi"}


@pytest.fixture
def every_kill(
    has_loop_devices: None, area: Path, make_node: Any, make_host: Any
) -> Callable[[bool], Iterator[tuple[Any, Path]]]:
    """Make one node after another whose daemon was killed before its 1st, 2nd, 3rd ... change."""
    made: list[Any] = []

    def make() -> Any:
        node = make_node()
        node.area = area / str(len(made))
        node.area.mkdir()
        node.__post_init__()
        plugin = LoopFile(LoopFileConfig(directory=node.area / "images"), make_host("loopfile"))
        plugin.start()
        node.registry.load("loopfile", plugin, "tests")
        made.append(node)
        return node

    def nodes(unmount: bool) -> Iterator[tuple[Any, Path]]:
        def words() -> list[str]:
            node = make()
            target = node.target("a")
            if not unmount:
                return [str(node.area), "mount", str(target), json.dumps(OPTIONS)]
            assert node.mount(DRIVER, target, OPTIONS) == {"status": "Success"}
            (target / "x").write_text("kept")
            return [str(node.area), "unmount", str(target)]

        for _ in every_step("tests.node.volumes.killed_daemon", words, least=5):
            yield made[-1], made[-1].target("a")

    return nodes


def assert_nothing_is_left(node: Any, loops: Any) -> None:
    left = [name for name, backing in loops().items() if backing.startswith(f"{node.area}/")]
    assert (node.mounted, node.records, left) == ([], [], [])
    assert list(node.staging_folder.glob("*/*")) == []


@pytest.mark.whole
@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_mount_killed_at_any_change_succeeds_when_it_is_repeated(every_kill: Any, loops: Any) -> None:
    for node, target in every_kill(unmount=False):
        assert node.mount(DRIVER, target, OPTIONS) == {"status": "Success"}
        (target / "x").write_text("written")
        assert node.unmount(DRIVER, target) == {"status": "Success"}
        assert_nothing_is_left(node, loops)


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_start_after_a_killed_mount_leaves_a_whole_mount_or_nothing(every_kill: Any, loops: Any) -> None:
    for node, target in every_kill(unmount=False):
        node.recover()
        if mounted_at(str(target)) is None:
            assert_nothing_is_left(node, loops)
            continue
        (target / "x").write_text("written")
        assert node.unmount(DRIVER, target) == {"status": "Success"}
        assert_nothing_is_left(node, loops)


@pytest.mark.whole
@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_an_unmount_killed_at_any_change_succeeds_when_it_is_repeated(every_kill: Any, loops: Any) -> None:
    for node, target in every_kill(unmount=True):
        assert node.unmount(DRIVER, target) == {"status": "Success"}
        node.recover()
        assert_nothing_is_left(node, loops)
        assert node.mount(DRIVER, target, OPTIONS) == {"status": "Success"}
        assert (target / "x").read_text() == "kept"
        node.unmount(DRIVER, target)

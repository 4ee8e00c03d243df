"""A daemon killed between any two changes: the repeated call, or a start and the next call, mends everything."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug import mounted_at
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig

pytestmark = pytest.mark.node
DRIVER = "nodeplug/loopfile"
OPTIONS = {"name": "data", "size": "4Mi"}
PROGRAM = Path(__file__).with_name("killed_daemon.py")
MOST = 60


def killed(area: Path, change: int, *argv: str) -> bool:
    """Run a verb in a process of its own that is killed before a change; False when it ended before that."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(area), str(change), *argv], capture_output=True, check=False, text=True
    )
    if done.returncode == -signal.SIGKILL:
        return True
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"status": "Success"}
    return False


@pytest.fixture
def every_kill(
    has_loop_devices: None, area: Path, make_node: Any, make_host: Any
) -> Callable[[bool], Iterator[tuple[Any, Path]]]:
    """Make one node after another whose daemon was killed before its 1st, 2nd, 3rd ... change."""

    def nodes(unmount: bool) -> Iterator[tuple[Any, Path]]:
        for change in range(1, MOST):
            node = make_node()
            node.area = area / str(change)
            node.area.mkdir()
            node.__post_init__()
            plugin = LoopFile(LoopFileConfig(directory=node.area / "images"), make_host("loopfile"))
            plugin.start()
            node.registry.load("loopfile", plugin, "tests")
            target = node.target("a")
            if unmount:
                assert node.mount(DRIVER, target, OPTIONS) == {"status": "Success"}
                (target / "x").write_text("kept")
            argv = ("unmount", str(target)) if unmount else ("mount", str(target), json.dumps(OPTIONS))
            if not killed(node.area, change, *argv):
                assert change > 5
                return
            yield node, target
        raise AssertionError(f"one verb takes more than {MOST} changes")

    return nodes


def assert_nothing_is_left(node: Any, loops: Any) -> None:
    left = [name for name, backing in loops().items() if backing.startswith(f"{node.area}/")]
    assert (node.mounted, node.records, left) == ([], [], [])
    assert list(node.staging_folder.glob("*/*")) == []


def test_a_mount_killed_at_any_change_succeeds_when_it_is_repeated(every_kill: Any, loops: Any) -> None:
    for node, target in every_kill(unmount=False):
        assert node.mount(DRIVER, target, OPTIONS) == {"status": "Success"}
        (target / "x").write_text("written")
        assert node.unmount(DRIVER, target) == {"status": "Success"}
        assert_nothing_is_left(node, loops)


def test_a_start_after_a_killed_mount_leaves_a_whole_mount_or_nothing(every_kill: Any, loops: Any) -> None:
    for node, target in every_kill(unmount=False):
        node.recover()
        if mounted_at(str(target)) is None:
            assert_nothing_is_left(node, loops)
            continue
        (target / "x").write_text("written")
        assert node.unmount(DRIVER, target) == {"status": "Success"}
        assert_nothing_is_left(node, loops)


def test_an_unmount_killed_at_any_change_succeeds_when_it_is_repeated(every_kill: Any, loops: Any) -> None:
    for node, target in every_kill(unmount=True):
        assert node.unmount(DRIVER, target) == {"status": "Success"}
        node.recover()
        assert_nothing_is_left(node, loops)
        assert node.mount(DRIVER, target, OPTIONS) == {"status": "Success"}
        assert (target / "x").read_text() == "kept"
        node.unmount(DRIVER, target)

"""A call of loopfile that is killed at any change is finished when it is repeated."""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.disks import attached_disk
from tests.node.killing import every_step
from tests.node.volumes.images import Make, Node
from tests.node.volumes.loopfile.killed_store import call

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]


ENDS = {
    "create": ["new.img", "new.json", "snapshots/taken.img", "snapshots/taken.json", "source.img", "source.json"],
    "copy": ["new.img", "new.json", "snapshots/taken.img", "snapshots/taken.json", "source.img", "source.json"],
    "restore": ["new.img", "new.json", "snapshots/taken.img", "snapshots/taken.json", "source.img", "source.json"],
    "snapshot": [
        *("snapshots/new.img", "snapshots/new.json", "snapshots/taken.img", "snapshots/taken.json"),
        *("source.img", "source.json"),
    ],
    "delete": ["snapshots/taken.img", "snapshots/taken.json"],
    "delete snapshot": ["source.img", "source.json"],
    "grow": ["snapshots/taken.img", "snapshots/taken.json", "source.img", "source.json"],
}


def kills() -> list[Any]:
    """Give each call on both kinds of disks, of which the quick suite has those that take other steps than others."""
    quick = {("create", False), ("delete", False)}
    return [
        pytest.param(verb, can_share, marks=() if (verb, can_share) in quick else pytest.mark.whole)
        for verb in ENDS
        for can_share in (True, False)
    ]


@pytest.mark.programs("e2fsck", "mkfs.ext4", "resize2fs")
@pytest.mark.parametrize(("verb", "can_share"), kills())
def test_a_call_that_is_killed_at_any_change_is_finished_when_it_is_repeated(
    tmp_path: Path, area: Path, make: Make, verb: str, *, can_share: bool
) -> None:
    disk = attached_disk(tmp_path / "disk", "xfs", "1G") if can_share else nullcontext(tmp_path)
    with disk as root:
        made: list[Node] = []

        def words() -> list[str]:
            folder = root / str(len(made))
            (folder / "host").mkdir(parents=True)
            node = make(folder / "images")
            node.create("source")
            node.write("source", "kept")
            node.snapshot("source", "taken")
            made.append(node)
            return [str(folder), verb]

        def assert_it_is_finished() -> None:
            node = made[-1]
            node.plugin.start()
            assert not [name for name in node.files if ".new" in name]
            call(node.plugin, verb)
            assert node.files == ENDS[verb]
            for name in [name for name in ("source", "new") if f"{name}.img" in node.files and verb != "create"]:
                assert node.read(name) == "kept"
            shutil.rmtree(root / str(len(made) - 1))

        for _ in every_step("tests.node.volumes.loopfile.killed_store", words, least=1):
            assert_it_is_finished()
        assert_it_is_finished()  # nor does the one that was not killed do harm

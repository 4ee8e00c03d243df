"""A loopfile plugin that is killed before its n-th change of the world: run as a module by test_killed_calls.py.

Arguments: n, folder, then one call. Every file made, renamed, removed, cut or grown, ioctl and tool counts as a change.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tests.node.volumes.killed_daemon import EVENTS, Changes

from nodeplug import VolumeCreate, VolumeDelete, VolumeExpand, VolumeId, VolumeSnapshot, VolumeSnapshotDelete
from nodeplug.testing import host
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig

DRIVER = "nodeplug/loopfile"
MIB = 1 << 20
SOURCE = VolumeId("source")


def call(plugin: LoopFile, name: str) -> None:
    """Do one of the calls; `source` is a volume, and `taken` a snapshot, that exist."""
    if name == "create":
        plugin.volume_create(VolumeCreate(driver=DRIVER, name="new", size=16 * MIB))
    elif name == "copy":
        plugin.volume_create(VolumeCreate(driver=DRIVER, name="new", size=32 * MIB, source=SOURCE))
    elif name == "restore":
        plugin.volume_create(VolumeCreate(driver=DRIVER, name="new", size=32 * MIB, snapshot="taken"))
    elif name == "snapshot":
        plugin.volume_snapshot(VolumeSnapshot(driver=DRIVER, volume_id=SOURCE, name="new"))
    elif name == "delete":
        plugin.volume_delete(VolumeDelete(driver=DRIVER, volume_id=SOURCE))
    elif name == "delete snapshot":
        plugin.volume_snapshot_delete(VolumeSnapshotDelete(driver=DRIVER, snapshot_id="taken"))
    else:
        plugin.volume_expand(VolumeExpand(driver=DRIVER, volume_id=SOURCE, new_size=32 * MIB))


def main(fatal: int, area: Path, name: str) -> None:
    plugin = LoopFile(LoopFileConfig(directory=area / "images"), host(area / "host"))
    plugin.start()
    changes = Changes(fatal)

    def audit(event: str, arguments: Any) -> None:
        made = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if event in EVENTS or made:
            changes.count()

    sys.addaudithook(audit)
    call(plugin, name)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

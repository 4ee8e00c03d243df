"""The start of a FUSE program by a daemon that is killed before its n-th change of the world, run as a module.

Arguments: n, folder of the host, source, staging path.
"""

import sys
from pathlib import Path

from tests.node.volumes.killed_daemon import EVENTS, Changes, count_mounts

from nodeplug import Secrets, VolumeId, VolumeStage
from nodeplug.testing import host
from nodeplug_volumes.fuse.config import FuseConfig
from nodeplug_volumes.fuse.plugin import Fuse


def main(fatal: int, folder: Path, source: str, staging: str) -> None:
    program = {"command": ["bindfs", "-f", source, "{mountpoint}"], "secrets": {"key": {}}}
    plugin = Fuse(FuseConfig.model_validate({"programs": {"files": program}}), host(folder, plugin="fuse"))
    changes = Changes(fatal)
    EVENTS.add("os.posix_spawn")
    sys.addaudithook(changes.audit)
    count_mounts(changes)
    plugin.volume_stage(
        VolumeStage(
            driver="nodeplug/fuse", volume_id=VolumeId("x"), staging_path=staging, secrets=Secrets({"key": b"geheim"})
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])

"""The start of a FUSE program by a daemon that is killed before its n-th change of the world, run as a program.

Arguments: folder of the host, source, n, staging path.
"""

import sys
from importlib import import_module
from pathlib import Path

from nodeplug import Secrets, VolumeId, VolumeStage
from nodeplug.testing import host
from nodeplug_volumes.fuse.config import FuseConfig
from nodeplug_volumes.fuse.plugin import Fuse

killed = import_module("killed_daemon")  # beside this file, which is no module when it is run


def main(folder: Path, source: str, fatal: int, staging: str) -> None:
    program = {"command": ["bindfs", "-f", source, "{mountpoint}"], "secrets": {"key": {}}}
    plugin = Fuse(FuseConfig.model_validate({"programs": {"files": program}}), host(folder, plugin="fuse"))
    changes = killed.Changes(fatal)
    killed.EVENTS.add("os.posix_spawn")
    sys.addaudithook(changes.audit)
    names = vars(sys.modules["nodeplug.contract.mounts"])
    names["_LIBC"] = killed.Libc(names["_LIBC"], changes)
    plugin.volume_stage(
        VolumeStage(
            driver="nodeplug/fuse", volume_id=VolumeId("x"), staging_path=staging, secrets=Secrets({"key": b"geheim"})
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])

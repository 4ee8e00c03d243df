"""The mount of a writable layer, killed before its n-th change of the world: run by test_volumes_image.py as a program.

Arguments: area, root of the images, n, target.
"""

import sys
from importlib import import_module
from pathlib import Path

from nodeplug import VolumeId, VolumePublish, VolumeStage
from nodeplug.testing import host
from nodeplug_volumes.image import Image, ImageConfig

killed = import_module("killed_daemon")  # beside this file, which is no module when it is run


def main(area: Path, root: str, fatal: int, target: str) -> None:
    (area / "hosts" / "image").mkdir(parents=True, exist_ok=True)
    config = ImageConfig.model_validate({"roots": {"main": {"path": root}}, "max_overlay": "64Mi"})
    plugin = Image(config, host(area / "hosts" / "image", plugin="image"))
    options = {"path": "model.squashfs", "overlay": "8Mi"}
    staging = area / "killed-stage"
    staging.mkdir(exist_ok=True)
    plugin.volume_stage(
        VolumeStage(driver="nodeplug/image", volume_id=VolumeId("x"), options=options, staging_path=str(staging))
    )
    changes = killed.Changes(fatal)
    sys.addaudithook(changes.audit)
    names = vars(sys.modules["nodeplug.contract.mounts"])
    names["_LIBC"] = killed.Libc(names["_LIBC"], changes)
    plugin.volume_publish(
        VolumePublish(
            driver="nodeplug/image",
            volume_id=VolumeId("x"),
            options=options,
            staging_path=str(staging),
            target_path=target,
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])

"""The mount of a writable layer, killed before its n-th change of the world: run by test_volumes_image.py as a module.

Arguments: n, area, root of the images, target.
"""

import sys
from pathlib import Path

from tests.node.volumes.killed_daemon import Changes, count_mounts

from nodeplug import VolumeId, VolumePublish, VolumeStage
from nodeplug.testing import host
from nodeplug_volumes.image import Image, ImageConfig


def main(fatal: int, area: Path, root: str, target: str) -> None:
    (area / "hosts" / "image").mkdir(parents=True, exist_ok=True)
    config = ImageConfig.model_validate({"roots": {"main": {"path": root}}, "max_overlay": "64Mi"})
    plugin = Image(config, host(area / "hosts" / "image", plugin="image"))
    options = {"path": "model.squashfs", "overlay": "8Mi"}
    staging = area / "killed-stage"
    staging.mkdir(exist_ok=True)
    plugin.volume_stage(
        VolumeStage(driver="nodeplug/image", volume_id=VolumeId("x"), options=options, staging_path=str(staging))
    )
    changes = Changes(fatal)
    sys.addaudithook(changes.audit)
    count_mounts(changes)
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
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])

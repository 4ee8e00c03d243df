"""A node with files for device nodes."""

from pathlib import Path

import pytest

from nodeplug_gpu.access import NodePaths


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    """A folder with files for nodes: only their names matter here."""
    dev, caps = tmp_path / "dev", tmp_path / "capabilities"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in (
        "nvidiactl",
        "nvidia-uvm",
        "nvidia3",
        "nvidia4",
        "nvidia-caps/nvidia-cap30",
        "nvidia-caps/nvidia-cap31",
    ):
        (dev / name).touch()
    for folder, minor in (("gi7", 30), ("gi7/ci0", 31)):
        place = caps / "gpu4" / "mig" / folder
        place.mkdir(parents=True)
        (place / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
    return NodePaths(dev, caps, tmp_path, cdi=(tmp_path / "etc/cdi", tmp_path / "run/cdi"))

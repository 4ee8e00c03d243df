"""The measure of a volume over both fronts, with few repetitions: that it measures, not how fast."""

from pathlib import Path

import pytest

from bench import measures, volumes

pytestmark = pytest.mark.node


@pytest.mark.whole
@pytest.mark.programs("mkfs.ext4", "e2fsck")
@pytest.mark.usefixtures("has_loop_devices")
def test_one_run_has_every_figure_of_both_fronts(short_path: Path) -> None:
    figures = volumes.measure(short_path / "v", quick=True)
    assert figures.keys() == measures.VOLUMES.keys()
    assert min(figures[key] for key in figures if key != "csi_publish_price_ms") > 0

"""The measure of networks as objects, with few pods beside the reference's plugins: that it measures, not how fast."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import measures
from bench.page import RESULTS

pytestmark = [pytest.mark.real, pytest.mark.soak]
ROOT = Path(__file__).parents[2]


def test_one_run_has_every_figure(consumer: Callable[[str], Path]) -> None:
    assert (consumer("cni") / "bridge").exists()
    command = [sys.executable, "-m", "bench.networks", "--quick"]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    figures = json.loads((RESULTS / "networks-quick.json").read_text())
    assert figures.keys() >= measures.NETWORKS.keys()
    assert min(figures[name] for name in measures.NETWORKS) > 0

"""The measure of a neighbour beside the worst inputs: it runs, each input arrives, and every figure has its name."""

import os
import subprocess
import sys

import pytest

from bench import measures, worst_inputs
from nodeplug.testing import namespaces

pytestmark = [pytest.mark.node, pytest.mark.whole, pytest.mark.programs("ip", "sqfstar", "unshare")]
SCRIPT = """
import json, subprocess
from bench.worst_inputs import measure
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
print(json.dumps([*measure(1, 0.2)]))
"""


def test_every_figure_of_the_table_is_measured() -> None:
    """Ten seconds: ten turns, and the daemon unpacks two hostile images."""
    command = [*namespaces.command(network=True), sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=worst_inputs.ROOT, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    for name in measures.WORST_INPUTS:
        assert f'"{name}"' in done.stdout, name

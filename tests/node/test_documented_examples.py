"""The examples of the documentation in the hands of a plugin author: their own folder, none of our settings."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.programs import need

from nodeplug.testing import namespaces

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.whole
def test_the_documented_test_file_passes_on_a_node_of_its_own(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    need("unshare")
    own_node = namespaces.command(network=True)
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "."]
    done = subprocess.run([*own_node, *tests], cwd=tmp_path / "mine", capture_output=True, text=True, check=False)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0

"""The tests that the scripts of continuous integration name are there: pytest runs nothing when one of them is not."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["lowest-versions", "emulated"])
def test_every_test_that_a_script_names_exists(script: str) -> None:
    named = re.findall(r"(?<![\w/.])tests/[^\s;|&)'\"]*", (ROOT / ".ci" / script).read_text())
    told = subprocess.run(["bash", "-c", f"echo {' '.join(named)}"], capture_output=True, text=True, check=True).stdout
    assert named
    assert [path for path in told.split() if not (ROOT / path).exists()] == []

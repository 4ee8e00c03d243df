"""The tests that the scripts of continuous integration name are there: pytest runs nothing when one of them is not."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["bare-root", "lowest-versions"])
def test_every_test_that_a_script_names_exists(script: str) -> None:
    named = re.findall(r"(?<![\w/.])tests/[^\s;|&)'\"]*", (ROOT / ".ci" / script).read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []

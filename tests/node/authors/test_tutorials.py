"""The tutorials, followed literally from an empty folder: what they write, type and promise."""

from pathlib import Path
from typing import Any

import pytest
from tests.suites import divided

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("style", divided(["device", "cni", "volume", "extender"], (), {"cni"}))
@pytest.mark.programs("unshare")
def test_a_tutorial_does_what_it_says(style: str, new_author: Any) -> None:
    new_author.follows(DOCS / f"tutorial-{style}.md")

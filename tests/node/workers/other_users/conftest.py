"""A user without rights for the processes of plugins."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.other_user import OtherUser


@pytest.fixture(autouse=True)
def reachable(other_user: "OtherUser", short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plugin's user execute Python and reach what a test makes; the checkout may be root's alone."""
    monkeypatch.setattr(sys, "executable", other_user.python)
    found = [str(Path(__file__).parents[1]), other_user.env.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, found)))
    short_path.chmod(0o755)

"""Freeze a filesystem, so that whatever writes to it waits until it is thawed; and the section of the plugin on it."""

import subprocess
from pathlib import Path

NET = '[plugins.net]\nuses = "net:Net"\n'
"""The section of the plugin that `conftest.py` writes."""


def freeze(disk: Path) -> None:
    subprocess.run(["fsfreeze", "-f", disk], check=True)


def thaw(disk: Path) -> None:
    subprocess.run(["fsfreeze", "-u", disk], check=True)


def thaw_if_frozen(disk: Path) -> None:
    """Thaw a filesystem at the end of a test, which may have thawed it or frozen none there."""
    subprocess.run(["fsfreeze", "-u", disk], capture_output=True, check=False)

"""What a pod asks of loopfile through kubelet, and what a call has done."""

import os
import subprocess
from pathlib import Path
from typing import Any

OPTIONS = {"name": "data", "size": "16Mi"}


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def succeeded(answer: dict[str, Any]) -> bool:
    return answer == {"status": "Success"}


def size_of(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize

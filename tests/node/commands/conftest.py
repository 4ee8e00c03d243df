"""A folder for a root, and the commands in it as a person runs them: a process, exit status and both streams."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOSTDEV = """
[plugins.hostdev.config]
resources = [{ resource = "example.com/null", groups = [{ nodes = [{ path = "/dev/null" }] }] }]
"""
BOTH = """
from nodeplug import CniClaim, VolumeClaim, hookimpl

class Both:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [CniClaim("nodeplug-both"), VolumeClaim("nodeplug/both")]

    @hookimpl
    def cni_add(self, request):
        raise NotImplementedError

    @hookimpl
    def cni_del(self, request):
        raise NotImplementedError

    @hookimpl
    def volume_publish(self, request):
        raise NotImplementedError
"""


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "etc/nodeplug.toml"
        self.config.parent.mkdir()
        (root / "python").mkdir()
        (root / "python/both.py").write_text(BOTH)
        self.configure(HOSTDEV)

    def configure(self, text: str) -> None:
        # What a test writes is in a folder of its user's alone. Last, so that lines have their numbers.
        asked = "" if "[supervisor]" in text else '\n[supervisor]\nplugin_user = "root"\n'
        self.config.write_text(f"version = 1\n{text}{asked}")

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        place = ["--config", str(self.config), "--root", str(self.root)]
        environment = {**os.environ, "PYTHONPATH": str(self.root / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [sys.executable, "-m", "nodeplug", *command.split(), *place, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, cwd="/")

    def json(self, command: str, *arguments: str) -> Any:
        done = self.run(command, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)

"""A folder for a root, and the commands in it as a person runs them: a process, exit status and both streams.

The process is forked from one that has imported nodeplug, so the modules of all tests have one path.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import forked

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
    def __init__(self, root: Path, modules: Path) -> None:
        self.root = root
        self.modules = modules
        self.config = root / "etc/nodeplug.toml"
        self.config.parent.mkdir()
        (modules / "both.py").write_text(BOTH)
        self.configure(HOSTDEV)

    def configure(self, text: str) -> None:
        # What a test writes is in a folder of its user's alone. Last, so that lines have their numbers.
        asked = "" if "[supervisor]" in text else '\n[supervisor]\nplugin_user = "root"\n'
        self.config.write_text(f"version = 1\n{text}{asked}")

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        place = ["--config", str(self.config), "--root", str(self.root)]
        environment = {**os.environ, "PYTHONPATH": str(self.modules), "PYTHONDONTWRITEBYTECODE": "1"}
        return forked.run("nodeplug", [*command.split(), *place, *arguments], environment)

    def json(self, command: str, *arguments: str) -> Any:
        done = self.run(command, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def common_modules() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="np-modules-") as folder:
        yield Path(folder)


@pytest.fixture
def node(tmp_path: Path, common_modules: Path) -> Iterator[Node]:
    yield Node(tmp_path, common_modules)
    for module in common_modules.iterdir():
        module.unlink()

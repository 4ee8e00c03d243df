"""A new author's machine: an empty folder, a virtual environment, and this checkout where `pip install` would put it.

Owns: what replaces the network: `pip install` of nodeplug is a path in the environment, everything else is real.
Refuses: knowledge of what is installed or read there.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WRITE = re.compile(r"(Replace|Add to)\s`([^`]+)`:\s*$")
ON_ITS_OWN = ("python3 -m venv .venv", ". .venv/bin/activate", "pip install ~/'nodeplug[daemon]'")
COMMANDS = ("mypy", "nodeplug", "pip", "pytest")


@dataclass
class NewAuthor:
    """Somebody who types into a terminal.

    Attributes:
        home: the empty folder.
        checked: where mypy keeps what it knows of the libraries, which are those of every author.
        cwd: where they are.
    """

    home: Path
    checked: Path
    cwd: Path = field(init=False)

    def __post_init__(self) -> None:
        self.cwd = self.home
        environment = self.home / ".venv"
        venv.create(environment, symlinks=True)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
        paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), ROOT / "supervisor", ROOT / "plugins"}
        (site / "nodeplug.pth").write_text("\n".join(sorted(map(str, paths))))
        for name in COMMANDS:
            command = environment / "bin" / name
            command.write_text(f'#!/bin/sh\nexec {environment}/bin/python -m {name} "$@"\n')
            command.chmod(0o755)
        shutil.copy(Path(sys.executable).parent / "ruff", environment / "bin")
        self.env = {
            "PATH": f"{environment}/bin:{os.environ['PATH']}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "MYPY_CACHE_DIR": str(self.checked),
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say: without isolation, with the hatchling that is here
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
        }

    def types(self, command: str) -> str:
        """Run a line of shell and return all that it printed.

        Raises:
            AssertionError: it failed; the message has its output.
        """
        if command in ON_ITS_OWN:
            return ""
        if command.startswith("cd "):
            self.cwd = self.cwd / command.removeprefix("cd ")
            return ""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.cwd,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def follows(self, page: Path) -> None:
        """Write the files and type the commands of a page, in order, and compare what the page says is printed.

        `$ ` begins a command, `# ` one on a node, which is not for this machine; `…` stands for any text. A block after
        "Replace `FILE`:" or "Add to `FILE`:" is a file's text.
        """
        text = page.read_text()
        for block in BLOCK.finditer(text):
            before = WRITE.search(text[: block.start()])
            if before is not None:
                path = self.cwd / before[2]
                old = path.read_text() if before[1] == "Add to" else ""
                assert path.exists(), f"{page.name} replaces {before[2]}, which nobody made"
                path.write_text(f"{old}\n\n{block[2]}" if old else block[2])
            elif block[1] in ("python", "toml", "json"):
                raise AssertionError(f"{page.name} does not say into which file this goes:\n{block[2]}")
            elif block[1] == "console":
                self._reads_along(block[2])

    def _reads_along(self, block: str) -> None:
        for part in re.findall(r"^\$ (.*)\n((?:(?!\$ |# ).*\n)*)", block, flags=re.MULTILINE):
            command, told = part
            printed = self.types(command)
            pattern = ".*?".join(re.escape(piece) for piece in told.strip().split("…"))
            assert re.search(pattern, printed, re.DOTALL), f"{command}\nthe page says\n{told}\nbut it is\n{printed}"


@pytest.fixture(scope="session")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture
def new_author(tmp_path: Path, checked: Path) -> NewAuthor:
    return NewAuthor(tmp_path, checked)

"""The real daemon, a plugin that misbehaves on demand, and the callers' real executables."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import Sandbox, ScratchNode, folders
from nodeplug.testing.waiting import until

HERE = Path(__file__).parent
INSTALLING = 'listen = ""\ninstall = true\nnative_entrypoints = false'
COMPILING = 'listen = ""\ninstall = true\nnative_entrypoints = true'
INSTALLED = re.compile("entrypoints(:| cannot be installed:| stay;)")
COMPILER = ("gcc",)
CONFIG = {"cniVersion": "1.0.0", "name": "net"}


@dataclass(frozen=True)
class Ended:
    """How one execution ended."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.stdout))

    @property
    def code(self) -> int:
        return int(self.document["code"])

    @property
    def text(self) -> str:
        """Everything that the error says, whatever the protocol calls it."""
        told = self.document
        return " ".join(str(told[key]) for key in ("msg", "details", "message") if key in told)


@dataclass
class Node:
    """A scratch node, a container's namespace, and what was logged since a mark."""

    scratch: ScratchNode
    netns: Path
    _seen: int = 0

    def start(self) -> None:
        """Start the daemon and wait for its entrypoints: it answers while a compiler still runs."""
        self.scratch.start()
        if "install = true" in self.scratch.config_path.read_text():
            self.until(lambda: INSTALLED.search(self.scratch.log) is not None, 120)

    def env(self, verb: str = "ADD", container: str = "c1", **changes: str | None) -> dict[str, str]:
        values: dict[str, str | None] = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": str(self.netns),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(self.scratch.paths.cni_bin),
            **changes,
        }
        return {name: value for name, value in values.items() if value is not None}

    def execute(
        self, path: Path, *argv: str | bytes, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> Ended:
        command = [str(path), *argv]
        done = subprocess.run(command, input=stdin, env=env, capture_output=True, timeout=60, check=False)
        return Ended(done.returncode, done.stdout, done.stderr)

    def cni(
        self, verb: str = "ADD", container: str = "c1", *, claim: str = "faulty", stdin: Any = None, **more: Any
    ) -> Ended:
        """Execute a CNI script: `more` in capitals are variables, the rest are keys of the configuration."""
        env = {name: value for name, value in more.items() if name.isupper()}
        keys = {name: value for name, value in more.items() if not name.isupper()}
        config = stdin if stdin is not None else json.dumps({**CONFIG, "type": claim, **keys}).encode()
        return self.execute(self.scratch.paths.cni_bin / claim, env=self.env(verb, container, **env), stdin=config)

    def flex(self, *argv: str | bytes, driver: str = "drive") -> Ended:
        return self.execute(self.scratch.paths.flexvolume / f"scratch~{driver}" / driver, *argv)

    def mark(self) -> None:
        """What is logged from here on is `fresh`."""
        self._seen = len(self.scratch.log)

    @property
    def fresh(self) -> list[str]:
        return self.scratch.log[self._seen :].splitlines()

    def failure(self) -> str:
        """The one fresh line about a failure; it must name its request."""
        found = [line for line in self.fresh if re.match(r"\S+ (WARNING|ERROR) ", line)]
        assert len(found) == 1, found
        assert re.search(r"request [0-9a-f]{8}\b", found[0]), found
        return found[0]

    def attachments(self) -> set[str]:
        return {entry["container_id"] for entry in self.scratch.status()["attachments"]}

    def plugin(self, name: str) -> dict[str, Any]:
        plugins: list[dict[str, Any]] = self.scratch.status()["plugins"]
        return next(plugin for plugin in plugins if plugin["name"] == name)

    def notes(self, plugin: str = "faulty") -> Path:
        """The run folder of a plugin, where it leaves its notes."""
        return self.scratch.paths.run / "plugins" / plugin

    def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        until(condition, seconds, lambda: self.scratch.log[-3000:])

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.scratch.pid}/fd").iterdir()))

    def opened(self, file: Path) -> int:
        """Return how many descriptors the daemon has of a file, such as a namespace."""
        wanted, found = file.stat(), 0
        for descriptor in Path(f"/proc/{self.scratch.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed
                found += os.path.samestat(descriptor.stat(), wanted)
        return found

    def proc(self, key: str) -> int:
        """A number of /proc/PID/status, such as Threads or VmRSS (in KiB)."""
        text = Path(f"/proc/{self.scratch.pid}/status").read_text()
        return int(re.findall(rf"^{key}:\s+(\d+)", text, re.MULTILINE)[0])

    def configure(self, **sections: Mapping[str, Any]) -> None:
        self.scratch.configure(toml(sections))


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Write one `[plugins.*]` table per section: its configuration, beside `cls`, `deadline` and `isolation`.

    In a thread of the daemon, where a fault could reach it; what only a process survives is in `tests/node/workers`.
    """
    lines = []
    for name, keys in sections.items():
        config = dict(keys)
        lines += [f"[plugins.{name}]", f'uses = "misbehaving:{config.pop("cls", "Plugin")}"']
        lines += [f'isolation = "{config.pop("isolation", "thread")}"']
        lines += [f'deadline.{hook} = "{value}"' for hook, value in config.pop("deadline", {}).items()]
        lines += [f"[plugins.{name}.config]", *(f"{key} = {json.dumps(value)}" for key, value in config.items())]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def netns() -> Iterator[Path]:
    """A container's network namespace."""
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    with Sandbox(folder / "netns") as made:
        yield made.path
    folders.remove(folder)


def _nodes(folder: Path, netns: Path) -> Iterator[Callable[..., Node]]:
    made: list[ScratchNode] = []

    def make(*, run: bool = True, supervisor: str = INSTALLING, huge: int = 0, **sections: Mapping[str, Any]) -> Node:
        plugins = toml(sections or {"faulty": {}})
        env = {"PYTHONPATH": str(HERE), "HUGE": str(huge)}
        root = folder / f"n{len(made)}"
        root.mkdir()
        node = Node(ScratchNode(root, plugins, supervisor=supervisor, env=env, fork=True), netns)
        made.append(node.scratch)
        if run:
            node.start()
        return node

    yield make
    for scratch in made:
        scratch.stop()


@pytest.fixture(
    scope="module",
    params=["script", pytest.param("native", marks=[pytest.mark.whole, pytest.mark.programs(*COMPILER)])],
)
def entrypoints(request: pytest.FixtureRequest) -> str:
    """The supervisor's keys for entrypoints that are scripts, or compiled."""
    return COMPILING if request.param == "native" else INSTALLING


@pytest.fixture
def make_node(short_path: Path, netns: Path) -> Iterator[Callable[..., Node]]:
    """Make a daemon of the test's own, one section per keyword; it ends with the test."""
    yield from _nodes(short_path, netns)


@pytest.fixture(scope="module")
def make_shared_node(netns: Path) -> Iterator[Callable[..., Node]]:
    """Make a daemon for all tests of a module."""
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    yield from _nodes(folder, netns)
    folders.remove(folder)

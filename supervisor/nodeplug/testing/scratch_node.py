"""A whole node in one folder: the real daemon as a process of its own, with every path below a root.

Owns: the configuration file, the process, its log, and requests for its status.
Refuses: to make namespaces. The caller decides in which network and mount namespace it runs.
"""

import os
import select
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from nodeplug.config import Configuration, Paths, load
from nodeplug.contract.errors import NotReady, PluginError
from nodeplug.contract.plugin_class import GROUP
from nodeplug.exec.client import ask
from nodeplug.process.environment import copy_environment
from nodeplug.testing import forked, namespaces
from nodeplug.testing.isolation import Isolation, isolated

if TYPE_CHECKING:
    from nodeplug.testing.dra.resource_api import ResourceApi

_STARTING: Final = 60.0
_ENDING: Final = 20.0
_LOG_TAIL: Final = 4000


@cache
def _bundled() -> Mapping[str, str]:
    return {point.name: point.module for point in distribution("nodeplug").entry_points if point.group == GROUP}


def _bundled_modules(path: Path) -> list[str]:
    """Return the modules of the bundled plugins that a configuration uses; none if the file cannot be parsed."""
    with suppress(OSError, ValueError, AttributeError):
        sections = tomllib.loads(path.read_text(encoding="utf-8") if path.is_file() else "").get("plugins", {})
        used = {str(section.get("uses", name)) for name, section in sections.items()}
        return sorted({module for name, module in _bundled().items() if name in used})
    return []


def _as_root(supervisor: str) -> str:
    return supervisor if "plugin_user" in supervisor else f'plugin_user = "root"\n{supervisor}'


class ScratchNode:
    """The daemon in a folder.

    Args:
        root: an existing folder; becomes `--root`, so keep it short: a socket's path has at most 107 bytes.
        plugins: the `[plugins.*]` tables, in TOML.
        supervisor: the keys of `[supervisor]`, in TOML; by default no HTTP address, so that nodes do not collide.
            Without `plugin_user`, processes of plugins run as root: the Python may be in a folder of root's alone.
        whole: `plugins` is a whole configuration file instead.
        env: more environment for the daemon.
        within: a command that executes the daemon and every nodeplug command, such as one that confines them; it must
            not fork.
        beside: the id of a process in whose mount, network and host name namespaces the daemon and every command run.
        fork: fork the daemon from a process that has imported it, instead of starting Python: it starts within
            milliseconds, with another command line in /proc. With `within` it is executed all the same.
        isolation: how plugins run whose sections do not say; by default as the daemon decides.

    Attributes:
        api: the API server that its drivers of claims ask, where one is acted out; see `nodeplug.testing.dra`.
    """

    def __init__(
        self,
        root: Path,
        plugins: str,
        *,
        supervisor: str = 'listen = ""',
        whole: bool = False,
        env: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
        beside: int | None = None,
        fork: bool = False,
        isolation: Isolation | None = None,
    ) -> None:
        self.root = root
        self.config_path = root / "etc" / "nodeplug" / "nodeplug.toml"
        self.log_path = root / "daemon.log"
        self._within = list(within) if beside is None else [*within, *namespaces.entering(beside)]
        self._beside = beside
        self._env = {**copy_environment(), **(env or {})}
        self._fork = fork and not within
        # Who forks has imported what these variables say; one for a single command would take longer than that command.
        self._fork_commands = not within and (fork or not any(name.startswith("PYTHON") for name in env or ()))
        self._process: subprocess.Popen[bytes] | forked.Forked | None = None
        self._paths: Paths | None = None
        self._isolation = isolation
        self.api: ResourceApi | None = None
        self._head = "" if whole else f"version = 1\n[supervisor]\n{_as_root(supervisor)}\n"
        self.configure(plugins)

    def configure(self, plugins: str) -> None:
        """Write the `[plugins.*]` tables; a running daemon reloads them."""
        self.config_path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.config_path.with_suffix(".new")
        text = plugins if self._isolation is None else isolated(plugins, self._isolation)
        temporary.write_text(self._head + text, encoding="utf-8")
        temporary.rename(self.config_path)

    @property
    def configuration(self) -> Configuration:
        """The configuration as the daemon reads it."""
        return load(self.config_path, self.root)

    @property
    def paths(self) -> Paths:
        """The paths of this node; they stay valid while a later configuration is broken."""
        if self._paths is None:
            self._paths = self.configuration.supervisor.paths
        return self._paths

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        if self._process is None:
            raise NotReady("the daemon of this scratch node is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the daemon was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the daemon logged so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def command(self, *arguments: str) -> list[str]:
        """Return the argument list of a nodeplug command for this node: `status` or `csi status`, then its options."""
        return [*self._within, sys.executable, "-m", "nodeplug", *self._located(*arguments)]

    def _located(self, *arguments: str) -> list[str]:
        return [*arguments[0].split(), "--config", str(self.config_path), "--root", str(self.root), *arguments[1:]]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a nodeplug command for this node and return what it printed; never raises for its exit status.

        It is forked as with `fork`, unless it has another `PYTHONPATH` than this process or runs `within` a command.
        """
        if self._fork_commands:
            return forked.run("nodeplug", self._located(*arguments), self._env, beside=self._beside)
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False, env=self._env)

    def start(self) -> None:
        """Start the daemon and wait until it answers.

        Raises:
            NotReady: it ended, or did not answer in time; the message carries the end of its log.
        """
        if self._fork:
            log, command = self.log_path, self._located("serve")
            self._process = forked.start(
                "nodeplug",
                command,
                self._env,
                stdout=log,
                stderr=log,
                imports=_bundled_modules(self.config_path),
                beside=self._beside,
            )
        else:
            self._process = self._execute()
        self.wait_until_answering()

    def _execute(self) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                self.command("serve"), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, cwd="/"
            )

    def wait_until_answering(self) -> None:
        """Wait for the exec socket.

        Raises:
            NotReady: the daemon ended, or did not answer in time.
        """
        end = time.monotonic() + _STARTING
        while True:
            try:
                self.status()
            except PluginError as error:
                if self._process is not None and self._process.poll() is not None:
                    raise NotReady(
                        f"the daemon ended with {self._process.returncode}:\n{self.log[-_LOG_TAIL:]}"
                    ) from error
                if time.monotonic() > end:
                    raise NotReady(f"the daemon does not answer:\n{self.log[-_LOG_TAIL:]}") from error
                time.sleep(0.02)
            else:
                return

    def status(self) -> dict[str, Any]:
        """Return what `nodeplug status --json` prints."""
        return ask(self.paths.exec_socket, "status")

    def reload(self) -> None:
        """Send SIGHUP."""
        os.kill(self.pid, signal.SIGHUP)

    def kill(self) -> None:
        """End the daemon with SIGKILL, as a crash would, and that one alone: a successor goes on."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End the daemon, and its successor if `nodeplug replace` ran, with SIGTERM; succeed if none is running.

        Returns:
            The exit status of the daemon that was started here.
        """
        if self._process is None:
            return 0
        status = self._end(signal.SIGTERM)
        self._end_successor()
        return status

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _end_successor(self) -> None:
        """End the daemon that has taken the place of the one that was started here."""
        try:
            pid = int(self.status()["pid"])
            descriptor = os.pidfd_open(pid)
        except (PluginError, ProcessLookupError):
            return
        try:
            # In another PID namespace, `within` which it may have started, this number is that of a stranger.
            if os.fsencode(self.config_path) not in Path(f"/proc/{pid}/cmdline").read_bytes():
                return
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
                if ended.poll(_ENDING * 1000):
                    return
        finally:
            os.close(descriptor)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

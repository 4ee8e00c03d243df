"""The exec road in a folder: the real scripts, a real socket, and plugin objects served in this process.

Owns: a thread with an event loop that serves CNI as the daemon does, and the entrypoint scripts that lead to it.
Refuses: configuration files and entry points: give it constructed plugins. For the whole daemon see `ScratchNode`.
"""

import asyncio
import json
import subprocess
import threading
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from nodeplug.cni.admission import Admission
from nodeplug.cni.attachments import Attachments
from nodeplug.cni.delegate import Delegation
from nodeplug.cni.service import CniService
from nodeplug.cni.spool import Spool
from nodeplug.exec.server import ExecServer, Handler
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.install.atomic import temporary_in, write_new
from nodeplug.install.native import SOURCE, compile_one
from nodeplug.install.scripts import Scripts, find_scripts, led_by, program_name
from nodeplug.process.turns import TurnLoop

_PATIENCE: Final = 60.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended:
    """How one execution of a script ended."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object on stdout.

        Raises:
            ValueError: stdout is not one JSON document.
        """
        return dict(json.loads(self.stdout))


class ExecRoad:
    """Serves plugins to the entrypoint scripts.

    Args:
        folder: an existing folder, with a short path: a socket's path has at most 107 bytes.
        silence: as `ExecServer` has it.
        native: execute the compiled entrypoints; needs a C compiler.

    Attributes:
        service: what answers the style "cni".
        bin: the folder of the scripts, for CNI_PATH; each claim's script appears when the plugin is loaded.
        handlers: for other styles than "cni".
        native: whether the entrypoints are compiled.
        source: the folder of the entrypoints' sources; those of this project when None.
    """

    def __init__(self, folder: Path, *, silence: float = 10.0, native: bool = False) -> None:
        self.socket = folder / "exec.sock"
        self.bin = folder / "bin"
        self.bin.mkdir(exist_ok=True)
        self.registry = Registry()
        self.runner = Runner()
        self.admission = Admission()
        self.attachments = Attachments(folder / "attachments")
        self.spool = Spool(folder / "spool", poll=0.05)
        self.service = CniService(self.registry, self.runner, self.attachments, self.spool, self.admission)
        self.delegation = Delegation(self.registry)
        self.handlers: dict[str, Handler] = {}
        self.source: Path | None = None
        self._silence = silence
        self.native = native
        self._serving: _Serving | None = None

    def load(self, name: str, plugin: object) -> None:
        """Serve a plugin object, and install a script for each CNI claim of it.

        Raises:
            PluginRefused: the plugin breaks the contract.
        """
        for claim in self.registry.load(name, plugin, "this process").claims:
            if claim.kind == "cni":
                self.script(claim.name)

    def script(self, name: str) -> Path:
        """Install the CNI script under a name and return its path."""
        path = self.bin / name
        if not path.exists():
            self._put(path, flex=False)
        return path

    def flex_script(self, folder: Path, name: str) -> Path:
        """Install the FlexVolume script in a driver's folder and return its path."""
        path = folder / name
        self._put(path, flex=True)
        return path

    def _put(self, path: Path, *, flex: bool) -> None:
        socket, spool = self.socket, self.spool.folder
        scripts = Scripts.render(socket=socket, spool=spool, source=self.source)
        text = scripts.flex if flex else scripts.cni
        if self.native:
            compiled = _compiled(flex, socket, spool, self.source, _text(self.source))
            program = path.with_name(program_name(compiled))
            if not program.exists():
                _install(program, compiled)
            text = led_by(text, program)
        _install(path, text)

    def start(self, *, replay: bool = False) -> Self:
        """Serve; with `replay` spooled DELs are replayed too.

        Raises:
            PluginError: another server listens on the socket.
        """
        self.spool.prepare()
        handlers = {"cni": self.service.handle, **self.handlers}
        in_threads = {style for style, handler in handlers.items() if handler == self.service.handle}
        server = ExecServer(self.socket, handlers, in_threads=in_threads, silence=self._silence)
        self._serving = _Serving(server, self.service if replay else None)
        self._serving.begin()
        return self

    def stop(self) -> None:
        """Stop serving; succeed if nothing is served."""
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.end()

    def wait_for(self, work: Awaitable[T]) -> T:
        """Await something on the loop that serves.

        Raises:
            RuntimeError: nothing is served.
        """
        if self._serving is None:
            raise RuntimeError("the road is not started")
        return self._serving.wait_for(work)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call(self, name: str, env: Mapping[str, str], config: Mapping[str, Any] | bytes) -> Ended:
        """Execute a script once.

        Args:
            name: the claim.
            env: the whole environment.
            config: stdin.

        Returns:
            How it ended; never raises for its exit status.
        """
        stdin = config if isinstance(config, bytes) else json.dumps(dict(config)).encode()
        done = subprocess.run(
            [str(self.script(name))], input=stdin, capture_output=True, env=env, timeout=_PATIENCE, check=False
        )
        return Ended(done.returncode, done.stdout, done.stderr)


def _install(path: Path, program: bytes) -> None:
    """Write an executable to a temporary file and rename it, because another thread may execute `path` at any time."""
    temporary = temporary_in(path.parent)
    write_new(temporary, program, 0o755)
    temporary.rename(path)


def _text(source: Path | None) -> bytes:
    return ((find_scripts() if source is None else source) / SOURCE).read_bytes()


@cache
def _compiled(flex: bool, socket: Path, spool: Path, source: Path | None, text: bytes) -> bytes:  # noqa: ARG001 - a key
    """Compile an entrypoint once per process and set of paths, because compiling takes longer than most tests."""
    return compile_one(flex=flex, socket=socket, spool=spool, source=source)


@dataclass(slots=True)
class _Serving:
    """One server in a thread with its loop."""

    server: ExecServer
    spooler: CniService | None
    loop: asyncio.AbstractEventLoop = field(default_factory=TurnLoop)
    thread: threading.Thread | None = None

    def begin(self) -> None:
        self.thread = threading.Thread(target=self._run, name="exec-road", daemon=True)
        self.thread.start()
        try:
            self.wait_for(self.server.start())
        except BaseException:
            self._finish()
            raise
        asyncio.run_coroutine_threadsafe(self.server.serve(), self.loop)
        self.wait_for(asyncio.sleep(0))  # by then it has begun, and opened all that it holds
        if self.spooler is not None:
            asyncio.run_coroutine_threadsafe(self.spooler.run_spool(), self.loop)

    def end(self) -> None:
        self.wait_for(self.server.stop(1.0))
        self._finish()

    def wait_for(self, work: Awaitable[T]) -> T:
        async def wait() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(_PATIENCE)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        rest = asyncio.all_tasks(self.loop)
        for task in rest:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        self.loop.close()

    def _finish(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self.thread is not None:
            self.thread.join()

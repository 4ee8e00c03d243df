"""Executing one CNI plugin as libcni does, and reading its outcome.

Owns: the search on CNI_PATH, the deadline, a busy executable, and libcni's texts for a failure.
Refuses: order, configuration and state: see `runtime`.
"""

import errno
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

INTERNAL: Final = 999
_AFTER_KILL: Final = 5.0


class CniError(Exception):
    """A plugin failed.

    Attributes:
        code: the error's code (CNI SPEC, "Error"); 999 if the plugin's output could not be read.
        msg: its message.
        details: its details, or empty.
        plugin: the `type` of the plugin.
        verb: CNI_COMMAND.
    """

    def __init__(self, plugin: str, verb: str, code: int, msg: str, details: str = "") -> None:
        super().__init__(
            f"plugin type={plugin!r} failed ({verb.lower()}): code {code}: {msg}{'; ' if details else ''}{details}"
        )
        self.plugin = plugin
        self.verb = verb
        self.code = code
        self.msg = msg
        self.details = details


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a plugin, kept for assertions.

    Attributes:
        plugin: its `type`.
        verb: CNI_COMMAND.
        config: what it read, decoded.
        status: its exit status; negative for a signal.
        stdout: what it printed.
        stderr: what it logged. Runtimes drop it, or copy it to their own when the plugin succeeds.
        env: its environment.
    """

    plugin: str
    verb: str
    config: Mapping[str, Any]
    status: int
    stdout: bytes
    stderr: bytes
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a runtime waits.

    Attributes:
        deadline: seconds for one execution; then the plugin is killed, as by a request's context in Go.
        busy_tries: how often to try an executable that is being written ("text file busy").
        busy_wait: seconds between two attempts.
    """

    deadline: float = 120.0
    busy_tries: int = 6
    busy_wait: float = 1.0


def find_plugin(name: str, verb: str, path: Sequence[Path | str]) -> Path:
    """Find an executable on CNI_PATH: the first regular file of that name, or symlink to one.

    Raises:
        CniError: there is none, or the name has a slash.
    """
    if "/" in name:
        raise CniError(name, verb, INTERNAL, f"invalid plugin name: {name}")
    for folder in path:
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    listed = " ".join(map(str, path))
    raise CniError(name, verb, INTERNAL, f'failed to find plugin "{name}" in path [{listed}]')


def execute(
    executable: Path, verb: str, config: Mapping[str, Any], env: Mapping[str, str], patience: Patience
) -> Execution:
    """Execute a plugin to its end.

    One that stays busy counts as success without output, as in libcni (pkg/invoke, raw_exec.go).
    """
    name, stdin = executable.name, json.dumps(dict(config)).encode()
    for attempt in range(patience.busy_tries):
        try:
            status, stdout, stderr = _run(executable, stdin, env, patience.deadline)
        except OSError as error:
            if error.errno != errno.ETXTBSY:
                raise CniError(name, verb, INTERNAL, f"cannot execute {executable}: {error.strerror}") from error
            if attempt + 1 < patience.busy_tries:
                time.sleep(patience.busy_wait)
        else:
            return Execution(name, verb, config, status, stdout, stderr, env)
    return Execution(name, verb, config, 0, b"", b"", env)


def _run(executable: Path, stdin: bytes, env: Mapping[str, str], deadline: float) -> tuple[int, bytes, bytes]:
    pipe = subprocess.PIPE
    with subprocess.Popen([str(executable)], stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env)) as process:
        try:
            stdout, stderr = process.communicate(stdin, deadline)
        except subprocess.TimeoutExpired:
            process.kill()
            try:
                stdout, stderr = process.communicate(timeout=_AFTER_KILL)
            except subprocess.TimeoutExpired as late:  # its children hold the pipes
                stdout, stderr = late.stdout or b"", late.stderr or b""
        return process.returncode, stdout, stderr


def failure(done: Execution) -> CniError:
    """Read the error of an execution that failed, with libcni's texts."""
    name, verb = done.plugin, done.verb
    stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    ended = f"exit status {done.status}" if done.status >= 0 else f"signal: {_signal(-done.status)}"
    if not stdout:
        text = f'netplugin failed: "{stderr}"' if stderr else "netplugin failed with no error message"
        return CniError(name, verb, INTERNAL, f"{text}: {ended}")
    try:
        document = json.loads(stdout)
        return CniError(name, verb, document.get("code", 0), document.get("msg", ""), document.get("details", ""))
    except (ValueError, AttributeError) as error:
        text = f'netplugin failed but error parsing its diagnostic message "{stdout}": {error}'
        return CniError(name, verb, INTERNAL, text)


def _signal(number: int) -> str:
    return {9: "killed", 15: "terminated"}.get(number, str(number))


def read_result(done: Execution, version: str) -> dict[str, Any]:
    """Read the result of an ADD; one without a version has the configuration's, and `null` is tolerated.

    Raises:
        CniError: stdout is not JSON; an empty one is not either.
    """
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        raise CniError(done.plugin, "ADD", INTERNAL, f"failed to unmarshal raw result: {error}") from None
    return {"cniVersion": version, **(document or {})}

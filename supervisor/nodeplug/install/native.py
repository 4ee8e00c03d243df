"""The entrypoints as compiled programs: the start of an interpreter takes longer than all the rest of a call.

Owns: the host's C compiler, called once per style on `bin/nodeplug-entrypoint.c` with this node's paths in it, and the
cache of what it made, so that only a changed source, compiler or path is compiled again.
Refuses: to write outside that cache and a temporary folder (see `nodeplug.install.files`); nothing compiled is shipped.
"""

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import NotFound, PluginError
from nodeplug.contract.journal import write_durably
from nodeplug.install.ownership import content
from nodeplug.install.scripts import find_scripts, is_ours

SOURCE: Final = "nodeplug-entrypoint.c"
_OPTIONS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-s")
_TIMEOUT: Final = 20.0
"""Seconds for one run of the compiler, which takes less than one."""


def compiler() -> list[str]:
    """Return the command of the C compiler: `$CC`, else `cc`.

    Raises:
        NotFound: there is none.
        PluginError: `$CC` is no command.
    """
    wanted = os.environ.get("CC", "")
    try:
        command = shlex.split(wanted) or ["cc"]
    except ValueError as error:
        raise PluginError(
            f"CC is {wanted!r}, which is not a command: {error}; fix it, or unset it to use cc"
        ) from error
    if shutil.which(command[0]) is None:
        raise NotFound(
            f"the C compiler {command[0]!r} is not on PATH: install one (Debian: gcc and libc6-dev) or name it in CC"
        )
    return command


def compile_one(
    *, flex: bool, socket: Path | str, spool: Path | str, source: Path | None = None, cache: Path | None = None
) -> bytes:
    """Compile the entrypoint of one style for one daemon.

    The same source, paths and compiler give the same bytes. It is linked statically where the C library allows it: a
    dynamic start takes twice as long, and a static program needs nothing of the host it runs on.

    Args:
        flex: FlexVolume's; CNI's otherwise.
        socket: the daemon's socket, as the callers (runtime, kubelet) see it.
        spool: the folder for deferred DELs, as they see it.
        source: the folder of the C program; found by itself when None.
        cache: a folder that only this user can write to; it is used to compile nothing twice.

    Raises:
        NotFound: there is no compiler, or no source.
        PluginError: the compiler failed or hangs, what it made does not run here, or there is no temporary folder; the
            message has the first words.
    """
    program = (find_scripts() if source is None else source) / SOURCE
    if not program.is_file():
        raise NotFound(f"there is no {program}; reinstall nodeplug")
    command = [*compiler(), *_OPTIONS, f"-DFLEX={int(flex)}"]
    command += [f"-DSOCKET={_literal(socket)}", f"-DSPOOL={_literal(spool)}"]
    try:
        kept = cache and cache / f"{'flex' if flex else 'cni'}-{_digest(program, command)}"
        if kept and kept.is_file() and is_ours(data := content(kept)):
            return data
        made = _compile(command, program)
    except OSError as error:  # such as a root without a writable /tmp, or a compiler that is being removed
        raise PluginError(f"the entrypoint cannot be compiled: {error}") from error
    if kept:
        _keep(kept, made)
    return made


def _compile(command: list[str], program: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="nodeplug-cc-") as folder:
        made = Path(folder) / "entrypoint"
        for linking in (["-static"], []):
            done = _run([*command, *linking, str(program), "-o", str(made)])
            if done.returncode == 0:
                _try_out(made, command[0])
                return made.read_bytes()
    words = " ".join(done.stderr.split()[:60])
    raise PluginError(f"{shlex.join(command[:1])} cannot compile {program}: {words}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the compiler in a process group of its own, none of which is left when it takes too long.

    What a compiler starts (cc1, as, a wrapper's child) inherits its pipes: killing it alone would leave us waiting.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            process_group=0,
        ) as child:
            try:
                out, err = child.communicate(timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                raise
            return subprocess.CompletedProcess(command, child.returncode, out, err)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginError(f"the C compiler cannot be run: {error}") from error


def _try_out(program: Path, by: str) -> None:
    """Execute a fresh program: a compiler for another machine would take the node's network down."""
    try:
        done = subprocess.run([program, "init"], env={}, capture_output=True, timeout=_TIMEOUT, check=False)
        trouble = f"it ended with {done.returncode}" if done.returncode else ""
    except PermissionError:  # a temporary folder that is mounted noexec says nothing about the program
        trouble = ""
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    if trouble:
        raise PluginError(f"what {by} compiles does not run on this node: {trouble}")


def _digest(program: Path, command: list[str]) -> str:
    """Return what the result depends on: source, paths, options, the compiler's file and the C library's version."""
    found = Path(shutil.which(command[0]) or command[0]).stat()
    inputs = (program.read_bytes(), command, found.st_ino, found.st_size, found.st_mtime_ns, _c_library())
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:24]


def _c_library() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # another C library than GNU's
        return None


def _keep(path: Path, data: bytes) -> None:
    """Write into the cache, in the place of older ones of this style; without it the next start compiles again."""
    style = path.name.partition("-")[0]
    with suppress(OSError, PluginError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in path.parent.glob(f"*{style}-*"):
            old.unlink(missing_ok=True)
        write_durably(path, data)


def _literal(path: Path | str) -> str:
    """Write a C string literal; octal escapes have three digits, so that no digit after them belongs to them."""
    plain = re.compile(rb"[A-Za-z0-9_./-]")
    text = (bytes([byte]) for byte in os.fsencode(path))
    return '"' + "".join(byte.decode() if plain.match(byte) else f"\\{byte[0]:03o}" for byte in text) + '"'

"""Compiled entrypoints: starting a Python interpreter takes longer than the rest of a call.

Owns: compiling `bin/nodeplug-entrypoint.c` with this node's paths, once per style, and a cache of the results, so that
nothing is compiled again until the source, the compiler or a path changes.
Refuses: to write outside that cache and a temporary folder (see `nodeplug.install.files`). For what is compiled
elsewhere see `nodeplug.install.prebuilt`.
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
from nodeplug.process.environment import copy_environment

SOURCE: Final = "nodeplug-entrypoint.c"
FREESTANDING: Final = "nodeplug-freestanding.h"
_OPTIONS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-s")
_WITHOUT_A_LIBRARY: Final = (
    "-DFREESTANDING -ffreestanding -nostdlib -static -fno-pie -no-pie -fno-stack-protector -U_FORTIFY_SOURCE"
)
LINKINGS: Final[tuple[list[str], ...]] = (_WITHOUT_A_LIBRARY.split(), ["-static"], [])
"""Ways to make the program, the one that starts fastest first. Not every architecture or C library has each."""
_TIMEOUT: Final = 20.0
"""Seconds for one compiler run, which takes less than one."""


def compiler() -> list[str]:
    """Return the command of the C compiler: `$CC`, else `cc`.

    Raises:
        NotFound: there is none.
        PluginError: `$CC` is not a command.
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

    The same source, paths and compiler give the same bytes. The program is made without a C library where that is known
    to work, else with a static one where there is one: either needs nothing from the host, and starts faster.

    Args:
        flex: FlexVolume instead of CNI.
        socket: the daemon's socket, as the callers (runtime, kubelet) see it.
        spool: the folder for deferred DELs, as they see it.
        source: the folder of the C program; searched for if None.
        cache: a folder that only this user can write to.

    Raises:
        NotFound: there is no compiler, or no source.
        PluginError: the compiler fails or hangs, its program does not run here, or there is no temporary folder.
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
    except OSError as error:  # such as a read-only /tmp, or a compiler that is being removed
        raise PluginError(f"the entrypoint cannot be compiled: {error}") from error
    if kept:
        _keep(kept, made)
    return made


def _compile(command: list[str], program: Path) -> bytes:
    why = ""
    with tempfile.TemporaryDirectory(prefix="nodeplug-cc-") as folder:
        made = Path(folder) / "entrypoint"
        for linking in LINKINGS:
            done = _run([*command, *linking, str(program), "-o", str(made)])
            if done.returncode:
                why = f"{shlex.join(command[:1])} cannot compile {program}: {' '.join(done.stderr.split()[:60])}"
            elif trouble := try_out(made):
                why = f"what {command[0]} compiles does not run on this node: {trouble}"
            else:
                return made.read_bytes()
    raise PluginError(why)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the compiler in a process group of its own, and kill the whole group on timeout.

    The compiler's children (cc1, as) inherit its pipes: if only the compiler were killed, we would still wait for them.
    """
    environment = {**copy_environment(), "LC_ALL": "C"}
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


def try_out(program: Path) -> str:
    """Run a new program once and say what is wrong: one for another architecture would take the node's network down."""
    try:
        done = subprocess.run([program, "init"], env={}, capture_output=True, timeout=_TIMEOUT, check=False)
    except PermissionError:  # a temporary folder mounted noexec says nothing about the program
        return ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"it ended with {done.returncode}" if done.returncode else ""


def _digest(program: Path, command: list[str]) -> str:
    """Hash everything the result depends on: source, paths, options, compiler binary and C library version."""
    found = Path(shutil.which(command[0]) or command[0]).stat()
    sources = program.read_bytes(), program.with_name(FREESTANDING).read_bytes()
    inputs = (sources, command, LINKINGS, found.st_ino, found.st_size, found.st_mtime_ns, _c_library())
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:24]


def _c_library() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):  # another C library than GNU's
        return None


def _keep(path: Path, data: bytes) -> None:
    """Replace this style's file in the cache; if that fails, the next start compiles again."""
    style = path.name.partition("-")[0]
    with suppress(OSError, PluginError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in path.parent.glob(f"*{style}-*"):
            old.unlink(missing_ok=True)
        write_durably(path, data)


def _literal(path: Path | str) -> str:
    """Return a C string literal. Octal escapes have all three digits, so that a digit may follow them."""
    plain = re.compile(rb"[A-Za-z0-9_./-]")
    text = (bytes([byte]) for byte in os.fsencode(path))
    return '"' + "".join(byte.decode() if plain.match(byte) else f"\\{byte[0]:03o}" for byte in text) + '"'

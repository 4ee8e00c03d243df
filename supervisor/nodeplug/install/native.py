"""The entrypoints as compiled programs, for nodes where the start of an interpreter is too slow.

Owns: the host's C compiler, called once per style on `bin/nodeplug-entrypoint.c` with this node's paths in it.
Refuses: to write outside a temporary folder (see `nodeplug.install.files`), and to ship anything compiled.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from nodeplug.errors import NotFound, PluginError
from nodeplug.install.scripts import Scripts, find_scripts

SOURCE: Final = "nodeplug-entrypoint.c"
_OPTIONS: Final = ("-std=c11", "-O2", "-Wall", "-Wextra", "-s")
_TIMEOUT: Final = 120.0
_INSTEAD: Final = "without --native (native_entrypoints = false) the Python scripts do the same job"


def compiler() -> list[str]:
    """Return the command of the C compiler: `$CC`, else `cc`.

    Raises:
        NotFound: there is none.
    """
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(command[0]) is None:
        raise NotFound(
            f"the C compiler {command[0]!r} is not on PATH: install one (Debian: gcc and libc6-dev) or name it in CC; "
            f"{_INSTEAD}"
        )
    return command


def compile_scripts(*, socket: Path | str, spool: Path | str, source: Path | None = None) -> Scripts:
    """Compile both entrypoints for one daemon, ready to be written in the place of the scripts.

    Args:
        socket: the daemon's socket, as the callers (runtime, kubelet) see it.
        spool: the folder for deferred DELs, as they see it.
        source: the folder of the C program; found by itself when None.

    Raises:
        NotFound: there is no compiler, or no source.
        PluginError: the compiler failed; the message has its first words.
    """
    cni, flex = (compile_one(flex=flex, socket=socket, spool=spool, source=source) for flex in (False, True))
    return Scripts(cni, flex)


def compile_one(*, flex: bool, socket: Path | str, spool: Path | str, source: Path | None = None) -> bytes:
    """Compile the entrypoint of one style; arguments and errors as `compile_scripts` has them.

    The same source, paths and compiler give the same bytes. It is linked statically where the C library allows it: a
    dynamic start takes twice as long, and a static program needs nothing of the host it runs on.
    """
    program = (find_scripts() if source is None else source) / SOURCE
    if not program.is_file():
        raise NotFound(f"there is no {program}; reinstall nodeplug")
    command = [*compiler(), *_OPTIONS, f"-DFLEX={int(flex)}"]
    command += [f"-DSOCKET={_literal(socket)}", f"-DSPOOL={_literal(spool)}"]
    with tempfile.TemporaryDirectory(prefix="nodeplug-cc-") as folder:
        made = Path(folder) / "entrypoint"
        for linking in (["-static"], []):
            done = _run([*command, *linking, str(program), "-o", str(made)])
            if done.returncode == 0:
                return made.read_bytes()
    words = " ".join(done.stderr.split()[:60])
    raise PluginError(f"{shlex.join(command[:1])} cannot compile {program}: {words}; {_INSTEAD}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginError(f"the C compiler cannot be run: {error}; {_INSTEAD}") from error


def _literal(path: Path | str) -> str:
    """Write a C string literal; octal escapes have three digits, so that no digit after them belongs to them."""
    plain = re.compile(rb"[A-Za-z0-9_./-]")
    text = (bytes([byte]) for byte in os.fsencode(path))
    return '"' + "".join(byte.decode() if plain.match(byte) else f"\\{byte[0]:03o}" for byte in text) + '"'

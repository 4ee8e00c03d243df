"""The text of the entrypoint scripts, adapted to one node.

Owns: where the scripts of `bin/` are in a checkout and in an installation, the lines that differ from node to node
(interpreter, socket, spool), the code compiled ahead for their interpreter, and the first line that starts a compiled
program instead.
Refuses: to write files (see `nodeplug.install.files`), and to know what the scripts do. For the C version see
`nodeplug.install.native`.
"""

import hashlib
import json
import marshal
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Final, Self

from nodeplug.contract.errors import InvalidRequest, NotFound

CNI_SCRIPT: Final = "nodeplug-cni"
FLEX_SCRIPT: Final = "nodeplug-flex"
MARKER: Final = b"# Installed by nodeplug; `nodeplug uninstall` removes it."
"""The second line of each installed script, and a string in each compiled one: this makes a file ours."""
PROGRAM: Final = ".nodeplug."
"""Prefix of compiled programs; kubelet ignores names that begin with a dot."""
_SYSTEM_PYTHON: Final = Path("/usr/bin/python3")
_SHEBANG_LIMIT: Final = 240
_SHARE: Final = Path("share/nodeplug/bin")
_QUOTE: Final = "'''"
# From version 3 on, marshal writes references that depend on reference counts. With version 2 the same script gives the
# same bytes, so that a second installation changes nothing.
_MARSHAL_VERSION: Final = 2
_AHEAD: Final = """\
{head}
# The script, and the same as code for interpreters whose bytecode has this number: compiling it would cost each call
# about 0.8 ms. Any other interpreter, such as a newer one of this host, compiles the source.
SCRIPT = r'''
{source}'''
try:
    from _frozen_importlib_external import MAGIC_NUMBER

    if MAGIC_NUMBER == {magic!r}:
        import marshal

        SCRIPT = marshal.loads(bytes.fromhex('{code}'))
except BaseException:
    pass
exec(SCRIPT)
"""


@dataclass(frozen=True, slots=True)
class Scripts:
    """The two entrypoints, ready to be written.

    Attributes:
        cni: the script of every CNI claim.
        flex: the script of every volume claim.
        cni_program: the compiled version of `cni`, started instead of an interpreter; may be empty.
        flex_program: the same for `flex`.
    """

    cni: bytes
    flex: bytes
    cni_program: bytes = b""
    flex_program: bytes = b""

    @classmethod
    def render(cls, *, socket: Path | str, spool: Path | str, source: Path | None = None) -> Self:
        """Read both scripts and point them at one daemon.

        Args:
            socket: the daemon's socket, as the callers (runtime, kubelet) see it.
            spool: the folder for deferred DELs, as they see it.
            source: the folder of the scripts; searched for if None.

        Raises:
            NotFound: the scripts are missing from this installation.
            InvalidRequest: a script or a path cannot be used.
        """
        folder = find_scripts() if source is None else source
        texts = [_read(folder / name) for name in (CNI_SCRIPT, FLEX_SCRIPT)]
        plain = (
            render(text, interpreter=default_interpreter(), socket=str(socket), spool=str(spool)) for text in texts
        )
        return cls(*map(compiled_ahead, plain))


def default_interpreter() -> Path:
    """Return the system's Python, or the one behind this process's virtual environment.

    The scripts use only C modules, so any Python 3 works; the system's own outlives a rebuilt environment.
    """
    return _SYSTEM_PYTHON if os.access(_SYSTEM_PYTHON, os.X_OK) else Path(sys.executable).resolve()


def find_scripts() -> Path:
    """Return the folder of both scripts: in the checkout, or in the installed distribution."""
    looked = list(dict.fromkeys(_candidates()))
    for folder in looked:
        if (folder / CNI_SCRIPT).is_file() and (folder / FLEX_SCRIPT).is_file():
            return folder
    places = ", ".join(map(str, looked))
    raise NotFound(f"the scripts {CNI_SCRIPT} and {FLEX_SCRIPT} are in none of {places}; reinstall nodeplug")


def _candidates() -> Iterator[Path]:
    source_root = Path(__file__).resolve().parents[2]
    if source_root.name == "supervisor":
        yield source_root.parent / "bin"
    try:
        files = distribution("nodeplug").files or []
    except PackageNotFoundError:
        files = []
    # The distribution's RECORD is right for every pip scheme except --target, which moves folders afterwards.
    yield from (Path(str(file.locate())).resolve().parent for file in files if file.match(f"*/{_SHARE}/{CNI_SCRIPT}"))
    yield Path(sysconfig.get_path("data")) / _SHARE
    yield Path(sys.prefix) / _SHARE
    yield source_root / _SHARE


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"there is no script {path}; reinstall nodeplug") from None


def render(text: str, *, interpreter: Path, socket: str, spool: str) -> bytes:
    """Return a script with the shebang, SOCKET and SPOOL lines rewritten and the marker as its second line.

    Raises:
        InvalidRequest: a line is missing, or a path does not fit: the kernel cuts a shebang at its first blank and at
            255 bytes (execve(2)).
    """
    shebang, newline, body = text.partition("\n")
    if not shebang.startswith("#!") or not newline:
        raise InvalidRequest("the script does not begin with an interpreter line; reinstall nodeplug")
    line = _shebang(interpreter, " -IS")
    body = _set(body, "SOCKET", socket)
    if re.search(r"^SPOOL = ", body, re.MULTILINE):
        body = _set(body, "SPOOL", spool)
    return b"\n".join((line, MARKER, body.encode()))


def _set(body: str, name: str, value: str) -> str:
    # JSON's escapes are valid in Python too, as long as non-ASCII characters are left as they are.
    try:
        literal = json.dumps(value, ensure_ascii=False)
        literal.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"the path {value!r} is not UTF-8; choose another for {name}") from None
    replaced, count = re.subn(
        rf'^{name} = (b?)"[^"\n]*"', lambda found: f"{name} = {found[1]}{literal}", body, flags=re.MULTILINE
    )
    if count != 1:
        raise InvalidRequest(f"the script has {count} lines `{name} = ...`, expected one; reinstall nodeplug")
    return replaced


def compiled_ahead(script: bytes) -> bytes:
    """Return a rendered script with its bytecode, which is run if the interpreter can load it.

    The bytecode is that of this process's Python; any other compiles the source. A script that cannot stand in a raw
    string, because of an odd path, is returned unchanged.
    """
    text = os.fsdecode(script)
    shebang, marker, source = text.split("\n", 2)
    if _QUOTE in text or "\r" in text:
        return script
    code = compile(source, "nodeplug", "exec", dont_inherit=True, optimize=2)
    # Hexadecimal digits are the fastest to read back: half the length of a bytes literal's escapes.
    digits = marshal.dumps(code, _MARSHAL_VERSION).hex()
    return os.fsencode(_AHEAD.format(head=f"{shebang}\n{marker}", source=source, magic=MAGIC_NUMBER, code=digits))


def program_name(program: bytes) -> str:
    """Return a hidden file name for a compiled program, derived from its bytes."""
    return f"{PROGRAM}{hashlib.sha256(program).hexdigest()[:12]}"


def led_by(script: bytes, program: Path) -> bytes:
    """Return a script whose first line makes the kernel start a compiled program (execve(2)).

    The rest stays Python. The kernel passes only the *path* of a script to Python, which opens it milliseconds later:
    by then the file must still be Python, or a call that began before the exchange would fail.
    """
    return _shebang(program, "") + b"\n" + script.partition(b"\n")[2]


def leader(script: bytes) -> Path:
    """Return the program that the first line names: Python, or a compiled one."""
    words = script.partition(b"\n")[0].removeprefix(b"#!").split()
    return Path(os.fsdecode(words[0] if words else b""))


def _shebang(interpreter: Path, options: str) -> bytes:
    line = os.fsencode(f"#!{interpreter}{options}")
    if re.search(r"\s", str(interpreter)) or len(line) > _SHEBANG_LIMIT:
        raise InvalidRequest(
            f"{str(interpreter)!r} cannot be the interpreter: its path has blanks or is too long; use a symlink to it"
        )
    return line


def is_ours(data: bytes) -> bool:
    """Whether these bytes are an entrypoint that nodeplug installed, script or compiled."""
    return data.split(b"\n", 2)[1:2] == [MARKER] or (data.startswith(b"\x7fELF") and MARKER in data)
